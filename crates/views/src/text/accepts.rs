//! `measure accepts`: the distance between the CPU that receives a connection and the CPU that accepts it, by listener
//! and worker; or for datagrams, between the CPU that receives and the CPU that reads.

use super::table::{Table, left, or_none, right};
use super::units::{digits, percent, percentage};
use super::unknown::unknown;
use super::{heading, line};
use nearpath_model::Protocol;
use nearpath_model::accepts::{AcceptMeasurement, DistanceCounts, Listener};

/// Maximum number of workers shown per listener, those with the most accepts; the JSON has all.
const WORKERS_SHOWN: usize = 64;

/// The whole measurement.
pub fn accepts(m: &AcceptMeasurement) -> String {
    let mut out = String::new();
    let words = Wording::of(m.protocol);
    line!(out, "{}", in_a_line(m, &words));
    line!(out, "measured {} for {}s, {}", words.what, digits(m.duration_s), words.seen);
    if m.lost > 0 || m.events_dropped > 0 {
        line!(out, "lost: {} not counted, {} not listed individually", m.lost, m.events_dropped);
    }
    if m.skipped > 0 {
        let (runs, what) = (m.skipped, words.what);
        line!(out, "skipped by the kernel: {runs} program runs; {what} may be among them");
    }
    if let Some(cost) = m.cost {
        line!(
            out,
            "cost: {}ns per {}, {} of one CPU",
            digits(cost.ns_per_event),
            words.event,
            percentage(cost.cpu_percent)
        );
    }
    let netns = m.listeners.first().map(|listener| listener.netns);
    let several = m.listeners.iter().any(|listener| Some(listener.netns) != netns);
    for listener in &m.listeners {
        line!(out);
        let of = if several { format!(" netns {}", listener.netns) } else { String::new() };
        heading(&mut out, &format!("{}{of}", listener.local));
        out.push_str(&table(listener, words.column));
    }
    if !m.unknown.is_empty() {
        line!(out);
        out.push_str(&unknown(&m.unknown, &[]));
    }
    out
}

/// `300 connections accepted: 75.0% on the CPU that received them, 25.0% on another node`.
fn in_a_line(m: &AcceptMeasurement, words: &Wording) -> String {
    let sum = |part: fn(&DistanceCounts) -> u64| {
        m.listeners.iter().fold(0u64, |sum, of| sum.saturating_add(part(&of.places)))
    };
    let all = sum(|places| places.accepts);
    if all == 0 {
        return words.none.to_owned();
    }
    let share = |count: u64| percent(count as f64 / all as f64);
    let mut line = format!(
        "{all} {}: {} on the CPU that received them, {} on another node",
        if all == 1 { words.one } else { words.many },
        share(sum(|places| places.same_cpu)),
        share(sum(|places| places.other_node))
    );
    let unknown = sum(|places| places.unknown);
    if unknown > 0 {
        line.push_str(&format!(", {} unknown", share(unknown)));
    }
    line
}

/// What differs between connections and datagrams.
struct Wording {
    one: &'static str,
    many: &'static str,
    what: &'static str,
    seen: &'static str,
    event: &'static str,
    column: &'static str,
    none: &'static str,
}

impl Wording {
    fn of(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Udp => Self {
                one: "datagram read",
                many: "datagrams read",
                what: "datagrams read",
                seen: "observed at packet reception and at the return of receive calls",
                event: "packet, socket with data and receive call",
                column: "DATAGRAMS",
                none: "no datagram was read",
            },
            _ => Self {
                one: "connection accepted",
                many: "connections accepted",
                what: "accepts",
                seen: "observed at the return of accept(2) and accept4(2) and at io_uring completions",
                event: "system call of the host and io_uring request",
                column: "ACCEPTS",
                none: "no connection was accepted",
            },
        }
    }
}

fn table(listener: &Listener, column: &'static str) -> String {
    let mut table = Table::new(&[
        left("WORKER"),
        left("RUNS-ON"),
        right(column),
        right("SAME-CPU"),
        right("SAME-LLC"),
        right("SAME-NODE"),
        right("OTHER-NODE"),
        right("UNKNOWN").optional(),
    ]);
    for worker in listener.workers.iter().take(WORKERS_SHOWN) {
        let name = format!("{}/{}", worker.comm, worker.tid);
        table.row([name, or_none(worker.cpus.as_ref())].into_iter().chain(cells(&worker.places)));
    }
    let hidden = listener.workers.len().saturating_sub(WORKERS_SHOWN);
    let all = if hidden > 0 { format!("all, {hidden} more") } else { "all".to_owned() };
    table.row([all, String::new()].into_iter().chain(cells(&listener.places)));
    table.render()
}

fn cells(places: &DistanceCounts) -> [String; 6] {
    let share = |count: u64| percent(count as f64 / places.accepts.max(1) as f64);
    let unknown = if places.unknown > 0 { share(places.unknown) } else { String::new() };
    [
        places.accepts.to_string(),
        share(places.same_cpu),
        share(places.same_llc),
        share(places.same_node),
        share(places.other_node),
        unknown,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::accepts::Worker;
    use nearpath_model::{CpuSet, EventCost};

    #[test]
    fn shares_by_listener_and_worker() {
        let places = |accepts, same_cpu, other_node| DistanceCounts {
            accepts,
            same_cpu,
            other_node,
            ..DistanceCounts::default()
        };
        let worker = |tid, cpus: Option<&str>, places| Worker {
            pid: 9,
            tid,
            comm: "nginx".into(),
            cpus: cpus.map(|list| CpuSet::from_list(list).unwrap()),
            places,
        };
        let listener = Listener {
            local: "0.0.0.0:8181".into(),
            netns: 1,
            places: places(8, 6, 2),
            workers: vec![
                worker(10, Some("0"), places(6, 6, 0)),
                worker(11, None, places(2, 0, 2)),
            ],
        };
        let mut m = AcceptMeasurement {
            duration_s: 2.0,
            lost: 1,
            skipped: 3,
            cost: Some(EventCost { ns_per_event: 50.0, cpu_percent: 0.5 }),
            ..AcceptMeasurement::default()
        };
        assert!(accepts(&m).starts_with("no connection was accepted\n"));
        m.listeners = vec![listener];
        m.protocol = Protocol::Udp;
        let datagrams = anstream::adapter::strip_str(&accepts(&m)).to_string();
        assert!(datagrams.starts_with("8 datagrams read: 75.0% on the CPU"), "{datagrams}");
        assert!(datagrams.contains("\nWORKER    RUNS-ON  DATAGRAMS  SAME-CPU  "), "{datagrams}");
        m.protocol = Protocol::Tcp;
        let text = anstream::adapter::strip_str(&accepts(&m)).to_string();
        assert_eq!(
            text,
            "8 connections accepted: 75.0% on the CPU that received them, 25.0% on another node\n\
             measured accepts for 2.00s, observed at the return of accept(2) and accept4(2) and at io_uring completions\n\
             lost: 1 not counted, 0 not listed individually\n\
             skipped by the kernel: 3 program runs; accepts may be among them\n\
             cost: 50.0ns per system call of the host and io_uring request, 0.50% of one \
             CPU\n\n\
             0.0.0.0:8181\n\
             WORKER    RUNS-ON  ACCEPTS  SAME-CPU  SAME-LLC  SAME-NODE  OTHER-NODE\n\
             nginx/10  0              6      100%        0%         0%          0%\n\
             nginx/11  -              2        0%        0%         0%        100%\n\
             all       -              8     75.0%        0%         0%       25.0%\n"
        );
    }
}
