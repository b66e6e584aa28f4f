//! Where a load found its data: the code in SPE's packets, which depends on the CPU model (tools/perf/util/arm-spe.c), as
//! `perf_mem_data_src`, so that samples of all PMUs are counted by the same rules.

use super::super::data_src::{
    HITM_BITS, LOAD, PEER_BITS, STORE, level_bits, level_number, remote_bit,
};

/// How a CPU model codes sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codes {
    /// Arm's own cores (`common_ds_encoding_cpus`).
    Common,
    /// AmpereOne.
    AmpereOne,
    /// HiSilicon HIP12.
    Hip,
    /// Another: only the events say something.
    Unknown,
}

/// Arm's implementer code, and the parts whose code is the common one (arch/arm64/include/asm/cputype.h): Neoverse N1, N2, N3,
/// V1, V2, V3, Cortex-A720, A725, X1C, X3, X925.
const ARM: u64 = 0x41;
const COMMON: [u64; 12] =
    [0xd0c, 0xd49, 0xd8e, 0xd40, 0xd4f, 0xd83, 0xd84, 0xd81, 0xd87, 0xd4c, 0xd4e, 0xd85];
const AMPERE: u64 = 0xc0;
const AMPEREONE: [u64; 1] = [0xac4];
const HISILICON: u64 = 0x48;
const HIP12: u64 = 0xd06;

impl Codes {
    /// Those of a CPU, by its `MIDR_EL1`: the implementer in bits 24-31, the part in bits 4-15.
    pub fn of(midr: u64) -> Self {
        let (implementer, part) = (midr >> 24 & 0xff, midr >> 4 & 0xfff);
        match implementer {
            ARM if COMMON.contains(&part) => Self::Common,
            AMPERE if AMPEREONE.contains(&part) => Self::AmpereOne,
            HISILICON if part == HIP12 => Self::Hip,
            _ => Self::Unknown,
        }
    }

    /// The source, as `perf_mem_data_src`; of stores, the operation alone.
    pub fn data_src(self, access: Access) -> u64 {
        if access.is_store {
            return STORE;
        }
        let code = match (self, access.source) {
            (Self::Unknown, _) | (_, None) => None,
            (Self::Common, Some(code)) => common(code),
            (Self::AmpereOne, Some(code)) => common(of_ampereone(code)),
            (Self::Hip, Some(code)) => hip(code),
        };
        LOAD | code.unwrap_or_else(|| by_events(access.events))
    }
}

/// What a record says of an access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Access {
    pub is_store: bool,
    /// The source's code, if there is one.
    pub source: Option<u64>,
    /// Events as bits.
    pub events: u64,
}

// Levels of `PERF_MEM_LVLNUM_*`.
const L1: u64 = 1;
const L2: u64 = 2;
const L3: u64 = 3;
const IO: u64 = 0xa;
const ANY_CACHE: u64 = 0xb;
const RAM: u64 = 0xd;

/// `arm_spe__synth_data_source_common`.
fn common(code: u64) -> Option<u64> {
    Some(match code {
        0x0 => level_number(L1),
        0x8 => level_number(L2),
        // Another core's cache; of the cluster; the system's cache; another cluster's.
        0x9 => level_number(L2) | PEER_BITS,
        0xa | 0xc => level_number(L3) | PEER_BITS,
        0xb => level_number(L3),
        0xd => level_number(ANY_CACHE) | remote_bit() | PEER_BITS,
        0xe => level_number(RAM),
        _ => return None,
    })
}

/// The common code of AmpereOne's (`arm_spe__synth_data_source_ampereone`).
fn of_ampereone(code: u64) -> u64 {
    match code {
        0x0 => 0x9,
        0x3 => 0xb,
        0x5 => 0xd,
        0x7 => 0xe,
        0x8 => 0x0,
        0x9 => 0x8,
        _ => u64::MAX,
    }
}

