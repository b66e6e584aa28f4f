//! Sequence tracking of one flow. Input: the numbers of answers in order of arrival. Output: for each one
//! whether it is the first answer, out of order, a duplicate, or too old.
//!
//! Memory is bounded by a window of the newest probes; an answer to an older one is unknown, and its probe
//! stays lost.

/// Kind of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The first to its probe. `reordered` (RFC 4737, section 3): an answer to a later probe arrived before it.
    First { reordered: bool },
    /// A duplicate.
    Duplicate,
    /// To a probe that is no longer remembered, or was never sent.
    Unknown,
}

/// The newest probes of a flow.
#[derive(Debug)]
pub(super) struct Sequence {
    /// For each slot of the window, the probe that was last answered there, plus one.
    answered: Vec<u64>,
    /// The next number in order.
    expected: u64,
}

impl Sequence {
    /// Remembers this many probes.
    pub(super) fn new(window: usize) -> Self {
        Self { answered: vec![0; window.max(1)], expected: 0 }
    }

    /// An answer to a probe arrived, when those below `sent` had been sent.
    pub(super) fn arrived(&mut self, sequence: u64, sent: u64) -> Arrival {
        let window = self.answered.len() as u64;
        if sequence >= sent || sent - sequence > window {
            return Arrival::Unknown;
        }
        let place = usize::try_from(sequence % window).unwrap_or(0);
        if self.answered[place] == sequence + 1 {
            return Arrival::Duplicate;
        }
        self.answered[place] = sequence + 1;
        let reordered = sequence < self.expected;
        self.expected = self.expected.max(sequence + 1);
        Arrival::First { reordered }
    }
}

#[cfg(test)]
mod tests {
    use super::Arrival::{Duplicate, First, Unknown};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const IN_ORDER: Arrival = First { reordered: false };
    const REORDERED: Arrival = First { reordered: true };

    #[test]
    fn loss_reordering_and_duplicates_are_distinguished() {
        let mut sequence = Sequence::new(8);
        let arrivals_seen: Vec<Arrival> =
            [0, 2, 1, 2, 1, 5, 3, 6, 5].iter().map(|&number| sequence.arrived(number, 7)).collect();
        let expected = [
            IN_ORDER, IN_ORDER, REORDERED, Duplicate, Duplicate, IN_ORDER, REORDERED, IN_ORDER,
            Duplicate,
        ];
        assert_eq!(arrivals_seen, expected, "only 4 is lost");
    }

    #[test]
    fn unsent_and_forgotten_probes_are_unknown() {
        let mut sequence = Sequence::new(4);
        assert_eq!(sequence.arrived(10, 10), Unknown);
        assert_eq!(sequence.arrived(5, 10), Unknown);
        assert_eq!(sequence.arrived(6, 10), IN_ORDER);
        assert_eq!(sequence.arrived(u64::MAX, 10), Unknown);
        // The slot of 6 is later that of 10.
        assert_eq!(sequence.arrived(10, 11), IN_ORDER);
        assert_eq!(sequence.arrived(6, 11), Unknown);
    }

    proptest! {
        /// In any order of arrival, each probe is answered at most once.
        #[test]
        fn answers_and_losses_add_up(arrivals: Vec<u8>, sent in 0u64..256) {
            let mut sequence = Sequence::new(256);
            let mut answered = BTreeSet::new();
            for arrival in arrivals {
                let number = u64::from(arrival);
                match sequence.arrived(number, sent) {
                    First { reordered } => {
                        let later = answered.iter().any(|&other| other > number);
                        prop_assert_eq!(reordered, later);
                        prop_assert!(number < sent && answered.insert(number));
                    }
                    Duplicate => prop_assert!(answered.contains(&number)),
                    Unknown => prop_assert!(number >= sent),
                }
            }
        }
    }
}
