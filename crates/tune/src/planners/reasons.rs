//! Explains for each sysctl of common tuning guides that the plan does not change why it is not changed (`--reasons`).
//!
//! Input: the sysctls and the plan. Output: a note for each with its value, the value of the guides, and the evidence
//! that would be needed, with the check that looks for it. What buffers of 128 MiB would do is said with the figures
//! of the host: how long a queue they allow at the rate of its fastest interface, and how many connections fill the
//! memory for TCP.

use super::Planner;
use super::draft::Draft;
use super::situation::{Situation, is_hardware};
use super::sysctls::name_of;
use nearpath_model::Host;

pub(super) const PLANNER: Planner =
    Planner { name: "reasons", plans: "why other sysctls are not changed (--reasons)", run };

/// A setting recommended by tuning guides.
struct Advice {
    name: &'static str,
    /// The recommended value.
    value: &'static str,
    /// Why it is not set without evidence.
    reason: &'static str,
    /// Whether it allows each connection buffers of 128 MiB.
    is_buffer: bool,
}

const fn advice(name: &'static str, value: &'static str, reason: &'static str) -> Advice {
    Advice { name, value, reason, is_buffer: false }
}

const fn buffer(name: &'static str, value: &'static str, reason: &'static str) -> Advice {
    Advice { name, value, reason, is_buffer: true }
}

/// The buffers that tuning guides recommend.
const GUIDES: u64 = 128 << 20;
/// `tcp_mem` is in pages, of 4 KiB on most architectures and never less.
const PAGE: u64 = 4096;

const RECEIVE: &str = "no finding proposes more (socket_buffers, tcp_receive_buffer)";
const SEND: &str = "no finding proposes more (tcp_send_buffer)";
const SOFTNET: &str = "no packet was dropped from a full backlog, and time squeezes are rare \
    (softnet)";
const POLLING: &str = "no slow packets waited long for idle CPUs to wake up (idle_wakeups), and each \
    polling reader keeps a CPU busy; programs that benefit set SO_BUSY_POLL themselves";
const HUGE: &str = "no task stalled on memory compaction (compaction_stalls)";

const ADVICE: &[Advice] = &[
    buffer("net.core.rmem_max", "134217728", RECEIVE),
    buffer("net.core.wmem_max", "134217728", SEND),
    buffer("net.ipv4.tcp_rmem", "4096 87380 134217728", RECEIVE),
    buffer("net.ipv4.tcp_wmem", "4096 87380 134217728", SEND),
    advice(
        "net.ipv4.tcp_notsent_lowat",
        "16384",
        "no answers wait behind seconds of unsent data (tcp_unsent_data)",
    ),
    advice(
        "net.ipv4.tcp_congestion_control",
        "bbr",
        "no measured connection is held back by losses without a queue (tcp_congestion_control)",
    ),
    advice(
        "net.core.somaxconn",
        "65535",
        "no listener was full whose queue it limits (listen_overflows); most servers request less",
    ),
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
         --hugepages SIZE:COUNT",
    ),
];

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if !situation.request.reasons {
        return;
    }
    let mut keeps_buffers = false;
    for Advice { name, value, reason, is_buffer } in ADVICE {
        let planned = draft.targets().any(|target| name_of(target) == Some(name));
        if planned {
            continue;
        }
        draft.note(match situation.host.sysctls.get(*name).map(|now| now.trim()) {
            Some(now) if same(now, value) => {
                format!("{name} is already {now}")
            }
            Some(now) => {
                keeps_buffers |= is_buffer;
                format!(
                    "{name} stays {}, not {value}: {reason}",
                    now.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
                )
            }
            None => format!("{name} does not exist in this kernel, or cannot be read"),
        });
    }
    if keeps_buffers {
        draft.note(harm_of_large_buffers(situation.host));
    }
}

/// What buffers of 128 MiB do: a queue of seconds in a slow path, and memory.
fn harm_of_large_buffers(host: &Host) -> String {
    let up =
        host.nics.iter().filter(|nic| is_hardware(nic) && nic.state.as_deref() != Some("down"));
    let fastest = up
        .filter_map(|nic| Some((nic.speed_mbps.filter(|speed| *speed > 0)?, nic.name.as_str())))
        .max_by_key(|&(speed, name)| (speed, std::cmp::Reverse(name)));
    let (speed, at) = match fastest {
        Some((speed, name)) => (speed, format!("the {speed} Mbit/s of {}", printable(name))),
        None => (1000, "1000 Mbit/s".to_owned()),
    };
    // Bits by Mbit/s, in ms.
    let ms = GUIDES.saturating_mul(8) / speed / 1000;
    let queue = format!(
        "buffers of 128 MiB for every connection are harmful without evidence: in flight they are \
         {ms}ms of queue at {at}, and more on a slower path, for every packet behind them"
    );
    let pages = host.sysctls.get("net.ipv4.tcp_mem").and_then(|numbers| {
        numbers.split_ascii_whitespace().nth(1)?.parse::<u64>().ok().filter(|pages| *pages > 0)
    });
    match pages.map(|pages| pages.saturating_mul(PAGE)) {
        Some(memory) => format!(
            "{queue}; {} connections that fill them reach the {} MiB at which TCP is under memory pressure, \
             and all stop growing (tcp_mem)",
            memory.div_ceil(GUIDES),
            memory >> 20
        ),
        None => queue,
    }
}

/// A name without control characters.
fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).collect()
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
    fn the_harm_of_large_buffers_is_that_of_this_host() {
        let mut host = Host::default();
        let anywhere = harm_of_large_buffers(&host);
        assert!(anywhere.contains("1073ms of queue at 1000 Mbit/s, "), "{anywhere}");
        assert!(!anywhere.contains("tcp_mem"), "{anywhere}");
        let nic = |name: &str, speed: u64, state: &str| {
            serde_json::from_value(serde_json::json!({
                "name": name, "ifindex": 2, "kind": "physical", "netns": {}, "rx_queues": [],
                "tx_queues": [], "statistics": {}, "speed_mbps": speed, "state": state
            }))
            .unwrap()
        };
        host.nics = vec![nic("eth0", 10_000, "up"), nic("eth1", 100_000, "down")];
        host.sysctls.insert("net.ipv4.tcp_mem".to_owned(), "45000\t60000\t90000".to_owned());
        let here = harm_of_large_buffers(&host);
        assert!(here.contains("107ms of queue at the 10000 Mbit/s of eth0"), "{here}");
        assert!(here.contains("2 connections that fill them reach the 234 MiB"), "{here}");
        for strange in ["", "1", "1 0 3", "1 18446744073709551615 3", "a b c"] {
            host.sysctls.insert("net.ipv4.tcp_mem".to_owned(), strange.to_owned());
            assert!(harm_of_large_buffers(&host).starts_with("buffers of 128 MiB"), "{strange}");
        }
    }

    #[test]
    fn values_are_compared_by_words() {
        assert!(
            same("4096\t87380  1", "4096 87380 1") && same("always [madvise] never", "madvise")
        );
        assert!(!same("always [madvise] never", "always") && !same("12", "1"));
    }
}
