//! Reads the programs' maps: times by CPU, and NAPI polls.

use super::probes::{CALL, CpuRow, DEVICE, Loaded, POLLS, SOFTIRQ, TIMER};
use crate::kernel::Mapped;
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::irqs::{CpuInterrupts, Polls};
use nearpath_model::{CpuId, IfIndex, IrqNumber};
use std::collections::BTreeMap;
use std::mem::offset_of;

/// Size of `struct cpu` in 64-bit words, and offsets of its fields.
const CPU_WORDS: usize = size_of::<CpuRow>() / 8;
const HARD_NS: usize = offset_of!(CpuRow, hard_ns) / 8;
const SOFTIRQ_NS: usize = offset_of!(CpuRow, softirq_ns) / 8;
const SOFTIRQS: usize = offset_of!(CpuRow, softirqs) / 8;
const POLLS_LOST: usize = offset_of!(CpuRow, polls_lost) / 8;

/// The programs' value for contradictory evidence.
const SEVERAL: u32 = u32::MAX;

/// The kinds of hard interrupt, in the order of `enum hard`, and the probes for each.
const HARD: [(&str, &str); 3] = [("device", DEVICE), ("timer", TIMER), ("call", CALL)];

/// Softirqs in the kernel's order (include/linux/interrupt.h).
const VECTORS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// The times of a CPU.
fn words(cpus: &Mapped, cpu: CpuId, first: usize) -> impl Fn(usize) -> u64 {
    let begin = cpu.0 as usize * CPU_WORDS + first;
    move |word| cpus.get(begin + word)
}

/// Adds the times of a CPU.
pub fn enter(cpus: &Mapped, loaded: &Loaded, row: &mut CpuInterrupts) {
    let hard = words(cpus, row.cpu, HARD_NS);
    let observed = HARD.iter().enumerate().filter(|(_, (_, what))| loaded.observes(what));
    row.hard_ns = observed.map(|(i, (name, _))| ((*name).to_owned(), hard(i))).collect();
    row.irq_ns = loaded.observes(DEVICE).then(|| row.hard_ns.values().sum());
    if loaded.observes(SOFTIRQ) {
        let (ns, runs) = (words(cpus, row.cpu, SOFTIRQ_NS), words(cpus, row.cpu, SOFTIRQS));
        let ran = VECTORS.iter().enumerate().filter(|(i, _)| runs(*i) > 0);
        row.soft_ns = ran.map(|(i, name)| ((*name).to_owned(), ns(i))).collect();
        row.softirq_ns = Some(row.soft_ns.values().sum());
    }
}

/// Polls that did not fit in the map.
pub fn polls_lost(cpus: &Mapped) -> u64 {
    (0..cpus.len() / CPU_WORDS).map(|cpu| cpus.get(cpu * CPU_WORDS + POLLS_LOST)).sum()
}

/// A NAPI instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Instance {
    /// Its id; 0 if it has none.
    pub napi_id: u32,
    /// Its device; `None` for a CPU's backlog.
    pub ifindex: Option<IfIndex>,
    /// The device's namespace.
    pub netns: u32,
    /// The device's name.
    pub device: String,
    /// The interrupt that it is polled for, if there was consistent evidence.
    pub irq: Option<IrqNumber>,
    /// Its polls by CPU.
    pub per_cpu: BTreeMap<CpuId, Polls>,
}

impl Instance {
    /// All polls together.
    pub fn polls(&self) -> Polls {
        self.per_cpu.values().copied().fold(Polls::default(), Polls::and)
    }

    /// Adds the data of one CPU, with its evidence: an interrupt plus 1, 0, or `SEVERAL`.
    fn add(&mut self, cpu: CpuId, polls: Polls, irq: u32, contradicted: &mut bool) {
        self.per_cpu.insert(cpu, polls);
        let irq = match irq {
            0 => return,
            SEVERAL => None,
            number => Some(IrqNumber(number - 1)),
        };
        *contradicted |= irq.is_none() || self.irq.is_some_and(|known| Some(known) != irq);
        self.irq = irq.filter(|_| !*contradicted);
    }
}

