//! Latencies of paths and spans, the fate of packets, and why the slowest were late.

use super::{Own, name_of, own, part};
use crate::metrics::Id;
use crate::store::Store;
use nearpath_model::{Measurement, Packets, ShareKind, Span};
use std::collections::BTreeMap;

/// Adds what was measured since an earlier reading.
pub fn stages(store: &mut Store, now: &Measurement, earlier: Option<&Measurement>) {
    let nothing = Measurement::default();
    let before = earlier.unwrap_or(&nothing);
    for path in now.paths_since(before) {
        let labels = [path.kind.name()];
        store.observe(Id::PathLatency, &labels, &path.buckets, path.total_ns);
        let most = longest(path.max_ns, &path.buckets);
        store.set_max(Id::PathLatencyMax, &labels, most);
    }
    for span in now.spans_since(before) {
        let direction = name_of(&span.direction);
        let labels = [direction.as_str(), &span.from, &span.to];
        store.observe(Id::SpanLatency, &labels, &span.buckets, span.total_ns);
        store.set_max(Id::SpanLatencyMax, &labels, longest(span.max_ns, &span.buckets));
        hops(store, &span, &direction);
    }
    fates(store, &now.packets, &before.packets);
    late(store, now, before);
    watched(store, now, before);
    own(store, "stages", now.into(), before.into());
}

impl From<&Measurement> for Own {
    fn from(measurement: &Measurement) -> Self {
        Self {
            observed_s: measurement.observed_time_s(),
            duration_s: measurement.duration_s,
            events_lost: measurement.events_lost,
            cpu_percent: measurement.cost.map_or(0.0, |cost| cost.cpu_percent),
        }
    }
}

/// The longest time of an interval in seconds: exact if it is the longest so far, else the end of its bucket.
fn longest(max_ns: Option<u64>, buckets: &[(u64, u64)]) -> f64 {
    let of_bucket = buckets.last().map_or(0, |&(upper_ns, _)| upper_ns);
    max_ns.unwrap_or(of_bucket) as f64 / 1e9
}

/// Packets of a span by the distance between its CPUs.
fn hops(store: &mut Store, span: &Span, direction: &str) {
    let [cpu, llc, node] = [span.other_cpu, span.other_llc, span.other_node];
    let mut add = |distance, count: u64| {
        let labels = [direction, &span.from, &span.to, distance];
        if count > 0 {
            store.count(Id::SpanHops, &labels, count);
        }
    };
    let (Some(cpu), Some(llc)) = (part(cpu, span.count), part(llc, span.count)) else {
        return add("unknown", span.count);
    };
    // Without nodes all is on one.
    let node = part(node, span.count).unwrap_or(0);
    add("same_cpu", span.count.saturating_sub(cpu));
    add("same_llc", cpu.saturating_sub(llc));
    add("same_node", llc.saturating_sub(node));
    add("other_node", node);
}

fn fates(store: &mut Store, now: &Packets, before: &Packets) {
    for (outcome, count) in [
        ("completed", now.completed.saturating_sub(before.completed)),
        ("dropped", now.dropped.saturating_sub(before.dropped)),
        ("abandoned", now.abandoned.saturating_sub(before.abandoned)),
        ("collided", now.collided.saturating_sub(before.collided)),
        ("sampled_out", now.sampled_out.saturating_sub(before.sampled_out)),
    ] {
        store.count(Id::Packets, &["all", outcome], count);
    }
}

/// Time of slow packets by cause.
fn by_cause(measurement: &Measurement) -> BTreeMap<ShareKind, u64> {
    let mut causes = BTreeMap::new();
    for share in measurement.budget_totals.iter().filter(|share| share.share.is_time()) {
        let sum: &mut u64 = causes.entry(share.share).or_default();
        *sum = sum.saturating_add(share.ns);
    }
    causes
}

/// What the watch has counted, and for how long.
fn watched(store: &mut Store, now: &Measurement, before: &Measurement) {
    let Some(watch) = &now.watch else { return };
    let new = watch.since(before.watch.as_ref());
    store.count(Id::WatchedPackets, &[], new.packets);
    let explained = new.explained.min(new.late);
    store.count(Id::LatePackets, &["yes"], explained);
    store.count(Id::LatePackets, &["no"], new.late - explained);
    store.add(Id::WatchSeconds, &["watch"], new.watched_s);
    store.add(Id::WatchSeconds, &["causes"], new.recorded_s);
}

fn late(store: &mut Store, now: &Measurement, before: &Measurement) {
    let old = by_cause(before);
    for (cause, ns) in by_cause(now) {
        let more = ns.saturating_sub(old.get(&cause).copied().unwrap_or(0));
        store.add(Id::LateSeconds, &[&name_of(&cause)], more as f64 / 1e9);
    }
}

/// What was measured between two readings, as a measurement: the evidence of findings.
pub fn stages_between(now: &Measurement, before: &Measurement) -> Measurement {
    let less = |now: u64, before: u64| now.saturating_sub(before);
    let (new, old) = (&now.packets, &before.packets);
    let shares = |share: &nearpath_model::Share| {
        let is = |old: &&nearpath_model::Share| (old.share, &old.who) == (share.share, &share.who);
        let was = before.budget_totals.iter().find(is).map_or(0, |old| old.ns);
        let ns = share.ns.saturating_sub(was);
        (ns > 0).then(|| nearpath_model::Share { ns, ..share.clone() })
    };
    Measurement {
        duration_s: now.duration_s - before.duration_s,
        observed_s: now.observed_s.map(|s| (s - before.observed_time_s()).max(0.0)),
        packets: Packets {
            started: less(new.started, old.started),
            completed: less(new.completed, old.completed),
            dropped: less(new.dropped, old.dropped),
            abandoned: less(new.abandoned, old.abandoned),
            collided: less(new.collided, old.collided),
            sampled_out: less(new.sampled_out, old.sampled_out),
        },
        events_lost: less(now.events_lost, before.events_lost),
        watch: now.watch.as_ref().map(|watch| watch.since(before.watch.as_ref())),
        paths: now.paths_since(before),
        spans: now.spans_since(before),
        slow: now.slow.since(&before.slow),
        budget_totals: now.budget_totals.iter().filter_map(shares).collect(),
        outliers: now
            .outliers
            .iter()
            .filter(|outlier| !before.outliers.contains(outlier))
            .cloned()
            .collect(),
        drops: Vec::new(),
        groups: Vec::new(),
        ..now.clone()
    }
}
