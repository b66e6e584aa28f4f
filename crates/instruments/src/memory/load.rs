//! Loads the programs of `bpf/memory.bpf.c` and reads their counts.

use crate::InstrumentError;
use crate::kernel::{
    AttachMode, Attached, Kernel, Probe, attach, choose, entry, helper_probe, in_best_mode,
    load_only, open, probe, refused, result, returns,
};
use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::memory::{HintFaults, MovedPages, PageMoves};
use std::collections::BTreeMap;

/// The skeleton generated from `bpf/memory.bpf.c` by `build.rs`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/memory.skel.rs"));
}

pub use skeleton::MemorySkel;
use skeleton::MemorySkelBuilder;

/// All probes. The return is attached before the entry, so that no thread is taken to be in the function that it has
/// left.
pub const PROBES: &[Probe] = &[
    probe(MOVES, "mm_migrate_pages", "migrate_pages", &[]),
    returns("migrate_end", MIGRATE_END),
    helper_probe(&[entry("do_migrate_pages")], "migrate_begin"),
    helper_probe(&[entry("task_numa_fault")], FAULTS),
];

const MIGRATE_END: &[crate::kernel::Point; 1] = &[result("exit", "do_migrate_pages")];
const MOVES: &str = "mm_migrate_pages";
const FAULTS: &str = "task_numa_fault";
const OWNERS: [&str; 2] = ["migrate_end", "migrate_begin"];

/// `enum migrate_reason` of include/linux/migrate_mode.h: new ones are added at the end.
const REASONS: [&str; 10] = [
    "compaction",
    "memory_failure",
    "memory_hotplug",
    "syscall",
    "mempolicy_mbind",
    "numa_misplaced",
    "contig_range",
    "longterm_pin",
    "demotion",
    "damon",
];
/// Reasons for which a thread moves pages of its own process.
const OWN: [&str; 3] = ["mempolicy_mbind", "numa_misplaced", "longterm_pin"];
/// Arguments of the tracepoint since 6.7.
const ARGUMENTS_WITH_SPLIT: usize = 8;

/// The loaded programs; dropping it detaches and frees everything.
pub struct Loaded {
    /// Before the object, so that they are dropped first.
    #[allow(dead_code, reason = "dropping it detaches")]
    pub attached: Attached,
    /// Programs and maps.
    pub skeleton: MemorySkel<'static>,
    /// Why moves are not observed.
    pub no_moves: Option<String>,
    /// Why hint faults are not observed per process.
    pub no_faults: Option<String>,
    /// Why the owner of pages moved by others is unknown.
    pub no_owners: Option<String>,
}

/// Loads and attaches; what the kernel lacks or refuses is left out with the reason.
///
/// # Errors
/// A missing privilege, or nothing can be observed.
pub fn load(kernel: &Kernel) -> Result<Loaded, InstrumentError> {
    let all = |_: &Probe| true;
    let first = in_best_mode(kernel, |mode| load_within(kernel, mode, all));
    match first {
        Ok((loaded, _)) => Ok(loaded),
        Err(error) => {
            // A function that the kernel refuses: the tracepoint alone.
            let only = |probe: &Probe| probe.program == MOVES;
            let loaded = in_best_mode(kernel, |mode| load_within(kernel, mode, only));
            let (mut loaded, _) = loaded?;
            loaded.no_faults = Some(error.to_string());
            loaded.no_owners = Some(error.to_string());
            Ok(loaded)
        }
    }
}

fn load_within(
    kernel: &Kernel,
    mode: AttachMode,
    wanted: impl Fn(&Probe) -> bool,
) -> Result<Loaded, InstrumentError> {
    let mut open = open::<MemorySkelBuilder>(kernel)?;
    let (mut chosen, skipped) = choose(kernel, mode, wanted);
    let has = |chosen: &[crate::kernel::Chosen], name: &str| {
        chosen.iter().any(|(probe, _)| probe.program == name)
    };
    // Entry and return are of use only together.
    if !OWNERS.iter().all(|name| has(&chosen, name)) {
        chosen.retain(|(probe, _)| !OWNERS.contains(&probe.program));
    }
    if chosen.is_empty() {
        let reason = skipped.first().map(|(_, reason)| reason.clone());
        return Err(InstrumentError::Unsupported(reason.unwrap_or_default()));
    }
    load_only(open.open_object_mut(), &chosen);
    let moves = PROBES.iter().find(|probe| probe.program == MOVES);
    let arguments = moves.and_then(|probe| kernel.arguments(probe));
    let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
        InstrumentError::Unsupported("invalid BPF object: it has no constants".to_owned())
    })?;
    constants.pid_namespace = nearpath_host::pid_namespace().unwrap_or(0);
    constants.has_folio_split = arguments.is_none_or(|count| count >= ARGUMENTS_WITH_SPLIT);
    constants.own_reasons = own_reasons();
    let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
    let attached = attach(skeleton.object(), chosen)?;
    let missing = |name: &str| {
        if attached.probes.iter().any(|probe| probe.program == name) {
            return None;
        }
        let all = attached.refused.iter().chain(&skipped);
        let reason = all.filter(|(probe, _)| probe.program == name).map(|(_, r)| r.clone()).next();
        Some(reason.unwrap_or_else(|| format!("no program {name}")))
    };
    let (no_moves, no_faults, no_owners) =
        (missing(MOVES), missing(FAULTS), OWNERS.iter().find_map(|name| missing(name)));
    Ok(Loaded { attached, skeleton, no_moves, no_faults, no_owners })
}

