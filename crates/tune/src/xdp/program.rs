//! The program (`bpf/priority.bpf.c`): loads it with its tables, and reads the tables of an attached one.

use crate::TuneError;
use crate::bpf_programs::{by_id, info};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nearpath_instruments::{listening, reason};
use nearpath_model::{ClassCpus, CpuId, TrafficClass};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

#[allow(missing_docs, warnings, clippy::all, clippy::pedantic, reason = "generated")]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/priority.skel.rs"));
}

/// Its name in the kernel, and those of its maps.
const NAME: &str = "nearpath_prio";
const CPUS: &str = "cpus";
const BY_PCP: &str = "pcp_cpus";
const BY_DSCP: &str = "dscp_cpus";
const BY_SOURCE: &str = "source_cpus";
/// The packets that wait for a CPU at most. Further ones are dropped.
const QUEUE: u32 = 2048;

/// Loads it for these classes. It is freed when the descriptor is closed, unless it is attached by then.
///
/// # Errors
/// The kernel refused.
pub fn load(classes: &ClassCpus) -> Result<OwnedFd, TuneError> {
    listening(|| load_with(classes))
}

fn load_with(classes: &ClassCpus) -> Result<OwnedFd, TuneError> {
    let refused = |step: &str| {
        let step = format!("{step} the XDP program");
        move |error: libbpf_rs::Error| TuneError::Kernel { step, reason: reason(&error) }
    };
    let mut place = MaybeUninit::uninit();
    let mut open =
        skeleton::PrioritySkelBuilder::default().open(&mut place).map_err(refused("opening"))?;
    let highest = classes.0.values().map(|cpu| cpu.0).max().unwrap_or(0);
    let sized = open.maps.cpus.set_max_entries(highest.saturating_add(1));
    sized.map_err(refused("cannot size the maps of"))?;
    if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
        let reads_ip = classes.0.keys().any(|class| !matches!(class, TrafficClass::Pcp(_)));
        constants.reads_ip = reads_ip;
    }
    let loaded = open.load().map_err(refused("loading"))?;
    let maps = &loaded.maps;
    for (class, cpu) in &classes.0 {
        let queue = QUEUE.to_ne_bytes();
        let added = maps.cpus.update(&cpu.0.to_ne_bytes(), &queue, MapFlags::ANY);
        added.map_err(refused(&format!("cannot add CPU {cpu} to")))?;
        let value = cpu.0.saturating_add(1).to_ne_bytes();
        let filled = match class {
            TrafficClass::Pcp(pcp) => {
                maps.pcp_cpus.update(&u32::from(*pcp).to_ne_bytes(), &value, MapFlags::ANY)
            }
            TrafficClass::Dscp(dscp) => {
                maps.dscp_cpus.update(&u32::from(*dscp).to_ne_bytes(), &value, MapFlags::ANY)
            }
            TrafficClass::From(address) => {
                maps.source_cpus.update(&bytes_of(*address), &value, MapFlags::ANY)
            }
        };
        filled.map_err(refused("cannot fill the maps of"))?;
    }
    let program = loaded.progs.nearpath_prio.as_fd().try_clone_to_owned();
    program.map_err(|e| TuneError::kernel("cannot keep the XDP program", e))
}

/// An address as the program compares it.
fn bytes_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// An XDP program in the kernel.
#[derive(Debug)]
pub enum Found {
    /// This one, with the classes that it moves.
    Ours(ClassCpus),
    /// Another one, with its name.
    Other(String),
}

/// What the program with this id is; `None` if it no longer exists.
///
/// # Errors
/// The kernel refused.
pub fn find(id: u32) -> Result<Option<(OwnedFd, Found)>, TuneError> {
    let Some(program) = by_id(id)? else { return Ok(None) };
    let mut ids = [0; 8];
    let info = info(program.as_fd(), &mut ids)?;
    let bytes = info.name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy).unwrap_or_default();
    if name != NAME {
        let name = name.into_owned();
        return Ok(Some((program, Found::Other(name))));
    }
    let mut maps: BTreeMap<String, MapHandle> = BTreeMap::new();
    for id in ids.iter().take(info.nr_map_ids as usize) {
        let map = MapHandle::from_map_id(*id)
            .map_err(|e| TuneError::kernel("cannot open the maps of the XDP program", e))?;
        maps.insert(map.name().to_string_lossy().into_owned(), map);
    }
    let found = classes(&maps).map_or(Found::Other(NAME.to_owned()), Found::Ours);
    Ok(Some((program, found)))
}

/// The classes in its maps that have a queue on their CPU; `None` if these are not its maps.
fn classes(maps: &BTreeMap<String, MapHandle>) -> Option<ClassCpus> {
    let cpus = maps.get(CPUS)?;
    let mut all = ClassCpus::default();
    for (name, class) in [
        (BY_PCP, class_of_number as fn(&[u8], fn(u8) -> TrafficClass) -> Option<TrafficClass>),
        (BY_DSCP, class_of_number),
        (BY_SOURCE, |key, _| Some(TrafficClass::From(address_of(key)?))),
    ] {
        let map = maps.get(name)?;
        let kind = if name == BY_PCP { TrafficClass::Pcp } else { TrafficClass::Dscp };
        // Another program may have maps of these names.
        for key in map.keys().take(ClassCpus::ADDRESSES) {
            let value = map.lookup(&key, MapFlags::ANY).ok().flatten();
            let Some(cpu) = value.and_then(|value| word(&value)?.checked_sub(1)) else { continue };
            let has_queue = cpus.lookup(&cpu.to_ne_bytes(), MapFlags::ANY).ok().flatten().is_some();
            if let Some(class) = class(&key, kind).filter(|class| class.is_valid() && has_queue) {
                all.0.insert(class, CpuId(cpu));
            }
        }
    }
    Some(all)
}

fn class_of_number(key: &[u8], kind: fn(u8) -> TrafficClass) -> Option<TrafficClass> {
    Some(kind(u8::try_from(word(key)?).ok()?))
}

fn address_of(key: &[u8]) -> Option<IpAddr> {
    let octets: [u8; 16] = key.try_into().ok()?;
    Some(Ipv6Addr::from(octets).to_canonical())
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["10.9.0.254", "fd00::1"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(address_of(&bytes_of(address)), Some(address));
        }
        assert_eq!(address_of(&[0; 4]), None);
    }

    #[test]
    fn names_fit_the_kernels() {
        // BPF_OBJ_NAME_LEN with the zero.
        let names = [NAME, CPUS, BY_PCP, BY_DSCP, BY_SOURCE];
        assert!(names.iter().all(|name| name.len() < 16));
        let source = include_str!("../../../../bpf/priority.bpf.c");
        for map in &names[1..] {
            assert!(source.contains(&format!("}} {map} SEC(\".maps\");")), "{map}");
        }
        assert!(source.contains(&format!("int {NAME}(struct xdp_md")));
    }
}
