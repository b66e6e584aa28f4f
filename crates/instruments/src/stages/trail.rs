//! The stages that a packet has passed, as the programs send them (`struct trail` of
//! `bpf/trail.h`).

use super::table::{Stage, stage};

/// Stages that a trail has room for (`TRAIL_STEPS`).
const STEPS: usize = 32;
/// Where they begin; behind them is a word for the programs alone.
const FIRST: usize = 24;
/// Bytes of a trail, by which it is told from the other records.
pub const TRAIL_BYTES: usize = FIRST + 8 * STEPS + 8;
/// Bits of a step below its time.
const STAGE_BITS: u32 = 8;
const TIME_SHIFT: u32 = 24;

/// Which packet: the address of its sk_buff when it began, and when that was.
pub type Identity = (u64, u64);

/// The path of a packet, from its begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trail {
    /// Whose it is.
    pub packet: Identity,
    /// Stages in the order in which they were passed; of a long path the first.
    pub steps: Vec<Step>,
}

/// A stage that was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Which.
    pub stage: &'static Stage,
    /// On which CPU.
    pub cpu: u32,
    /// When, CLOCK_MONOTONIC.
    pub at_ns: u64,
}

impl Trail {
    /// Reads a trail; `None` if it is none, or that of no packet.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let packet = (word(0)?, word(8)?);
        let passed = u32::from_ne_bytes(bytes.get(16..20)?.try_into().ok()?);
        let kept = usize::try_from(passed).ok()?.min(STEPS);
        if packet.0 == 0 || bytes.len() < TRAIL_BYTES {
            return None;
        }
        let step = |index: usize| step(word(FIRST + 8 * index)?, packet.1);
        Some(Self { packet, steps: (0..kept).map(step).collect::<Option<_>>()? })
    }
}

/// A step whose time is within nine minutes of `near`: of that it has the low 40 bits.
fn step(word: u64, near: u64) -> Option<Step> {
    let bits = u64::BITS - TIME_SHIFT;
    let later = (word >> TIME_SHIFT).wrapping_sub(near) << (u64::BITS - bits);
    let later = later.cast_signed() >> (u64::BITS - bits);
    Some(Step {
        stage: stage(usize::try_from(word & ((1 << STAGE_BITS) - 1)).ok()?)?,
        cpu: u32::try_from(word >> STAGE_BITS & 0xffff).ok()?,
        at_ns: near.wrapping_add_signed(later),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the programs write for such a packet.
    pub fn written(packet: Identity, steps: &[(usize, u32, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; TRAIL_BYTES];
        bytes[0..8].copy_from_slice(&packet.0.to_ne_bytes());
        bytes[8..16].copy_from_slice(&packet.1.to_ne_bytes());
        bytes[16..20].copy_from_slice(&u32::try_from(steps.len()).unwrap().to_ne_bytes());
        for (index, (stage, cpu, ns)) in steps.iter().take(STEPS).enumerate() {
            let word = ns << TIME_SHIFT | u64::from(*cpu) << STAGE_BITS | *stage as u64;
            bytes[FIRST + 8 * index..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn steps_before_and_after_the_begin_have_their_time() {
        // Around a time whose low 40 bits are 0.
        let begin = 7 << 40;
        let bytes = written((64, begin), &[(2, 3, begin - 900), (3, 65_535, begin + 12)]);
        let trail = Trail::read(&bytes).unwrap();
        let steps: Vec<_> = trail.steps.iter().map(|s| (s.stage.name, s.cpu, s.at_ns)).collect();
        assert_eq!(steps, [("irq_handler", 3, begin - 900), ("net_rx_raise", 65_535, begin + 12)]);
        assert_eq!(trail.packet, (64, begin));
    }

    #[test]
    fn a_long_path_has_its_first_stages() {
        let long = vec![(1, 0, 1000); STEPS + 8];
        assert_eq!(Trail::read(&written((64, 1000), &long)).unwrap().steps.len(), STEPS);
    }

    #[test]
    fn what_is_no_trail_is_refused() {
        let one = written((64, 1000), &[(1, 0, 1000)]);
        assert_eq!(Trail::read(&one[..one.len() - 1]), None);
        assert_eq!(Trail::read(&written((0, 1000), &[])), None);
        assert_eq!(Trail::read(&written((64, 1000), &[(200, 0, 1000)])), None, "no such stage");
    }

    proptest! {
        #[test]
        fn any_step_is_read_as_it_was_written(
            begin in 1u64 << 40..1 << 62,
            later in -(1i64 << 39)..1 << 39,
            cpu in 0..65_536u32,
        ) {
            let at = begin.wrapping_add_signed(later);
            let trail = Trail::read(&written((64, begin), &[(5, cpu, at)])).unwrap();
            prop_assert_eq!((trail.steps[0].cpu, trail.steps[0].at_ns), (cpu, at));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Trail::read(&bytes);
        }
    }
}
