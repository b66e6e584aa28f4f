//! Settings in files of `/sys` and `/proc`: which may be written, and their format.
//!
//! [`SETTING_FILES`] is the complete list. Plans and journals may have been edited, so a path that matches none
//! of its rows is never opened.

use super::Form;
use crate::{CpuSet, IrqNumber, NicIrq, QueueId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A file of `/sys` or `/proc` that holds a setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SettingFile {
    /// Its path: `/sys/class/net/eth0/queues/rx-0/rps_cpus`.
    pub path: String,
    /// Inode of the network namespace that the setting belongs to; `None` for a setting of the whole machine.
    pub netns: Option<u64>,
    /// For the affinity of a queue's interrupt: identifies the interrupt, because its number may be reassigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<NicIrq>,
    /// For a file of sysfs, set once it was changed: its inode (for an interrupt, that of its directory there).
    /// The kernel assigns a new one to an interface, queue or interrupt that is re-created under the same name
    /// (`kernfs_ino` of fs/kernfs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u64>,
    /// For CPUs, set once they were changed: which CPUs were online. When others are, the kernel or the driver may
    /// have set the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<OnlineCpus>,
}

/// The CPUs at one moment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OnlineCpus {
    /// Those that are online.
    pub online: CpuSet,
    /// The highest inode of their `topology` directories in sysfs, which the kernel makes when a CPU comes online.
    pub newest: u64,
}

impl SettingFile {
    /// The file with that path in a network namespace; `None` for the namespace if it is a file of the whole
    /// machine.
    pub fn new(path: impl Into<String>, netns: Option<u64>) -> Self {
        Self { path: path.into(), netns, interrupt: None, instance: None, cpus: None }
    }

    /// The affinity of an interrupt.
    pub fn irq_affinity(irq: IrqNumber) -> Self {
        Self::new(format!("/proc/irq/{irq}/smp_affinity_list"), None)
    }

    /// A file of a receive queue: `rps_cpus`.
    pub fn rx_queue(nic: &str, queue: QueueId, file: &str) -> Self {
        Self::new(format!("/sys/class/net/{nic}/queues/rx-{queue}/{file}"), None)
    }

    /// A file of a transmit queue: `xps_cpus`.
    pub fn tx_queue(nic: &str, queue: QueueId, file: &str) -> Self {
        Self::new(format!("/sys/class/net/{nic}/queues/tx-{queue}/{file}"), None)
    }

    /// A file of an interface itself.
    pub fn interface(nic: &str, file: &str) -> Self {
        Self::new(format!("/sys/class/net/{nic}/{file}"), None)
    }

    /// A sysctl by its dotted name. (None of the writable ones contains an interface name, which may itself
    /// hold dots.)
    pub fn sysctl(name: &str) -> Self {
        Self::new(format!("/proc/sys/{}", name.replace('.', "/")), None)
    }

    /// What it configures; `None` if it may not be written.
    pub fn of(&self) -> Option<FileOf<'_>> {
        let row = row_of(&self.path)?;
        Some(match self.path.split('/').collect::<Vec<_>>()[..] {
            ["", "sys", "class", "net", nic, "queues", queue, file] => {
                FileOf::Queue { nic, queue, file }
            }
            ["", "sys", "class", "net", nic, file] => FileOf::Interface { nic, file },
            ["", "proc", "irq", number, _] => FileOf::Irq(IrqNumber(number.parse().ok()?)),
            ["", "proc", "sys", ref parts @ ..] => FileOf::Sysctl(parts.join(".")),
            [.., "transparent_hugepage", file] => FileOf::HugePages(file),
            _ => FileOf::Other(row.kind),
        })
    }

    /// The interrupt, if it is an affinity.
    pub fn irq(&self) -> Option<IrqNumber> {
        match self.of()? {
            FileOf::Irq(irq) => Some(irq),
            _ => None,
        }
    }

    /// The interface that it belongs to.
    pub fn nic(&self) -> Option<&str> {
        match self.of()? {
            FileOf::Queue { nic, .. } | FileOf::Interface { nic, .. } => Some(nic),
            _ => None,
        }
    }

    /// The format of its value; `None` if it may not be written.
    pub fn form(&self) -> Option<Form> {
        row_of(&self.path).map(|row| row.form)
    }

    /// Whether another one is the same file, possibly of another device since.
    pub fn same_place(&self, other: &Self) -> bool {
        (&self.path, self.netns) == (&other.path, other.netns)
    }
}

