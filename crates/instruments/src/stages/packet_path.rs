//! The stages that a packet has passed, as sent by the programs (`struct packet_path` of `bpf/packet_path.h`).

use super::table::{Stage, stage};

/// Maximum stages of a recorded path (`PACKET_PATH_HOPS`).
const HOPS: usize = 32;
/// Offset of the stages; they are followed by a word used only by the programs.
const FIRST: usize = 24;
/// Size of a recorded path in bytes, which distinguishes it from the other records.
pub const PACKET_PATH_BYTES: usize = FIRST + 8 * HOPS + 8;
/// Number of bits below the time in a hop.
const STAGE_BITS: u32 = 8;
const TIME_SHIFT: u32 = 24;

/// Identifies a packet: the address of its sk_buff at the start, and when it started.
pub type Identity = (u64, u64);

/// The path of a packet, from its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketPath {
    /// Its packet.
    pub packet: Identity,
    /// Stages in the order in which they were passed; of a long path the first ones.
    pub hops: Vec<Hop>,
}

/// A stage that was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// The stage.
    pub stage: &'static Stage,
    /// The CPU.
    pub cpu: u32,
    /// The time, CLOCK_MONOTONIC.
    pub at_ns: u64,
}

impl PacketPath {
    /// Parses a recorded path; `None` if it is malformed, or has no packet.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let packet = (word(0)?, word(8)?);
        let passed = u32::from_ne_bytes(bytes.get(16..20)?.try_into().ok()?);
        let kept = usize::try_from(passed).ok()?.min(HOPS);
        if packet.0 == 0 || bytes.len() < PACKET_PATH_BYTES {
            return None;
        }
        let hop = |index: usize| hop(word(FIRST + 8 * index)?, packet.1);
        Some(Self { packet, hops: (0..kept).map(hop).collect::<Option<_>>()? })
    }
}

/// A hop whose time is within nine minutes of `near`: only the low 40 bits are stored.
fn hop(word: u64, near: u64) -> Option<Hop> {
    let bits = u64::BITS - TIME_SHIFT;
    let later = (word >> TIME_SHIFT).wrapping_sub(near) << (u64::BITS - bits);
    let later = later.cast_signed() >> (u64::BITS - bits);
    Some(Hop {
        stage: stage(usize::try_from(word & ((1 << STAGE_BITS) - 1)).ok()?)?,
        cpu: u32::try_from(word >> STAGE_BITS & 0xffff).ok()?,
        at_ns: near.wrapping_add_signed(later),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The programs' encoding of such a packet.
    pub fn written(packet: Identity, hops: &[(usize, u32, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; PACKET_PATH_BYTES];
        bytes[0..8].copy_from_slice(&packet.0.to_ne_bytes());
        bytes[8..16].copy_from_slice(&packet.1.to_ne_bytes());
        bytes[16..20].copy_from_slice(&u32::try_from(hops.len()).unwrap().to_ne_bytes());
        for (index, (stage, cpu, ns)) in hops.iter().take(HOPS).enumerate() {
            let word = ns << TIME_SHIFT | u64::from(*cpu) << STAGE_BITS | *stage as u64;
            bytes[FIRST + 8 * index..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn hops_before_and_after_the_begin_have_their_time() {
        // Around a time whose low 40 bits are 0.
        let begin = 7 << 40;
        let bytes = written((64, begin), &[(2, 3, begin - 900), (3, 65_535, begin + 12)]);
        let packet_path = PacketPath::read(&bytes).unwrap();
        let hops: Vec<_> =
            packet_path.hops.iter().map(|s| (s.stage.name, s.cpu, s.at_ns)).collect();
        assert_eq!(hops, [("irq_handler", 3, begin - 900), ("net_rx_raise", 65_535, begin + 12)]);
        assert_eq!(packet_path.packet, (64, begin));
    }

    #[test]
    fn a_long_path_has_its_first_stages() {
        let long = vec![(1, 0, 1000); HOPS + 8];
        assert_eq!(PacketPath::read(&written((64, 1000), &long)).unwrap().hops.len(), HOPS);
    }

    #[test]
    fn malformed_packet_paths_are_rejected() {
        let one = written((64, 1000), &[(1, 0, 1000)]);
        assert_eq!(PacketPath::read(&one[..one.len() - 1]), None);
        assert_eq!(PacketPath::read(&written((0, 1000), &[])), None);
        assert_eq!(
            PacketPath::read(&written((64, 1000), &[(200, 0, 1000)])),
            None,
            "no such stage"
        );
    }

    proptest! {
        #[test]
        fn hops_round_trip(
            begin in 1u64 << 40..1 << 62,
            later in -(1i64 << 39)..1 << 39,
            cpu in 0..65_536u32,
        ) {
            let at = begin.wrapping_add_signed(later);
            let packet_path = PacketPath::read(&written((64, begin), &[(5, cpu, at)])).unwrap();
            prop_assert_eq!((packet_path.hops[0].cpu, packet_path.hops[0].at_ns), (cpu, at));
        }

        #[test]
        fn any_bytes_are_parsed_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = PacketPath::read(&bytes);
        }
    }
}
