//! Which changes of a plan depend on an earlier one. Input: two targets. Output: whether a change of one may set the
//! other as well.

use super::{Ethtool, FileOf, NicSetting, Target};

impl Target {
    /// Whether a change of it may change another setting as well: the same one, or what a driver sets again with
    /// its queues.
    pub fn may_change(&self, other: &Self) -> bool {
        if self.same_place(other) {
            return true;
        }
        let Self::Nic(setting) = self else { return false };
        let Self::File(file) = other else {
            let table = |its: &NicSetting| {
                its.nic == setting.nic && matches!(its.what, Ethtool::Rss | Ethtool::Napi(_))
            };
            return setting.what == Ethtool::Channels
                && matches!(other, Self::Nic(its) if table(its));
        };
        match (&setting.what, &file.of) {
            (Ethtool::Channels | Ethtool::Rings, FileOf::Irq(_)) => {
                file.interrupt.as_ref().is_none_or(|irq| irq.nic == setting.nic)
            }
            (Ethtool::Channels, FileOf::Queue { nic, .. }) => *nic == setting.nic,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_and_rings_change_what_a_driver_sets_with_them() {
        let target = |text: &str| Target::parse(text, Some(5)).unwrap();
        let changes = |one: &str, other: &str| target(one).may_change(&target(other));
        let (rps, rss) = ("/sys/class/net/eth0/queues/rx-0/rps_cpus", "ethtool eth0 rss");
        let irq = "/proc/irq/40/smp_affinity_list";
        for other in [rps, rss, irq, "ethtool eth0 channels", "napi eth0 1"] {
            assert!(changes("ethtool eth0 channels", other), "{other}");
        }
        assert!(changes("ethtool eth0 rings", irq) && changes(rps, rps));
        for (one, other) in [
            ("ethtool eth0 rings", rps),
            ("ethtool eth0 rings", rss),
            ("ethtool eth1 channels", rps),
            ("ethtool eth1 channels", rss),
            ("ethtool eth1 channels", "napi eth0 1"),
            ("ethtool eth0 channels", "/proc/sys/net/core/somaxconn"),
            (rss, "ethtool eth0 channels"),
            (rps, irq),
        ] {
            assert!(!changes(one, other), "{one} {other}");
        }
    }
}
