//! Bars made of characters.

use crate::text::whole;
use nearpath_model::units;

/// Eighths of a character cell.
const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// A bar from the left for a share of the width, 0 to 1.
pub(super) fn share(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let (whole, part) = (eighths / 8, eighths % 8);
    let mut bar = "█".repeat(whole.min(width));
    // What is not zero is seen.
    let part = if eighths == 0 && share > 0.0 { 1 } else { part };
    if whole < width && part > 0 {
        bar.extend(EIGHTHS.get(part - 1));
    }
    bar
}

/// A logarithmic axis of times over whole decades.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    first: u32,
    decades: u32,
    width: usize,
}

impl Axis {
    /// An axis of so many cells that has all these times, three decades at least.
    pub(super) fn over(times: impl Iterator<Item = u64>, width: usize) -> Self {
        let (mut least, mut most) = (u64::MAX, 1);
        for time in times {
            (least, most) = (least.min(time.max(1)), most.max(time));
        }
        // Without any time: from a microsecond.
        let first = if least > most { 3 } else { least.ilog10() };
        Self { first, decades: (most.ilog10() + 1).saturating_sub(first).max(3), width }
    }

    /// The cell of a time; the left end for shorter ones.
    fn at(&self, ns: u64) -> usize {
        let decades = (ns.max(1) as f64).log10() - f64::from(self.first);
        let cell = decades.max(0.0) / f64::from(self.decades) * self.width as f64;
        (cell as usize).min(self.width)
    }

    /// A bar: solid up to the median, shaded up to p99, dotted up to the longest.
    pub(super) fn bar(&self, p50: Option<u64>, p99: Option<u64>, max: Option<u64>) -> String {
        let mut bar = String::new();
        let mut to = |time: Option<u64>, with: char| {
            let cells = time.map_or(0, |ns| self.at(ns).max(1));
            let have = bar.chars().count();
            bar.extend(std::iter::repeat_n(with, cells.saturating_sub(have)));
        };
        to(p50, '█');
        to(p99, '▒');
        to(max, '·');
        bar
    }

    /// The powers of ten, each where it is.
    pub(super) fn scale(&self) -> String {
        let mut line = String::new();
        for decade in 0..self.decades {
            let ns = 10_u64.saturating_pow(self.first + decade);
            let at = self.at(ns);
            let name = whole(ns);
            let have = line.chars().count();
            if have > at || at + name.chars().count() > self.width {
                continue;
            }
            line.extend(std::iter::repeat_n(' ', at - have));
            line.push_str(&name);
        }
        line
    }
}

/// A rate with three digits; small ones have decimals.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        v if !v.is_finite() || v < 0.0 => "?".to_owned(),
        0.0 => "0".to_owned(),
        v if v < 9.95 => format!("{v:.1}"),
        v => units::short(v.round() as u64),
    }
}

/// A time, or a dash if there are too few packets for it.
pub(super) fn time(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), units::time)
}

/// The longest latency; as the histogram has it, if it is not the longest since the instrument started: 4.4 % too long at
/// most.
pub(super) fn longest(max_ns: Option<u64>, buckets: &[(u64, u64)]) -> Option<u64> {
    max_ns.or_else(|| buckets.iter().rev().find(|(_, packets)| *packets > 0).map(|(ns, _)| *ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_their_share_of_the_width() {
        assert_eq!(share(0.0, 4), "");
        assert_eq!(share(0.5, 4), "██");
        assert_eq!(share(0.00001, 4), "▏");
        assert_eq!(share(7.0, 4), "████");
        assert_eq!(share(f64::NAN, 4), "");
        assert_eq!(share(1.0, 0), "");
    }

    #[test]
    fn times_are_on_a_logarithmic_axis() {
        let axis = Axis::over([20_000, 3_000_000].into_iter(), 30);
        assert_eq!(axis.scale(), "10µs      100µs     1ms");
        assert_eq!(axis.bar(Some(100_000), Some(1_000_000), Some(9_999_999)).chars().count(), 29);
        assert_eq!(axis.bar(None, None, None), "");
        assert_eq!(axis.bar(Some(1), None, None), "█");
        let none = Axis::over(std::iter::empty(), 0);
        assert_eq!(
            (none.scale(), none.bar(Some(5), None, Some(u64::MAX))),
            (String::new(), "█".to_owned())
        );
    }

    #[test]
    fn small_rates_are_not_zero() {
        assert_eq!(
            [0.0, 0.2, 9.94, 12.4, 12_345.0, f64::NAN].map(rate),
            ["0", "0.2", "9.9", "12", "12.3k", "?"]
        );
    }
}