/// `arm_spe__synth_data_source_hisi_hip`.
fn hip(code: u64) -> Option<u64> {
    Some(match code {
        0 => level_number(L2) | PEER_BITS,
        1 => level_number(L2) | HITM_BITS | PEER_BITS,
        2 => level_number(L3),
        3 => level_number(L3) | HITM_BITS,
        4 => level_number(L3) | PEER_BITS,
        5 => level_number(L3) | HITM_BITS | PEER_BITS,
        6 => level_number(ANY_CACHE) | remote_bit() | PEER_BITS,
        7 => level_number(ANY_CACHE) | remote_bit() | HITM_BITS | PEER_BITS,
        8 => level_number(RAM),
        9 => level_number(RAM) | remote_bit(),
        13 => level_number(IO),
        16 => level_number(L2),
        17 => level_number(L2) | HITM_BITS,
        18 => level_number(L1),
        _ => return None,
    })
}

// Events of a record.
const L1_ACCESS: u64 = 1 << 2;
const L1_REFILL: u64 = 1 << 3;
const LLC_ACCESS: u64 = 1 << 8;
const LLC_MISS: u64 = 1 << 9;
const REMOTE_ACCESS: u64 = 1 << 10;

// Bits of `PERF_MEM_LVL_*`.
const HIT: u64 = 0x02;
const LEVEL_L1: u64 = 0x08;
const LEVEL_L3: u64 = 0x40;
const REMOTE_CACHE: u64 = 0x400;

/// `arm_spe__synth_memory_level`: what was looked up last, and whether it was there. A miss says only where it was not.
fn by_events(events: u64) -> u64 {
    let level = match events {
        _ if events & REMOTE_ACCESS != 0 => REMOTE_CACHE | HIT,
        _ if events & LLC_MISS != 0 => 0,
        _ if events & LLC_ACCESS != 0 => LEVEL_L3 | HIT,
        _ if events & L1_REFILL != 0 => 0,
        _ if events & L1_ACCESS != 0 => LEVEL_L1 | HIT,
        _ => 0,
    };
    level_bits(level)
}

#[cfg(test)]
mod tests {
    use super::super::super::data_src::DataSource;
    use super::*;
    use nearpath_model::LoadSource;

    #[test]
    fn sources_are_those_of_perf() {
        let neoverse_n1 = 0x413f_d0c1;
        let hip12 = 0x480f_d060;
        let ampere_1a = 0xc00f_ac40;
        let a_72 = 0x410f_d083;
        for (midr, source, events, expected, hitm) in [
            (neoverse_n1, Some(0x0), 0, LoadSource::L1, false),
            (neoverse_n1, Some(0x8), 0, LoadSource::L2, false),
            (neoverse_n1, Some(0x9), 0, LoadSource::L2, true),
            (neoverse_n1, Some(0xa), 0, LoadSource::L3, true),
            (neoverse_n1, Some(0xb), 0, LoadSource::L3, false),
            (neoverse_n1, Some(0xd), 0, LoadSource::RemoteCache, true),
            (neoverse_n1, Some(0xe), 0, LoadSource::LocalMemory, false),
            // A code that nobody has, and a record without one: by the events.
            (neoverse_n1, Some(0x77), LLC_ACCESS, LoadSource::L3, false),
            (neoverse_n1, None, L1_ACCESS, LoadSource::L1, false),
            (ampere_1a, Some(0x5), 0, LoadSource::RemoteCache, true),
            (ampere_1a, Some(0x7), 0, LoadSource::LocalMemory, false),
            (ampere_1a, Some(0x1), 0, LoadSource::Unknown, false),
            (hip12, Some(9), 0, LoadSource::RemoteMemory, false),
            (hip12, Some(7), 0, LoadSource::RemoteCache, true),
            (hip12, Some(13), 0, LoadSource::Other, false),
            (hip12, Some(18), 0, LoadSource::L1, false),
            (a_72, Some(0xe), L1_ACCESS | L1_REFILL, LoadSource::Unknown, false),
            (a_72, None, LLC_ACCESS | LLC_MISS, LoadSource::Unknown, false),
            (a_72, None, LLC_MISS | REMOTE_ACCESS, LoadSource::RemoteCache, false),
        ] {
            let access = Access { is_store: false, source, events };
            let found = DataSource(Codes::of(midr).data_src(access));
            assert!(found.is_load() && !found.is_store());
            let context = format!("{midr:x} {source:?} {events:x}");
            assert_eq!((found.source(), found.is_hitm()), (expected, hitm), "{context}");
        }
        let store = DataSource(Codes::Common.data_src(Access {
            is_store: true,
            source: Some(0xe),
            events: 0,
        }));
        assert!(store.is_store() && !store.is_load());
    }
}
