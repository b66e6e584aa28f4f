//! A part of a recording as one measurement with its findings: it stands in for the machine of that time.

use super::file::Recorded;
use super::rows_of::{Reading, Row, Source};
use super::table::Table;
use nearpath_model::histogram::{by_number, quantile_ns};
use nearpath_model::locality::{CpuPairCount, Distances, Locality};
use nearpath_model::{
    CpuId, Culprit, DIAGNOSIS_SCHEMA, Diagnosis, Direction, Finding, HostSummary, Measurement,
    NodeId, NotChecked, Outlier, Packets, PathKind, PathLatency, Place, Share, Span, Watch,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Slow packets that are kept: the slowest.
const OUTLIERS_MAX: usize = 50;

/// The buckets of an interval: its end in microseconds since 1970, and `(longest latency in ns, packets)`.
pub type Column = (i64, Vec<(u64, u64)>);

/// What was recorded between two times.
#[derive(Debug)]
pub struct Replay {
    /// Names of all hosts.
    pub hosts: Vec<String>,
    /// Findings, each as it was when it cost most, and what was measured.
    pub diagnosis: Diagnosis,
    /// Latencies of whole paths over time.
    pub history: BTreeMap<&'static str, Vec<Column>>,
    /// What could not be read.
    pub notes: Vec<String>,
    /// The ends of the first and the last interval, in microseconds since 1970.
    pub times: Option<(i64, i64)>,
}

/// Sums of a path or a span.
#[derive(Debug, Default)]
struct Sum {
    buckets: BTreeMap<u64, u64>,
    count: u64,
    total_ns: u64,
    max_ns: Option<u64>,
    moved: [Option<u64>; 3],
}

/// Adds a count of a row, which may be of any size in a file that another program has written.
fn add(sum: &mut u64, row: &Row<'_>, name: &str) {
    *sum = sum.saturating_add(row.count(name).unwrap_or(0));
}

impl Sum {
    fn add(&mut self, row: &Row<'_>) {
        add(&mut self.count, row, "packets");
        add(&mut self.total_ns, row, "total_ns");
        self.max_ns = self.max_ns.max(row.count("max_ns"));
        for (sum, name) in self.moved.iter_mut().zip(["other_cpu", "other_llc", "other_node"]) {
            if let Some(count) = row.count(name) {
                let sum = sum.get_or_insert(0);
                *sum = sum.saturating_add(count);
            }
        }
    }

    fn add_bucket(&mut self, row: &Row<'_>) {
        if let Some(upper) = row.count("upper_ns") {
            add(self.buckets.entry(upper).or_default(), row, "packets");
        }
    }

    fn buckets(&self) -> Vec<(u64, u64)> {
        self.buckets.iter().map(|(&upper, &packets)| (upper, packets)).collect()
    }

    fn percentile(&self, q: f64) -> Option<u64> {
        let ns = quantile_ns(&by_number(&self.buckets()), q)?;
        Some((ns.round() as u64).min(self.max_ns.unwrap_or(u64::MAX)))
    }

    fn share(&self, of: usize) -> Option<f64> {
        let count = self.moved.get(of).copied().flatten()?;
        (self.count > 0).then(|| count as f64 / self.count as f64)
    }
}

/// Replays what was recorded between two times in microseconds since 1970, both included, of the first host.
pub fn replay(source: &dyn Source, from_us: i64, to_us: i64) -> Replay {
    let mut reading = Reading::new(source, from_us, to_us);
    let (mut diagnosis, history) = diagnosis(&mut reading);
    let cost = reading.rows(Table::Cost);
    let has = |instrument: &str| {
        cost.iter().any(|row| Row(Table::Cost, row).text("instrument") == instrument)
    };
    if reading.hosts.is_empty() {
        // Counters alone are recorded, where the other sources are off.
        reading.rows(Table::Softnet);
    }
    if !has("stages") {
        diagnosis.measurement = None;
    }
    if diagnosis.findings.is_empty() && !has("findings") {
        // That nobody looked does not mean that nothing was wrong.
        diagnosis.checks = 1;
        diagnosis.not_checked = vec![NotChecked {
            check: "findings".to_owned(),
            reason: "no diagnosis was recorded in this time".to_owned(),
        }];
    }
    // Files that cannot be read may have had findings.
    diagnosis.not_checked.extend(
        reading
            .notes
            .iter()
            .map(|note| NotChecked { check: "recording".to_owned(), reason: note.clone() }),
    );
    Replay { hosts: reading.hosts, diagnosis, history, notes: reading.notes, times: reading.times }
}

/// The diagnosis of all that is read, and latencies of whole paths over time.
pub(super) fn diagnosis(
    reading: &mut Reading<'_>,
) -> (Diagnosis, BTreeMap<&'static str, Vec<Column>>) {
    let findings = findings(&reading.rows(Table::Findings));
    let (measurement, history) = measurement(reading);
    let locality = locality(reading);
    let diagnosis = Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        findings,
        not_checked: Vec::new(),
        checks: 0,
        host: HostSummary::default(),
        measurement: Some(measurement),
        other_look: None,
        locality,
        accepts: None,
        tcp: None,
        memory: None,
        workers: None,
        vm: None,
    };
    (diagnosis, history)
}

