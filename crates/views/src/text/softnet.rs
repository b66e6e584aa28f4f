//! `show softnet`: packets processed and dropped by each CPU's softirqs, time squeezes, and how often they ran. Idle
//! CPUs are folded into one line.

use super::cpus::count;
use super::line;
use super::table::{Table, or_none, right};
use super::units::ranges;
use super::unknown::{none_of, unknown};
use nearpath_model::{CpuId, Host, SoftnetCpu};

/// `/proc/net/softnet_stat` with the CPU's node and its NET_RX and NET_TX softirqs.
pub fn softnet(host: &Host) -> String {
    let mut out = String::new();
    let (busy, idle): (Vec<&SoftnetCpu>, Vec<&SoftnetCpu>) =
        host.softnet.iter().partition(|cpu| !is_idle(cpu));
    let mut table = Table::new(&[
        right("CPU"),
        right("NODE"),
        right("PROCESSED"),
        right("DROPPED"),
        right("SQUEEZED"),
        right("RPS-IPIS").optional(),
        right("FLOW-LIMIT").optional(),
        right("BACKLOG").optional(),
        right("INPUT-Q").optional(),
        right("PROCESS-Q").optional(),
        right("NET_RX").optional(),
        right("NET_TX").optional(),
    ]);
    for cpu in &busy {
        let node = or_none(host.topology.node_of(cpu.cpu));
        table.row(cells(cpu.cpu.to_string(), node, cpu, |vector| softirq(host, vector, cpu.cpu)));
    }
    if busy.len() > 1 {
        let total = total(&busy);
        let of_busy = |vector: &str| sum(busy.iter().map(|cpu| softirq(host, vector, cpu.cpu)));
        table.row(cells("total".to_owned(), String::new(), &total, of_busy));
    }
    out.push_str(&table.render());
    if !idle.is_empty() {
        let cpus = ranges(idle.iter().map(|cpu| cpu.cpu.0));
        line!(out, "idle: {} ({cpus})", count(idle.len(), "CPU"));
    }
    if host.softnet.is_empty() {
        line!(out, "{}", none_of(host, "softnet counters", "softnet"));
    }
    let unknown = unknown(&host.unknown, &["softnet", "softirqs", "counters"]);
    if !unknown.is_empty() {
        line!(out);
        out.push_str(&unknown);
    }
    out
}

fn cells(
    name: String,
    node: String,
    cpu: &SoftnetCpu,
    softirq: impl Fn(&str) -> Option<u64>,
) -> [String; 12] {
    [
        name,
        node,
        cpu.processed.to_string(),
        cpu.dropped.to_string(),
        cpu.time_squeeze.to_string(),
        or_none(cpu.received_rps),
        or_none(cpu.flow_limit),
        or_none(cpu.backlog),
        or_none(cpu.input_queue),
        or_none(cpu.process_queue),
        or_none(softirq("NET_RX")),
        or_none(softirq("NET_TX")),
    ]
}

fn is_idle(cpu: &SoftnetCpu) -> bool {
    let counters = [
        cpu.processed,
        cpu.dropped,
        cpu.time_squeeze,
        cpu.received_rps.unwrap_or(0),
        cpu.flow_limit.unwrap_or(0),
        cpu.backlog.unwrap_or(0),
    ];
    counters.iter().all(|&counter| counter == 0)
}

fn softirq(host: &Host, vector: &str, cpu: CpuId) -> Option<u64> {
    let line = host.softirqs.iter().find(|line| line.vector == vector)?;
    // A vector that is listed has counts of all CPUs; zeros are left out.
    Some(line.counts.get(&cpu).copied().unwrap_or(0))
}

fn sum(values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    values.flatten().reduce(u64::saturating_add)
}

fn total(cpus: &[&SoftnetCpu]) -> SoftnetCpu {
    let sum_of = |value: fn(&SoftnetCpu) -> Option<u64>| sum(cpus.iter().map(|cpu| value(cpu)));
    SoftnetCpu {
        cpu: CpuId(0),
        processed: sum_of(|cpu| Some(cpu.processed)).unwrap_or(0),
        dropped: sum_of(|cpu| Some(cpu.dropped)).unwrap_or(0),
        time_squeeze: sum_of(|cpu| Some(cpu.time_squeeze)).unwrap_or(0),
        received_rps: sum_of(|cpu| cpu.received_rps),
        flow_limit: sum_of(|cpu| cpu.flow_limit),
        backlog: sum_of(|cpu| cpu.backlog),
        input_queue: sum_of(|cpu| cpu.input_queue),
        process_queue: sum_of(|cpu| cpu.process_queue),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::SoftirqCounts;

    #[test]
    fn a_known_zero_is_a_number_and_only_the_unknown_a_dash() {
        let cpu = |n| SoftnetCpu {
            cpu: CpuId(n),
            processed: 5,
            dropped: 0,
            time_squeeze: 0,
            received_rps: None,
            flow_limit: Some(0),
            backlog: None,
            input_queue: None,
            process_queue: None,
        };
        let rx = SoftirqCounts { vector: "NET_RX".to_owned(), counts: [(CpuId(1), 7)].into() };
        let host = Host { softnet: vec![cpu(0), cpu(1)], softirqs: vec![rx], ..Host::default() };
        let text = softnet(&host);
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        // CPU, node, processed, dropped, squeezed, flow limit, NET_RX.
        assert_eq!(words, ["0", "-", "5", "0", "0", "0", "0"], "{text}");
    }
}
