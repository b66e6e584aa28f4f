//! `measure irqs`: the matrix of queues and CPUs, the polls of queues, and the load of each CPU. The busiest come first;
//! idle ones are folded into one line.

use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::units::{digits, percent, percentage, printable, ranges};
use super::unknown::unknown;
use super::{heading, line};
use nearpath_model::PacketSource;
use nearpath_model::irqs::{
    CpuInterrupts, IrqMeasurement, NicBalance, OtherInterrupts, QueueInterrupts, Serves,
};
use std::cmp::Reverse;

mod matrix;
mod priorities;

/// Maximum number of rows of a table, the busiest ones.
const ROWS: usize = 40;
/// Maximum number of other interrupts listed.
const OTHERS: usize = 8;

/// A measurement; `width` is that of the terminal, if it is shown on one.
pub fn interrupts(measurement: &IrqMeasurement, width: Option<usize>) -> String {
    let mut out = header(measurement);
    if let Some(of) = &measurement.priorities {
        line!(out);
        out.push_str(&priorities::section(of, width));
    }
    let (busy, idle) = busiest(&measurement.queues, |queue| queue.interrupts);
    line!(out);
    if measurement.queues.iter().all(|queue| queue.irq.is_none()) {
        line!(out, "no queue has its own interrupt");
    } else {
        heading(&mut out, "interrupts of queues, by CPU");
        if !busy.is_empty() {
            out.push_str(&matrix::matrix(measurement, &busy, width));
        }
        more(&mut out, busy.len(), "queue");
        let idle = idle.iter().filter(|queue| queue.irq.is_some()).copied();
        out.push_str(&folded("no interrupts", &idle.collect::<Vec<_>>()));
    }
    out.push_str(&others(&measurement.irqs));
    for part in [packets(measurement, width), cpus(measurement, width)] {
        if !part.is_empty() {
            line!(out);
            out.push_str(&part);
        }
    }
    if !measurement.unknown.is_empty() {
        line!(out);
        out.push_str(&unknown(&measurement.unknown, &["host", "cpus", "irq"]));
    }
    out
}

/// The busy rows, the busiest first, and the idle ones.
fn busiest<T>(rows: &[T], count: impl Fn(&T) -> u64) -> (Vec<&T>, Vec<&T>) {
    let (mut busy, idle): (Vec<_>, Vec<_>) = rows.iter().partition(|row| count(row) > 0);
    busy.sort_by_key(|row| Reverse(count(row)));
    (busy, idle)
}

fn more(out: &mut String, busy: usize, what: &str) {
    if busy > ROWS {
        line!(*out, "less busy: {}", count(busy - ROWS, what));
    }
}

/// `most in interrupts: cpu 3, 38.9% of its time (9.2% hard, 29.7% in softirqs)`; and packets that a CPU has dropped.
fn in_a_line(m: &IrqMeasurement) -> String {
    let of_time = |ns: u64| percent(m.per_s(ns) / 1e9);
    let time = |cpu: &&CpuInterrupts| cpu.irq_ns?.checked_add(cpu.softirq_ns?);
    let most_time =
        m.cpus.iter().filter_map(|cpu| Some((time(&cpu)?, cpu))).max_by_key(|(ns, _)| *ns);
    let most_often = m.cpus.iter().max_by_key(|cpu| cpu.interrupts);
    let busiest = match (most_time, most_often) {
        (Some((ns, cpu)), _) if ns > 0 => format!(
            "most in interrupts: cpu {}, {} of its time ({} hard, {} in softirqs)",
            cpu.cpu,
            of_time(ns),
            of_time(cpu.irq_ns.unwrap_or(0)),
            of_time(cpu.softirq_ns.unwrap_or(0))
        ),
        (_, Some(cpu)) if cpu.interrupts > 0 => {
            let per_s = digits(m.per_s(cpu.interrupts));
            format!("most interrupts: cpu {}, {per_s}/s", cpu.cpu)
        }
        _ => "no interrupts".to_owned(),
    };
    let drops = m.cpus.iter().filter_map(|cpu| Some((cpu.dropped?, cpu.cpu)));
    match drops.max_by_key(|(dropped, _)| *dropped) {
        Some((dropped, cpu)) if dropped > 0 => {
            format!("{busiest}; cpu {cpu} dropped {dropped} packets at its backlog")
        }
        _ => busiest,
    }
}

