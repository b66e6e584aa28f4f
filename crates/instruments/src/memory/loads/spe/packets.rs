//! Packets of ARM's Statistical Profiling Extension, as its buffer holds them (Arm Architecture Reference Manual, "Statistical
//! Profiling Extension Sample Record Specification"; tools/perf/util/arm-spe-decoder/arm-spe-pkt-decoder.c).
//!
//! Input: bytes, and where they begin in the buffer: padding is relative to it. Output: packets. A header has its kind and the
//! size of what follows: 1, 2, 4 or 8 bytes, little-endian.

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet {
    /// Padding, or alignment.
    Padding,
    /// The end of a record.
    End,
    /// The end of a record, with the time.
    Timestamp(u64),
    /// An address of one kind: that of the instruction, of the data.
    Address { index: u8, value: u64 },
    /// A count of cycles.
    Counter { index: u8, value: u64 },
    /// The context register, with the thread's id where the kernel writes it there (CONFIG_PID_IN_CONTEXTIDR).
    Context(u64),
    /// What the instruction is.
    Operation { class: u8, value: u64 },
    /// What happened to it, as bits.
    Events(u64),
    /// Where a load found its data, in a code of the CPU model's.
    Source(u64),
}

/// Indexes of addresses.
pub const INSTRUCTION: u8 = 0;
pub const VIRTUAL: u8 = 2;
pub const PHYSICAL: u8 = 3;
/// Index of the counter of all cycles of an operation.
pub const TOTAL: u8 = 0;
/// Class of loads, stores and atomics; bit 0 of the value is set for a store.
pub const MEMORY: u8 = 1;

/// The packet at the start of these bytes, with its size; `begins` is where they begin in the buffer.
///
/// # Errors
/// `None`: no packet begins with this byte, or it is cut.
pub fn packet(bytes: &[u8], begins: u64) -> Option<(Packet, usize)> {
    let &first = bytes.first()?;
    let with = |header: u8, size: usize, of: &dyn Fn(u64) -> Packet| {
        let length = 1usize << (header >> 4 & 3);
        let payload = bytes.get(size..size + length)?;
        let value = payload.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        Some((of(value), size + length))
    };
    match first {
        0x00 => Some((Packet::Padding, 1)),
        0x01 => Some((Packet::End, 1)),
        0x71 => with(first, 1, &Packet::Timestamp),
        _ if first & 0xcf == 0x42 => with(first, 1, &Packet::Events),
        _ if first & 0xcf == 0x43 => with(first, 1, &Packet::Source),
        _ if first & 0xfc == 0x64 => with(first, 1, &Packet::Context),
        _ if first & 0xfc == 0x48 => {
            with(first, 1, &|value| Packet::Operation { class: first & 3, value })
        }
        // A header of two bytes: an index of five bits, or alignment.
        _ if first & 0xfc == 0x20 => {
            let &second = bytes.get(1)?;
            if second == 0 {
                let alignment = 1u64 << ((first & 0xf) + 1);
                let size = alignment - (begins & (alignment - 1));
                let size = usize::try_from(size).ok().filter(|&size| size <= bytes.len())?;
                return Some((Packet::Padding, size));
            }
            let of = numbered(second, (first & 3) << 3 | second & 7)?;
            with(second, 2, &|value| of.packet(value))
        }
        _ => {
            let of = numbered(first, first & 7)?;
            with(first, 1, &|value| of.packet(value))
        }
    }
}

/// An address or a counter.
#[derive(Debug, Clone, Copy)]
enum Numbered {
    Address(u8),
    Counter(u8),
}

impl Numbered {
    fn packet(self, value: u64) -> Packet {
        match self {
            Self::Address(index) => Packet::Address { index, value },
            Self::Counter(index) => Packet::Counter { index, value },
        }
    }
}

/// Which of them a header begins.
fn numbered(header: u8, index: u8) -> Option<Numbered> {
    match header & 0xf8 {
        0xb0 => Some(Numbered::Address(index)),
        0x98 => Some(Numbered::Counter(index)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of the documentation's examples and of `perf script -D` on a Neoverse N1.
    #[test]
    fn packets_are_read_as_the_hardware_writes_them() {
        for (bytes, packet_of, size) in [
            (&[0x00, 0xff][..], Packet::Padding, 1),
            (&[0x01], Packet::End, 1),
            // PC 0xff00000010a2f1c4 el0 ns=1: the top byte has the exception level.
            (
                &[0xb0, 0xc4, 0xf1, 0xa2, 0x10, 0, 0, 0, 0x80],
                Packet::Address { index: 0, value: 0x8000_0000_10a2_f1c4 },
                9,
            ),
            (&[0x65, 0x2a, 0x01, 0, 0], Packet::Context(0x12a), 5),
            (&[0x49, 0x01], Packet::Operation { class: 1, value: 1 }, 2),
            (&[0x52, 0x16, 0x02], Packet::Events(0x216), 3),
            (&[0x42, 0x16], Packet::Events(0x16), 2),
            (&[0x43, 0x0e], Packet::Source(0x0e), 2),
            (&[0x53, 0x0d, 0x00], Packet::Source(0x0d), 3),
            (&[0x98, 0x68, 0x01], Packet::Counter { index: 0, value: 0x168 }, 3),
            (
                &[0xb2, 1, 2, 3, 4, 5, 6, 7, 8],
                Packet::Address { index: 2, value: 0x0807_0605_0403_0201 },
                9,
            ),
            // A header of two bytes: index 8 + 1.
            (&[0x21, 0x99, 0x05, 0x00], Packet::Counter { index: 9, value: 5 }, 4),
            (&[0x71, 1, 0, 0, 0, 0, 0, 0, 0], Packet::Timestamp(1), 9),
        ] {
            // 0x98 is one byte long by its size bits: 01 in bits 4 and 5 makes two.
            assert_eq!(packet(bytes, 0), Some((packet_of, size)), "{bytes:x?}");
            for cut in 0..size.saturating_sub(0) {
                let short = packet(&bytes[..cut], 0);
                assert_eq!(short, None, "{bytes:x?} cut after {cut}");
            }
        }
        // To the next multiple of 16.
        assert_eq!(packet(&[0x23, 0x00, 1, 1, 1, 1], 0x1_000c), Some((Packet::Padding, 4)));
        assert_eq!(packet(&[0x23, 0x00, 1], 0x1_000c), None);
        for bad in [&[0xff, 0, 0][..], &[0x20], &[0x22, 0xff, 0], &[]] {
            assert_eq!(packet(bad, 0), None, "{bad:x?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_each_packet_has_a_size(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            begins: u64,
        ) {
            let mut at = 0;
            while let Some((_, size)) = packet(&bytes[at..], begins.wrapping_add(at as u64)) {
                prop_assert!(size > 0 && at + size <= bytes.len());
                at += size;
            }
        }
    }
}
