//! Counts that are summed up over readings of counters that wrap, vanish and begin anew.
//!
//! In go readings of one counter by CPU (or queue), out come the sums since the first.

use std::collections::BTreeMap;

/// More than any CPU counts of anything in a second: what a counter went back by is a wrap at 32
/// bits only if it is less than that since the last reading, and else another counter's begin.
const MOST_PER_S: f64 = 100e6;

/// One counter by CPU or queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally<K> {
    last: BTreeMap<K, u64>,
    /// What was counted since the first reading.
    pub sum: BTreeMap<K, u64>,
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self { last: BTreeMap::new(), sum: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Tally<K> {
    /// The first reading: what has been counted before.
    pub fn first(&mut self, now: impl IntoIterator<Item = (K, u64)>) {
        self.last.extend(now);
    }

    /// What was counted of a key that some reading has told of.
    pub fn counted(&self, key: &K) -> Option<u64> {
        self.last.get(key)?;
        Some(self.sum.get(key).copied().unwrap_or(0))
    }

    /// A later reading, so many seconds after the last. What `now` does not name is 0, unless
    /// `told` says that the reading tells nothing of it (a CPU that is offline): then what it had
    /// still stands.
    pub fn add(&mut self, now: &BTreeMap<K, u64>, elapsed_s: f64, told: impl Fn(&K) -> bool) {
        let most = (elapsed_s * MOST_PER_S) as u64 + 1000;
        let before = |key: &K| self.last.get(key).copied().unwrap_or(0);
        let missing = self.last.keys().filter(|key| told(key) && !now.contains_key(key));
        let values = now.iter().map(|(key, value)| (*key, *value));
        let values: Vec<(K, u64)> = values.chain(missing.map(|key| (*key, 0))).collect();
        let counted = values.iter().map(|(key, value)| counted(before(key), *value, most));
        // One that goes back is another one of the same name, and so are those beside it.
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

/// What was counted between two values; `None` when the counter began anew.
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
        // Exactly 0 is not named.
        tally.add(&map(&[(0, u64::from(u32::MAX)), (1, 7)]), 60.0, |_| true);
        tally.add(&map(&[(1, 7)]), 1.0, |_| true);
        assert_eq!(tally.sum[&0], 100 + u64::from(u32::MAX) - 90 + 1);
    }

    #[test]
    fn another_interrupt_of_the_same_number_begins_anew() {
        let mut tally = tally(&[(0, 1_000_000), (1, 3)]);
        tally.add(&map(&[(0, 20), (1, 8)]), 1.0, |_| true);
        assert_eq!(tally.sum, map(&[(0, 20), (1, 8)]));
        tally.add(&map(&[(0, 21), (1, 8)]), 1.0, |_| true);
        assert_eq!(tally.sum, map(&[(0, 21), (1, 8)]));
    }

    #[test]
    fn what_a_cpu_had_stands_while_it_is_offline() {
        let mut tally = tally(&[(0, 10), (1, 50)]);
        tally.add(&map(&[(0, 11)]), 1.0, |cpu| *cpu != 1);
        tally.add(&map(&[(0, 12), (1, 53)]), 1.0, |_| true);
        assert_eq!(tally.sum, map(&[(0, 2), (1, 3)]));
    }

    proptest! {
        /// Whatever the counters were at first and however often they wrap, the sums are what was
        /// counted, with CPUs that are not told of now and then.
        #[test]
        fn sums_are_what_was_counted(
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
            // Those that are offline at last are told of once more.
            tally.add(&shown(&real), 1.0, |_| true);
            for (cpu, (end, begin)) in (0u32..).zip(real.iter().zip(&begin)) {
                prop_assert_eq!(tally.sum.get(&cpu).copied().unwrap_or(0), end - begin);
            }
        }
    }
}
