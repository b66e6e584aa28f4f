//! What the kernel and drivers make of CPU masks when a CPU goes offline or comes online. That is not a deliberate
//! choice.
//!
//! An interrupt or thread whose last CPU goes offline is moved to all remaining CPUs, and is not moved back when the
//! CPU comes online again. Without interrupt remapping a new affinity of an interrupt is pending until the interrupt
//! next fires. Where its last CPU goes offline before, the kernel drops it, and the interrupt keeps the affinity that
//! it was requested with. Some drivers (virtio_net) set the interrupts and XPS of all their queues on each change of
//! CPUs. RPS and XPS keep offline CPUs, but a mask that is written loses them.
//!
//! Rules: `migrate_one_irq` of kernel/irq/cpuhotplug.c (the online CPUs), `irq_fixup_move_pending` of
//! kernel/irq/migration.c (a pending move), `irq_setup_affinity` of kernel/irq/manage.c (the affinity of a
//! request), `select_fallback_rq` of kernel/sched/core.c (the cpuset's, else all possible CPUs),
//! `virtnet_set_affinity` of drivers/net/virtio_net.c (interrupts, their hints, and XPS), `rps_cpumask_housekeeping`
//! and `__netif_set_xps_queue` of net/core (the online CPUs of a mask).

use nearpath_host::{Root, locate_irq};
use nearpath_model::{CpuId, CpuSet, Direction, IrqNumber, NicIrq, OnlineCpus, QueueId};

const CPUS: &str = "/sys/devices/system/cpu";

/// Whether the affinity of a thread is what the kernel left of another one, as cpulists, by the CPUs that are online
/// now.
pub(crate) fn left_by_kernel(root: &Root, now: &str, was: &str) -> bool {
    let sets = (online(root), CpuSet::from_list(now), CpuSet::from_list(was));
    matches!(sets, (Some(online), Ok(now), Ok(was)) if is_what_is_left(&online, &now, &was))
}

/// The CPUs now, to find out later whether one went or came. `inode` is that of a path of sysfs.
pub(crate) fn cpus_now(root: &Root, inode: impl Fn(&str) -> Option<u64>) -> Option<OnlineCpus> {
    let online = online(root)?;
    let newest = online.iter().filter_map(|cpu| inode(&topology(cpu))).max()?;
    Some(OnlineCpus { online, newest })
}

/// The CPUs that went offline or came online since a setting was changed.
#[derive(Debug)]
pub(crate) struct CpuEvents {
    online: CpuSet,
    /// Those that came online since.
    replugged: CpuSet,
    /// Whether any went or came; `None` if unknown.
    happened: Option<bool>,
}

impl CpuEvents {
    /// Those since the moment of `cpus`; if that is unknown, since the directory `made` of the object exists. sysfs
    /// numbers its inodes in the order in which they are made (`kernfs_new_node` of fs/kernfs/dir.c).
    pub fn since(
        root: &Root,
        inode: impl Fn(&str) -> Option<u64>,
        cpus: Option<&OnlineCpus>,
        made: &str,
    ) -> Option<Self> {
        let online = online(root)?;
        let since = cpus.map_or_else(|| inode(made), |cpus| Some(cpus.newest));
        let newer = |cpu: &CpuId| since.zip(inode(&topology(*cpu))).is_some_and(|(s, its)| its > s);
        let replugged: CpuSet = online.iter().filter(newer).collect();
        let happened = cpus.map(|cpus| cpus.online != online || !replugged.is_empty());
        Some(Self { online, replugged, happened })
    }

    /// Whether a CPU went or came, as far as known.
    pub fn happened(&self) -> bool {
        self.happened == Some(true)
    }

    /// Whether the affinity of an interrupt is what the kernel or its driver made of another one.
    pub fn left_interrupt(&self, root: &Root, irq: IrqNumber, now: &str, was: &str) -> bool {
        let (Ok(now), Ok(was)) = (CpuSet::from_list(now), CpuSet::from_list(was)) else {
            return false;
        };
        let requested = Requested {
            default: mask(root, "/proc/irq/default_smp_affinity").map(|default| {
                let its = node_cpus(root, irq).map(|node| node.intersection(&default));
                its.filter(|cpus| !cpus.is_empty()).unwrap_or(default)
            }),
            hint: mask(root, &format!("/proc/irq/{irq}/affinity_hint")),
        };
        self.happened != Some(false)
            && (is_what_is_left(&self.online, &now, &was)
                || requested.is_there_again(self, &now, &was))
    }

