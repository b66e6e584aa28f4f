//! Waiting for what another process or the kernel does in its own time.

use std::time::{Duration, Instant};

/// How long a test waits before it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Looks again and again until there is something.
///
/// # Panics
/// After [`PATIENCE`] without it.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a trial of nearpath with short blocks (`100ms`), and with blocks twice as long each time that it
/// says that too few packets came in one: how many do is a matter of the machine.
///
/// `run` returns what came out, or what the trial said when it failed.
///
/// # Panics
/// When it says anything else, or the longest are too short.
pub fn with_blocks_long_enough<T>(run: impl Fn(&str) -> Result<T, String>) -> T {
    for doubled in 0..8 {
        match run(&format!("{}ms", 100 << doubled)) {
            Ok(came) => return came,
            Err(said) => assert!(said.contains("try a longer --block"), "{said}"),
        }
    }
    panic!("with blocks of 12.8 s there are too few packets");
}
