//! The text and protobuf formats of a snapshot, by `prometheus-client`. Input: a [`Snapshot`] and what the scraper
//! accepts. Output: the bytes and their type.

mod accept;

pub use accept::negotiate;

use crate::metrics::{Kind, METRICS, Metric, Unit};
use crate::store::{Buckets, Labels, Snapshot, Value};
use nearpath_model::histogram::{SCHEMA, ZERO_INDEX};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, NativeHistogram, NativeHistogramBuckets, NoLabelSet,
    prometheus_protobuf, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as ClientUnit};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text, version 0.0.4.
    Text,
    /// OpenMetrics' text, version 1.0.0.
    OpenMetrics,
    /// Prometheus' protobuf, delimited: native histograms.
    Protobuf,
}

impl Format {
    /// All of them; the first is for those that accept anything.
    pub const ALL: [Self; 3] = [Self::Text, Self::OpenMetrics, Self::Protobuf];

    /// The value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

/// A snapshot with its encodings, each made once, however many scrape.
#[derive(Debug, Default)]
pub struct Exposition {
    snapshot: Arc<Snapshot>,
    encoded: [OnceLock<Arc<[u8]>>; Format::ALL.len()],
}

impl Exposition {
    /// Of a snapshot.
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { snapshot, encoded: Default::default() }
    }

    /// Its bytes in a format.
    pub fn encoded(&self, format: Format) -> Arc<[u8]> {
        self.encoded[format as usize].get_or_init(|| encode(&self.snapshot, format).into()).clone()
    }
}

/// Encodes a snapshot.
pub fn encode(snapshot: &Arc<Snapshot>, format: Format) -> Vec<u8> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families {
        snapshot: Arc::clone(snapshot),
        native: format == Format::Protobuf,
    }));
    let mut written = String::new();
    // Writing to a string does not fail, and no value or label is refused by the encoders.
    let encoded = match format {
        Format::Text => prometheus_text::encode(&mut written, &registry),
        Format::OpenMetrics => text::encode(&mut written, &registry),
        Format::Protobuf => {
            return prometheus_protobuf::encode_to_vec(&registry).unwrap_or_default();
        }
    };
    debug_assert!(encoded.is_ok());
    written.into_bytes()
}

/// The families of a snapshot as the library collects them.
#[derive(Debug)]
struct Families {
    snapshot: Arc<Snapshot>,
    native: bool,
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (metric, series) in METRICS.iter().zip(&self.snapshot.families) {
            if series.is_empty() {
                continue;
            }
            let unit = unit(metric.unit);
            let kind = kind(metric.kind);
            let mut family =
                encoder.encode_descriptor(metric.stem(), metric.help, unit.as_ref(), kind)?;
            for (labels, value) in series {
                self.series(&mut family, metric, labels, value)?;
            }
        }
        Ok(())
    }
}

impl Families {
    fn series(
        &self,
        family: &mut MetricEncoder<'_>,
        metric: &Metric,
        labels: &Labels,
        value: &Value,
    ) -> fmt::Result {
        let labels: Vec<(&str, &str)> =
            metric.labels.iter().zip(labels).map(|(label, value)| (label.name, &**value)).collect();
        if metric.kind == Kind::Info {
            return family.encode_info(&labels);
        }
        // The library writes empty braces for an empty set.
        if labels.is_empty() {
            return self.value(family, metric, value);
        }
        self.value(&mut family.encode_family(&labels)?, metric, value)
    }

    fn value(
        &self,
        encoder: &mut MetricEncoder<'_>,
        metric: &Metric,
        value: &Value,
    ) -> fmt::Result {
        match value {
            Value::Number(number) if metric.kind == Kind::Counter => {
                encoder.encode_counter::<NoLabelSet, f64, f64>(number, None)
            }
            Value::Number(number) => encoder.encode_gauge(number),
            Value::Histogram(buckets) => self.histogram(encoder, buckets),
        }
    }

    fn histogram(&self, encoder: &mut MetricEncoder<'_>, buckets: &Buckets) -> fmt::Result {
        let (sum, count) = (buckets.sum_s(), buckets.count());
        if !self.native {
            let mut classic = buckets.classic();
            let below = classic.iter().map(|&(_, n)| n).sum();
            classic.push((f64::INFINITY, count.saturating_sub(below)));
            return encoder.encode_histogram::<NoLabelSet>(sum, count, &classic, None);
        }
        let native = buckets.native();
        let none = NativeHistogramBuckets { spans: &[], deltas: &[] };
        let positive = NativeHistogramBuckets { spans: &native.spans, deltas: &native.deltas };
        let native = NativeHistogram {
            schema: i32::try_from(SCHEMA).unwrap_or_default(),
            zero_threshold: (f64::from(ZERO_INDEX) / 16.0).exp2(),
            zero_count: native.zero_count,
            negative: none,
            positive,
            created: self.snapshot.created,
        };
        encoder.encode_histogram_with_native::<NoLabelSet>(sum, count, &[], None, native)
    }
}

fn unit(unit: Unit) -> Option<ClientUnit> {
    match unit {
        Unit::None => None,
        Unit::Seconds => Some(ClientUnit::Seconds),
        Unit::Bytes => Some(ClientUnit::Bytes),
        Unit::Ratio => Some(ClientUnit::Other("ratio".to_owned())),
    }
}

fn kind(kind: Kind) -> MetricType {
    match kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
        Kind::Info => MetricType::Info,
    }
}

#[cfg(test)]
mod tests;
