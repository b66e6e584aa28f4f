//! How long a host takes to settle after a switch. Input: the metric in short windows after it. Output: the time after
//! which the windows no longer differ from the last ones.
//!
//! Half a second is too long for a CPU mask and too short for a congestion window, a moved page or irqbalance: so it is
//! measured at the first switch of each kind.

use std::time::Duration;

/// Windows that must resemble each other before the host counts as settled.
const STEADY: usize = 6;
/// Scale of the median absolute deviation to a standard deviation of normal noise.
const MAD_TO_SIGMA: f64 = 1.4826;
/// Least deviation that counts, as a share: smaller ones are of no interest.
const LEAST: f64 = 0.02;
/// A window that is more than so many deviations off is not yet settled.
const OFF: f64 = 4.0;

/// The windows since a switch.
#[derive(Debug, Default)]
pub struct Settling {
    /// Logarithms of the metric; `None` if a window has no value.
    logs: Vec<Option<f64>>,
}

impl Settling {
    /// Adds the metric of the next window; `None` if it has no value.
    pub fn push(&mut self, metric: Option<f64>) {
        self.logs.push(metric.filter(|value| value.is_finite() && *value > 0.0).map(f64::ln));
    }

    /// The number of windows after which the host had settled; `None` if it has not settled yet.
    pub fn settled(&self) -> Option<usize> {
        let recent = self.logs.len().checked_sub(2 * STEADY)?;
        let known: Vec<f64> = self.logs.get(recent..)?.iter().copied().collect::<Option<_>>()?;
        let (earlier, last) = known.split_at(STEADY);
        let (centre, deviation) = (median(&known), spread(&known));
        // Still moving: the halves differ by more than their noise.
        let limit = OFF / 2.0 * deviation * (2.0 / STEADY as f64).sqrt();
        if (median(last) - median(earlier)).abs() > limit.max(LEAST) {
            return None;
        }
        let is_off = |log: &Option<f64>| {
            log.is_none_or(|log| (log - centre).abs() > OFF * deviation.max(LEAST))
        };
        Some(self.logs.iter().rposition(is_off).map_or(0, |last| last + 1))
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

fn spread(values: &[f64]) -> f64 {
    let centre = median(values);
    let away: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    MAD_TO_SIGMA * median(&away)
}

/// The time to wait after each switch: half as long again as was measured, and at least the shortest.
pub fn with_reserve(measured: Duration, shortest: Duration) -> Duration {
    (measured + measured / 2).max(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds windows until it counts as settled: how many that took, and after how many it was.
    fn settled(metric: impl Fn(usize) -> Option<f64>) -> Option<(usize, usize)> {
        let mut settling = Settling::default();
        (1..=100).find_map(|count| {
            settling.push(metric(count - 1));
            settling.settled().map(|after| (count, after))
        })
    }

    fn noise(window: usize) -> f64 {
        1.0 + [0.01, -0.02, 0.0, 0.03, -0.01, -0.03, 0.02][window % 7]
    }

    #[test]
    fn a_host_that_never_moved_is_settled_at_once() {
        assert_eq!(settled(|window| Some(20_000.0 * noise(window))), Some((12, 0)));
    }

    #[test]
    fn a_decay_is_waited_for() {
        // A congestion window that opens: 1 + 4 e^(-t/5).
        let decay = |window: usize| 1.0 + 4.0 * (-(window as f64) / 5.0).exp();
        let (took, after) = settled(|window| Some(1e5 * decay(window) * noise(window))).unwrap();
        assert!((12..=25).contains(&after), "{after} of {took}");
        let step = |window: usize| if window < 8 { 5.0 } else { 1.0 };
        let (_, after) = settled(|window| Some(1e5 * step(window) * noise(window))).unwrap();
        assert_eq!(after, 8);
    }

    #[test]
    fn a_host_without_packets_or_without_rest_does_not_settle() {
        assert_eq!(settled(|_| None), None);
        assert_eq!(settled(|window| Some(1.2f64.powi(window as i32))), None);
        // A pause at the start is part of settling.
        let pause = settled(|window| (window >= 5).then(|| noise(window))).unwrap();
        assert_eq!(pause.1, 5);
    }

    #[test]
    fn the_reserve_is_half() {
        let ms = Duration::from_millis;
        assert_eq!(with_reserve(ms(400), ms(100)), ms(600));
        assert_eq!(with_reserve(ms(0), ms(100)), ms(100));
    }
}
