//! Packets that the NIC dropped because no worker fetched them in time, and why.
//!
//! Input: `imissed` and `rx_nombuf` of the ports, the busy shares of the workers, packets by queue. Output: one finding
//! for each port with losses: workers busy: there are too few; some idle: the packets are uneven; disturbed: who ran
//! there.
//!
//! Rules: DPVS's guide to worker tuning (missed packets), DPDK's `rte_eth_stats` (lib/ethdev/rte_ethdev.h).

use crate::workers::{busy, cpus, is_away, polls, process_name, received_per_s};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, PollingPort, PollingProcess, PollingWorker, Subject};

pub(super) const CHECK: Check =
    Check::new("worker_missed", "packets that NICs of DPDK dropped, and why", run)
        .explained_by(&["worker_disturbed"]);

/// A worker that is busy for this share of the time has no room for a burst.
const BUSY_PERCENT: f64 = 90.0;
/// One with less has room left.
const IDLE_PERCENT: f64 = 60.0;
/// A queue with this many times the mean share is uneven.
const UNEVEN: f64 = 1.5;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for process in context.polling_processes() {
        for port in &process.ports {
            if port.port.is_some() && port.imissed.is_none() {
                let port = text::clean(&port.name);
                outcome.not_checked(format!("{port} does not report missed packets"));
            }
            let (missed, no_buffer) = lost(context, port);
            if missed > 0 {
                outcome.findings.push(missed_finding(context, process, port, missed));
            }
            if no_buffer > 0 {
                outcome.findings.push(no_buffer_finding(context, process, port, no_buffer));
            }
        }
    }
    outcome
}

/// Packets missed, and packets without a buffer: in the interval, or in all.
fn lost(context: &Context<'_>, port: &PollingPort) -> (u64, u64) {
    match (&port.interval, context.workers.and_then(|workers| workers.duration_s)) {
        (Some(rates), Some(duration_s)) => {
            let count = |rate: Option<f64>| (rate.unwrap_or(0.0) * duration_s).round() as u64;
            (count(rates.imissed_per_s), count(rates.rx_nombuf_per_s))
        }
        _ => (port.imissed.unwrap_or(0), port.rx_nombuf.unwrap_or(0)),
    }
}

fn arrived(context: &Context<'_>, port: &PollingPort) -> Option<u64> {
    match (received_per_s(port), context.workers.and_then(|workers| workers.duration_s)) {
        (Some(rate), Some(duration_s)) => Some((rate * duration_s) as u64),
        _ => port.rx_packets,
    }
}

fn missed_finding(
    context: &Context<'_>,
    process: &PollingProcess,
    port: &PollingPort,
    missed: u64,
) -> Finding {
    let Cause { title: cause, evidence, away } = cause(process, port);
    let when = if port.interval.is_some() { "" } else { " since it started" };
    let title =
        format!("{} dropped {}{when}{cause}", text::clean(&port.name), text::packets(missed));
    let severity = severity::of_loss(context, missed, arrived(context, port));
    let share =
        arrived(context, port).map(|arrived| missed as f64 / (missed as f64 + arrived as f64));
    let mut finding = Finding::new(severity, title)
        .share(share, "its packets")
        .about([Subject::Nic(text::clean(&port.name))])
        .about(away.into_iter().flat_map(cpus));
    finding = finding.evidence(format!("It is a port of {}.", process_name(process)));
    for sentence in evidence {
        finding = finding.evidence(sentence);
    }
    finding
}

/// The cause if others kept workers away.
const DISTURBED: &str = ": workers disturbed";

/// Why a port's packets were missed.
struct Cause<'a> {
    /// For the title.
    title: &'static str,
    evidence: Vec<String>,
    /// The workers that others kept away.
    away: Vec<&'a PollingWorker>,
}

