//! Why each sysctl of documents 000 and 002 that the plan does not touch is left alone; asked for with
//! `--reasons`.
//!
//! In go the sysctls and what is planned; out comes a note for each: what it is, what the document
//! sets, and which evidence would be needed, with the check that looks for it.

use super::Planner;
use super::draft::Draft;
use super::situation::Situation;
use super::sysctls::target_of;

pub(super) const PLANNER: Planner =
    Planner { name: "reasons", plans: "why other sysctls are left alone (--reasons)", run };

/// A setting that a document advises.
struct Advice {
    name: &'static str,
    /// What the document sets.
    value: &'static str,
    document: &'static str,
    /// Why that is not done, when nothing asks for it.
    reason: &'static str,
}

const fn advice(
    name: &'static str,
    value: &'static str,
    document: &'static str,
    reason: &'static str,
) -> Advice {
    Advice { name, value, document, reason }
}

const BUFFERS: &str = "nothing was thrown away for want of room in a socket's buffer \
    (socket_buffers), and where nothing is, more room only lets more wait";
const SOFTNET: &str = "no packet was dropped from a full backlog and no softirq cut short often \
    enough (softnet)";
const POLLING: &str = "no slow packets were seen to wait long for idle CPUs (idle_wakeups), and each \
    reader that polls keeps a CPU busy; a program that gains by it sets SO_BUSY_POLL on its own";
const HUGE: &str = "no task was seen to wait for memory to be compacted (compaction_stalls)";

const ADVICE: &[Advice] = &[
    advice("net.core.rmem_max", "134217728", "000", BUFFERS),
    advice("net.core.wmem_max", "134217728", "000", BUFFERS),
    advice("net.ipv4.tcp_rmem", "4096 87380 134217728", "000", BUFFERS),
    advice("net.ipv4.tcp_wmem", "4096 87380 134217728", "000", BUFFERS),
    advice(
        "net.ipv4.tcp_moderate_rcvbuf",
        "1",
        "000",
        "it is 1 in every kernel unless somebody has switched it off, who will have had a reason",
    ),
    advice(
        "net.core.rps_sock_flow_entries",
        "32768",
        "000",
        "RFS costs a hop to another CPU; it is planned with RPS, for --goal throughput or where a CPU \
         is overloaded (rps_off)",
    ),
    advice(
        "kernel.sched_migration_cost_ns",
        "5000000",
        "000",
        "no reader was seen to be moved about between nodes (reader_migrations), and threads that are \
         bound to a node are not moved off it anyway",
    ),
    advice(
        "kernel.numa_balancing_scan_delay_ms",
        "3000",
        "000",
        "it delays the first scan of a process that starts, and a server runs for longer; what \
         balancing costs bound readers ends when it is off (autonuma_pinning)",
    ),
    advice(
        "kernel.numa_balancing",
        "1",
        "002",
        "readers that are bound gain nothing by it, and pay its page faults (autonuma_pinning)",
    ),
    advice(
        "kernel.numa_balancing_scan_period_min_ms",
        "200",
        "002",
        "more scans are more page faults; memory that is on the wrong node is moved at once \
         (reader_memory)",
    ),
    advice(
        "kernel.numa_balancing_scan_size_mb",
        "16777216",
        "002",
        "the document means bytes, the setting is in MiB: it would scan 16 TiB at a time",
    ),
    advice("net.core.netdev_max_backlog", "more", "000", SOFTNET),
    advice("net.core.netdev_budget", "more", "000", SOFTNET),
    advice("net.core.netdev_budget_usecs", "more", "000", SOFTNET),
    advice("net.core.busy_poll", "50", "000", POLLING),
    advice("net.core.busy_read", "50", "000", POLLING),
    advice("transparent_hugepage.enabled", "madvise", "002", HUGE),
    advice("transparent_hugepage.defrag", "defer+madvise", "002", HUGE),
    advice(
        "vm.nr_hugepages",
        "2048 on the NIC's node",
        "002",
        "they are taken from everybody else, so who maps them (DPDK) says how many: --goal isolation \
         --hugepages SIZE:COUNT",
    ),
];

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if !situation.request.reasons {
        return;
    }
    for Advice { name, value, document, reason } in ADVICE {
        let planned = target_of(situation.host, name).is_some_and(|target| draft.has(&target));
        if planned {
            continue;
        }
        draft.note(match situation.host.sysctls.get(*name).map(|now| now.trim()) {
            Some(now) if same(now, value) => {
                format!("{name} is {now}, as document {document} has it")
            }
            Some(now) => format!(
                "{name} stays {}, not {value} (document {document}): {reason}",
                now.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
            ),
            None => format!("{name} is not in this kernel, or cannot be read"),
        });
    }
}

/// Whether two values are the same words, of a choice the word in brackets.
fn same(now: &str, value: &str) -> bool {
    now.split_ascii_whitespace().eq(value.split_ascii_whitespace())
        || now.contains(&format!("[{value}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_by_their_words() {
        assert!(
            same("4096\t87380  1", "4096 87380 1") && same("always [madvise] never", "madvise")
        );
        assert!(!same("always [madvise] never", "always") && !same("12", "1"));
    }
}
