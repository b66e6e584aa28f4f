//! Explains for each sysctl of common tuning guides that the plan does not change why it is not changed (`--reasons`).
//!
//! Input: the sysctls and the plan. Output: a note for each with its value, the value of the guides, and the evidence that
//! would be needed, with the check that looks for it.

use super::Planner;
use super::draft::Draft;
use super::situation::Situation;
use super::sysctls::target_of;

pub(super) const PLANNER: Planner =
    Planner { name: "reasons", plans: "why other sysctls are not changed (--reasons)", run };

/// A setting recommended by tuning guides.
struct Advice {
    name: &'static str,
    /// The recommended value.
    value: &'static str,
    /// Why it is not set without evidence.
    reason: &'static str,
}

const fn advice(name: &'static str, value: &'static str, reason: &'static str) -> Advice {
    Advice { name, value, reason }
}

const BUFFERS: &str = "no packet was dropped because a socket's receive buffer was full \
    (socket_buffers); without drops, larger buffers only make queues longer";
const SOFTNET: &str = "no packet was dropped from a full backlog, and time squeezes are rare \
    (softnet)";
const POLLING: &str = "no slow packets waited long for idle CPUs to wake up (idle_wakeups), and each \
    polling reader keeps a CPU busy; programs that benefit set SO_BUSY_POLL themselves";
const HUGE: &str = "no task stalled on memory compaction (compaction_stalls)";

const ADVICE: &[Advice] = &[
    advice("net.core.rmem_max", "134217728", BUFFERS),
    advice("net.core.wmem_max", "134217728", BUFFERS),
    advice("net.ipv4.tcp_rmem", "4096 87380 134217728", BUFFERS),
    advice("net.ipv4.tcp_wmem", "4096 87380 134217728", BUFFERS),
    advice(
        "net.ipv4.tcp_moderate_rcvbuf",
        "1",
        "it is 1 by default; if it was turned off, there was probably a reason",
    ),
    advice(
        "net.core.rps_sock_flow_entries",
        "32768",
        "RFS adds a hop to another CPU; it is planned with RPS, for --goal throughput or if a CPU \
         is overloaded (rps_off)",
    ),
    advice(
        "kernel.sched_migration_cost_ns",
        "5000000",
        "no reader migrated between nodes (reader_migrations), and threads bound to a node do not \
         migrate anyway",
    ),
    advice(
        "kernel.numa_balancing_scan_delay_ms",
        "3000",
        "it only delays the first scan of a new process, and servers run longer; turning NUMA \
         balancing off avoids its cost for bound readers (autonuma_pinning)",
    ),
    advice(
        "kernel.numa_balancing",
        "1",
        "bound readers do not benefit from it, but pay for its page faults (autonuma_pinning)",
    ),
    advice(
        "kernel.numa_balancing_scan_period_min_ms",
        "200",
        "more scans cause more page faults; memory on the wrong node can be migrated directly \
         (reader_memory)",
    ),
    advice(
        "kernel.numa_balancing_scan_size_mb",
        "16777216",
        "the guides mean bytes, but the unit is MiB: it would scan 16 TiB at a time",
    ),
    advice("net.core.netdev_max_backlog", "more", SOFTNET),
    advice("net.core.netdev_budget", "more", SOFTNET),
    advice("net.core.netdev_budget_usecs", "more", SOFTNET),
    advice("net.core.busy_poll", "50", POLLING),
    advice("net.core.busy_read", "50", POLLING),
    advice("transparent_hugepage.enabled", "madvise", HUGE),
    advice("transparent_hugepage.defrag", "defer+madvise", HUGE),
    advice(
        "vm.nr_hugepages",
        "2048 on the NIC's node",
        "they reduce the memory of everything else; set the number that the application (DPDK) needs: \
         --goal isolation --hugepages SIZE:COUNT",
    ),
];

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if !situation.request.reasons {
        return;
    }
    for Advice { name, value, reason } in ADVICE {
        let planned = target_of(situation.host, name).is_some_and(|target| draft.has(&target));
        if planned {
            continue;
        }
        draft.note(match situation.host.sysctls.get(*name).map(|now| now.trim()) {
            Some(now) if same(now, value) => {
                format!("{name} is already {now}")
            }
            Some(now) => format!(
                "{name} stays {}, not {value}: {reason}",
                now.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
            ),
            None => format!("{name} does not exist in this kernel, or cannot be read"),
        });
    }
}

/// Whether two values are the same words; of a choice, the word in brackets.
fn same(now: &str, value: &str) -> bool {
    now.split_ascii_whitespace().eq(value.split_ascii_whitespace())
        || now.contains(&format!("[{value}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_by_words() {
        assert!(
            same("4096\t87380  1", "4096 87380 1") && same("always [madvise] never", "madvise")
        );
        assert!(!same("always [madvise] never", "always") && !same("12", "1"));
    }
}
