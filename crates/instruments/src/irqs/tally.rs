//! Accumulates counters that wrap, vanish and restart.
//!
//! Input: readings of one counter by CPU (or queue). Output: the sums since the first reading.

use std::collections::BTreeMap;

/// More than any CPU counts in a second. A decrease is a wrap at 32 bits only if the increase is less than this
/// per second since the last reading; otherwise the counter was restarted.
const MOST_PER_S: f64 = 100e6;

/// One counter by CPU or queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally<K> {
    last: BTreeMap<K, u64>,
    /// Counted since the first reading.
    pub sum: BTreeMap<K, u64>,
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self { last: BTreeMap::new(), sum: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Tally<K> {
    /// The first reading: counts from before.
    pub fn first(&mut self, now: impl IntoIterator<Item = (K, u64)>) {
        self.last.extend(now);
    }

    /// The sum of a key that was in some reading.
    pub fn counted(&self, key: &K) -> Option<u64> {
        self.last.get(key)?;
        Some(self.sum.get(key).copied().unwrap_or(0))
    }

    /// A later reading, this many seconds after the last. A key not in `now` is 0, unless `covered` returns false
    /// because the reading does not cover it (an offline CPU): its sum is then kept.
    pub fn add(&mut self, now: &BTreeMap<K, u64>, elapsed_s: f64, covered: impl Fn(&K) -> bool) {
        let most = (elapsed_s * MOST_PER_S) as u64 + 1000;
        let before = |key: &K| self.last.get(key).copied().unwrap_or(0);
        let missing = self.last.keys().filter(|key| covered(key) && !now.contains_key(key));
        let values = now.iter().map(|(key, value)| (*key, *value));
        let values: Vec<(K, u64)> = values.chain(missing.map(|key| (*key, 0))).collect();
        let counted = values.iter().map(|(key, value)| counted(before(key), *value, most));
        // A counter that decreased was replaced by another of the same name, and so were its neighbours.
        let counted: Option<Vec<u64>> = counted.collect();
        if counted.is_none() {
            self.last.clear();
        }
        for (i, (key, value)) in values.into_iter().enumerate() {
            let more = counted.as_ref().map_or(value, |counted| counted[i]);
            if more > 0 {
                *self.sum.entry(key).or_default() += more;
            }
            self.last.insert(key, value);
        }
    }
}

/// The increase between two values; `None` if the counter was restarted.
fn counted(before: u64, now: u64, most: u64) -> Option<u64> {
    if now >= before {
        return Some(now - before);
    }
    let wrapped = (now + (1 << 32)).checked_sub(before)?;
    (wrapped <= most).then_some(wrapped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(values: &[(u32, u64)]) -> BTreeMap<u32, u64> {
        values.iter().copied().collect()
    }

    fn tally(first: &[(u32, u64)]) -> Tally<u32> {
        let mut tally = Tally::default();
        tally.first(first.iter().copied());
        tally
    }

    #[test]
    fn a_counter_wraps_at_32_bits() {
        let mut tally = tally(&[(0, u64::from(u32::MAX) - 9), (1, 5)]);
        tally.add(&map(&[(0, 90), (1, 7)]), 1.0, |_| true);
        assert_eq!(tally.sum, map(&[(0, 100), (1, 2)]));
        // Exactly 0 is omitted.
        tally.add(&map(&[(0, u64::from(u32::MAX)), (1, 7)]), 60.0, |_| true);
        tally.add(&map(&[(1, 7)]), 1.0, |_| true);
        assert_eq!(tally.sum[&0], 100 + u64::from(u32::MAX) - 90 + 1);
    }

    #[test]
    fn another_interrupt_with_the_same_number_restarts() {
        let mut tally = tally(&[(0, 1_000_000), (1, 3)]);
        tally.add(&map(&[(0, 20), (1, 8)]), 1.0, |_| true);
        assert_eq!(tally.sum, map(&[(0, 20), (1, 8)]));
        tally.add(&map(&[(0, 21), (1, 8)]), 1.0, |_| true);
        assert_eq!(tally.sum, map(&[(0, 21), (1, 8)]));
    }

    #[test]
    fn sums_of_a_cpu_are_kept_while_it_is_offline() {
        let mut tally = tally(&[(0, 10), (1, 50)]);
        tally.add(&map(&[(0, 11)]), 1.0, |cpu| *cpu != 1);
        tally.add(&map(&[(0, 12), (1, 53)]), 1.0, |_| true);
        assert_eq!(tally.sum, map(&[(0, 2), (1, 3)]));
    }

    proptest! {
        /// Whatever the initial values and however often the counters wrap, the sums equal the counts, even if
        /// CPUs are sometimes missing from readings.
        #[test]
        fn sums_equal_the_counts(
            first in proptest::collection::vec(any::<u64>(), 1..5),
            steps in proptest::collection::vec(proptest::collection::vec((0u64..90_000_000, any::<bool>()), 5), 1..60),
        ) {
            let mut real: Vec<u64> = first.iter().map(|n| n >> 16).collect();
            let shown = |real: &[u64]| -> BTreeMap<u32, u64> {
                (0..).zip(real.iter().map(|n| n & 0xffff_ffff)).filter(|(_, n)| *n > 0).collect()
            };
            let begin = real.clone();
            let mut tally = Tally::default();
            tally.first(shown(&real));
            for step in &steps {
                // An offline CPU counts nothing.
                let offline: Vec<u32> = (0..).zip(step).filter(|(_, (_, off))| *off).map(|(i, _)| i).collect();
                for (cpu, n) in real.iter_mut().enumerate() {
                    if !offline.contains(&(cpu as u32)) { *n += step[cpu].0 }
                }
                let mut now = shown(&real);
                now.retain(|cpu, _| !offline.contains(cpu));
                tally.add(&now, 1.0, |cpu| !offline.contains(cpu));
            }
            // Those that were offline at the end are read once more.
            tally.add(&shown(&real), 1.0, |_| true);
            for (cpu, (end, begin)) in (0u32..).zip(real.iter().zip(&begin)) {
                prop_assert_eq!(tally.sum.get(&cpu).copied().unwrap_or(0), end - begin);
            }
        }
    }
}
