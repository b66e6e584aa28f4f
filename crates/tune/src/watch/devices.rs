//! Applies what belongs to a network device that comes later: a virtual function created or bound to a driver, an
//! interface renamed, set up, or with another number of queues, CPUs or memory that appeared.
//!
//! Interfaces that are down, or have no link yet, are left until they are up, as most drivers request their interrupts
//! only then.
//!
//! Input: the host after a kernel event. Output: the planners' changes for the interfaces that are new or different since
//! the last look: their interrupts and the steering of their queues, recorded in the journal like all changes. Once it is
//! proved that the interface is gone, its changes are dropped from the journal: there is nothing left to undo.

use crate::files::is_device;
use crate::planners::{Request, System, plan};
use crate::{Executor, Journal, Live, TuneError, change_status};
use nearpath_host::{Entry as DirEntry, Root, Wanted, current_netns, has_interface};
use nearpath_model::{ChangeState, Entry, Goal, Host, InterfaceOf, Notice, Noticed, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `IFF_UP` of include/uapi/linux/if.h.
const IFF_UP: u32 = 1;
/// When the rest of the host is read again, while nothing happens.
const RENEW: Duration = Duration::from_secs(600);
/// How the reason of such a change begins, so that it is recognized in the journal, also by a later watch.
const NEW: &str = "new device ";

/// Watches for devices.
pub struct DeviceWatch {
    folder: PathBuf,
    boot: String,
    /// The interfaces at the last look; `None` before the first.
    known: Option<BTreeMap<String, Seen>>,
    /// Those that are new or different, and carry no packets yet: they have their turn when they do.
    waiting: BTreeSet<String>,
    /// The whole host, and when it was read: of a new device only what it brings with it is read.
    host: Option<(Host, Instant)>,
}

/// What of an interface decides about its settings: few files, as they are read at each event.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    name: String,
    driver: Option<String>,
    /// Whether it is set up: many drivers request their interrupts only then.
    is_up: bool,
    queues: BTreeSet<String>,
    irqs: BTreeSet<String>,
    /// CPUs and nodes: hot-plug changes what is near.
    online: Option<String>,
    nodes: Option<String>,
}

impl DeviceWatch {
    /// Watches with the journal in a directory. The interfaces of the first look are not new.
    pub fn new(folder: PathBuf, boot: String) -> Self {
        Self { folder, boot, known: None, waiting: BTreeSet::new(), host: None }
    }

    /// Looks once, and applies what belongs to new or different devices.
    ///
    /// # Errors
    /// The host or the journal cannot be read, or the journal is locked.
    pub fn look(&mut self, root: &Root) -> Result<Vec<Notice>, TuneError> {
        let now = seen(root)?;
        let Some(known) = &self.known else {
            self.known = Some(now);
            self.read_host(root)?;
            return Ok(Vec::new());
        };
        let before = |index: &String| known.get(index);
        let is_new = |(index, its): &(&String, &Seen)| before(index) != Some(*its);
        // Hot-plug changes what is near to all of them.
        let is_moved = now.iter().any(|(index, its)| {
            before(index).is_some_and(|was| (&was.online, &was.nodes) != (&its.online, &its.nodes))
        });
        let changed = now.iter().filter(|its| is_new(its) || self.waiting.contains(its.0));
        let (ready, waiting): (Vec<_>, Vec<_>) =
            changed.partition(|(_, its)| its.is_up && carries_packets(root, &its.name));
        // Also those that wait: a driver that creates its interrupts again gives their numbers to others.
        let to_read: Vec<String> =
            ready.iter().chain(&waiting).map(|(_, its)| its.name.clone()).collect();
        let waiting: BTreeSet<String> =
            waiting.into_iter().map(|(index, _)| index.clone()).collect();
        let names: Vec<String> = ready.into_iter().map(|(_, its)| its.name.clone()).collect();
        let is_old = self.host.as_ref().is_none_or(|(_, read)| read.elapsed() > RENEW);
        if is_moved || (is_old && to_read.is_empty()) {
            self.read_host(root)?;
        }
        let notices = match &mut self.host {
            Some((host, _)) if !to_read.is_empty() => {
                *host = nearpath_host::read_interfaces(root, host, &to_read);
                let host = host.clone();
                if names.is_empty() { Vec::new() } else { self.apply(root, &host, &names)? }
            }
            _ => Vec::new(),
        };
        // Only now: an interface whose settings could not be applied for a lock is tried again.
        (self.known, self.waiting) = (Some(now), waiting);
        Ok(notices)
    }