fn own_reasons() -> u32 {
    let bit = |(at, name): (usize, &&str)| if OWN.contains(name) { 1u32 << at } else { 0 };
    REASONS.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
}

fn reason_name(reason: u32) -> String {
    let known = usize::try_from(reason).ok().and_then(|at| REASONS.get(at));
    known.map_or_else(|| format!("reason {reason}"), |name| (*name).to_owned())
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses `struct move_key` and `struct moved`.
fn parse_move(key: &[u8], value: &[u8]) -> Option<PageMoves> {
    let comm = value.get(16..32)?.split(|&b| b == 0).next().unwrap_or_default();
    Some(PageMoves {
        pid: Some(word(key, 0)?).filter(|&pid| pid != 0),
        by_pid: word(key, 4)?,
        reason: reason_name(word(key, 8)?),
        by_comm: String::from_utf8_lossy(comm).into_owned(),
        pages: MovedPages { moved: number(value, 0)?, failed: number(value, 8)? },
    })
}

impl Loaded {
    /// Starts or stops counting.
    pub fn set_active(&mut self, active: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = active.into();
        }
    }

    /// Pages moved so far, most first.
    pub fn moves(&self) -> Vec<PageMoves> {
        let map = &self.skeleton.maps.moves;
        let read = |key: Vec<u8>| {
            let value = map.lookup(&key, MapFlags::ANY).ok()??;
            parse_move(&key, &value)
        };
        let mut moves: Vec<PageMoves> = map.keys().filter_map(read).collect();
        moves.sort_by(|a, b| {
            let order = b.pages.moved.cmp(&a.pages.moved);
            order.then_with(|| (&a.reason, a.pid, a.by_pid).cmp(&(&b.reason, b.pid, b.by_pid)))
        });
        moves
    }

    /// Pages of moves that did not fit in the map.
    pub fn lost(&self) -> u64 {
        self.skeleton.maps.bss_data.as_deref().map_or(0, |variables| variables.lost)
    }

    /// Hint faults by process; `None` if they are not observed.
    pub fn faults(&self) -> Option<BTreeMap<u32, HintFaults>> {
        if self.no_faults.is_some() {
            return None;
        }
        let map = &self.skeleton.maps.faults;
        let read = |key: Vec<u8>| {
            let value = map.lookup(&key, MapFlags::ANY).ok()??;
            let faults = HintFaults { pages: number(&value, 0)?, local: number(&value, 8)? };
            Some((word(&key, 0)?, faults))
        };
        Some(map.keys().filter_map(read).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_its_programs() {
        crate::kernel::assert_has_programs::<MemorySkelBuilder>(PROBES);
    }

    #[test]
    fn moves_are_parsed() {
        let key: Vec<u8> = [7u32, 9, 5].iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mut value: Vec<u8> = [3u64, 1].iter().flat_map(|w| w.to_ne_bytes()).collect();
        value.extend(b"kworker/0:1\0\0\0\0\0");
        let parsed = parse_move(&key, &value).unwrap();
        assert_eq!((&*parsed.reason, parsed.pid, parsed.by_pid), ("numa_misplaced", Some(7), 9));
        assert_eq!((parsed.pages.moved, parsed.pages.failed), (3, 1));
        assert_eq!(parsed.by_comm, "kworker/0:1");
        assert_eq!(parse_move(&key, &value[..20]), None);
        assert_eq!((reason_name(99), own_reasons()), ("reason 99".to_owned(), 0b1011_0000));
    }
}
