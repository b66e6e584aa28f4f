//! The series, as they grow. Input: increases and values from the collectors. Output: a [`Snapshot`] for scrapes.
//!
//! Counters and histograms only grow, whatever their instrument does: collectors add differences. There are at most
//! [`SERIES_MAX`] series; what comes after them is counted in a series whose labels are all `others`, or left out if
//! it is a value that cannot be added up. A series that nothing touches for [`FORGET`] is forgotten.

mod buckets;
mod window;

pub use buckets::Buckets;
use window::Window;

use crate::metrics::{Id, Kind, METRICS};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Most series at any time.
pub const SERIES_MAX: usize = 2_000;
/// Most series with labels of their own: each metric may have one of `others`, and a counter of what was left out.
pub const OWN_SERIES_MAX: usize = SERIES_MAX - 2 * METRICS.len();
/// A series without news for this long has ended.
pub const FORGET: Duration = Duration::from_secs(600);
/// Values of labels are cut at this many characters: names come from processes and interfaces.
const LABEL_MAX: usize = 128;
/// The value of each label of what has no series of its own.
pub const OTHERS: &str = "others";

/// Values of the labels of a series, in the order of its metric's.
pub type Labels = Box<[Box<str>]>;

/// The value of a series.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of a counter, a gauge or an info.
    Number(f64),
    /// Of a histogram.
    Histogram(Buckets),
}

#[derive(Debug, Clone)]
struct Series {
    value: Value,
    touched: Duration,
}

/// All series of a moment; what every scraper gets until the next.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// By metric, in the order of [`METRICS`]; then by labels.
    pub families: Vec<Vec<(Labels, Value)>>,
    /// When counting began, for the formats that tell.
    pub created: Option<SystemTime>,
}

impl Snapshot {
    /// Number of series; a histogram is one.
    pub fn len(&self) -> usize {
        self.families.iter().map(Vec::len).sum()
    }

    /// Whether nothing was collected yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a series.
    pub fn get(&self, id: Id, labels: &[&str]) -> Option<&Value> {
        let is = |have: &Labels| have.iter().map(|label| &**label).eq(labels.iter().copied());
        self.families.get(id as usize)?.iter().find(|(have, _)| is(have)).map(|(_, value)| value)
    }

    /// The number of a series; `None` if it does not exist or is a histogram.
    pub fn number(&self, id: Id, labels: &[&str]) -> Option<f64> {
        match self.get(id, labels)? {
            Value::Number(number) => Some(*number),
            Value::Histogram(_) => None,
        }
    }
}

/// The series.
#[derive(Debug)]
pub struct Store {
    families: Vec<BTreeMap<Labels, Series>>,
    windows: BTreeMap<(Id, Labels), Window>,
    count: usize,
    now: Duration,
    created: SystemTime,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            families: METRICS.iter().map(|_| BTreeMap::new()).collect(),
            windows: BTreeMap::new(),
            count: 0,
            now: Duration::ZERO,
            created: SystemTime::now(),
        }
    }
}