    /// Whether the mask of a queue is what the kernel or the driver made of another one. A driver that sets XPS gives
    /// the interrupt of the transmit queue the same CPUs as a hint.
    pub fn left_mask(
        &self,
        root: &Root,
        nic: &str,
        (direction, queue): (Direction, QueueId),
        now: &str,
        was: &str,
    ) -> bool {
        let (Ok(now), Ok(was)) = (CpuSet::from_mask(now), CpuSet::from_mask(was)) else {
            return false;
        };
        let hint = || {
            (direction == Direction::Tx).then_some(())?;
            let irq = NicIrq { nic: nic.to_owned(), name: format!("output.{queue}") };
            let (irq, _) = locate_irq(root, &irq, None)?;
            mask(root, &format!("/proc/irq/{irq}/affinity_hint"))
        };
        let set_again = self.happened() || !self.replugged.is_empty();
        self.happened != Some(false)
            && (self.dropped(&now, &was)
                || (set_again && !now.is_empty() && hint().is_some_and(|hint| hint == now)))
    }

    /// Whether the affinity of a thread is what the kernel made of another one, all of whose CPUs were offline: all
    /// that are possible (`select_fallback_rq` of kernel/sched/core.c). In a cpuset of fewer CPUs it is those of the
    /// cpuset, which cannot be distinguished from a choice.
    pub fn left_thread(&self, now: &str, was: &str) -> bool {
        let (Ok(now), Ok(was)) = (CpuSet::from_list(now), CpuSet::from_list(was)) else {
            return false;
        };
        let went = !was.is_empty() && was.intersection(&self.online).is_subset(&self.replugged);
        self.happened() && went && now != was && self.online.difference(&was).is_subset(&now)
    }

    /// Whether a mask lacks only CPUs that were offline when it was written.
    fn dropped(&self, now: &CpuSet, was: &CpuSet) -> bool {
        let lost = was.difference(now).intersection(&self.online);
        now != was && now.is_subset(was) && lost.is_subset(&self.replugged)
    }
}

/// The CPUs that are online.
pub(crate) fn online(root: &Root) -> Option<CpuSet> {
    CpuSet::from_list(&root.text(&format!("{CPUS}/online")).ok()?).ok()
}

/// The CPUs that the kernel can have.
pub(crate) fn possible(root: &Root) -> Option<CpuSet> {
    CpuSet::from_list(&root.text(&format!("{CPUS}/possible")).ok()?).ok()
}

fn topology(cpu: CpuId) -> String {
    format!("{CPUS}/cpu{cpu}/topology")
}

fn mask(root: &Root, path: &str) -> Option<CpuSet> {
    CpuSet::from_mask(&root.text(path).ok()?).ok()
}

/// The CPUs of an interrupt's node, where it has one.
fn node_cpus(root: &Root, irq: IrqNumber) -> Option<CpuSet> {
    let node = root.text(&format!("/proc/irq/{irq}/node")).ok()?;
    CpuSet::from_list(&root.text(&format!("/sys/devices/system/node/node{node}/cpulist")).ok()?)
        .ok()
}

/// What an interrupt was requested with.
#[derive(Debug)]
struct Requested {
    /// The kernel's.
    default: Option<CpuSet>,
    /// The driver's; empty where it gave none.
    hint: Option<CpuSet>,
}

impl Requested {
    /// Whether it is back because CPUs went offline; otherwise it was set deliberately.
    fn is_there_again(&self, cpus: &CpuEvents, now: &CpuSet, was: &CpuSet) -> bool {
        let CpuEvents { online, replugged, .. } = cpus;
        let went = !was.is_empty() && was.intersection(online).is_subset(replugged);
        let is = |mask: &Option<CpuSet>| {
            let mask = mask.as_ref().map(|mask| mask.intersection(online));
            mask.is_some_and(|mask| !mask.is_empty() && mask == now.intersection(online))
        };
        let any = went || cpus.happened() || !replugged.is_empty();
        (went && is(&self.default)) || (any && is(&self.hint))
    }
}

