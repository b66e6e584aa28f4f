//! Where a load found its data: `union perf_mem_data_src` of include/uapi/linux/perf_event.h, as PEBS on Intel and IBS
//! on AMD fill it.
//!
//! ```text
//! bits  0-4  operation   19-23 snoop    33-36 level number   38-39 snoop, continued
//!       5-18 level       24-25 lock     37    remote         43-45 hops
//! ```
//! A kernel sets the level as bits, as a number, or both; the number with `remote` and `hops` says more.

use nearpath_model::LoadSource;

// The operations, as bits.
pub const LOAD: u64 = 0x02;
pub const STORE: u64 = 0x04;

// The level, as bits from bit 5 on (`PERF_MEM_LVL_*`).
const HIT: u64 = 0x02;
const L1: u64 = 0x08;
const LFB: u64 = 0x10;
const L2: u64 = 0x20;
const L3: u64 = 0x40;
const LOCAL_RAM: u64 = 0x80;
const REMOTE_RAM: u64 = 0x100 | 0x200;
const REMOTE_CACHE: u64 = 0x400 | 0x800;
const UNCACHED: u64 = 0x1000 | 0x2000;

/// `PERF_MEM_SNOOP_HITM`: the line was modified in another core's cache.
const HITM: u64 = 0x10;
/// `PERF_MEM_SNOOPX_PEER`: it came from a peer's cache, whatever its state (ARM).
const PEER: u64 = 0x02;
/// `PERF_MEM_HOPS_0`: another core of the same node. More hops are other nodes.
const SAME_NODE: u64 = 1;

/// `PERF_MEM_SNOOP_HITM` and `PERF_MEM_SNOOPX_PEER` in their positions.
pub const HITM_BITS: u64 = HITM << 19;
pub const PEER_BITS: u64 = PEER << 38;

/// A level as bits (`PERF_MEM_LVL_*`) in their place.
pub const fn level_bits(level: u64) -> u64 {
    level << 5
}

/// A level as a number (`PERF_MEM_LVLNUM_*`) in its place.
pub const fn level_number(number: u64) -> u64 {
    number << 33
}

/// `PERF_MEM_REMOTE_REMOTE` in its place.
pub const fn remote_bit() -> u64 {
    1 << 37
}

/// What the kernel says of a sampled access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSource(pub u64);

impl DataSource {
    fn bits(self, shift: u32, count: u32) -> u64 {
        self.0 >> shift & ((1 << count) - 1)
    }

    /// Whether it was a load.
    pub fn is_load(self) -> bool {
        self.bits(0, 5) & LOAD != 0
    }

    /// Whether it was a store. (A locked operation may be both.)
    pub fn is_store(self) -> bool {
        self.bits(0, 5) & STORE != 0
    }

    /// Whether the line was modified in the cache of another core.
    pub fn is_hitm(self) -> bool {
        self.bits(19, 5) & HITM != 0 || self.bits(38, 2) & PEER != 0
    }

    /// Where the data were.
    pub fn source(self) -> LoadSource {
        let remote = self.bits(37, 1) == 1;
        // Before hops were reported (Linux 5.16), `remote` alone says that it was another node.
        let other_node = remote && self.bits(43, 3) != SAME_NODE;
        let number = self.bits(33, 4);
        match number {
            _ if self.bits(5, 14) & REMOTE_CACHE != 0 => LoadSource::RemoteCache,
            0x1 | 0x2 | 0x3 | 0x4 | 0x5 | 0xb if other_node => LoadSource::RemoteCache,
            0xd if other_node => LoadSource::RemoteMemory,
            0x1 => LoadSource::L1,
            0x2 | 0x5 => LoadSource::L2,
            0x3 | 0x4 | 0xb => LoadSource::L3,
            0xc => LoadSource::FillBuffer,
            0xd => LoadSource::LocalMemory,
            // Uncached, CXL, I/O, persistent memory, a memory-side cache.
            0x6..=0xa | 0xe => LoadSource::Other,
            _ => self.by_level(),
        }
    }