impl Store {
    /// Sets the time on a clock that only goes forward, and forgets what has ended by then.
    pub fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
        let now = self.now;
        for family in &mut self.families {
            family.retain(|_, series| now.saturating_sub(series.touched) < FORGET);
        }
        self.windows.retain(|_, window| !window.is_over(now));
        self.count = self.families.iter().map(BTreeMap::len).sum();
    }

    /// Adds to a counter; an increase of 0 keeps its series.
    pub fn add(&mut self, id: Id, labels: &[&str], increase: f64) {
        debug_assert_eq!(METRICS[id as usize].kind, Kind::Counter);
        if !(increase >= 0.0 && increase.is_finite()) {
            return;
        }
        if let Some(Value::Number(number)) = self.series(id, labels, || Value::Number(0.0)) {
            *number += increase;
        }
    }

    /// Adds to a counter.
    pub fn count(&mut self, id: Id, labels: &[&str], increase: u64) {
        self.add(id, labels, increase as f64);
    }

    /// Sets a gauge.
    pub fn set(&mut self, id: Id, labels: &[&str], value: f64) {
        debug_assert!(matches!(METRICS[id as usize].kind, Kind::Gauge | Kind::Info));
        if let Some(Value::Number(number)) = self.series(id, labels, || Value::Number(value)) {
            *number = value;
        }
    }

    /// Sets a gauge to the largest value of the last minute, given that of now.
    pub fn set_max(&mut self, id: Id, labels: &[&str], value: f64) {
        let now = self.now;
        let window = self.windows.entry((id, boxed(labels))).or_default();
        let most = window.add(now, value);
        self.set(id, labels, most);
    }

    /// The values of the first label of a metric's series, without `others`.
    pub fn first_labels(&self, id: Id) -> BTreeSet<String> {
        let series = self.families.get(id as usize).into_iter().flat_map(BTreeMap::keys);
        let first = series.filter_map(|labels| labels.first());
        first.filter(|label| &***label != OTHERS).map(|label| label.to_string()).collect()
    }

    /// Drops all series of a gauge, before those that hold now are set.
    pub fn clear(&mut self, id: Id) {
        if let Some(family) = self.families.get_mut(id as usize) {
            self.count -= family.len();
            family.clear();
        }
    }

    /// Sets all series of a gauge to 0 without touching them: those that are not set again soon end.
    pub fn lower(&mut self, id: Id) {
        for series in self.families.get_mut(id as usize).into_iter().flat_map(|f| f.values_mut()) {
            series.value = Value::Number(0.0);
        }
    }

    /// Adds to a histogram: `(longest time in ns, count)` of each bucket, and the sum of all times in nanoseconds.
    pub fn observe(&mut self, id: Id, labels: &[&str], buckets: &[(u64, u64)], sum_ns: u64) {
        debug_assert_eq!(METRICS[id as usize].kind, Kind::Histogram);
        let empty = || Value::Histogram(Buckets::default());
        if let Some(Value::Histogram(histogram)) = self.series(id, labels, empty) {
            histogram.add(buckets, sum_ns);
        }
    }

    /// The value of a series, which is made if there is room for it, or that of `others`.
    fn series(
        &mut self,
        id: Id,
        labels: &[&str],
        new: impl FnOnce() -> Value,
    ) -> Option<&mut Value> {
        let (at, now) = (id as usize, self.now);
        let kind = METRICS.get(at)?.kind;
        let mut labels = boxed(labels);
        let is_known = self.families.get(at)?.contains_key(&labels);
        if !is_known && self.count >= OWN_SERIES_MAX {
            self.left_out(METRICS.get(at)?.name);
            if kind == Kind::Gauge || labels.is_empty() {
                return None;
            }
            labels = labels.iter().map(|_| OTHERS.into()).collect();
        }
        let family = self.families.get_mut(at)?;
        let series = family.entry(labels).or_insert_with(|| {
            self.count += 1;
            Series { value: new(), touched: now }
        });
        series.touched = now;
        Some(&mut series.value)
    }

    /// Counts what has no series. These counters are not limited: there is one for each metric.
    fn left_out(&mut self, metric: &str) {
        let (now, new) = (self.now, || Value::Number(0.0));
        let family = &mut self.families[Id::LeftOut as usize];
        let series =
            family.entry(boxed(&[metric])).or_insert_with(|| Series { value: new(), touched: now });
        series.touched = now;
        if let Value::Number(number) = &mut series.value {
            *number += 1.0;
        }
    }

    /// What scrapers get from now on.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let of = |family: &BTreeMap<Labels, Series>| {
            family.iter().map(|(labels, series)| (labels.clone(), series.value.clone())).collect()
        };
        Arc::new(Snapshot {
            families: self.families.iter().map(of).collect(),
            created: Some(self.created),
        })
    }
}

/// Values of labels, bounded and without control characters.
fn boxed(labels: &[&str]) -> Labels {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    labels.iter().map(|text| text.chars().take(LABEL_MAX).map(plain).collect()).collect()
}

#[cfg(test)]
mod tests;
