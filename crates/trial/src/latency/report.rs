//! What a latency benchmark found: plain data.

use super::distribution::{Distribution, Summary};
use super::plan::{LatencyPlan, Loop, Transport};
use super::split::Split;
use super::tally::Tally;
use crate::background::BackgroundReport;
use nearpath_model::Unknown;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// Version of the JSON form of [`LatencyReport`].
pub const LATENCY_SCHEMA: u32 = 1;

/// Latencies of a path, there and back.
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
    /// Bytes of a message.
    pub size_bytes: u32,
    /// Connections or flows.
    pub connections: u32,
    /// Probes per second that were asked for; `None`: as fast as the answers come.
    pub asked_rate_per_s: Option<u32>,
    /// How long probes were sent that count.
    pub duration_s: f64,
    /// Probes that were due and sent; those that the kernel refused are among them.
    pub sent: u64,
    /// Of these, probes that were answered.
    pub received: u64,
    /// And those that were not.
    pub lost: u64,
    /// Answers that took longer than was allowed; they are among `received`.
    pub late: u64,
    /// Answers that came after one to a later probe of the same flow.
    pub reordered: u64,
    /// Further answers to a probe.
    pub duplicated: u64,
    /// What came and is no answer to any probe, or to one that is forgotten.
    pub ignored: u64,
    /// Probes that were due and not sent, as the benchmark was ended early.
    pub not_sent: u64,
    /// Probes that were sent, per second.
    pub rate_per_s: f64,
    /// Of the latencies, as [`Summary`] has them.
    pub min_ns: Option<u64>,
    /// Their mean.
    pub mean_ns: Option<f64>,
    /// Their standard deviation.
    pub stddev_ns: Option<f64>,
    /// By percentile, as deep as the samples allow.
    pub percentiles: std::collections::BTreeMap<String, u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// `[upper_ns, count]` of each bucket of the histogram that is not empty, ascending.
    pub histogram: Vec<(u64, u64)>,
    /// Where they went; `None` when the kernel's stamps do not tell, with the reason in `unknown`.
    pub split: Option<Split>,
    /// The load that was put on the path meanwhile.
    #[serde(default)]
    pub load: Vec<BackgroundReport>,
    /// What is not known, and why.
    pub unknown: Vec<Unknown>,
}

/// What has come since the last look.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Time since the first probe that counts was due.
    pub passed: Duration,
    /// Probes that count and were sent so far.
    pub sent: u64,
    /// Probes that were answered so far.
    pub received: u64,
    /// Latencies of the answers since the last look.
    pub latency: Summary,
}

impl Progress {
    pub(super) fn of(passed: Duration, sent: u64, received: u64, latency: &Distribution) -> Self {
        Self { passed, sent, received, latency: latency.summary() }
    }
}

/// What all threads found together.
pub(super) struct Run {
    pub(super) tally: Tally,
    pub(super) sent: u64,
    pub(super) not_sent: u64,
    pub(super) failed: u64,
    pub(super) send_failure: Option<io::Error>,
    pub(super) seconds: f64,
}

impl LatencyReport {
    pub(super) fn of(plan: &LatencyPlan, run: &Run, no_stamps: Option<String>) -> Self {
        let tally = &run.tally;
        let not_split = tally.without_sent + tally.without_received + tally.contradictory;
        let split = tally.splits.summary(not_split);
        let mut unknown = Vec::new();
        if split.is_none() {
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
            load: Vec::new(),
            unknown,
        }
    }
}

fn fact(fact: &str, reason: String) -> Unknown {
    Unknown { subject: "path".to_owned(), fact: fact.to_owned(), reason }
}

fn why_no_split(plan: &LatencyPlan, tally: &Tally) -> String {
    let Tally { received, without_sent, without_received, contradictory, .. } = *tally;
    if !plan.split {
        "not asked for (--no-split)".to_owned()
    } else if received == 0 {
        "no answer came".to_owned()
    } else if without_sent >= without_received.max(contradictory) {
        "the kernel gave no stamps of sending: the device's driver takes none (ethtool -T)"
            .to_owned()
    } else if without_received >= contradictory {
        "the kernel gave no stamps of receipt".to_owned()
    } else {
        "the stamps contradict each other: the clock was set meanwhile".to_owned()
    }
}
