//! Sysctls that affect the placement of packets, threads and memory.
//!
//! Input: a root. Output: values as printed by the kernel, by dotted name. [`TABLE`] lists them; to read
//! another one, add a row. Some moved from `/proc/sys` to debugfs in 5.13 (commit 8a99b6833c88, "sched: Move
//! SCHED_DEBUG sysctl to debugfs"): they keep their old name here.

use crate::netns::text_of_initial_netns;
use crate::{Notes, ReadError, Root};
use nearpath_model::Sysctl;
use std::collections::BTreeMap;

/// A row: the dotted name, and the path in newer kernels if it moved.
type Row = (&'static str, Option<&'static str>);

/// The sysctls that are read: those that tuning guides set, and others that affect placement.
const TABLE: &[Row] = &[
    // RPS, RFS and the flow limit (Documentation/networking/scaling.rst).
    ("net.core.rps_sock_flow_entries", None),
    ("net.core.rps_default_mask", None),
    ("net.core.flow_limit_cpu_bitmap", None),
    ("net.core.flow_limit_table_len", None),
    // The receive softirq (Documentation/admin-guide/sysctl/net.rst).
    ("net.core.netdev_budget", None),
    ("net.core.netdev_budget_usecs", None),
    ("net.core.netdev_max_backlog", None),
    ("net.core.dev_weight", None),
    ("net.core.dev_weight_rx_bias", None),
    ("net.core.dev_weight_tx_bias", None),
    ("net.core.gro_normal_batch", None),
    ("net.core.netdev_tstamp_prequeue", None),
    ("net.core.skb_defer_max", None),
    ("net.core.busy_poll", None),
    ("net.core.busy_read", None),
    // Socket buffers and queues.
    ("net.core.rmem_max", None),
    ("net.core.wmem_max", None),
    ("net.core.rmem_default", None),
    ("net.core.wmem_default", None),
    ("net.core.optmem_max", None),
    ("net.core.mem_pcpu_rsv", None),
    ("net.core.somaxconn", None),
    ("net.core.default_qdisc", None),
    ("net.core.txrehash", None),
    // TCP and UDP (Documentation/networking/ip-sysctl.rst).
    ("net.ipv4.tcp_rmem", None),
    ("net.ipv4.tcp_wmem", None),
    ("net.ipv4.tcp_mem", None),
    ("net.ipv4.udp_mem", None),
    ("net.ipv4.tcp_moderate_rcvbuf", None),
    ("net.ipv4.tcp_congestion_control", None),
    ("net.ipv4.tcp_available_congestion_control", None),
    ("net.ipv4.tcp_window_scaling", None),
    ("net.ipv4.tcp_sack", None),
    ("net.ipv4.tcp_timestamps", None),
    ("net.ipv4.tcp_syncookies", None),
    ("net.ipv4.tcp_mtu_probing", None),
    ("net.ipv4.tcp_base_mss", None),
    ("net.ipv4.tcp_autocorking", None),
    ("net.ipv4.tcp_limit_output_bytes", None),
    ("net.ipv4.tcp_notsent_lowat", None),
    ("net.ipv4.tcp_max_syn_backlog", None),
    ("net.ipv4.tcp_migrate_req", None),
    ("net.ipv4.tcp_low_latency", None),
    ("net.ipv4.ip_forward", None),
    ("net.ipv4.tcp_early_demux", None),
    ("net.ipv4.udp_early_demux", None),
    ("net.ipv4.ip_early_demux", None),
    // The tables of neighbours.
    ("net.ipv4.neigh.default.gc_thresh1", None),
    ("net.ipv4.neigh.default.gc_thresh2", None),
    ("net.ipv4.neigh.default.gc_thresh3", None),
    ("net.ipv6.neigh.default.gc_thresh1", None),
    ("net.ipv6.neigh.default.gc_thresh2", None),
    ("net.ipv6.neigh.default.gc_thresh3", None),
    // AutoNUMA (kernel/sched/debug.c).
    ("kernel.numa_balancing", None),
    ("kernel.numa_balancing_promote_rate_limit_MBps", None),
    ("kernel.numa_balancing_scan_delay_ms", Some("numa_balancing/scan_delay_ms")),
    ("kernel.numa_balancing_scan_period_min_ms", Some("numa_balancing/scan_period_min_ms")),
    ("kernel.numa_balancing_scan_period_max_ms", Some("numa_balancing/scan_period_max_ms")),
    ("kernel.numa_balancing_scan_size_mb", Some("numa_balancing/scan_size_mb")),
    // The scheduler.
    ("kernel.sched_migration_cost_ns", Some("migration_cost_ns")),
    ("kernel.sched_nr_migrate", Some("nr_migrate")),
    ("kernel.sched_autogroup_enabled", None),
    ("kernel.sched_rt_period_us", None),
    ("kernel.sched_rt_runtime_us", None),
    ("kernel.timer_migration", None),
    // Watchdogs also wake isolated CPUs.
    ("kernel.watchdog", None),
    ("kernel.nmi_watchdog", None),
    ("kernel.soft_watchdog", None),
    ("kernel.watchdog_cpumask", None),
    // Memory (Documentation/admin-guide/sysctl/vm.rst).
    ("vm.zone_reclaim_mode", None),
    ("vm.nr_hugepages", None),
    ("vm.nr_overcommit_hugepages", None),
    ("vm.min_free_kbytes", None),
    ("vm.compaction_proactiveness", None),
    ("vm.numa_stat", None),
    ("vm.stat_interval", None),
    ("vm.swappiness", None),
];