impl fmt::Display for SettingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// What the file of a setting configures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOf<'a> {
    /// The affinity of this interrupt.
    Irq(IrqNumber),
    /// A queue of an interface.
    Queue {
        /// The interface.
        nic: &'a str,
        /// The queue: `rx-0`, `tx-3`.
        queue: &'a str,
        /// The setting: `rps_cpus`.
        file: &'a str,
    },
    /// An interface.
    Interface {
        /// The interface.
        nic: &'a str,
        /// The setting.
        file: &'a str,
    },
    /// A sysctl, by its dotted name.
    Sysctl(String),
    /// Transparent huge pages: `enabled`, `defrag`.
    HugePages(&'a str),
    /// Another kind of setting, by its kind.
    Other(&'static str),
}

/// Properties of a writable file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettingRow {
    /// The path; `{nic}` matches an interface's name, `{n}` a number.
    pub path: &'static str,
    /// Its name in plans: `rps_cpus`.
    pub kind: &'static str,
    /// The format of its value.
    pub form: Form,
}

/// Whether a setting with that path belongs to a network namespace: those of interfaces do. So do some sysctls
/// below `net`; the kernel shows each thread those of its own namespace.
pub fn of_namespace(path: &str) -> bool {
    path.starts_with("/sys/class/net/") || path.starts_with("/proc/sys/net/")
}

const fn row(path: &'static str, kind: &'static str, form: Form) -> SettingRow {
    SettingRow { path, kind, form }
}

const fn sysctl(path: &'static str, form: Form) -> SettingRow {
    row(path, "sysctl", form)
}

