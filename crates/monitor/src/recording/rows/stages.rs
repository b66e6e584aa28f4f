//! Paths, spans, fates, causes, and slow packets.

use super::cost;
use crate::collect::{name_of, part, stages_between};
use crate::recording::batch::{Batch, Cell};
use crate::recording::table::Table;
use nearpath_model::{Culprit, Measurement, Outlier, PathLatency, Span};

/// What was measured since an earlier reading.
pub fn stages(now: &Measurement, earlier: Option<&Measurement>) -> Batch {
    let nothing = Measurement::default();
    let before = earlier.unwrap_or(&nothing);
    let mut batch = Batch::now(now.duration_s - before.duration_s);
    let interval = stages_between(now, before);
    interval.paths.iter().for_each(|path| of_path(&mut batch, path));
    interval.spans.iter().for_each(|span| of_span(&mut batch, span));
    for (outcome, packets) in [
        ("started", interval.packets.started),
        ("completed", interval.packets.completed),
        ("dropped", interval.packets.dropped),
        ("abandoned", interval.packets.abandoned),
        ("collided", interval.packets.collided),
        ("sampled_out", interval.packets.sampled_out),
    ] {
        batch.push(Table::Packets, [outcome.into(), packets.into()]);
    }
    if let Some(watch) = &interval.watch {
        for (outcome, packets) in [
            ("watched", watch.packets),
            ("unstamped", watch.unstamped),
            ("late", watch.late),
            ("explained", watch.explained),
        ] {
            batch.push(Table::Packets, [outcome.into(), packets.into()]);
        }
    }
    for share in interval.budget_totals.iter().filter(|share| share.share.is_time()) {
        let cause = name_of(&share.share);
        let culprit = share.who.as_ref().and_then(culprit);
        batch.push(
            Table::Causes,
            [cause.as_str().into(), Cell::from(culprit.as_ref()), share.ns.into()],
        );
    }
    interval.outliers.iter().for_each(|outlier| of_outlier(&mut batch, outlier));
    cost(&mut batch, "stages", now.into(), before.into());
    batch
}

fn of_path(batch: &mut Batch, path: &PathLatency) {
    let name = path.kind.name();
    let moved = |share| Cell::from(part(share, path.count));
    batch.push(
        Table::Paths,
        [
            name.into(),
            path.count.into(),
            path.total_ns.into(),
            path.max_ns.into(),
            moved(path.other_cpu),
            moved(path.other_llc),
            moved(path.other_node),
        ],
    );
    for &(upper_ns, packets) in path.buckets.iter().filter(|(_, packets)| *packets > 0) {
        batch.push(Table::PathBuckets, [name.into(), upper_ns.into(), packets.into()]);
    }
}

fn of_span(batch: &mut Batch, span: &Span) {
    let direction = name_of(&span.direction);
    let ends = || [Cell::from(&direction), Cell::from(&span.from), Cell::from(&span.to)];
    let moved = |share| Cell::from(part(share, span.count));
    let [direction, from, to] = ends();
    batch.push(
        Table::Spans,
        [
            direction,
            from,
            to,
            span.count.into(),
            span.total_ns.into(),
            span.max_ns.into(),
            moved(span.other_cpu),
            moved(span.other_llc),
            moved(span.other_node),
        ],
    );
    for &(upper_ns, packets) in span.buckets.iter().filter(|(_, packets)| *packets > 0) {
        let [direction, from, to] = ends();
        batch.push(Table::SpanBuckets, [direction, from, to, upper_ns.into(), packets.into()]);
    }
}

fn of_outlier(batch: &mut Batch, outlier: &Outlier) {
    batch.push(
        Table::Outliers,
        [
            outlier.packet.into(),
            name_of(&outlier.direction).as_str().into(),
            Cell::from(&outlier.from),
            Cell::from(&outlier.to),
            outlier.span_ns.into(),
            outlier.from_cpu.0.into(),
            outlier.cpu.0.into(),
            outlier.node.map(|node| node.0).into(),
            outlier.flow.as_ref().into(),
            outlier.at_ns.into(),
            Cell::document(outlier),
        ],
    );
    for share in &outlier.budget {
        batch.push(
            Table::OutlierBudgets,
            [
                outlier.packet.into(),
                outlier.at_ns.into(),
                name_of(&share.share).as_str().into(),
                Cell::from(share.who.as_ref().and_then(culprit).as_ref()),
                share.ns.into(),
            ],
        );
    }
}

/// A name of what had the CPU: of a task, an interrupt, a softirq, or a queueing discipline.
fn culprit(who: &Culprit) -> Option<String> {
    let irq = who.irq.map(|irq| format!("irq {irq}"));
    let qdisc = who.qdisc.as_ref().map(|kind| match &who.device {
        Some(device) => format!("{kind} of {device}"),
        None => kind.clone(),
    });
    who.comm.clone().or(irq).or(who.vector.clone()).or(qdisc)
}
