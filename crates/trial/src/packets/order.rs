//! Sequence tracking of one flow. Input: the numbers in order of arrival. Output: how many packets arrived, how
//! many out of order, and how many duplicates. Memory is one bit for each of the newest packets.

/// Size of the window; older packets still count, as reordered.
const WINDOW: u64 = 1 << 16;
const WORD: u64 = u64::BITS as u64;

/// The packets of a flow so far.
#[derive(Debug)]
pub(super) struct Order {
    seen: Box<[u64]>,
    /// The number after the highest received.
    next: u64,
    /// Packets, without duplicates.
    pub(super) received: u64,
    /// Packets that arrived after a later one.
    pub(super) reordered: u64,
    /// Duplicates.
    pub(super) duplicated: u64,
}

impl Order {
    pub(super) fn new() -> Self {
        let seen = vec![0; (WINDOW / WORD) as usize].into_boxed_slice();
        Self { seen, next: 0, received: 0, reordered: 0, duplicated: 0 }
    }

    /// Resets.
    pub(super) fn clear(&mut self) {
        self.seen.fill(0);
        (self.next, self.received, self.reordered, self.duplicated) = (0, 0, 0, 0);
    }

    /// A packet arrived.
    pub(super) fn arrived(&mut self, sequence: u64) {
        if sequence >= self.next {
            self.forget(sequence);
            self.mark(sequence);
            self.next = sequence.saturating_add(1);
        } else if self.next - sequence > WINDOW {
            self.reordered += 1;
        } else if self.mark(sequence) {
            self.duplicated += 1;
            return;
        } else {
            self.reordered += 1;
        }
        self.received += 1;
    }

    /// Advances the window up to this number.
    fn forget(&mut self, sequence: u64) {
        if sequence - self.next >= WINDOW {
            self.seen.fill(0);
            return;
        }
        for number in self.next..=sequence {
            let (word, bit) = place(number);
            self.seen[word] &= !bit;
        }
    }

    /// Whether it was marked already.
    fn mark(&mut self, sequence: u64) -> bool {
        let (word, bit) = place(sequence);
        let marked = self.seen[word] & bit != 0;
        self.seen[word] |= bit;
        marked
    }
}

fn place(sequence: u64) -> (usize, u64) {
    (((sequence % WINDOW) / WORD) as usize, 1 << (sequence % WORD))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn of(numbers: &[u64]) -> (u64, u64, u64) {
        let mut order = Order::new();
        numbers.iter().for_each(|&number| order.arrived(number));
        (order.received, order.reordered, order.duplicated)
    }

    #[test]
    fn loss_reordering_and_duplicates_are_distinguished() {
        assert_eq!(of(&[0, 1, 2, 3]), (4, 0, 0));
        assert_eq!(of(&[0, 3, 1, 3, 1, 4]), (4, 1, 2));
        // Far ahead and back: a packet older than the window still counts.
        assert_eq!(of(&[0, WINDOW * 3, 5, WINDOW * 3, u64::MAX]), (4, 1, 1));
        let mut order = Order::new();
        order.arrived(7);
        order.clear();
        order.arrived(7);
        assert_eq!((order.received, order.duplicated), (1, 0));
    }

    proptest! {
        #[test]
        fn within_the_window_each_counts_once(numbers in proptest::collection::vec(0u64..2_000, 0..500)) {
            let mut seen = BTreeSet::new();
            let mut reordered = 0;
            for &number in &numbers {
                let later = seen.last().is_some_and(|&last| last > number);
                reordered += u64::from(seen.insert(number) && later);
            }
            let once = seen.len() as u64;
            prop_assert_eq!(of(&numbers), (once, reordered, numbers.len() as u64 - once));
        }
    }
}
