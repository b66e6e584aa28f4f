//! The programs of `bpf/damon.bpf.c`, and the regions that they keep of each target.

use crate::InstrumentError;
use crate::kernel::{
    AttachMode, Attached, Kernel, Probe, attach, choose, in_best_mode, load_only, open, probe,
    refused,
};
use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{MapCore, MapFlags};

/// The skeleton generated from `bpf/damon.bpf.c` by `build.rs`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/damon.skel.rs"));
}

use skeleton::{DamonSkel, DamonSkelBuilder};

/// The tracepoint (include/trace/events/damon.h, since 5.15).
pub const PROBES: &[Probe] =
    &[probe("damon_aggregated", "damon_aggregated", "kdamond_reset_aggregated", &[])];
/// Arguments of the tracepoint in 5.16 to 6.6: the target itself comes before its number.
const ARGUMENTS_WITH_TARGET: usize = 4;
/// Readings of a target while its kdamond replaces what is read.
const TRIES: u32 = 5;

/// A region of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Addresses, in units of its context.
    pub start: u64,
    pub end: u64,
    /// Checks that found an access.
    pub accesses: u32,
    /// Intervals for which that has been so.
    pub age: u32,
}

/// The last complete interval of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub kdamond: u32,
    pub target: u32,
    /// Complete intervals.
    pub intervals: u64,
    pub regions: Vec<Region>,
}

/// The loaded programs; dropping it detaches and frees everything.
pub struct Listener {
    /// Before the object, so that it is dropped first.
    #[allow(dead_code, reason = "dropping it detaches")]
    attached: Attached,
    skeleton: DamonSkel<'static>,
}

impl Listener {
    /// Loads, attaches and listens.
    ///
    /// # Errors
    /// A missing privilege, or the kernel has no such tracepoint, or refuses.
    pub fn load(kernel: &Kernel) -> Result<Self, InstrumentError> {
        let (mut listener, _) = in_best_mode(kernel, |mode| Self::load_within(kernel, mode))?;
        if let Some(variables) = listener.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = 1;
        }
        Ok(listener)
    }

    fn load_within(kernel: &Kernel, mode: AttachMode) -> Result<Self, InstrumentError> {
        let mut open = open::<DamonSkelBuilder>(kernel)?;
        let (chosen, skipped) = choose(kernel, mode, |_| true);
        if chosen.is_empty() {
            let reason = skipped.first().map(|(_, reason)| reason.clone());
            return Err(InstrumentError::Unsupported(reason.unwrap_or_default()));
        }
        load_only(open.open_object_mut(), &chosen);
        let arguments = PROBES.first().and_then(|probe| kernel.arguments(probe));
        let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
            InstrumentError::Unsupported("invalid BPF object: it has no constants".to_owned())
        })?;
        constants.has_target = arguments.is_some_and(|count| count >= ARGUMENTS_WITH_TARGET);
        let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
        let attached = attach(skeleton.object(), chosen)?;
        match attached.refused.first() {
            Some((_, reason)) if attached.probes.is_empty() => {
                Err(InstrumentError::Unsupported(reason.clone()))
            }
            _ => Ok(Self { attached, skeleton }),
        }
    }

    /// The last complete interval of each target that has one.
    pub fn finished(&self) -> Vec<Finished> {
        let targets = &self.skeleton.maps.targets;
        let mut finished: Vec<Finished> =
            targets.keys().filter_map(|key| self.target(&key)).collect();
        finished.sort_by_key(|target| (target.kdamond, target.target));
        finished
    }

    fn target(&self, key: &[u8]) -> Option<Finished> {
        let look_up = || self.skeleton.maps.targets.lookup(key, MapFlags::ANY).ok().flatten();
        for _ in 0..TRIES {
            let (regions, intervals) = parse_target(&look_up()?)?;
            let last = intervals.checked_sub(1)?;
            let read = |index: u32| {
                let key = region_key(key, index, last);
                parse_region(&self.skeleton.maps.regions.lookup(&key, MapFlags::ANY).ok()??)
            };
            let regions = (0..regions).filter_map(read).collect();
            // The next interval is written elsewhere, the one after it here.
            let (_, now) = parse_target(&look_up()?)?;
            if now == intervals {
                let (kdamond, target) = (word(key, 0)?, word(key, 4)?);
                return Some(Finished { kdamond, target, intervals, regions });
            }
        }
        None
    }

    /// Regions that did not fit.
    pub fn lost(&self) -> u64 {
        self.skeleton.maps.bss_data.as_deref().map_or(0, |variables| variables.lost)
    }

    /// Whether targets have no number.
    pub fn has_unnumbered(&self) -> bool {
        self.skeleton.maps.bss_data.as_deref().is_some_and(|variables| variables.unnumbered > 0)
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// `struct target`: regions of the last complete interval, and the number of intervals.
fn parse_target(value: &[u8]) -> Option<(u32, u64)> {
    Some((word(value, 4)?, number(value, 8)?))
}

/// `struct region`.
fn parse_region(value: &[u8]) -> Option<Region> {
    let (start, end) = (number(value, 0)?, number(value, 8)?);
    Some(Region { start, end, accesses: word(value, 16)?, age: word(value, 20)? })
}

/// `struct region_key` of a region of an interval, from 0.
fn region_key(target: &[u8], index: u32, interval: u64) -> Vec<u8> {
    let parity = u32::from(interval % 2 == 1);
    [target, &index.to_ne_bytes(), &parity.to_ne_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_programs_keep_is_parsed() {
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let numbers = |numbers: &[u64]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
        };
        let target = [words(&[3, 1024]), numbers(&[7, 0x1000])].concat();
        assert_eq!(parse_target(&target), Some((1024, 7)));
        assert_eq!(parse_target(&target[..12]), None);
        let region = [numbers(&[0x1000, 0x3000]), words(&[4, 9])].concat();
        let parsed = Region { start: 0x1000, end: 0x3000, accesses: 4, age: 9 };
        assert_eq!(parse_region(&region), Some(parsed));
        assert_eq!(parse_region(&region[..23]), None);
        assert_eq!(region_key(&words(&[77, 0]), 5, 7), words(&[77, 0, 5, 1]));
        assert_eq!(region_key(&words(&[77, 0]), 5, 8), words(&[77, 0, 5, 0]));
    }
}