/// Each finding once, ranked as a diagnosis ranks them.
pub(super) fn findings(rows: &[Recorded]) -> Vec<Finding> {
    let mut worst: BTreeMap<(&str, &str), Finding> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Findings, row)) {
        let Ok(finding) = serde_json::from_str::<Finding>(row.text("document")) else { continue };
        let key = (row.text("check_name"), row.text("subject"));
        let is_worse = |have: &Finding| rank(&finding) > rank(have);
        if worst.get(&key).is_none_or(is_worse) {
            worst.insert(key, finding);
        }
    }
    let mut findings: Vec<Finding> = worst.into_values().collect();
    findings.sort_by_key(|finding| Reverse(rank(finding)));
    findings
}

fn rank(finding: &Finding) -> impl Ord + use<> {
    let whole = |value: Option<f64>| (value.unwrap_or(0.0).max(0.0) * 1e9) as u64;
    let cost = &finding.cost;
    (finding.severity, whole(cost.seconds_per_second), whole(cost.share_percent))
}

pub(super) fn measurement(
    reading: &mut Reading<'_>,
) -> (Measurement, BTreeMap<&'static str, Vec<Column>>) {
    let (mut measurement, mut observed_s) = (Measurement::default(), 0.0);
    for row in reading.rows(Table::Cost).iter().map(|row| Row(Table::Cost, row)) {
        if row.text("instrument") == "stages" {
            measurement.duration_s += row.1.interval_s;
            observed_s += row.real("observed_s").unwrap_or(0.0);
        }
    }
    if observed_s < 0.99 * measurement.duration_s {
        measurement.observed_s = Some(observed_s);
    }
    let fates = reading.rows(Table::Packets);
    measurement.packets = packets(&fates);
    measurement.watch = watch(&fates, measurement.duration_s);
    let (paths, history) = paths(reading);
    measurement.paths = paths;
    measurement.spans = spans(reading);
    let mut causes: BTreeMap<(String, String), u64> = BTreeMap::new();
    for row in reading.rows(Table::Causes).iter().map(|row| Row(Table::Causes, row)) {
        let key = (row.text("cause").to_owned(), row.text("culprit").to_owned());
        add(causes.entry(key).or_default(), &row, "ns");
    }
    let share = |((cause, culprit), ns): ((String, String), u64)| {
        let who =
            (!culprit.is_empty()).then(|| Culprit { comm: Some(culprit), ..Culprit::default() });
        Some(Share { share: serde_json::from_value(cause.into()).ok()?, ns, who })
    };
    measurement.budget_totals = causes.into_iter().filter_map(share).collect();
    measurement.budget_totals.sort_by_key(|share| Reverse(share.ns));
    measurement.outliers = outliers(&reading.rows(Table::Outliers));
    (measurement, history)
}

/// The slowest packets.
pub(super) fn outliers(rows: &[Recorded]) -> Vec<Outlier> {
    let mut rows: Vec<Row<'_>> = rows.iter().map(|row| Row(Table::Outliers, row)).collect();
    rows.sort_by_key(|row| Reverse(row.count("span_ns")));
    let documents = rows.iter().map(|row| row.text("document"));
    documents.filter_map(|text| serde_json::from_str(text).ok()).take(OUTLIERS_MAX).collect()
}

fn packets(rows: &[Recorded]) -> Packets {
    let mut packets = Packets::default();
    for row in rows.iter().map(|row| Row(Table::Packets, row)) {
        let sum = match row.text("outcome") {
            "started" => &mut packets.started,
            "completed" => &mut packets.completed,
            "dropped" => &mut packets.dropped,
            "abandoned" => &mut packets.abandoned,
            "collided" => &mut packets.collided,
            "sampled_out" => &mut packets.sampled_out,
            _ => continue,
        };
        add(sum, &row, "packets");
    }
    packets
}

/// What the watch has counted; `None` in recordings of before there was one.
fn watch(rows: &[Recorded], duration_s: f64) -> Option<Watch> {
    let mut watch = Watch {
        watched_s: duration_s,
        recorded_s: duration_s,
        late_ns: LATE_NS,
        ..Watch::default()
    };
    let mut is_known = false;
    for row in rows.iter().map(|row| Row(Table::Packets, row)) {
        let sum = match row.text("outcome") {
            "watched" => &mut watch.packets,
            "unstamped" => &mut watch.unstamped,
            "late" => &mut watch.late,
            "explained" => &mut watch.explained,
            _ => continue,
        };
        is_known = true;
        add(sum, &row, "packets");
    }
    is_known.then_some(watch)
}

/// The daemon's time from which a packet is late.
const LATE_NS: u64 = 1_000_000;

