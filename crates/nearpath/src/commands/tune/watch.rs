//! `nearpath tune watch`: makes again what hot-plug, a reset of an interface or a reload of a driver
//! has lost, and says so, until it is told to end.

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
It looks when the kernel tells that an interface or a queue comes, goes or changes, and at each
interval. What is lost is written into the journal and made as by 'nearpath tune apply': on the new
interface or queue of that name, and on the interrupt that has the same interface and handler now,
whatever its number. What somebody else has set is reported, and left alone. It ends with SIGTERM
or Ctrl-C; what it made stays. It takes root.

EXAMPLES
  nearpath tune watch
  nearpath tune watch --once         look once; exit status 1 when something could not be made again
  nearpath tune watch --json --interval 1m";

/// Arguments of `tune watch`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Watch {
    /// Look at least so often
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = interval)]
    interval: Duration,
    /// Look once and end
    #[arg(long)]
    once: bool,
    /// Print one JSON document a line
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
        // Before the first look, so that nothing is missed after it.
        let events = Events::listen().context("cannot listen to the kernel's messages of links")?;
        let mut watch =
            Watching::new(Journal::folder(), steering::boot(root).map_err(anyhow::Error::from)?);
        if self.once {
            let notices = watch.look(root).map_err(anyhow::Error::from)?;
            self.show(&notices)?;
            let failed = notices.iter().filter(|n| matches!(n.what, Noticed::Failed(_))).count();
            return match failed {
                0 => Ok(()),
                _ => Err(anyhow!("{failed} changes could not be made again").into()),
            };
        }
        say(&format!(
            "watching over what the journal in {} has; Ctrl-C ends it",
            Journal::folder().display()
        ));
        let mut trouble = None;
        while !interrupt.happened() {
            // A journal that cannot be opened now, as when another nearpath changes the host, is
            // tried again.
            let now = match watch.look(root) {
                Ok(notices) => self.show(&notices).map(|()| None)?,
                Err(error) => Some(error.to_string()),
            };
            if now != trouble {
                now.iter().for_each(|said| say(said));
                trouble = now;
            }
            let wait = if trouble.is_some() { AGAIN.min(self.interval) } else { self.interval };
            events
                .wait(interrupt.as_fd(), wait)
                .context("cannot wait for what the kernel tells")?;
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

/// When a journal that could not be opened is tried again.
const AGAIN: Duration = Duration::from_secs(1);
