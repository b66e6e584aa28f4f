//! How long to wait for packets in flight when an overhead limit pauses the stages.

/// Pauses without a long wait after long waits in vain, at most.
const MOST_SKIPPED: u32 = 64;

/// Whether a long wait for packets in flight is worth its cost. Packets whose end cannot be observed would be waited for
/// in vain each time: after such a wait there is none for one pause, then for two, four, and so on.
#[derive(Debug, Default)]
pub(super) struct Patience {
    skipped: u32,
    skips: u32,
}

impl Patience {
    /// Whether the next wait may be long.
    pub fn allows(&mut self) -> bool {
        if self.skipped < self.skips {
            self.skipped += 1;
            return false;
        }
        true
    }

    /// A long wait, for how many packets, and how many of them have not ended.
    pub fn waited(&mut self, awaited: u64, left: u64) {
        self.skipped = 0;
        self.skips = match left.saturating_mul(2) > awaited {
            true => (self.skips * 2).clamp(1, MOST_SKIPPED),
            false => 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_in_vain_is_waited_for_ever_more_rarely() {
        let mut patience = Patience::default();
        let mut waited_at = Vec::new();
        for pause in 0..16 {
            if patience.allows() {
                waited_at.push(pause);
                patience.waited(100, 60);
            }
        }
        assert_eq!(waited_at, [0, 2, 5, 10]);
        while !patience.allows() {}
        patience.waited(100, 10);
        assert!(patience.allows());
    }
}
