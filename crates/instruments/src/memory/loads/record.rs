//! Records of a perf ring or of perf.data: samples, and how many were lost (include/uapi/linux/perf_event.h, "struct
//! perf_event_header" and the comment of `PERF_RECORD_SAMPLE`).
//!
//! Input: bytes, and which fields each sample has (`sample_type`). Output: records; malformed ones end the stream.

/// Fields of a sample, by their bit in `sample_type`: those of 8 bytes, in the order in which the kernel writes them
/// (`perf_output_sample` of kernel/events/core.c).
const FIELDS: [u64; 14] = [
    IDENTIFIER,
    IP,
    TID,
    TIME,
    ADDR,
    ID,
    STREAM_ID,
    CPU,
    PERIOD,
    WEIGHT,
    WEIGHT_STRUCT,
    DATA_SRC,
    TRANSACTION,
    PHYS_ADDR,
];
/// `PERF_SAMPLE_IP` and so on.
pub const IP: u64 = 1 << 0;
/// Process and thread.
pub const TID: u64 = 1 << 1;
/// Time in nanoseconds.
pub const TIME: u64 = 1 << 2;
/// The address of the data.
pub const ADDR: u64 = 1 << 3;
const ID: u64 = 1 << 6;
/// The CPU.
pub const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const STREAM_ID: u64 = 1 << 9;
/// The latency of the load.
pub const WEIGHT: u64 = 1 << 14;
/// Where the data were.
pub const DATA_SRC: u64 = 1 << 15;
const IDENTIFIER: u64 = 1 << 16;
const TRANSACTION: u64 = 1 << 17;
/// The physical address of the data.
pub const PHYS_ADDR: u64 = 1 << 19;
const WEIGHT_STRUCT: u64 = 1 << 24;

// `PERF_RECORD_*`.
const LOST: u32 = 2;
const THROTTLE: u32 = 5;
const SAMPLE: u32 = 9;
const AUX: u32 = 11;
const LOST_SAMPLES: u32 = 13;
/// Flags of `PERF_RECORD_AUX`: the area was full; samples collided in the PMU.
pub const TRUNCATED: u64 = 1 << 0;
pub const COLLISION: u64 = 1 << 3;
/// Size of `struct perf_event_header`.
const HEADER: usize = 8;

/// A sampled access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// The instruction.
    pub ip: u64,
    /// Process and thread.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The address of the data; 0 if unknown.
    pub address: u64,
    /// The CPU.
    pub cpu: u32,
    /// The latency in cycles; 0 if unknown.
    pub weight: u64,
    /// `perf_mem_data_src`.
    pub data_src: u64,
    /// The physical address; 0 if unknown.
    pub physical: u64,
}

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// An access.
    Sample(Sample),
    /// Samples that found no room in the ring.
    Lost(u64),
    /// The kernel paused sampling, as it took too much of a CPU.
    Throttled,
    /// A part of the event's own area is complete.
    Area(Area),
    /// Another record.
    Other,
}

/// A complete part of an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Where it begins, from the start of the measurement.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// [`TRUNCATED`], [`COLLISION`].
    pub flags: u64,
}

/// The records in these bytes, and how many bytes they are; the rest is the beginning of one, or malformed.
///
/// # Errors
/// Samples of this type have fields of other sizes, which are not parsed.
pub fn parse(bytes: &[u8], sample_type: u64) -> Result<(Vec<Record>, usize), String> {
    let known = FIELDS.iter().fold(0, |all, field| all | field);
    if sample_type & !known != 0 {
        return Err(format!("samples have fields that are not known: {:#x}", sample_type & !known));
    }
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some((record, size)) = bytes.get(at..).and_then(|rest| one(rest, sample_type)) {
        records.push(record);
        at += size;
    }
    Ok((records, at))
}

fn one(bytes: &[u8], sample_type: u64) -> Option<(Record, usize)> {
    let kind = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?);
    let size = usize::from(u16::from_ne_bytes(bytes.get(6..8)?.try_into().ok()?));
    let body = bytes.get(HEADER..size.max(HEADER)).filter(|_| size >= HEADER)?;
    let record = match kind {
        SAMPLE => Record::Sample(sample(body, sample_type)?),
        LOST => Record::Lost(word(body, 1)?),
        LOST_SAMPLES => Record::Lost(word(body, 0)?),
        AUX => {
            let (offset, size, flags) = (word(body, 0)?, word(body, 1)?, word(body, 2)?);
            Record::Area(Area { offset, size, flags })
        }
        THROTTLE => Record::Throttled,
        _ => Record::Other,
    };
    Some((record, size))
}

