//! docs/metrics.md, generated.

use super::{Kind, METRICS, Metric};
use std::fmt::Write;

const HEAD: &str = "\
# Metrics of `nearpath monitor`

All metrics that [`nearpath monitor`](monitor.md) exports, in its order. This page is generated from the registry in
`crates/monitor/src/metrics/table.rs`, as are the exposition and the rules: a test compares them
(`NEARPATH_BLESS=1 cargo test -p nearpath-monitor` writes it).

Histograms are native, with Prometheus' schema 4 (2^(1/16), 4.4 % a bucket), for scrapers that accept protobuf. Text has
classic buckets, from 2^-20 s (1 µs) to 2 s in powers of two. Counters start at 0 with the daemon.
";

/// The page.
pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    for metric in METRICS {
        // Writing to a string does not fail.
        let _ = row(&mut page, metric);
    }
    page
}

fn row(page: &mut String, metric: &Metric) -> std::fmt::Result {
    let kind = if metric.kind == Kind::Histogram { "native histogram" } else { metric.kind.name() };
    writeln!(page, "\n## {}\n", metric.name)?;
    writeln!(page, "{}\n", metric.help)?;
    let unit = metric.unit.suffix().map(|unit| format!(", in {unit}")).unwrap_or_default();
    writeln!(page, "- {kind}{unit}, from `{}`", metric.source)?;
    for label in metric.labels {
        writeln!(page, "- `{}`: {}", label.name, label.values)?;
    }
    if !metric.alert.is_empty() {
        writeln!(page, "- alert: {}", metric.alert)?;
    }
    Ok(())
}