fn header(m: &IrqMeasurement) -> String {
    let mut out = String::new();
    line!(out, "{}", in_a_line(m));
    heading(&mut out, &format!("measured interrupts for {}s", digits(m.duration_s)));
    let totals = Totals::of(m);
    line!(
        out,
        "all CPUs: {} device interrupts/s, {} NET_RX/s, {} NET_TX/s, {} IPIs/s for RPS",
        digits(m.per_s(totals.interrupts)),
        digits(m.per_s(totals.net_rx)),
        digits(m.per_s(totals.net_tx)),
        or_none(totals.received_rps.map(|ipis| digits(m.per_s(ipis))))
    );
    let share = |ns: Option<u64>| or_none(ns.map(|ns| percent(m.per_s(ns) / 1e9)));
    line!(
        out,
        "time:     {} of one CPU in hard interrupts, {} in softirqs",
        share(totals.irq_ns),
        share(totals.softirq_ns)
    );
    if let Some(cost) = m.cost {
        line!(
            out,
            "cost:     {}ns per event, {} of one CPU; {} events lost",
            digits(cost.ns_per_event),
            percentage(cost.cpu_percent),
            m.events_lost
        );
    }
    out
}

/// The name of a queue as used by drivers.
fn name(queue: &QueueInterrupts) -> String {
    let serves = match queue.direction {
        Serves::Both => "TxRx",
        Serves::Rx => "rx",
        Serves::Tx => "tx",
    };
    match (queue.queue, &queue.name) {
        (Some(number), _) => format!("{serves}-{number}"),
        (None, Some(name)) => name.clone(),
        (None, None) => serves.to_owned(),
    }
}

/// Queues in one line: `no interrupts: eth0 rx-3, eth1 TxRx-0-15`.
fn folded(what: &str, queues: &[&QueueInterrupts]) -> String {
    let groups = queues.chunk_by(|a, b| a.nic == b.nic && a.direction == b.direction);
    let parts: Vec<String> = groups
        .filter_map(|group| {
            let first = group.first()?;
            let name = name(&QueueInterrupts { queue: None, name: None, ..(*first).clone() });
            let numbers = ranges(group.iter().filter_map(|queue| Some(queue.queue?.0)));
            let separator = if numbers.is_empty() { "" } else { "-" };
            Some(printable(&format!("{} {name}{separator}{numbers}", first.nic)))
        })
        .collect();
    if parts.is_empty() { String::new() } else { format!("{what}: {}\n", parts.join(", ")) }
}

fn others(irqs: &[OtherInterrupts]) -> String {
    let total = |irq: &OtherInterrupts| irq.per_cpu.iter().sum::<u64>();
    let (busy, _) = busiest(irqs, total);
    let named = busy.iter().take(OTHERS);
    let parts: Vec<String> =
        named.map(|irq| printable(&format!("{} {} ({})", irq.irq, irq.name, total(irq)))).collect();
    if parts.is_empty() {
        return String::new();
    }
    let rest = busy.len().saturating_sub(OTHERS);
    let rest = if rest > 0 { format!(", and {rest} more") } else { String::new() };
    format!("other interrupts: {}{rest}\n", parts.join(", "))
}

/// Packets received and sent by queues, their polls, and the balance.
fn packets(m: &IrqMeasurement, width: Option<usize>) -> String {
    let activity = |queue: &QueueInterrupts| {
        let counts = [queue.rx_packets, queue.tx_packets, queue.napi.map(|polls| polls.polls)];
        counts.into_iter().flatten().fold(0, u64::saturating_add)
    };
    let (busy, idle) = busiest(&m.queues, activity);
    let mut table = Table::new(&[
        left("NIC"),
        left("QUEUE"),
        right("RX-PACKETS/S").optional(),
        right("TX-PACKETS/S").optional(),
        right("POLLS/S").optional(),
        right("WORK/POLL").optional().gives_way(2),
        right("OF-BUDGET").optional().gives_way(3),
        right("FULL").optional().gives_way(1),
    ]);
    for queue in busy.iter().take(ROWS) {
        let rate = |count: Option<u64>| or_none(count.map(|count| digits(m.per_s(count))));
        let polls = queue.napi.filter(|polls| polls.polls > 0);
        let of = |part: u64, all: u64| part as f64 / all as f64;
        let share = |part: u64, all: u64| (all > 0).then(|| percent(of(part, all)));
        table.row([
            queue.nic.clone(),
            name(queue),
            rate(queue.rx_packets),
            rate(queue.tx_packets),
            rate(polls.map(|polls| polls.polls)),
            or_none(polls.map(|polls| digits(of(polls.work, polls.polls)))),
            or_none(polls.and_then(|polls| share(polls.work, polls.budget))),
            or_none(polls.and_then(|polls| share(polls.full_polls, polls.polls))),
        ]);
    }
    let mut out = String::new();
    if !busy.is_empty() {
        heading(&mut out, "packets and polls of queues");
        out.push_str(&within(&table, width));
        more(&mut out, busy.len(), "queue");
        out.push_str(&folded("neither packets nor polls", &idle));
        m.nics.iter().for_each(|nic| out.push_str(&balance(nic)));
    }
    out
}