    fn read_host(&mut self, root: &Root) -> Result<(), TuneError> {
        let host = nearpath_host::read(root, &Wanted::default())?;
        self.host = Some((host, Instant::now()));
        Ok(())
    }

    /// Drops the changes of devices that no longer exist from the journal.
    ///
    /// # Errors
    /// The journal cannot be read, or is locked.
    pub fn drop_gone(&self, root: &Root) -> Result<Vec<Notice>, TuneError> {
        let interfaces = root.list("/sys/class/net")?;
        let entries = Journal::read(&self.folder)?;
        let gone = |entry: &Entry| {
            entry.change.why.starts_with(NEW) && is_gone(root, &interfaces, &entry.change.target)
        };
        if !entries.iter().any(gone) {
            return Ok(Vec::new());
        }
        let mut executor = Executor::new(Journal::open(&self.folder, &self.boot)?, Live::new());
        let live = Live::new();
        let mut notices = Vec::new();
        for status in change_status(&executor.entries(), &live, &self.boot) {
            if status.state == Some(ChangeState::Lost) && gone(&status.entry) {
                executor.forget(&status.entry)?;
                let reason = status.reason.unwrap_or_default();
                notices.push(Notice {
                    id: status.entry.id,
                    target: status.entry.change.target.to_string(),
                    what: Noticed::Dropped(reason),
                });
            }
        }
        Ok(notices)
    }

    /// Applies the settings of new interfaces.
    fn apply(&self, root: &Root, host: &Host, names: &[String]) -> Result<Vec<Notice>, TuneError> {
        let mut notices = Vec::new();
        let findings = nearpath_diagnose::diagnose(host, None, None).findings;
        let netns = current_netns(root).inode;
        let system = System::read(root, &[], &[]);
        let mut executor = None;
        // One by one: what is refused of one must not keep the others from theirs.
        for name in names {
            let (goal, nics) = (Goal::Latency, vec![name.clone()]);
            let request = Request { goal, nics, system: system.clone(), ..Request::default() };
            let boot = Some(self.boot.clone());
            let steps = plan(host, &findings, &request, &[], boot, netns).and_then(|plan| {
                let refused = |error| TuneError::Refused(format!("{error}"));
                plan.steps(&[], &self.boot, netns).map_err(refused)
            });
            let steps = match steps {
                Ok(steps) => steps,
                Err(error) => {
                    let what = Noticed::Failed(error.to_string());
                    notices.push(Notice { id: 0, target: name.clone(), what });
                    continue;
                }
            };
            let Some(nic) = host.nics.iter().find(|nic| nic.name == *name) else { continue };
            let device = nic.bus.as_deref().unwrap_or(name);
            let driver = nic.driver.as_deref().unwrap_or("unknown");
            for mut step in steps {
                if step.change.target.interface_of().is_none_or(|nic| nic.name != name) {
                    continue;
                }
                step.change.why = format!("{NEW}{device} ({driver}): {}", step.change.why);
                let target = step.change.target.to_string();
                let after = step.change.after.to_string();
                if executor.is_none() {
                    let journal = Journal::open(&self.folder, &self.boot)?;
                    executor = Some(Executor::new(journal, Live::new()));
                }
                let Some(executor) = &mut executor else { continue };
                let what = match executor.apply_steps(vec![step]) {
                    Ok(outcome) if outcome.made.is_empty() => continue,
                    Ok(_) => Noticed::Applied { device: device.to_owned(), after },
                    Err(error) => Noticed::Failed(error.to_string()),
                };
                let id = executor.entries().last().map_or(0, |entry| entry.id);
                drop_older(executor, &Live::new(), id)?;
                notices.push(Notice { id, target, what });
            }
        }
        Ok(notices)
    }
}

