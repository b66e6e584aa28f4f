//! Samples of ARM's Statistical Profiling Extension: records in an area that the PMU writes by itself.
//!
//! Input: bytes of the area. Output: the same samples as those of other PMUs.

mod packets;
mod sources;

use super::record::Sample;
use packets::{INSTRUCTION, MEMORY, PHYSICAL, Packet, TOTAL, VIRTUAL, packet};
use sources::Access;
pub use sources::Codes;

/// Bits of an address; the top byte has a tag, or the exception level.
const ADDRESS: u64 = (1 << 56) - 1;
/// The kernel's addresses (Documentation/arch/arm64/memory.rst).
const OF_KERNEL: u64 = 0xff << 56;

/// The accesses in these bytes of a CPU's area, which begin at `begins`. Returns how many bytes
/// were no packets: they are skipped one by one, as perf does. Samples have a thread, and no process.
pub fn samples(
    bytes: &[u8],
    begins: u64,
    cpu: u32,
    codes: Codes,
    mut each: impl FnMut(Sample),
) -> u64 {
    let (mut at, mut malformed) = (0, 0);
    let mut record = Record::default();
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Some((packet, size)) = packet(rest, begins.wrapping_add(at as u64)) else {
            // What it belongs to is not known.
            record = Record::default();
            malformed += 1;
            at += 1;
            continue;
        };
        at += size;
        if record.take(packet) {
            each_access(&record, cpu, codes, &mut each);
            record = Record::default();
        }
    }
    malformed
}

fn each_access(record: &Record, cpu: u32, codes: Codes, each: &mut impl FnMut(Sample)) {
    if record.access.is_some() {
        let mut sample = record.sample;
        sample.cpu = cpu;
        sample.data_src = codes.data_src(Access {
            is_store: record.access == Some(true),
            source: record.source,
            events: record.events,
        });
        each(sample);
    }
}

/// What the packets so far say of an operation.
#[derive(Debug, Clone, Copy, Default)]
struct Record {
    sample: Sample,
    /// Of an access to memory: whether it is a store.
    access: Option<bool>,
    source: Option<u64>,
    events: u64,
}

impl Record {
    /// Adds a packet; returns whether it is the last one.
    fn take(&mut self, packet: Packet) -> bool {
        match packet {
            Packet::End | Packet::Timestamp(_) => return true,
            Packet::Address { index: INSTRUCTION, value } => {
                // `ns` and the exception level: the kernel's own is 1, or 2 with virtualization.
                let (level, not_secure) = (value >> 61 & 3, value >> 63);
                let kernel = not_secure == 1 && (level == 1 || level == 2);
                self.sample.ip = value & ADDRESS | if kernel { OF_KERNEL } else { 0 };
            }
            Packet::Address { index: VIRTUAL, value } => {
                let kernel = value >> 52 & 0xf == 0xf;
                self.sample.address = value & ADDRESS | if kernel { OF_KERNEL } else { 0 };
            }
            Packet::Address { index: PHYSICAL, value } => self.sample.physical = value & ADDRESS,
            Packet::Counter { index: TOTAL, value } => self.sample.weight = value & 0xffff,
            Packet::Context(value) => self.sample.tid = u32::try_from(value).unwrap_or(0),
            Packet::Operation { class: MEMORY, value } => self.access = Some(value & 1 == 1),
            Packet::Events(value) => self.events = value,
            Packet::Source(value) => self.source = Some(value),
            Packet::Padding
            | Packet::Address { .. }
            | Packet::Counter { .. }
            | Packet::Operation { .. } => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::data_src::DataSource;
    use super::*;
    use nearpath_model::LoadSource;
    use proptest::prelude::*;

    /// Writes packets as the architecture describes them; shares nothing with the parser.
    #[derive(Default)]
    struct Writer(Vec<u8>);

    impl Writer {
        fn bytes(mut self, header: &[u8], payload: &[u8]) -> Self {
            self.0.extend(header);
            self.0.extend(payload);
            self
        }
        fn pc(self, at: u64, level: u64) -> Self {
            self.bytes(&[0xb0], &(at & ADDRESS | 1 << 63 | level << 61).to_le_bytes())
        }
        fn va(self, at: u64) -> Self {
            self.bytes(&[0xb2], &at.to_le_bytes())
        }
        fn pa(self, at: u64) -> Self {
            self.bytes(&[0xb3], &(at | 1 << 63).to_le_bytes())
        }
        fn context(self, tid: u32) -> Self {
            self.bytes(&[0x64], &tid.to_le_bytes())
        }
        fn load(self) -> Self {
            self.bytes(&[0x49], &[0])
        }
        fn store(self) -> Self {
            self.bytes(&[0x49], &[1])
        }
        fn source(self, code: u8) -> Self {
            self.bytes(&[0x43], &[code])
        }
        fn latency(self, cycles: u16) -> Self {
            self.bytes(&[0x98], &cycles.to_le_bytes())
        }
        fn end(self) -> Self {
            self.bytes(&[0x01], &[])
        }
        fn time(self, at: u64) -> Self {
            self.bytes(&[0x71], &at.to_le_bytes())
        }
    }

    fn read(bytes: &[u8]) -> (Vec<Sample>, u64) {
        let mut found = Vec::new();
        let malformed = samples(bytes, 0, 5, Codes::Common, |sample| found.push(sample));
        (found, malformed)
    }

    #[test]
    fn a_record_is_a_sample() {
        let bytes = Writer::default()
            .pc(0x40_1000, 0)
            .context(71)
            .load()
            .source(0xd)
            .latency(400)
            // A tagged pointer: its tag is no part of the address.
            .va(0xb4ff_0000_1234)
            .pa(0x80_0000_1234)
            .time(9)
            // A store of the kernel's, a branch, and an unfinished record.
            .pc(0xffff_8000_1000, 1)
            .store()
            .va(0x00ff_ff00_dead_0000)
            .end()
            .bytes(&[0x4a], &[1])
            .end()
            .pc(0x40_1000, 0)
            .load();
        let (found, malformed) = read(&bytes.0);
        assert_eq!((found.len(), malformed), (2, 0));
        let load = found[0];
        assert_eq!((load.ip, load.tid, load.weight, load.cpu), (0x40_1000, 71, 400, 5));
        assert_eq!((load.address, load.physical), (0xb4ff_0000_1234, 0x80_0000_1234));
        assert_eq!(DataSource(load.data_src).source(), LoadSource::RemoteCache);
        let store = found[1];
        assert_eq!(store.ip, 0xff00_ffff_8000_1000);
        assert_eq!(store.address, 0xffff_ff00_dead_0000);
        assert!(DataSource(store.data_src).is_store());
    }

    #[test]
    fn what_follows_damage_is_read() {
        let record = |at| Writer::default().pc(at, 0).load().end().0;
        let bytes =
            [record(0x10), vec![0xff, 0xff], record(0x20), vec![0; 7], record(0x30)].concat();
        let (found, malformed) = read(&bytes);
        let at: Vec<u64> = found.iter().map(|sample| sample.ip).collect();
        assert_eq!((at, malformed), (vec![0x10, 0x20, 0x30], 2));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), begins: u64) {
            let mut count = 0u64;
            let malformed = samples(&bytes, begins, 0, Codes::Hip, |_| count += 1);
            prop_assert!(malformed + count <= bytes.len() as u64);
        }
    }
}
