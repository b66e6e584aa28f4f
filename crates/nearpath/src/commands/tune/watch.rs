//! `nearpath tune watch`: re-applies changes lost by hot-plug, interface resets or driver reloads, and reports
//! each, until a signal arrives.

use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::source::Namespace;
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_host::Root;
use nearpath_model::{Notice, Noticed};
use nearpath_tune::{Events, Journal, Watch as Watching, steering};
use nearpath_views::{json, text};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const AFTER_HELP: &str = "\
Checks the changes in the journal whenever the kernel reports that an interface or queue was added,
removed or changed, and at each interval. Lost changes are re-applied as by 'nearpath tune apply':
to the new interface or queue with the same name, and to the interrupt with the same interface and
handler, whatever its number. Values that were changed externally are reported and skipped. SIGTERM
or Ctrl-C stops it; the changes stay. Requires root.

EXAMPLES
  nearpath tune watch
  nearpath tune watch --once         check once; exit status 1 if a change cannot be re-applied
  nearpath tune watch --json --interval 1m";

/// Arguments of `tune watch`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Watch {
    /// Check at least this often
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = interval)]
    interval: Duration,
    /// Check once and exit
    #[arg(long)]
    once: bool,
    /// Print one JSON document per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
}

fn interval(text: &str) -> Result<Duration, String> {
    match crate::session::span(text) {
        Ok(time) if time < Duration::from_millis(100) => Err("less than 100ms".to_owned()),
        Ok(time) if time > Duration::from_secs(24 * 3600) => Err("more than a day".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

impl Watch {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        self.namespace.read(|root| Ok(self.watch(root, &interrupt)))?
    }

    fn watch(&self, root: &Root, interrupt: &Interrupt) -> Result<(), Failure> {
        // Before the first check, so that no event is missed.
        let events = Events::listen().context("cannot subscribe to the kernel's link events")?;
        let mut watch =
            Watching::new(Journal::folder(), steering::boot(root).map_err(anyhow::Error::from)?);
        if self.once {
            let notices = watch.look(root).map_err(anyhow::Error::from)?;
            self.show(&notices)?;
            let failed = notices.iter().filter(|n| matches!(n.what, Noticed::Failed(_))).count();
            return match failed {
                0 => Ok(()),
                _ => Err(anyhow!("{failed} changes could not be re-applied").into()),
            };
        }
        say(&format!(
            "watching the changes of the journal in {}; Ctrl-C stops",
            Journal::folder().display()
        ));
        let mut trouble = None;
        while !interrupt.happened() {
            // A journal that cannot be opened now, for instance because another nearpath holds it,
            // is retried.
            let now = match watch.look(root) {
                Ok(notices) => self.show(&notices).map(|()| None)?,
                Err(error) => Some(error.to_string()),
            };
            if now != trouble {
                now.iter().for_each(|said| say(said));
                trouble = now;
            }
            let wait = if trouble.is_some() { AGAIN.min(self.interval) } else { self.interval };
            events.wait(interrupt.as_fd(), wait).context("cannot wait for kernel events")?;
        }
        Ok(())
    }

    fn show(&self, notices: &[Notice]) -> Result<(), Failure> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for notice in notices {
            if self.json {
                output::json_line(&json::watched(notice, now_s))?;
            } else {
                output::text(&text::watched(notice, now_s))?;
            }
        }
        Ok(())
    }
}

/// Delay before a journal that could not be opened is retried.
const AGAIN: Duration = Duration::from_secs(1);
