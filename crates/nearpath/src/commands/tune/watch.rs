//! `nearpath tune watch`: re-applies changes lost by hot-plug, interface resets or driver reloads, and reports
//! each, until a signal arrives.

use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::source::Namespace;
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_host::Root;
use nearpath_model::{Notice, Noticed, units};
use nearpath_tune::planners::Hugepages;
use nearpath_tune::{
    DeviceWatch, Events, HugepagesWatch, Journal, MemoryWatch, TuneError, Watch as Watching,
    steering,
};
use nearpath_views::{json, text};
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const AFTER_HELP: &str = "\
Checks the changes in the journal whenever the kernel reports that an interface or queue was added,
removed or changed, and at each interval. Lost changes are re-applied as by 'nearpath tune apply':
to the new interface or queue with the same name, and to the interrupt with the same interface and
handler, whatever its number. Values that were changed externally are reported and skipped. SIGTERM
or Ctrl-C stops it; the changes stay. Requires root.

EXAMPLES
  nearpath tune watch
  nearpath tune watch --once         check once; exit status 1 if a change cannot be re-applied
  nearpath tune watch --memory 50MB   also move memory back to the node of its process
  nearpath tune watch --new-devices   also place interrupts and queues of new virtual functions
  nearpath tune watch --new-devices --hugepages 2M:512
  nearpath tune watch --json --interval 1m";

/// Arguments of `tune watch`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Watch {
    /// Check at least this often
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = interval)]
    interval: Duration,
    /// Also move memory of a process that drifts away from the node its threads are bound to, if it
    /// is more than this, e.g. 50MB; not if a device may write to it
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    memory: Option<u64>,
    /// Also apply the settings of interfaces that appear or change: virtual functions, renamed
    /// interfaces, other numbers of queues; they leave the journal with their interface
    #[arg(long, conflicts_with = "once")]
    new_devices: bool,
    /// Also keep this many hugepages on the node of each virtual function, or function bound to
    /// vfio-pci or uio, that appears; undone with the last one of the node; repeatable
    #[arg(long, value_name = "SIZE:COUNT", requires = "new_devices", value_parser = hugepages)]
    hugepages: Vec<Hugepages>,
    /// Check once and exit
    #[arg(long)]
    once: bool,
    /// Print one JSON document per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
}

/// `2M:512`: of a node that is not known yet.
fn hugepages(text: &str) -> Result<Hugepages, String> {
    match text.matches(':').count() {
        1 => text.parse(),
        _ => Err("expected SIZE:COUNT, e.g. 2M:512".to_owned()),
    }
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
        let boot = steering::boot(root).map_err(anyhow::Error::from)?;
        let mut watch = Watching::new(Journal::folder(), boot.clone());
        let memory = |limit| MemoryWatch::new(limit, Journal::folder(), boot.clone());
        let mut memory = self.memory.map(memory);
        if self.once {
            let notices = watch.look(root).map_err(anyhow::Error::from)?;
            self.show(&notices)?;
            self.look_at_memory(root, &mut memory)?.map_err(anyhow::Error::from)?;
            let failed = notices.iter().filter(|n| matches!(n.what, Noticed::Failed(_))).count();
            return match failed {
                0 => Ok(()),
                _ => Err(anyhow!("{failed} changes could not be re-applied").into()),
            };
        }
        let mut devices = match self.new_devices {
            true => Some(Devices::begin(root, &boot, &self.hugepages)?),
            false => None,
        };
        say(&format!(
            "watching the changes of the journal in {}; Ctrl-C stops",
            Journal::folder().display()
        ));
        let mut trouble = None;
        let mut memory_due = Instant::now();
        while !interrupt.happened() {
            // A journal that cannot be opened now, for instance because another nearpath holds it,
            // is retried.
            let mut now = match look(root, &mut watch, &mut devices, &events, interrupt) {
                Ok(notices) => self.show(&notices).map(|()| None)?,
                Err(error) => Some(error.to_string()),
            };
            // Not at each event: the kernel walks page tables for it.
            if Instant::now() >= memory_due {
                if let Err(error) = self.look_at_memory(root, &mut memory)? {
                    now = Some(error.to_string());
                }
                memory_due = Instant::now() + self.interval;
            }
            if now != trouble {
                now.iter().for_each(|said| say(said));
                trouble = now;
            }
            let wait = if trouble.is_some() { AGAIN.min(self.interval) } else { self.interval };
            events.wait(interrupt.as_fd(), wait).context("cannot wait for kernel events")?;
        }
        Ok(())
    }

    /// Moves memory; the inner error is that of the journal, and not final.
    fn look_at_memory(
        &self,
        root: &Root,
        memory: &mut Option<MemoryWatch>,
    ) -> Result<Result<(), TuneError>, Failure> {
        let Some(memory) = memory else { return Ok(Ok(())) };
        let all = match memory.look(root) {
            Ok(all) => all,
            Err(error) => return Ok(Err(error)),
        };
        for moved in all {
            let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            if self.json {
                output::json_line(&json::memory_moved(&moved, now_s))?;
            } else {
                output::text(&text::memory_moved(&moved, now_s))?;
            }
        }
        Ok(Ok(()))
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

/// The watches for devices.
struct Devices {
    interfaces: DeviceWatch,
    hugepages: Option<HugepagesWatch>,
}

impl Devices {
    /// Those that are there now are not new.
    fn begin(root: &Root, boot: &str, wanted: &[Hugepages]) -> Result<Self, Failure> {
        let folder = Journal::folder;
        let hugepages = match wanted {
            [] => None,
            _ => {
                let watch = HugepagesWatch::new(folder(), boot.to_owned(), wanted);
                Some(watch.map_err(Failure::Usage)?)
            }
        };
        let mut devices =
            Self { interfaces: DeviceWatch::new(folder(), boot.to_owned()), hugepages };
        devices.look(root).map_err(anyhow::Error::from)?;
        Ok(devices)
    }

    fn look(&mut self, root: &Root) -> Result<Vec<Notice>, TuneError> {
        let mut notices = self.interfaces.look(root)?;
        if let Some(hugepages) = &mut self.hugepages {
            notices.extend(hugepages.look(root)?);
        }
        Ok(notices)
    }
}

/// New devices get their settings, changes of those that are gone leave the journal, and lost ones are re-applied.
fn look(
    root: &Root,
    watch: &mut Watching,
    devices: &mut Option<Devices>,
    events: &Events,
    interrupt: &Interrupt,
) -> Result<Vec<Notice>, TuneError> {
    let Some(devices) = devices else { return watch.look(root) };
    let mut notices = devices.look(root)?;
    // Settings first: nobody waits for the rest.
    for _ in 0..MOST_DEVICES {
        if !events.wait(interrupt.as_fd(), Duration::ZERO).unwrap_or(false) {
            break;
        }
        notices.extend(devices.look(root)?);
    }
    notices.extend(devices.interfaces.drop_gone(root)?);
    notices.extend(watch.look(root)?);
    Ok(notices)
}

/// Maximum number of events in a row whose devices come before lost changes.
const MOST_DEVICES: usize = 16;
/// Delay before a journal that could not be opened is retried.
const AGAIN: Duration = Duration::from_secs(1);
