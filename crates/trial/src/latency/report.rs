//! Results of a latency benchmark: plain data.

use super::distribution::{Distribution, Summary};
use super::loops::nanoseconds;
use super::plan::{LatencyPlan, Loop, Transport};
use super::split::Split;
use super::tally::Tally;
use super::txtime::{Seen, tai_offset_s};
use crate::background::BackgroundReport;
use crate::clock::SECOND_NS;
use nearpath_model::{Finding, SCHEDULED_TRANSMISSION_SCHEMA, ScheduledTransmission, Unknown};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// Version of the JSON form of [`LatencyReport`].
pub const LATENCY_SCHEMA: u32 = 1;

/// Round-trip latencies of a path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Version of this form.
    pub schema: u32,
    /// Address and port of the reflector.
    pub target: String,
    /// UDP or TCP.
    pub transport: Transport,
    /// Open or closed loop.
    pub mode: Loop,
    /// Message length in bytes.
    pub size_bytes: u32,
    /// Connections or flows.
    pub connections: u32,
    /// Requested probes per second; `None`: unlimited.
    pub asked_rate_per_s: Option<u32>,
    /// Duration of the measurement.
    pub duration_s: f64,
    /// Probes that were due and sent, including those that the kernel refused.
    pub sent: u64,
    /// Probes that were answered.
    pub received: u64,
    /// Probes that were not answered.
    pub lost: u64,
    /// Answers that took longer than the timeout; included in `received`.
    pub late: u64,
    /// Answers that arrived after one to a later probe of the same flow.
    pub reordered: u64,
    /// Duplicate answers to a probe.
    pub duplicated: u64,
    /// Received data that is not an answer to any remembered probe.
    pub ignored: u64,
    /// Probes that were due and not sent, because the benchmark was stopped early.
    pub not_sent: u64,
    /// Probes sent, per second.
    pub rate_per_s: f64,
    /// The latencies, as in [`Summary`]; none in scheduled transmission, whose differences may be negative.
    pub min_ns: Option<u64>,
    /// Their mean.
    pub mean_ns: Option<f64>,
    /// Their standard deviation.
    pub stddev_ns: Option<f64>,
    /// By percentile, as far as there are enough samples.
    pub percentiles: std::collections::BTreeMap<String, u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// `[upper_ns, count]` of each bucket of the histogram that is not empty, ascending.
    pub histogram: Vec<(u64, u64)>,
    /// Where the time went; `None` if not available from kernel timestamps, with the reason in `unknown`.
    pub split: Option<Split>,
    /// Of scheduled transmission: drops, and the differences to the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<ScheduledTransmission>,
    /// The background load on the path.
    #[serde(default)]
    pub load: Vec<BackgroundReport>,
    /// What is wrong with how this host schedules transmission.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// What is unknown, with the reason.
    pub unknown: Vec<Unknown>,
}

/// The change since the last reading.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Time since the first counted probe was due.
    pub passed: Duration,
    /// Counted probes sent so far.
    pub sent: u64,
    /// Probes answered so far.
    pub received: u64,
    /// Latencies of the answers since the last reading.
    pub latency: Summary,
    /// The same as a histogram: `[upper_ns, count]` of each bucket that is not empty, ascending.
    pub histogram: Vec<(u64, u64)>,
}

impl Progress {
    pub(super) fn of(passed: Duration, sent: u64, received: u64, latency: &Distribution) -> Self {
        Self { passed, sent, received, latency: latency.summary(), histogram: latency.buckets() }
    }
}

/// The combined results of all threads.
pub(super) struct Run {
    pub(super) tally: Tally,
    pub(super) sent: u64,
    pub(super) not_sent: u64,
    pub(super) failed: u64,
    pub(super) send_failure: Option<io::Error>,
    pub(super) seconds: f64,
    /// Of scheduled transmission.
    pub(super) seen: Option<Seen>,
    pub(super) device: Option<String>,
}

impl LatencyReport {
    pub(super) fn of(plan: &LatencyPlan, run: &Run, no_stamps: Option<String>) -> Self {
        let tally = &run.tally;
        let not_split = tally.without_sent + tally.without_received + tally.contradictory;
        let split = tally.splits.summary(not_split);
        let mut unknown = Vec::new();
        if split.is_none() && plan.lead.is_none() {
            let reason = no_stamps.unwrap_or_else(|| why_no_split(plan, tally));
            unknown.push(fact("split", reason));
        }
        if let Some(reason) = &run.send_failure {
            let count = run.failed;
            unknown
                .push(fact("latency of probes that were not sent", format!("{count}: {reason}")));
        }
        let Summary { min_ns, mean_ns, stddev_ns, percentiles, max_ns, .. } =
            tally.latency.summary();
        Self {
            schema: LATENCY_SCHEMA,
            target: plan.target.to_string(),
            transport: plan.transport,
            mode: plan.mode,
            size_bytes: plan.size,
            connections: plan.connections,
            asked_rate_per_s: plan.rate_per_s,
            duration_s: run.seconds,
            sent: run.sent,
            received: tally.received,
            lost: run.sent.saturating_sub(tally.received),
            late: tally.late,
            reordered: tally.reordered,
            duplicated: tally.duplicated,
            ignored: tally.ignored,
            not_sent: run.not_sent,
            rate_per_s: if run.seconds > 0.0 { run.sent as f64 / run.seconds } else { 0.0 },
            min_ns,
            mean_ns,
            stddev_ns,
            percentiles,
            max_ns,
            histogram: tally.latency.buckets(),
            split,
            scheduled: run.seen.as_ref().map(|seen| scheduled(plan, run, seen)),
            load: Vec::new(),
            findings: Vec::new(),
            unknown,
        }
    }
}

/// The part about scheduled transmission.
fn scheduled(plan: &LatencyPlan, run: &Run, seen: &Seen) -> ScheduledTransmission {
    let is_constant = plan.mode == Loop::Open(crate::pacer::Arrivals::Constant);
    let rate = plan.rate_per_s.filter(|_| is_constant).map(u64::from);
    ScheduledTransmission {
        schema: SCHEDULED_TRANSMISSION_SCHEMA,
        device: run.device.clone(),
        priority: plan.options.priority.unwrap_or(0),
        lead_ns: plan.lead.map_or(0, nanoseconds),
        period_ns: rate.map(|rate| u64::from(plan.connections) * SECOND_NS / rate.max(1)),
        tai_offset_s: tai_offset_s(),
        sent: run.sent,
        arrival: run.tally.arrivals.summary(),
        answer: run.tally.answers.summary(),
        ..seen.report()
    }
}

fn fact(fact: &str, reason: String) -> Unknown {
    Unknown { subject: "path".to_owned(), fact: fact.to_owned(), reason }
}

fn why_no_split(plan: &LatencyPlan, tally: &Tally) -> String {
    let Tally { received, without_sent, without_received, contradictory, .. } = *tally;
    if !plan.split {
        "not requested (--no-split)".to_owned()
    } else if received == 0 {
        "no answer was received".to_owned()
    } else if without_sent >= without_received.max(contradictory) {
        "no transmit timestamps from the kernel: not supported by the device's driver (ethtool -T)"
            .to_owned()
    } else if without_received >= contradictory {
        "no receive timestamps from the kernel".to_owned()
    } else {
        "the timestamps are inconsistent: the clock was set in the meantime".to_owned()
    }
}