/// Path of the scheduler's knobs since 5.13.
const SCHED_DEBUG: &str = "/sys/kernel/debug/sched";

/// The settings of transparent hugepages: not sysctls, but of the same kind.
const TRANSPARENT_HUGEPAGE: [(&str, &str); 2] = [
    ("transparent_hugepage.enabled", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("transparent_hugepage.defrag", "/sys/kernel/mm/transparent_hugepage/defrag"),
];

/// Reads all of them. A missing one is noted, and a missing directory once.
pub(crate) fn read(root: &Root, notes: &mut Notes) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let mut take = |notes: &mut Notes, name: &str, value| {
        values.extend(notes.take("sysctl", name, value).map(|value| (name.to_owned(), value)));
    };
    for rows in TABLE.chunk_by(|a, b| folder(a.0) == folder(b.0)) {
        let folder = rows.first().map_or("", |row| folder(row.0));
        if let Err(error) = root.list(&path(folder)) {
            let there = |row: &Row| Some((row.0, of_initial_namespace(root, row.0)?));
            let known: Vec<_> = rows.iter().filter_map(there).collect();
            if known.is_empty() {
                notes.add("sysctl", folder, &error.to_string());
            }
            known.into_iter().for_each(|(name, value)| take(notes, name, Ok(value)));
            continue;
        }
        for &(name, moved) in rows {
            take(notes, name, value(root, name, moved));
        }
    }
    for (name, path) in TRANSPARENT_HUGEPAGE {
        take(notes, name, root.text(path));
    }
    values
}

/// `net.core` of `net.core.netdev_budget`.
fn folder(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(folder, _)| folder)
}

fn path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

fn value(root: &Root, name: &str, moved: Option<&str>) -> Result<String, ReadError> {
    let mut error = match root.text(&path(name)) {
        Err(error) if error.absent => error,
        value => return value,
    };
    if let Some(value) = of_initial_namespace(root, name) {
        return Ok(value);
    }
    if let Some(moved) = moved {
        return root.text(&format!("{SCHED_DEBUG}/{moved}")).map_err(|debug| ReadError {
            // The same for all that moved: they are listed in one line.
            what: format!("{}, since Linux 5.13 {SCHED_DEBUG}", path(folder(name))),
            reason: format!("{} (debugfs must be mounted and readable)", debug.reason),
            absent: debug.absent,
        });
    }
    if folder(name) == "net.core" {
        error.reason += " (not in this kernel, or only in the initial network namespace)";
    }
    Err(error)
}

/// The value of one that other network namespaces do not show.
fn of_initial_namespace(root: &Root, name: &str) -> Option<String> {
    Sysctl::parse(name).filter(|sysctl| sysctl.is_of_initial_namespace())?;
    text_of_initial_netns(root, &format!("sysctl/{name}"), &path(name)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_testing::trees::{Layout, Machine};

    fn read_tree(machine: Machine) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let tree = machine.write();
        let mut notes = Notes::default();
        let values = read(&Root::tree(tree.path()).unwrap(), &mut notes);
        let notes = notes.unknown().iter();
        (values, notes.map(|note| (note.fact.clone(), note.reason.clone())).collect())
    }

    fn machine() -> Machine {
        Machine::regular(Layout::default())
            .file("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
            .file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    }

    #[test]
    fn values_are_as_printed_by_the_kernel() {
        let (values, notes) = read_tree(machine());
        assert_eq!(values["net.core.netdev_budget"], "300");
        assert_eq!(values["net.ipv4.tcp_rmem"], "4096\t131072\t6291456");
        assert_eq!(values["transparent_hugepage.enabled"], "always [madvise] never");
        // One note for all of a folder.
        let absent = ["vm", "net.ipv4.neigh.default", "net.ipv6.neigh.default"];
        let others = TABLE.iter().filter(|row| !absent.contains(&folder(row.0))).count();
        let counted = others + TRANSPARENT_HUGEPAGE.len() + absent.len();
        assert_eq!(values.len() + notes.len(), counted);
        assert_eq!(
            notes["net.core.skb_defer_max"],
            "/proc/sys/net/core/skb_defer_max: not found (not in this kernel, or only in the \
             initial network namespace)"
        );
        assert_eq!(notes["net.ipv4.tcp_mem"], "/proc/sys/net/ipv4/tcp_mem: not found");
        assert_eq!(notes["vm"], "/proc/sys/vm: not found");
    }

    #[test]
    fn sysctls_moved_to_debugfs_keep_their_name() {
        let name = "kernel.sched_migration_cost_ns";
        let (values, notes) = read_tree(machine());
        assert!(!values.contains_key(name));
        assert_eq!(
            notes[name],
            "/proc/sys/kernel, since Linux 5.13 /sys/kernel/debug/sched: not found (debugfs must \
             be mounted and readable)"
        );
        let new = machine().file("/sys/kernel/debug/sched/migration_cost_ns", "500000\n");
        assert_eq!(read_tree(new).0[name], "500000");
        let old = machine().file("/proc/sys/kernel/sched_migration_cost_ns", "5000000\n");
        assert_eq!(read_tree(old).0[name], "5000000");
    }

    #[test]
    fn names_are_unique_and_sorted_by_directory() {
        let names: std::collections::BTreeSet<_> = TABLE.iter().map(|row| row.0).collect();
        assert_eq!(names.len(), TABLE.len());
        let folders: Vec<_> = TABLE.chunk_by(|a, b| folder(a.0) == folder(b.0)).collect();
        assert_eq!(folders.len(), 6);
    }
}