/// All NAPI instances that were polled.
pub fn instances(loaded: &Loaded) -> Vec<Instance> {
    if !loaded.observes(POLLS) {
        return Vec::new();
    }
    let map = &loaded.skeleton.maps.polled;
    let read = |key: Vec<u8>| Some((key.clone(), map.lookup(&key, MapFlags::ANY).ok()??));
    instances_of(map.keys().filter_map(read))
}

fn instances_of(entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Vec<Instance> {
    let mut found: BTreeMap<(u64, u32), (Instance, bool)> = BTreeMap::new();
    for (key, value) in entries {
        let (Some(napi), Some(napi_id), Some(cpu)) = (long(&key, 0), word(&key, 8), word(&key, 12))
        else {
            continue;
        };
        let field = |i: usize| long(&value, i * 8).unwrap_or(0);
        let number = |at: usize| word(&value, at).unwrap_or(0);
        let polls =
            Polls { polls: field(0), work: field(1), budget: field(2), full_polls: field(3) };
        let (instance, contradicted) = found.entry((napi, napi_id)).or_default();
        instance.napi_id = napi_id;
        instance.ifindex = Some(number(32)).filter(|&index| index != 0).map(IfIndex);
        instance.netns = number(36);
        let name = value.get(48..64).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        instance.device = String::from_utf8_lossy(name).into_owned();
        instance.add(CpuId(cpu), polls, number(40), contradicted);
    }
    found.into_values().map(|(instance, _)| instance).collect()
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_cpus_share_a_cache_line() {
        assert_eq!(size_of::<CpuRow>() % 128, 0, "x86 prefetches pairs of 64-byte lines");
        let row = CpuRow::default();
        assert_eq!((row.softirqs.len(), row.softirq_ns.len()), (16, 16));
        assert!(VECTORS.len() <= row.softirqs.len() && HARD.len() <= row.hard_ns.len());
    }

    fn entry(napi: u64, id: u32, cpu: u32, polls: u64, irq: u32) -> (Vec<u8>, Vec<u8>) {
        let key = [&napi.to_ne_bytes()[..], &id.to_ne_bytes(), &cpu.to_ne_bytes()].concat();
        let mut value: Vec<u8> =
            [polls, 5 * polls, 64 * polls, 1].iter().flat_map(|n| n.to_ne_bytes()).collect();
        value.extend([2u32, 77, irq, 0].iter().flat_map(|n| n.to_ne_bytes()));
        value.extend(*b"eth0\0\0\0\0\0\0\0\0\0\0\0\0");
        (key, value)
    }

    #[test]
    fn an_instance_is_the_sum_of_its_cpus() {
        let found = instances_of(
            [entry(0x10, 9, 0, 3, 0), entry(0x10, 9, 4, 2, 31), entry(0x20, 0, 0, 1, 0)]
                .into_iter(),
        );
        assert_eq!(found.len(), 2);
        let first = &found[0];
        assert_eq!(first.polls(), Polls { polls: 5, work: 25, budget: 320, full_polls: 2 });
        assert_eq!((first.device.as_str(), first.ifindex), ("eth0", Some(IfIndex(2))));
        assert_eq!((first.irq, first.netns, first.napi_id), (Some(IrqNumber(30)), 77, 9));
    }

    #[test]
    fn contradictory_evidence_is_discarded() {
        let of = |irqs: &[u32]| {
            let entries: Vec<_> =
                (0..).zip(irqs).map(|(cpu, irq)| entry(1, 9, cpu, 1, *irq)).collect();
            instances_of(entries.into_iter())[0].irq
        };
        assert_eq!(of(&[31, 31, 0]), Some(IrqNumber(30)));
        assert_eq!(of(&[31, 32, 31]), None);
        assert_eq!(of(&[31, SEVERAL, 31]), None);
    }
}