    /// By the bits of the level alone.
    fn by_level(self) -> LoadSource {
        let level = self.bits(5, 14);
        match level {
            _ if level & REMOTE_RAM != 0 => LoadSource::RemoteMemory,
            _ if level & LOCAL_RAM != 0 => LoadSource::LocalMemory,
            _ if level & UNCACHED != 0 => LoadSource::Other,
            // With MISS it is known only where they were not.
            _ if level & HIT == 0 => LoadSource::Unknown,
            _ if level & LFB != 0 => LoadSource::FillBuffer,
            _ if level & L1 != 0 => LoadSource::L1,
            _ if level & L2 != 0 => LoadSource::L2,
            _ if level & L3 != 0 => LoadSource::L3,
            _ => LoadSource::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Composes the union from the macro `PERF_MEM_S` and its constants, written by name as in the kernel's drivers.
    fn composed(fields: &[(&str, u64)]) -> DataSource {
        let shift = |field: &str| match field {
            "OP" => 0,
            "LVL" => 5,
            "SNOOP" => 19,
            "LOCK" => 24,
            "TLB" => 26,
            "LVLNUM" => 33,
            "REMOTE" => 37,
            "SNOOPX" => 38,
            "BLK" => 40,
            "HOPS" => 43,
            other => panic!("{other}"),
        };
        DataSource(fields.iter().map(|(field, value)| value << shift(field)).sum())
    }

    #[test]
    fn sources_are_those_of_the_kernels_tables() {
        let load = ("OP", 2);
        for (fields, source, hitm) in [
            // pebs_data_source of arch/x86/events/intel/ds.c: LEVEL(x) sets both forms, REM is the bit.
            (&[load, ("LVL", 0x8 | 2), ("LVLNUM", 1), ("SNOOP", 2)][..], LoadSource::L1, false),
            (
                &[load, ("LVL", 0x10 | 2), ("LVLNUM", 0xc), ("SNOOP", 2)],
                LoadSource::FillBuffer,
                false,
            ),
            (&[load, ("LVL", 0x20 | 2), ("LVLNUM", 2), ("SNOOP", 2)], LoadSource::L2, false),
            (&[load, ("LVL", 0x40 | 2), ("LVLNUM", 3), ("SNOOP", 8)], LoadSource::L3, false),
            // 0x06: L3 hit, snoop hit modified.
            (&[load, ("LVL", 0x40 | 2), ("LVLNUM", 3), ("SNOOP", 0x10)], LoadSource::L3, true),
            // 0x08: L3 miss, snoop hit (remote cache); 0x09 local, 0x0b remote memory on Nehalem.
            (&[load, ("LVL", 0x400 | 2), ("SNOOP", 0x10)], LoadSource::RemoteCache, true),
            (
                &[load, ("LVL", 0x80 | 2), ("SNOOP", 4), ("LVLNUM", 0xd)],
                LoadSource::LocalMemory,
                false,
            ),
            (
                &[load, ("LVL", 0x100 | 2), ("SNOOP", 4), ("REMOTE", 1), ("LVLNUM", 0xd)],
                LoadSource::RemoteMemory,
                false,
            ),
            // Skylake: OP_LH | LEVEL(ANY_CACHE) | REM | HITM.
            (
                &[load, ("LVLNUM", 0xb), ("REMOTE", 1), ("SNOOP", 0x10)],
                LoadSource::RemoteCache,
                true,
            ),
            // perf_ibs_get_data_src of arch/x86/events/amd/ibs.c: g_data_src tables, with hops.
            (
                &[load, ("LVLNUM", 0xb), ("REMOTE", 1), ("HOPS", 1), ("SNOOP", 0x10)],
                LoadSource::L3,
                true,
            ),
            (&[load, ("LVLNUM", 0xb), ("REMOTE", 1), ("HOPS", 2)], LoadSource::RemoteCache, false),
            (&[load, ("LVLNUM", 0xd), ("REMOTE", 1), ("HOPS", 2)], LoadSource::RemoteMemory, false),
            (&[load, ("LVLNUM", 0xd)], LoadSource::LocalMemory, false),
            (&[load, ("LVLNUM", 9)], LoadSource::Other, false),
            // SPE on ARM: a peer's cache.
            (&[load, ("LVLNUM", 3), ("LVL", 0x40 | 2), ("SNOOPX", 2)], LoadSource::L3, true),
            // Not available, and a miss of L1 alone.
            (&[load, ("LVL", 1), ("LVLNUM", 0xf), ("SNOOP", 1)], LoadSource::Unknown, false),
            (&[load, ("LVL", 0x8 | 4)], LoadSource::Unknown, false),
            (&[load, ("LVL", 0x2000 | 2)], LoadSource::Other, false),
        ] {
            let source_of = composed(fields);
            assert_eq!((source_of.source(), source_of.is_hitm()), (source, hitm), "{fields:?}");
            assert!(source_of.is_load() && !source_of.is_store());
        }
        // PERF_MEM_NA, as events without the information have it.
        let none = composed(&[("OP", 1), ("LVL", 1), ("SNOOP", 1), ("LOCK", 1), ("TLB", 1)]);
        assert_eq!(
            (none.is_load(), none.is_store(), none.source()),
            (false, false, LoadSource::Unknown)
        );
        assert!(composed(&[("OP", 4)]).is_store());
        // All bits set is no value of a kernel, and no panic.
        let _ = DataSource(u64::MAX).source();
    }
}