fn word(body: &[u8], index: usize) -> Option<u64> {
    let start = index.checked_mul(8)?;
    Some(u64::from_ne_bytes(body.get(start..start.checked_add(8)?)?.try_into().ok()?))
}

fn sample(body: &[u8], sample_type: u64) -> Option<Sample> {
    let mut sample = Sample::default();
    for (index, field) in FIELDS.into_iter().filter(|field| sample_type & field != 0).enumerate() {
        let value = word(body, index)?;
        // Two halves: `u32 pid, tid` and `u32 cpu, res`.
        let [first, second] = [0, 4].map(|at| {
            let bytes = value.to_ne_bytes();
            bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
        });
        match field {
            IP => sample.ip = value,
            TID => (sample.pid, sample.tid) = (first, second),
            ADDR => sample.address = value,
            CPU => sample.cpu = first,
            WEIGHT => sample.weight = value,
            // `var1_dw`: the latency.
            WEIGHT_STRUCT => sample.weight = u64::from(first),
            DATA_SRC => sample.data_src = value,
            PHYS_ADDR => sample.physical = value,
            _ => {}
        }
    }
    Some(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let size = u16::try_from(HEADER + words.len() * 8).unwrap();
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    fn halves(first: u32, second: u32) -> u64 {
        u64::from_ne_bytes([first.to_ne_bytes(), second.to_ne_bytes()].concat().try_into().unwrap())
    }

    #[test]
    fn a_sample_is_read_as_the_kernel_writes_it() {
        let wanted = IP | TID | TIME | ADDR | CPU | WEIGHT | DATA_SRC | PHYS_ADDR;
        let words =
            [0x40_1000, halves(70, 71), 5, 0x7f00_1040, halves(3, 0), 210, 0x68, 0x1_0000_1040];
        let mut bytes = record(SAMPLE, 2, &words);
        bytes.extend(record(LOST, 0, &[1, 44]));
        bytes.extend(record(LOST_SAMPLES, 0, &[6]));
        bytes.extend(record(THROTTLE, 0, &[1, 2, 3]));
        bytes.extend(record(AUX, 0, &[0x4000, 0x80, TRUNCATED]));
        bytes.extend(record(3, 0, &[halves(70, 70), 0]));
        let whole = bytes.len();
        bytes.extend(&record(SAMPLE, 2, &words)[..20]);
        let (records, read) = parse(&bytes, wanted).unwrap();
        assert_eq!(read, whole, "half a record waits for its rest");
        let sample = Sample {
            ip: 0x40_1000,
            pid: 70,
            tid: 71,
            address: 0x7f00_1040,
            cpu: 3,
            weight: 210,
            data_src: 0x68,
            physical: 0x1_0000_1040,
        };
        assert_eq!(
            records,
            [
                Record::Sample(sample),
                Record::Lost(44),
                Record::Lost(6),
                Record::Throttled,
                Record::Area(Area { offset: 0x4000, size: 0x80, flags: TRUNCATED }),
                Record::Other
            ]
        );
        // With an identifier first, as several events in a ring have it, and the weight in parts.
        let words = [9, 0x40_1000, halves(70, 71), halves(210, 7 << 16 | 9), 0x68];
        let bytes = record(SAMPLE, 2, &words);
        let (records, _) = parse(&bytes, IDENTIFIER | IP | TID | WEIGHT_STRUCT | DATA_SRC).unwrap();
        let Record::Sample(found) = records[0] else { panic!() };
        assert_eq!((found.ip, found.weight, found.data_src), (0x40_1000, 210, 0x68));
    }

    #[test]
    fn malformed_records_end_the_stream_and_unknown_fields_are_refused() {
        let good = record(SAMPLE, 2, &[1]);
        for bad in [
            vec![0; 8],
            record(SAMPLE, 2, &[]),
            record(LOST, 0, &[1]),
            vec![9, 0, 0, 0, 0, 0, 4, 0],
        ] {
            let bytes = [&good[..], &bad[..], &good[..]].concat();
            let (records, read) = parse(&bytes, IP).unwrap();
            assert_eq!((records.len(), read), (1, good.len()), "{bad:?}");
        }
        // A call chain has no fixed size.
        assert!(parse(&good, IP | 1 << 5).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), fields: u64) {
            if let Ok((_, read)) = parse(&bytes, fields) {
                prop_assert!(read <= bytes.len());
            }
        }
    }
}