/// Drops earlier changes of this watch of the same setting, if they were made to interrupts or queues that the driver has
/// created again since, as igb does with those of the physical function when virtual ones come. An earlier change of the
/// same interrupt or queue stays: it has the original value.
fn drop_older(executor: &mut Executor<Live>, live: &Live, id: u64) -> Result<(), TuneError> {
    let entries = executor.entries();
    let Some(new) = entries.iter().find(|entry| entry.id == id) else { return Ok(()) };
    let is_older = |entry: &&Entry| {
        entry.id != id
            && entry.change.why.starts_with(NEW)
            && live.follow(&entry.change.target).is_ok_and(|its| {
                its.is_some_and(|its| {
                    its.same_place(&new.change.target) && its.is_re_created(&new.change.target)
                })
            })
    };
    entries.iter().filter(is_older).try_for_each(|older| executor.forget(older))
}

/// Whether it is proved that an interface is in no network namespace, as far as that is not the state of its changes.
fn is_gone(root: &Root, interfaces: &[DirEntry], target: &Target) -> bool {
    let mut target = target.clone();
    let Some(InterfaceOf { name, netns, id }) = target.interface_of() else { return false };
    match &id.device {
        Some(device) => is_device(device) && has_interface(root, device).is_ok_and(|has| !has),
        // Of an older journal. The interrupts of an interface may be those of one in another namespace.
        None => {
            netns.is_some()
                && id.instance.is_some()
                && interfaces.iter().all(|its| its.name != *name)
        }
    }
}

/// Whether its link is up, or it does not say: nothing is planned for one that is down. A link that comes and goes later is
/// no other interface.
fn carries_packets(root: &Root, name: &str) -> bool {
    root.text(&format!("/sys/class/net/{name}/operstate")).is_ok_and(|state| state != "down")
}