fn cause<'a>(process: &'a PollingProcess, port: &PollingPort) -> Cause<'a> {
    let workers: Vec<&PollingWorker> = process
        .workers
        .iter()
        .filter(|worker| polls(worker))
        .filter(|worker| worker.queues.is_empty() || worker.queues.contains_key(&port.name))
        .collect();
    let shares: Vec<(&PollingWorker, f64)> =
        workers.iter().filter_map(|worker| Some((*worker, busy(worker)?))).collect();
    let mut evidence: Vec<String> = shares
        .iter()
        .take(8)
        .map(|(worker, busy)| {
            format!("Lcore {} was busy for {}.", worker.lcore, text::percent(busy / 100.0))
        })
        .collect();
    let queues = port.interval.as_ref().map(|of| of.queue_percent.as_slice()).unwrap_or_default();
    let most = queues.iter().copied().fold(0.0, f64::max);
    let is_uneven = queues.len() > 1 && most >= UNEVEN * 100.0 / queues.len() as f64;
    if let Some(queue) = queues.iter().position(|share| *share == most).filter(|_| is_uneven) {
        let share = text::percent(most / 100.0);
        evidence
            .push(format!("Queue {queue} of {} received {share} of the packets.", queues.len()));
    }
    let lost = |worker: &&'a PollingWorker| {
        let activity = worker.interval.as_ref().filter(|of| of.is_disturbed == Some(true))?;
        Some((*worker, activity.lost_percent().unwrap_or(0.0)))
    };
    let disturbed: Vec<(&PollingWorker, f64)> = workers.iter().filter_map(lost).collect();
    let some_away = workers.iter().any(|worker| is_away(worker));
    evidence.extend(disturbed.iter().take(8).map(|(worker, lost)| {
        let lost = text::percent(lost / 100.0);
        format!("Lcore {} lost {lost} of its time to others.", worker.lcore)
    }));
    let all_busy = !shares.is_empty() && shares.iter().all(|(_, busy)| *busy >= BUSY_PERCENT);
    let some_idle = shares.iter().any(|(_, busy)| *busy < IDLE_PERCENT);
    let some_busy = shares.iter().any(|(_, busy)| *busy >= BUSY_PERCENT);
    let title = if some_away {
        DISTURBED
    } else if all_busy {
        evidence.push("Add workers and queues, or cores that do more.".to_owned());
        ": workers busy"
    } else if some_idle && (some_busy || is_uneven) {
        evidence.push("Spread the flows: more header fields in the RSS hash, another table, or rules for heavy flows.".to_owned());
        ": packets uneven, some workers idle"
    } else if !disturbed.is_empty() {
        DISTURBED
    } else if is_uneven {
        ": packets uneven over queues"
    } else if shares.is_empty() {
        evidence.push(
            "Whether its workers are busy is unknown: the application does not count cycles (testpmd: \
             --record-core-cycles, from DPDK 23.03 on)."
                .to_owned(),
        );
        ""
    } else {
        evidence.push(
            "Its workers had room on average: bursts are longer than the receive ring; enlarge it."
                .to_owned(),
        );
        ": bursts longer than its ring"
    };
    let away = disturbed.into_iter().filter(|_| title == DISTURBED).map(|(worker, _)| worker);
    Cause { title, evidence, away: away.collect() }
}

fn no_buffer_finding(
    context: &Context<'_>,
    process: &PollingProcess,
    port: &PollingPort,
    lost: u64,
) -> Finding {
    let title = format!("{} had no buffer for {}", text::clean(&port.name), text::packets(lost));
    let severity = severity::of_loss(context, lost, arrived(context, port));
    let mut finding = Finding::new(severity, title)
        .evidence(format!("It is a port of {}.", process_name(process)));
    for pool in process.pools.iter().take(8) {
        if let Some(elements) = pool.elements {
            let name = text::clean(&pool.name);
            finding = finding.evidence(format!("{name} has {elements} buffers."));
        }
    }
    finding
        .evidence("Enlarge the pool: all rings, bursts and caches of lcores take buffers from it.")
}