/// A table in the terminal's width; hidden columns are listed below it.
fn within(table: &Table, width: Option<usize>) -> String {
    let Some(width) = width else { return table.render() };
    let (mut out, left_out) = table.render_within(width);
    if !left_out.is_empty() {
        line!(out, "(hidden: {}; use a wider terminal or a pipe)", left_out.join(", "));
    }
    out
}

fn balance(nic: &NicBalance) -> String {
    let source = match nic.packets_from {
        Some(PacketSource::Netdev) => "the kernel's queue statistics",
        Some(PacketSource::Driver) => "the driver's statistics",
        Some(PacketSource::Napi) => "NAPI polls",
        None => return String::new(),
    };
    let ways = [("received", nic.rx_imbalance), ("sent", nic.tx_imbalance)];
    let parts: Vec<String> = ways
        .into_iter()
        .filter_map(|(way, most)| Some(format!("{} x mean {way}", digits(most?))))
        .collect();
    if parts.is_empty() {
        return String::new();
    }
    printable(&format!("{}: busiest queue {} (by {source})", nic.nic, parts.join(", "))) + "\n"
}

/// The load of each CPU.
fn cpus(m: &IrqMeasurement, width: Option<usize>) -> String {
    let activity = |cpu: &CpuInterrupts| {
        let runs = m.softirq("NET_RX", cpu.cpu) + m.softirq("NET_TX", cpu.cpu);
        let ipis = cpu.received_rps.unwrap_or(0);
        cpu.interrupts + cpu.processed.unwrap_or(0) + runs + ipis + cpu.backlog_max.unwrap_or(0)
    };
    let (mut busy, idle) = busiest(&m.cpus, activity);
    let all = busy.len();
    busy.truncate(ROWS);
    busy.sort_by_key(|row| row.cpu);
    let mut table = Table::new(&[
        right("CPU"),
        right("NODE").optional().gives_way(5),
        right("IRQ/S"),
        right("HARD").optional().gives_way(7),
        right("SOFT").optional(),
        right("IN-NET_RX").optional().gives_way(1),
        right("NET_RX/S"),
        right("NET_TX/S").gives_way(2),
        right("PACKETS/S").optional(),
        right("SQUEEZED").optional().gives_way(6),
        right("DROPPED").optional(),
        right("RPS-IPI/S").optional().gives_way(4),
        right("BACKLOG").optional().gives_way(3),
    ]);
    for row in busy {
        let rate = |count: u64| digits(m.per_s(count));
        let time = |ns: Option<u64>| or_none(ns.map(|ns| percent(m.per_s(ns) / 1e9)));
        let net_rx = row.softirq_ns.map(|_| row.soft_ns.get("NET_RX").copied().unwrap_or(0));
        table.row([
            row.cpu.to_string(),
            or_none(row.node),
            rate(row.interrupts),
            time(row.irq_ns),
            time(row.softirq_ns),
            time(net_rx),
            rate(m.softirq("NET_RX", row.cpu)),
            rate(m.softirq("NET_TX", row.cpu)),
            or_none(row.processed.map(rate)),
            or_none(row.time_squeeze),
            or_none(row.dropped),
            or_none(row.received_rps.map(rate)),
            or_none(row.backlog_max),
        ]);
    }
    let mut out = String::new();
    if m.cpus.is_empty() {
        return out;
    }
    heading(&mut out, "CPUs");
    out.push_str(&within(&table, width));
    more(&mut out, all, "CPU");
    if !idle.is_empty() {
        let numbers = ranges(idle.iter().map(|row| row.cpu.0));
        line!(out, "idle: {} ({numbers})", count(idle.len(), "CPU"));
    }
    out
}