/// With a CPU of it online again, only where nobody would choose just these: all others, and several.
fn is_what_is_left(online: &CpuSet, now: &CpuSet, was: &CpuSet) -> bool {
    let others = online.difference(was);
    let offline = was.intersection(online).is_empty();
    let unlikely = was.len() == 1 && others.len() > 1;
    !was.is_empty() && (offline || unlikely) && now.intersection(online) == others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_would_choose_is_the_kernels() {
        let left = |online: &str, now: &str, was: &str| {
            is_what_is_left(&set(online), &set(now), &set(was))
        };
        // It is offline: all that are left, for a thread also all that are possible.
        assert!(left("0-2", "0-2", "3") && left("0-2", "0-7", "3") && left("0-1", "0-1", "2-3"));
        // It has come back, or another has gone since.
        assert!(left("0-3", "0-2", "3") && left("0-1,3", "0-2", "3"));
        // Somebody has chosen these.
        for (online, now, was) in [
            ("0-3", "0-3", "3"),
            ("0-3", "1", "3"),
            ("0-2", "1", "3"),
            ("0-3", "0-1", "2-3"),
            ("0-1", "0", "1"),
        ] {
            assert!(!left(online, now, was), "{online} {now} {was}");
        }
    }

    #[test]
    fn what_it_was_requested_with_is_there_again_only_after_a_cpu_went() {
        let again = |[default, hint, replugged]: [&str; 3], online: &str, now: &str, was: &str| {
            let requested = Requested { default: Some(set(default)), hint: Some(set(hint)) };
            let cpus = events(online, replugged, None);
            requested.is_there_again(&cpus, &set(now), &set(was))
        };
        // Its CPU is offline, or has come back since: the kernel's default, the driver's hint.
        assert!(again(["0-1", "", ""], "0-2", "0-1", "3"));
        assert!(again(["0-1", "", "3"], "0-3", "0-1", "3"));
        assert!(again(["0-3", "1", "3"], "0-3", "1", "3"));
        // The default has the CPU itself.
        assert!(
            again(["2-3", "", ""], "0-2", "2-3", "3") && again(["2-3", "", "3"], "0-3", "2-3", "3")
        );
        // The driver sets them all, whichever CPU went.
        assert!(again(["0-3", "0", "2"], "0-3", "0", "3"));
        for (requested, online, now, was) in [
            // No CPU went, or another one, or not all of it.
            (["0-1", "1", ""], "0-3", "0-1", "3"),
            (["0-1", "1", ""], "0-3", "1", "3"),
            (["0-1", "", "2"], "0-3", "0-1", "3"),
            (["0-1", "", "3"], "0-3", "0-1", "2-3"),
            // Something else is there.
            (["0-1", "", "3"], "0-3", "0", "3"),
            (["0-1", "", "3"], "0-3", "2", "3"),
        ] {
            assert!(!again(requested, online, now, was), "{requested:?} {online} {now} {was}");
        }
    }

    fn set(list: &str) -> CpuSet {
        CpuSet::from_list(list).unwrap()
    }

    fn events(online: &str, replugged: &str, happened: Option<bool>) -> CpuEvents {
        CpuEvents { online: set(online), replugged: set(replugged), happened }
    }

    /// A host with four CPUs and a virtio interface with the interrupt 40 of its transmit queue 1.
    fn tree(online: &str, hint: &str) -> (tempfile::TempDir, Root) {
        let tree = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("sys/devices/system/cpu/online", online),
            ("sys/devices/system/node/node0/cpulist", "0-1"),
            ("sys/devices/pci0/msi_irqs/40", "msix"),
            (
                "proc/interrupts",
                "      CPU0\n 40:  1  PCI-MSIX-0000:00:03.0  2-edge  virtio0-output.1",
            ),
            ("proc/irq/default_smp_affinity", "f"),
            ("proc/irq/40/node", "0"),
            ("proc/irq/40/affinity_hint", hint),
        ] {
            let file = tree.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("{text}\n")).unwrap();
        }
        for folder in ["sys/class/net/eth0", "sys/devices/pci0/virtio0"] {
            std::fs::create_dir_all(tree.path().join(folder)).unwrap();
        }
        let device = tree.path().join("sys/class/net/eth0/device");
        std::os::unix::fs::symlink("../../../devices/pci0/virtio0", device).unwrap();
        let root = Root::tree(tree.path()).unwrap();
        (tree, root)
    }

    /// Inodes of a host where CPU 3 came online when `cpu3` was the next one.
    fn inodes(cpu3: u64) -> impl Fn(&str) -> Option<u64> {
        move |path: &str| match path {
            "/sys/kernel/irq/40" => Some(100),
            "/sys/devices/system/cpu/cpu3/topology" => Some(cpu3),
            _ => Some(1),
        }
    }

    #[test]
    fn an_interrupt_is_asked_about_by_its_files() {
        let (_tree, root) = tree("0-3", "0");
        let left = |cpu3: u64, cpus: Option<&OnlineCpus>| {
            let events = CpuEvents::since(&root, inodes(cpu3), cpus, "/sys/kernel/irq/40").unwrap();
            events.left_interrupt(&root, IrqNumber(40), "0-1", "3")
        };
        assert!(left(101, None) && !left(99, None));
        // The moment of the change is known, and CPU 3 came back before or after it.
        let cpus = cpus_now(&root, inodes(101)).unwrap();
        assert_eq!(cpus, OnlineCpus { online: set("0-3"), newest: 101 });
        assert!(!left(101, Some(&cpus)) && left(102, Some(&cpus)));
    }

    #[test]
    fn what_the_driver_sets_for_every_queue_is_no_choice() {
        // CPU 3 went offline, and virtio_net has set all queues, whichever CPUs they had.
        let (_tree, root) = tree("0-2", "2");
        let before = OnlineCpus { online: set("0-3"), newest: 5 };
        let since = |cpus| CpuEvents::since(&root, inodes(5), cpus, "/sys/kernel/irq/40").unwrap();
        let events = since(Some(&before));
        assert!(events.happened());
        assert!(events.left_interrupt(&root, IrqNumber(40), "1", "0"));
        assert!(events.left_mask(&root, "eth0", (Direction::Tx, QueueId(1)), "2", "1"));
        // Not of another queue, no other value, no receive queue.
        assert!(!events.left_mask(&root, "eth0", (Direction::Tx, QueueId(0)), "2", "1"));
        assert!(!events.left_mask(&root, "eth0", (Direction::Tx, QueueId(1)), "4", "1"));
        assert!(!events.left_mask(&root, "eth0", (Direction::Rx, QueueId(1)), "2", "1"));
        // No CPU went since the change, or none that is known of.
        let after = OnlineCpus { online: set("0-2"), newest: 5 };
        for cpus in [Some(&after), None] {
            let events = since(cpus);
            assert!(!events.happened());
            assert!(
                !events.left_mask(&root, "eth0", (Direction::Tx, QueueId(1)), "2", "1"),
                "{cpus:?}"
            );
            assert!(!events.left_interrupt(&root, IrqNumber(40), "1", "0"), "{cpus:?}");
        }
    }

    #[test]
    fn a_thread_whose_cpus_were_offline_may_run_on_all() {
        let left = |online: &str, replugged: &str, now: &str| {
            events(online, replugged, Some(true)).left_thread(now, "3")
        };
        // It is offline, or back: all that are possible, and all that were left.
        assert!(left("0-2", "", "0-3") && left("0-3", "3", "0-3") && left("0-3", "3", "0-2"));
        // Another CPU went; fewer; as it was set.
        assert!(!left("0-3", "2", "0-3") && !left("0-3", "3", "0-1") && !left("0-3", "3", "3"));
        // None went, or none that is known of.
        for happened in [Some(false), None] {
            assert!(!events("0-3", "3", happened).left_thread("0-3", "3"), "{happened:?}");
        }
    }

    #[test]
    fn a_mask_that_lost_its_offline_cpus_is_no_choice() {
        let (_tree, root) = tree("0-3", "0");
        let left = |events: &CpuEvents, now: &str, was: &str| {
            events.left_mask(&root, "eth0", (Direction::Rx, QueueId(0)), now, was)
        };
        let offline = events("0-2", "", Some(true));
        let back = events("0-3", "3", Some(true));
        assert!(left(&offline, "7", "f") && left(&back, "7", "f"));
        assert!(left(&offline, "0", "8") && left(&back, "0", "8"));
        // More or others than that are lacking.
        assert!(!left(&offline, "3", "f") && !left(&back, "3", "f") && !left(&back, "f", "7"));
        assert!(!left(&events("0-3", "", Some(false)), "7", "f"));
        assert!(!left(&events("0-3", "", None), "7", "f"));
    }
}
