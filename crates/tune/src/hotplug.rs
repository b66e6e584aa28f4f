//! What the kernel makes of an affinity when its last CPU goes offline: it moves the interrupt or the thread
//! to all remaining CPUs, and does not move it back when the CPU comes online again. That is not a deliberate choice.
//!
//! Without interrupt remapping a new affinity of an interrupt is pending until the interrupt next fires. Where
//! its last CPU goes offline before, the kernel drops it, and the interrupt keeps the affinity that it was
//! requested with. Some drivers (virtio_net) set the interrupts of all their queues on each change of CPUs.
//!
//! Rules: `migrate_one_irq` of kernel/irq/cpuhotplug.c (the online CPUs), `irq_fixup_move_pending` of
//! kernel/irq/migration.c (a pending move), `irq_setup_affinity` of kernel/irq/manage.c (the affinity of a
//! request), `select_fallback_rq` of kernel/sched/core.c (the cpuset's, else all possible CPUs).

use nearpath_host::Root;
use nearpath_model::{CpuId, CpuSet};

const CPUS: &str = "/sys/devices/system/cpu";

/// Whether an affinity is what the kernel left of another one, as cpulists, by the CPUs that are online now.
pub(crate) fn left_by_kernel(root: &Root, now: &str, was: &str) -> bool {
    let sets = (online(root), CpuSet::from_list(now), CpuSet::from_list(was));
    matches!(sets, (Some(online), Ok(now), Ok(was)) if is_what_is_left(&online, &now, &was))
}

/// The same for an interrupt, where the kernel or its driver may also have restored the affinity of the request.
/// `inode` is that of a path of sysfs.
pub(crate) fn interrupt_left_by_kernel(
    root: &Root,
    inode: impl Fn(&str) -> Option<u64>,
    irq: &str,
    now: &str,
    was: &str,
) -> bool {
    let sets = (online(root), CpuSet::from_list(now), CpuSet::from_list(was));
    let (Some(online), Ok(now), Ok(was)) = sets else { return false };
    let mask = |path: &str| CpuSet::from_mask(&root.text(path).ok()?).ok();
    let requested = Requested {
        default: mask("/proc/irq/default_smp_affinity").map(|default| {
            let its = node_cpus(root, irq).map(|node| node.intersection(&default));
            its.filter(|cpus| !cpus.is_empty()).unwrap_or(default)
        }),
        hint: mask(&format!("/proc/irq/{irq}/affinity_hint")),
        replugged: replugged(&online, inode, irq),
    };
    is_what_is_left(&online, &now, &was) || requested.is_there_again(&online, &now, &was)
}

fn online(root: &Root) -> Option<CpuSet> {
    CpuSet::from_list(&root.text(&format!("{CPUS}/online")).ok()?).ok()
}

/// The CPUs of an interrupt's node, where it has one.
fn node_cpus(root: &Root, irq: &str) -> Option<CpuSet> {
    let node = root.text(&format!("/proc/irq/{irq}/node")).ok()?;
    CpuSet::from_list(&root.text(&format!("/sys/devices/system/node/node{node}/cpulist")).ok()?)
        .ok()
}

/// The CPUs that came online since an interrupt exists: the folder of their topology is made then, and sysfs
/// numbers its inodes in the order in which they are made (`kernfs_new_node` of fs/kernfs/dir.c).
fn replugged(online: &CpuSet, inode: impl Fn(&str) -> Option<u64>, irq: &str) -> CpuSet {
    let Some(made) = inode(&format!("/sys/kernel/irq/{irq}")) else { return CpuSet::new() };
    let topology = |cpu: &CpuId| inode(&format!("{CPUS}/cpu{cpu}/topology"));
    online.iter().filter(|cpu| topology(cpu).is_some_and(|later| later > made)).collect()
}

/// What an interrupt was requested with.
#[derive(Debug)]
struct Requested {
    /// The kernel's.
    default: Option<CpuSet>,
    /// The driver's; empty where it gave none.
    hint: Option<CpuSet>,
    /// The CPUs that came online since.
    replugged: CpuSet,
}

impl Requested {
    /// Whether it is back because CPUs went offline; otherwise it was set deliberately.
    fn is_there_again(&self, online: &CpuSet, now: &CpuSet, was: &CpuSet) -> bool {
        let went = !was.is_empty() && was.intersection(online).is_subset(&self.replugged);
        let is = |mask: &Option<CpuSet>| {
            let mask = mask.as_ref().map(|mask| mask.intersection(online));
            mask.is_some_and(|mask| !mask.is_empty() && mask == now.intersection(online))
        };
        (went && is(&self.default)) || ((went || !self.replugged.is_empty()) && is(&self.hint))
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
            let set = |list| CpuSet::from_list(list).unwrap();
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
        let set = |list: &str| CpuSet::from_list(list).unwrap();
        let again = |[default, hint, replugged]: [&str; 3], online: &str, now: &str, was: &str| {
            let (default, hint) = (Some(set(default)), Some(set(hint)));
            let requested = Requested { default, hint, replugged: set(replugged) };
            requested.is_there_again(&set(online), &set(now), &set(was))
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

    #[test]
    fn an_interrupt_is_asked_about_by_its_files() {
        let tree = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("sys/devices/system/cpu/online", "0-3"),
            ("sys/devices/system/node/node0/cpulist", "0-1"),
            ("proc/irq/default_smp_affinity", "f"),
            ("proc/irq/40/node", "0"),
            ("proc/irq/40/affinity_hint", "0"),
        ] {
            let file = tree.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("{text}\n")).unwrap();
        }
        let root = Root::tree(tree.path()).unwrap();
        let left = |topology_of_cpu3: u64| {
            let inode = |path: &str| match path {
                "/sys/kernel/irq/40" => Some(100),
                "/sys/devices/system/cpu/cpu3/topology" => Some(topology_of_cpu3),
                _ => Some(1),
            };
            interrupt_left_by_kernel(&root, inode, "40", "0-1", "3")
        };
        assert!(left(101) && !left(99));
    }
}