/// Sums over all CPUs.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    interrupts: u64,
    net_rx: u64,
    net_tx: u64,
    processed: u64,
    squeezed: u64,
    dropped: u64,
    received_rps: Option<u64>,
    irq_ns: Option<u64>,
    softirq_ns: Option<u64>,
}

impl Totals {
    fn of(m: &IrqMeasurement) -> Self {
        let sum = |value: fn(&CpuInterrupts) -> Option<u64>| {
            m.cpus.iter().filter_map(value).reduce(u64::saturating_add)
        };
        let runs = |vector: &str| m.softirqs.get(vector).map_or(0, |runs| runs.iter().sum());
        Self {
            interrupts: sum(|cpu| Some(cpu.interrupts)).unwrap_or(0),
            net_rx: runs("NET_RX"),
            net_tx: runs("NET_TX"),
            processed: sum(|cpu| cpu.processed).unwrap_or(0),
            squeezed: sum(|cpu| cpu.time_squeeze).unwrap_or(0),
            dropped: sum(|cpu| cpu.dropped).unwrap_or(0),
            received_rps: sum(|cpu| cpu.received_rps),
            irq_ns: sum(|cpu| cpu.irq_ns),
            softirq_ns: sum(|cpu| cpu.softirq_ns),
        }
    }
}

/// The heading above the interval lines.
pub fn interrupts_heading() -> String {
    format!(
        "{:>9} {:>9} {:>7} {:>7} {:>9} {:>9} {:>10} {:>9} {:>8} {:>7}  {}\n",
        "TIME",
        "IRQ/S",
        "HARD",
        "SOFT",
        "NET_RX/S",
        "NET_TX/S",
        "PACKETS/S",
        "RPS-IPI/S",
        "SQUEEZED",
        "DROPPED",
        "BUSIEST"
    )
}

/// One interval as a line: the difference of two measurements with the same start.
pub fn interrupts_line(before: &IrqMeasurement, now: &IrqMeasurement) -> String {
    let (a, b) = (Totals::of(before), Totals::of(now));
    let passed_s = (now.duration_s - before.duration_s).max(f64::MIN_POSITIVE);
    let rate = |a: u64, b: u64| format!("{:.0}", b.saturating_sub(a) as f64 / passed_s);
    let time = |a: Option<u64>, b: Option<u64>| {
        or_none(b.map(|b| percent(b.saturating_sub(a.unwrap_or(0)) as f64 / 1e9 / passed_s)))
    };
    let ipis = b.received_rps.map(|ipis| rate(a.received_rps.unwrap_or(0), ipis));
    format!(
        "{:>7} s {:>9} {:>7} {:>7} {:>9} {:>9} {:>10} {:>9} {:>8} {:>7}  {}\n",
        format!("{:.1}", now.duration_s),
        rate(a.interrupts, b.interrupts),
        time(a.irq_ns, b.irq_ns),
        time(a.softirq_ns, b.softirq_ns),
        rate(a.net_rx, b.net_rx),
        rate(a.net_tx, b.net_tx),
        rate(a.processed, b.processed),
        or_none(ipis),
        b.squeezed.saturating_sub(a.squeezed),
        b.dropped.saturating_sub(a.dropped),
        or_none(busiest_queue(before, now, passed_s)),
    )
}

/// `eth0 TxRx-0 > cpu 3 (1234/s)`, of the queue and CPU with most interrupts.
fn busiest_queue(before: &IrqMeasurement, now: &IrqMeasurement, passed_s: f64) -> Option<String> {
    let cells = now.queues.iter().flat_map(|queue| {
        let same = |old: &&QueueInterrupts| (&old.nic, old.irq) == (&queue.nic, queue.irq);
        let old = before.queues.iter().find(same);
        queue.per_cpu.iter().enumerate().map(move |(cpu, count)| {
            let was = old.and_then(|old| old.per_cpu.get(cpu)).copied().unwrap_or(0);
            (count.saturating_sub(was), cpu, queue)
        })
    });
    let (most, cpu, queue) = cells.max_by_key(|(count, _, _)| *count).filter(|cell| cell.0 > 0)?;
    let rate = most as f64 / passed_s;
    Some(printable(&format!("{} {} > cpu {cpu} ({rate:.0}/s)", queue.nic, name(queue))))
}
