//! The daemon's threads, each noted if it ends before the daemon does, by a panic or an error: it is not healthy then, and
//! its service manager starts it again.

use super::instruments::Context;
use std::io;
use std::thread::{Builder, Scope};

/// Stack of a thread.
const STACK: usize = 2 * 1024 * 1024;

/// Starts a thread that runs until the daemon's end.
///
/// # Errors
/// The system refuses it.
pub fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    context: Context<'scope>,
    name: &'static str,
    run: impl FnOnce() + Send + 'scope,
) -> io::Result<()> {
    let thread = Builder::new().name(name.to_owned()).stack_size(STACK);
    thread.spawn_scoped(scope, move || {
        let _noted = Noted { context, name };
        run();
    })?;
    Ok(())
}

struct Noted<'a> {
    context: Context<'a>,
    name: &'static str,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if !self.context.stop.is_set() {
            self.context.monitored.thread_ended(self.name);
            (self.context.say)(&format!("the thread '{}' has ended", self.name));
        }
    }
}
