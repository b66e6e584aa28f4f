//! What the kernel makes of an affinity when its last CPU goes offline: it moves the interrupt or the thread
//! to all CPUs that are left, and leaves it there when the CPU comes back. That is nobody's choice.
//!
//! Rules: `migrate_one_irq` of kernel/irq/cpuhotplug.c (the online CPUs), `select_fallback_rq` of
//! kernel/sched/core.c (the cpuset's, else all possible CPUs).

use nearpath_host::Root;
use nearpath_model::CpuSet;

/// Whether an affinity is what the kernel left of another one, as cpulists, by the CPUs that are online now.
pub(crate) fn left_by_kernel(root: &Root, now: &str, was: &str) -> bool {
    let online = root.text("/sys/devices/system/cpu/online").ok();
    let sets = (
        online.and_then(|list| CpuSet::from_list(&list).ok()),
        CpuSet::from_list(now),
        CpuSet::from_list(was),
    );
    matches!(sets, (Some(online), Ok(now), Ok(was)) if is_what_is_left(&online, &now, &was))
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
}