fn paths(reading: &mut Reading<'_>) -> (Vec<PathLatency>, BTreeMap<&'static str, Vec<Column>>) {
    let mut sums: BTreeMap<PathKind, Sum> = BTreeMap::new();
    let mut history: BTreeMap<&'static str, Vec<Column>> = BTreeMap::new();
    for row in reading.rows(Table::Paths).iter().map(|row| Row(Table::Paths, row)) {
        if let Some(kind) = row.path() {
            sums.entry(kind).or_default().add(&row);
        }
    }
    for row in reading.rows(Table::PathBuckets).iter().map(|row| Row(Table::PathBuckets, row)) {
        let Some(kind) = row.path() else { continue };
        sums.entry(kind).or_default().add_bucket(&row);
        let columns = history.entry(kind.name()).or_default();
        if columns.last().is_none_or(|(time, _)| *time != row.1.time_us) {
            columns.push((row.1.time_us, Vec::new()));
        }
        let bucket = row.count("upper_ns").zip(row.count("packets"));
        if let Some((_, buckets)) = columns.last_mut() {
            buckets.extend(bucket);
        }
    }
    let path = |(kind, sum): (PathKind, Sum)| PathLatency {
        kind,
        from: String::new(),
        count: sum.count,
        min_ns: None,
        p50_ns: sum.percentile(0.5),
        p90_ns: sum.percentile(0.9),
        p99_ns: sum.percentile(0.99),
        p999_ns: sum.percentile(0.999),
        max_ns: sum.max_ns,
        total_ns: sum.total_ns,
        above: Vec::new(),
        other_cpu: sum.share(0),
        other_llc: sum.share(1),
        other_node: sum.share(2),
        buckets: sum.buckets(),
    };
    (sums.into_iter().map(path).collect(), history)
}

fn spans(reading: &mut Reading<'_>) -> Vec<Span> {
    let (rows, buckets) = (reading.rows(Table::Spans), reading.rows(Table::SpanBuckets));
    // In the order of the recording, which is that of the path.
    let mut order: Vec<(Direction, &str, &str)> = Vec::new();
    let mut sums: BTreeMap<(Direction, &str, &str), Sum> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Spans, row)) {
        let Some(key) = span_key(&row) else { continue };
        if !sums.contains_key(&key) {
            order.push(key);
        }
        sums.entry(key).or_default().add(&row);
    }
    for row in buckets.iter().map(|row| Row(Table::SpanBuckets, row)) {
        if let Some(sum) = span_key(&row).and_then(|key| sums.get_mut(&key)) {
            sum.add_bucket(&row);
        }
    }
    let mut spans = Vec::new();
    for key in order {
        let Some(sum) = sums.remove(&key) else { continue };
        let (direction, from, to) = key;
        spans.push(Span {
            direction,
            from: from.to_owned(),
            to: to.to_owned(),
            count: sum.count,
            min_ns: None,
            p50_ns: sum.percentile(0.5),
            p90_ns: sum.percentile(0.9),
            p99_ns: sum.percentile(0.99),
            p999_ns: sum.percentile(0.999),
            max_ns: sum.max_ns,
            total_ns: sum.total_ns,
            other_cpu: sum.share(0),
            other_llc: sum.share(1),
            other_node: sum.share(2),
            buckets: sum.buckets(),
            places: Vec::new(),
        });
    }
    spans
}

fn span_key<'a>(row: &Row<'a>) -> Option<(Direction, &'a str, &'a str)> {
    Some((row.direction()?, row.text("from_stage"), row.text("to_stage")))
}

/// `None` if it was not recorded.
fn locality(reading: &mut Reading<'_>) -> Option<Locality> {
    let rows = reading.rows(Table::Locality);
    if rows.is_empty() {
        return None;
    }
    let mut locality = Locality::default();
    let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Locality, row)) {
        let key = (row.text("direction").to_owned(), row.text("distance").to_owned());
        add(counts.entry(key).or_default(), &row, "packets");
    }
    let of = |direction: &str| {
        let names = ["same_cpu", "same_core", "same_llc", "same_node", "other_node", "unknown"];
        let count = |name: &str| counts.get(&(direction.to_owned(), name.to_owned()));
        Distances::of(names.map(|name| count(name).copied().unwrap_or(0)))
    };
    (locality.rx, locality.tx) = (of("rx"), of("tx"));
    let mut pairs: BTreeMap<(Direction, u32, u32), Place> = BTreeMap::new();
    let rows = reading.rows(Table::LocalityCpus);
    for row in rows.iter().map(|row| Row(Table::LocalityCpus, row)) {
        let cpus = row.number("from_cpu").zip(row.number("to_cpu"));
        let Some(((from, to), direction)) = cpus.zip(row.direction()) else {
            continue;
        };
        let place = pairs.entry((direction, from, to)).or_insert_with(|| Place {
            from_cpu: CpuId(from),
            to_cpu: CpuId(to),
            from_node: row.number("from_node").map(NodeId),
            to_node: row.number("to_node").map(NodeId),
            count: 0,
        });
        add(&mut place.count, &row, "packets");
    }
    let pair = |((direction, ..), place): ((Direction, u32, u32), Place)| CpuPairCount {
        direction,
        place,
    };
    locality.places = pairs.into_iter().map(pair).collect();
    Some(locality)
}
