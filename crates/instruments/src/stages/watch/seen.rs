//! What the watch has seen, and how it is added to the measurement of the stages.

use nearpath_model::{Cost, Group, Measurement, Outlier, PathLatency, Share, Slow, Watch};
use std::cmp::Reverse;
use std::time::Duration;

/// What it has seen.
pub struct Seen {
    pub watch: Watch,
    pub path: Option<PathLatency>,
    pub slow: Slow,
    pub outliers: Vec<Outlier>,
    pub budget_totals: Vec<Share>,
    pub groups: Vec<Group>,
    /// CPU time of its programs, all CPUs together.
    pub spent: Duration,
}

/// Two records of one packet end so close to each other: the programs of the stages and of the watch run one after the
/// other.
const SAME_NS: u64 = 50_000;

impl Seen {
    /// Adds it to what the stages have measured; keeps so many of the slowest packets. A slow packet that they followed
    /// as well is theirs, as they know more of it.
    pub fn beside(self, mut measurement: Measurement, outliers: usize) -> Measurement {
        let m = &mut measurement;
        m.paths.splice(0..0, self.path);
        let is_known = |outlier: &Outlier| {
            m.outliers.iter().any(|other| {
                other.cpu == outlier.cpu && other.at_ns.abs_diff(outlier.at_ns) < SAME_NS
            })
        };
        let mut new: Vec<Outlier> =
            self.outliers.into_iter().filter(|outlier| !is_known(outlier)).collect();
        let last = m.outliers.iter().map(|outlier| outlier.packet).max().unwrap_or(0);
        new.iter_mut().for_each(|outlier| outlier.packet += last);
        m.outliers.append(&mut new);
        m.outliers.sort_by_key(|outlier| Reverse(outlier.span_ns));
        m.outliers.truncate(outliers);
        m.slow.seen += self.slow.seen;
        m.slow.lost += self.slow.lost;
        m.slow.complete += self.slow.complete;
        m.slow.span_ns += self.slow.span_ns;
        self.budget_totals.into_iter().for_each(|share| share.add_to(&mut m.budget_totals));
        m.budget_totals.sort_by_key(|share| Reverse(share.ns));
        if m.groups.is_empty() {
            m.groups = self.groups;
        } else {
            for group in &mut m.groups {
                let same = self.groups.iter().find(|other| other.name == group.name);
                group.paths.splice(0..0, same.iter().flat_map(|other| &other.paths).cloned());
            }
        }
        let percent =
            100.0 * self.spent.as_secs_f64() / self.watch.watched_s.max(f64::MIN_POSITIVE);
        match &mut m.cost {
            Some(cost) => cost.cpu_percent += percent,
            None => m.cost = Some(Cost { cpu_percent: percent, ..Cost::default() }),
        }
        m.watch = Some(self.watch);
        measurement
    }
}