/// The interfaces with a device and interrupts of their own, by index.
fn seen(root: &Root) -> Result<BTreeMap<String, Seen>, TuneError> {
    let names = |folder: String| -> BTreeSet<String> {
        root.list(&folder).unwrap_or_default().into_iter().map(|entry| entry.name).collect()
    };
    let online = root.text("/sys/devices/system/cpu/online").ok();
    let nodes = root.text("/sys/devices/system/node/has_memory").ok();
    let one = |name: String| {
        let folder = format!("/sys/class/net/{name}");
        let index = root.text(&format!("{folder}/ifindex")).ok()?;
        // A virtio device is below its PCI function, which has the interrupts.
        let device = root.resolve(&format!("{folder}/device")).ok()?;
        let irqs = match names(format!("{device}/msi_irqs")) {
            irqs if irqs.is_empty() => names(format!("{device}/../msi_irqs")),
            irqs => irqs,
        };
        let flags = root.text(&format!("{folder}/flags")).unwrap_or_default();
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or_default();
        let driver = root.link(&format!("{device}/driver")).ok();
        let its = Seen {
            driver,
            is_up: flags & IFF_UP != 0,
            queues: names(format!("{folder}/queues")),
            irqs,
            online: online.clone(),
            nodes: nodes.clone(),
            name,
        };
        Some((index, its))
    };
    let interfaces = root.list("/sys/class/net")?;
    Ok(interfaces.into_iter().filter_map(|entry| one(entry.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{Change, FileOf, InterfaceId, IrqNumber, NicIrq, SettingFile};
    use nearpath_testing::trees::{Layout, Machine, Nic as TreeNic};
    use std::fs;
    use std::path::Path;

    /// Makes changes of these targets by a watch, as far as the journal knows.
    fn record(folder: &Path, targets: impl IntoIterator<Item = Target>) {
        let mut journal = Journal::open(folder, "boot").unwrap();
        for target in targets {
            let why = format!("{NEW}0000:5e:10.0 (igbvf): a test");
            let persistence = target.persistence();
            let (before, after, snapshot) = ("0".into(), "1".into(), Vec::new());
            let change = Change { target, before, after, why, persistence, snapshot };
            let id = journal.begin(&change, None).unwrap();
            journal.done(id).unwrap();
        }
    }

    #[test]
    fn an_earlier_change_leaves_the_journal_when_its_queue_was_re_created() {
        let journal = tempfile::tempdir().unwrap();
        let target = |instance| {
            let of = FileOf::parse("/sys/class/net/vf0/queues/rx-0/rps_cpus").unwrap();
            Target::from(SettingFile { instance, ..of.into() })
        };
        // The second and the last of the same queue: only the first of both has its original value.
        record(journal.path(), [Some(1), Some(2), None, Some(2)].map(target));
        let opened = Journal::open(journal.path(), "boot").unwrap();
        let mut executor = Executor::new(opened, Live::new());
        drop_older(&mut executor, &Live::new(), 4).unwrap();
        let left: Vec<u64> = executor.entries().iter().map(|entry| entry.id).collect();
        assert_eq!(left, [2, 3, 4]);
    }

    #[test]
    fn changes_leave_the_journal_when_their_device_has_no_interface_in_any_namespace() {
        let tree = tempfile::tempdir().unwrap();
        let make = |path: &str| fs::create_dir_all(tree.path().join(path)).unwrap();
        make("sys/class/net");
        let root = Root::tree(tree.path()).unwrap();
        let journal = tempfile::tempdir().unwrap();
        let folder = journal.path().to_owned();
        // None that this machine has: there they are lost.
        let device = "/sys/devices/pci0000:5d/0000:5e:10.0";
        let target = |mut target: Target, device: Option<&str>| {
            let nic = target.interface_of().unwrap();
            *nic.id = InterfaceId { instance: Some(1), device: device.map(str::to_owned) };
            target
        };
        let here = current_netns(&Root::live()).inode;
        let parsed = |text: &str| Target::parse(text, here).unwrap();
        let irq = |number| {
            let interrupt = NicIrq { nic: "vf0".to_owned(), name: "vf0-TxRx-0".to_owned() };
            let of = FileOf::Irq(IrqNumber(number));
            Target::from(SettingFile { interrupt: Some(interrupt), ..of.into() })
        };
        let targets = [
            target(parsed("/sys/class/net/vf0/queues/rx-0/rps_cpus"), Some(device)),
            target(parsed("ethtool vf0 rings"), Some(device)),
            target(irq(999_998), Some(device)),
            // Of an older journal: nothing proves that the interface is in no namespace.
            irq(999_999),
        ];
        record(&folder, targets);
        let watch = DeviceWatch::new(folder.clone(), "boot".to_owned());
        let left = || Journal::read(&folder).unwrap().len();
        // In the namespace of a pod.
        make("sys/devices/pci0000:5d/0000:5e:10.0/net");
        assert_eq!((watch.drop_gone(&root).unwrap(), left()), (vec![], 4));
        // Here with another name.
        make("sys/class/net/wan0");
        assert_eq!((watch.drop_gone(&root).unwrap(), left()), (vec![], 4));
        // Bound to vfio-pci.
        fs::remove_dir(tree.path().join("sys/devices/pci0000:5d/0000:5e:10.0/net")).unwrap();
        let dropped = watch.drop_gone(&root).unwrap();
        assert!(dropped.iter().all(|notice| matches!(notice.what, Noticed::Dropped(_))));
        assert_eq!((dropped.len(), left()), (3, 1));
    }

    #[test]
    fn an_interface_is_new_when_something_of_it_changes() {
        let host = |nic: TreeNic| {
            let layout = Layout { packages: 2, nodes: 1, llcs: 1, cores: 2, threads: 1 };
            let machine = Machine::regular(layout).nic(TreeNic::software("veth0")).nic(nic);
            let tree = machine.write();
            seen(&Root::tree(tree.path()).unwrap()).unwrap()
        };
        let nic = || TreeNic::pci("eth0", "igb", "0000:5e:00.0");
        let one = host(nic());
        assert_eq!(one.len(), 1, "not the software interfaces: {one:?}");
        assert_eq!(host(nic()), one);
        assert_ne!(host(TreeNic { name: "ens1".to_owned(), ..nic() }), one);
        assert_ne!(host(TreeNic { driver: "igbvf".to_owned(), ..nic() }), one);
        let mut more = nic();
        more.queues.push(Default::default());
        assert_ne!(host(more), one);
    }
}