/// The writable files (Documentation/networking/scaling.rst,
/// Documentation/core-api/irq/irq-affinity.rst, Documentation/admin-guide/sysctl).
pub const SETTING_FILES: &[SettingRow] = &[
    row("/proc/irq/{n}/smp_affinity_list", "irq_affinity", Form::CpuList),
    row("/sys/class/net/{nic}/queues/rx-{n}/rps_cpus", "rps_cpus", Form::CpuMask),
    row("/sys/class/net/{nic}/queues/rx-{n}/rps_flow_cnt", "rps_flow_cnt", Form::PowerOfTwo),
    row("/sys/class/net/{nic}/queues/tx-{n}/xps_cpus", "xps_cpus", Form::CpuMask),
    row("/sys/class/net/{nic}/queues/tx-{n}/xps_rxqs", "xps_rxqs", Form::Mask),
    row("/sys/class/net/{nic}/gro_flush_timeout", "gro_flush_timeout", Form::Numbers(1)),
    row("/sys/class/net/{nic}/napi_defer_hard_irqs", "napi_defer_hard_irqs", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/rps_sock_flow_entries", Form::PowerOfTwo),
    sysctl("/proc/sys/net/core/netdev_budget", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/netdev_budget_usecs", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/netdev_max_backlog", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/dev_weight", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/busy_poll", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/busy_read", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/rmem_max", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/wmem_max", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/rmem_default", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/wmem_default", Form::Numbers(1)),
    sysctl("/proc/sys/net/core/somaxconn", Form::Numbers(1)),
    sysctl("/proc/sys/net/ipv4/tcp_rmem", Form::Numbers(3)),
    sysctl("/proc/sys/net/ipv4/tcp_wmem", Form::Numbers(3)),
    sysctl("/proc/sys/net/ipv4/tcp_moderate_rcvbuf", Form::Numbers(1)),
    sysctl("/proc/sys/net/ipv4/tcp_notsent_lowat", Form::Numbers(1)),
    sysctl("/proc/sys/net/ipv4/tcp_congestion_control", Form::Choice),
    sysctl("/proc/sys/net/ipv4/tcp_max_syn_backlog", Form::Numbers(1)),
    sysctl("/proc/sys/net/ipv4/tcp_window_scaling", Form::Numbers(1)),
    sysctl("/proc/sys/net/ipv4/tcp_sack", Form::Numbers(1)),
    sysctl("/proc/sys/net/ipv4/tcp_timestamps", Form::Numbers(1)),
    sysctl("/proc/sys/net/ipv4/udp_mem", Form::Numbers(3)),
    sysctl("/proc/sys/net/netfilter/nf_conntrack_max", Form::Numbers(1)),
    sysctl("/proc/sys/kernel/numa_balancing", Form::Numbers(1)),
    sysctl("/proc/sys/kernel/sched_migration_cost_ns", Form::Numbers(1)),
    sysctl("/sys/kernel/debug/sched/migration_cost_ns", Form::Numbers(1)),
    sysctl("/proc/sys/kernel/sched_autogroup_enabled", Form::Numbers(1)),
    sysctl("/proc/sys/kernel/timer_migration", Form::Numbers(1)),
    sysctl("/proc/sys/vm/zone_reclaim_mode", Form::Numbers(1)),
    sysctl("/proc/sys/vm/stat_interval", Form::Numbers(1)),
    row("/sys/kernel/mm/transparent_hugepage/enabled", "transparent_hugepage", Form::Choice),
    row("/sys/kernel/mm/transparent_hugepage/defrag", "transparent_hugepage", Form::Choice),
];

/// The row for a path; `None` if it may not be written.
pub fn row_of(path: &str) -> Option<&'static SettingRow> {
    SETTING_FILES.iter().find(|row| matches(row.path, path))
}

/// Whether a path matches a pattern.
fn matches(pattern: &str, path: &str) -> bool {
    let (mut patterns, mut parts) = (pattern.split('/'), path.split('/'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return true,
            (Some(pattern), Some(part)) if is_part_of(pattern, part) => {}
            _ => return false,
        }
    }
}

/// Whether a component of a path matches a component of a pattern.
pub fn is_part_of(pattern: &str, part: &str) -> bool {
    if pattern == "{nic}" {
        return is_interface_name(part);
    }
    match pattern.strip_suffix("{n}") {
        Some(prefix) => part.strip_prefix(prefix).is_some_and(is_number),
        None => pattern == part,
    }
}

/// A number as the kernel uses it in file names: digits without a leading zero.
fn is_number(text: &str) -> bool {
    let digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    digits && (text == "0" || !text.starts_with('0'))
}

/// As `dev_valid_name` of net/core/dev.c.
pub fn is_interface_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() < 16
        && text != "."
        && text != ".."
        && !text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_files_have_a_row() {
        for (path, kind) in [
            ("/proc/irq/40/smp_affinity_list", "irq_affinity"),
            ("/sys/class/net/enp94s0f0np0/queues/rx-10/rps_cpus", "rps_cpus"),
            ("/sys/class/net/veth-a.1/queues/tx-0/xps_cpus", "xps_cpus"),
            ("/proc/sys/net/core/rps_sock_flow_entries", "sysctl"),
        ] {
            assert_eq!(row_of(path).map(|row| row.kind), Some(kind), "{path}");
        }
    }

    #[test]
    fn other_paths_have_none() {
        for path in [
            "",
            "/",
            "/etc/passwd",
            "/proc/sysrq-trigger",
            "/proc/irq/default_smp_affinity",
            "/proc/irq/040/smp_affinity_list",
            "/proc/irq//smp_affinity_list",
            "/proc/irq/4/../5/smp_affinity_list",
            "/sys/class/net/../queues/rx-0/rps_cpus",
            "/sys/class/net/a/b/queues/rx-0/rps_cpus",
            "/sys/class/net/eth0/queues/rx-/rps_cpus",
            "/sys/class/net/eth0/queues/rx--1/rps_cpus",
            "/sys/class/net/eth0/queues/rx-0/rps_cpus/",
            "/sys/class/net/eth0/queues/rx-0/rps_cpus\n",
            "sys/class/net/eth0/queues/rx-0/rps_cpus",
            "/proc/sys/kernel/core_pattern",
        ] {
            assert_eq!(row_of(path), None, "{path}");
        }
    }
}
