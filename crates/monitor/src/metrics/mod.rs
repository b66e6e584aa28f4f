//! The registry of metrics: one row each. Exposition, docs/metrics.md and rules are generated from it.

mod doc;
mod table;

pub use doc::markdown;
pub use table::{Id, METRICS};

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows while the daemon runs; its name ends in `_total`.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A native histogram of schema 4; classic buckets in text.
    Histogram,
    /// A constant 1 with labels that describe something; its name ends in `_info`.
    Info,
}

impl Kind {
    /// Its name in the exposition formats.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

/// A unit, as at the end of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of something, or a state.
    None,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A share, 0 to 1.
    Ratio,
}

impl Unit {
    /// The suffix of the name.
    pub fn suffix(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Seconds => Some("seconds"),
            Self::Bytes => Some("bytes"),
            Self::Ratio => Some("ratio"),
        }
    }
}

/// A label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values, for documentation.
    pub values: &'static str,
}

/// A row of the registry.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Which one.
    pub id: Id,
    /// The full name, with unit and `_total`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// Its labels, in the order of the values of a series.
    pub labels: &'static [Label],
    /// One sentence.
    pub help: &'static str,
    /// The instrument that it comes from, or `daemon`.
    pub source: &'static str,
    /// How to alert on it; empty if it explains others.
    pub alert: &'static str,
}

impl Metric {
    /// The name without `_total` and `_info`, and without its unit: what exposition libraries add by themselves.
    pub fn stem(&self) -> &'static str {
        let name = match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Info => self.name.strip_suffix("_info").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram => self.name,
        };
        let unit = self.unit.suffix().and_then(|unit| name.strip_suffix(unit)?.strip_suffix('_'));
        unit.unwrap_or(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_the_conventions() {
        let mut seen = BTreeSet::new();
        for (at, metric) in METRICS.iter().enumerate() {
            assert_eq!(metric.id as usize, at, "{}", metric.name);
            assert!(seen.insert(metric.name), "{}", metric.name);
            assert!(metric.name.starts_with("nearpath_"), "{}", metric.name);
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter);
            assert_eq!(metric.name.ends_with("_info"), metric.kind == Kind::Info);
            let suffix = metric.unit.suffix().map(|unit| format!("_{unit}")).unwrap_or_default();
            let end = match metric.kind {
                Kind::Counter => "_total",
                Kind::Info => "_info",
                Kind::Gauge | Kind::Histogram => "",
            };
            assert_eq!(metric.name, format!("{}{suffix}{end}", metric.stem()));
            assert!(metric.help.ends_with('.') && metric.help.len() < 160, "{}", metric.name);
            for label in metric.labels {
                // Neither of these may ever be a label: their values are without bound.
                assert!(!["pid", "flow", "port_number", "cpu"].contains(&label.name));
                assert!(!label.values.is_empty());
            }
        }
    }
}
