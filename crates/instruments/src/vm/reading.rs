//! Reads the maps of the instrument: queues with their times and CPUs, and joins them to the host's virtual machines.

use super::load::{Loaded, POINTS, SPANS, Wanted, types};
use super::{backends, devices, late, pauses, transmit};
use crate::kernel::{Mapped, word_of, words_of};
use crate::stamps::Counted;
use libbpf_rs::{MapCore, MapFlags};
use nearpath_host::Root;
use nearpath_model::histogram::BUCKETS;
use nearpath_model::vm::{MeasuredVm, VmCpus, VmQueue, VmSpan, VmSpanKind};
use nearpath_model::{Vm, VmThread};
use std::collections::BTreeMap;
use std::mem::offset_of;

/// The span of each histogram of a queue, as in `enum span` of `bpf/vm_queues.h`.
const KINDS: [VmSpanKind; SPANS] = [
    VmSpanKind::NicToInterrupt,
    VmSpanKind::InterruptToHandler,
    VmSpanKind::HandlerToVhost,
    VmSpanKind::VhostToKvm,
    VmSpanKind::VhostWakeup,
    VmSpanKind::Halted,
    VmSpanKind::Polling,
    VmSpanKind::Running,
    VmSpanKind::InHost,
    VmSpanKind::Whole,
];

/// A queue, with the threads that it is joined by.
pub struct Found {
    /// The queue; of an interrupt of a device, its numbers under the names of a queue's.
    pub queue: VmQueue,
    /// Thread of vhost; 0 if it is in another PID namespace.
    worker: u32,
    /// The virtual machine; 0 if unknown.
    pub pid: u32,
    /// Number of the queue's histograms.
    pub index: u32,
    /// The interrupt of a device that is passed through, or 0.
    pub irq: u32,
    /// Whether a process writes the interrupts: the queue's number is that of the eventfd.
    is_backend: bool,
}

/// The fields of a value of a map.
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    /// The word at this offset.
    pub fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.0.get(at..at + 4)?.try_into().ok()?))
    }

    /// The name at this offset, the last of the value's fields.
    pub fn name(&self, at: usize) -> Option<String> {
        let name = self.0.get(at..)?.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(name).into_owned())
    }

    /// The number at this offset.
    pub fn number(&self, at: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.0.get(at..at + 8)?.try_into().ok()?))
    }
}

/// The queues that packets came through, by virtual machine. `taps` has names by index.
pub fn read(
    loaded: &Loaded,
    root: &Root,
    vms: &[Vm],
    taps: &BTreeMap<u32, String>,
    wanted: Wanted,
) -> Vec<MeasuredVm> {
    let slow_ns = wanted.slow_ns;
    let mut measured: BTreeMap<Option<u32>, MeasuredVm> = BTreeMap::new();
    let all = slow_ns.map(|_| pauses::read(loaded)).unwrap_or_default();
    let empty = |pid, vm: Option<&Vm>| MeasuredVm {
        pid,
        name: vm.and_then(|vm| vm.name.clone()),
        comm: vm.map(|vm| vm.comm.clone()),
        queues: Vec::new(),
        device_interrupts: Vec::new(),
        backend_interrupts: Vec::new(),
        backend_kicks: None,
        pauses: vm.zip(slow_ns).map(|(vm, slow)| pauses::of_vm(vm, &all, slow)),
        tsc: vm.and_then(|vm| vm.tsc),
    };
    for mut found in queues(loaded, taps) {
        let number = usize::try_from(found.index).ok().filter(|_| found.queue.taken > 0);
        found.queue.late = number.zip(slow_ns).and_then(|(of, slow)| late::read(loaded, of, slow));
        let named = (found.irq != 0).then(|| devices::named(root, found.irq));
        let is_its = |vm: &&Vm| match &named {
            Some(named) => devices::is_of(vm, &found, named),
            None if found.is_backend => backends::is_of(vm, &found),
            None => is_of(vm, &found),
        };
        let vm = vms.iter().find(is_its);
        let pid = vm.map(|vm| vm.pid).or((found.pid != 0).then_some(found.pid));
        // A program that waits for the device itself, as drivers of DPDK do, is no virtual machine.
        if named.is_some() && pid.is_none() {
            continue;
        }
        let entry = measured.entry(pid).or_insert_with(|| empty(pid, vm));
        match named {
            Some(named) => entry.device_interrupts.push(devices::interrupt(found, named)),
            None if found.is_backend => {
                entry.backend_interrupts.push(backends::interrupt(loaded, found));
            }
            None => entry.queues.push(found.queue),
        }
    }
    let kicked = wanted.transmit.then(|| backends::kicked(loaded));
    for (vm, kicked) in vms.iter().filter(|vm| !vm.backends.is_empty()).zip(kicked.iter().cycle()) {
        let entry = measured.entry(Some(vm.pid)).or_insert_with(|| empty(Some(vm.pid), Some(vm)));
        entry.backend_kicks = Some(backends::kicks_of(vm, kicked));
    }
    // Packets of others come another way, as through a device passed through.
    for vm in vms {
        let new = empty(Some(vm.pid), Some(vm));
        if new.pauses.as_ref().is_some_and(|pauses| !pauses.kept.is_empty()) {
            measured.entry(new.pid).or_insert(new);
        }
    }
    let mut measured: Vec<MeasuredVm> = measured.into_values().collect();
    for vm in &mut measured {
        vm.queues.sort_by(|a, b| (&a.tap, a.queue).cmp(&(&b.tap, b.queue)));
        vm.device_interrupts.sort_by(|a, b| {
            (&a.source.device, a.source.irq).cmp(&(&b.source.device, b.source.irq))
        });
        vm.backend_interrupts.sort_by_key(|one| (one.source.pid, one.source.eventfd));
    }
    measured
}

fn is_of(vm: &Vm, found: &Found) -> bool {
    let is_worker = |worker: &VmThread| worker.tid == found.worker;
    if found.pid != 0 { vm.pid == found.pid } else { vm.vhost_workers.iter().any(is_worker) }
}

/// The queues by their sockets: those that packets were taken from, and those that the guest transmits by.
fn queues(loaded: &Loaded, taps: &BTreeMap<u32, String>) -> Vec<Found> {
    let map = &loaded.skeleton.maps.queues;
    let read = |key: Vec<u8>| {
        let value = map.lookup(&key, MapFlags::ANY).ok()??;
        Some((key, queue(loaded, &Fields(&value), taps)?))
    };
    let received = map.keys().filter_map(read).filter(|(_, found)| found.queue.taken > 0);
    let mut queues: BTreeMap<Vec<u8>, Found> = received.collect();
    for (socket, sent) in transmit::queues(loaded) {
        let found = queues.entry(socket).or_insert_with(|| Found {
            queue: VmQueue {
                tap: name_of(taps, sent.ifindex),
                queue: Some(sent.number),
                ..VmQueue::default()
            },
            worker: sent.worker,
            pid: sent.pid,
            index: u32::MAX,
            irq: 0,
            is_backend: false,
        });
        if found.pid == 0 {
            found.pid = sent.pid;
        }
        found.queue.transmit = Some(sent.transmit);
    }
    queues.into_values().collect()
}

fn name_of(taps: &BTreeMap<u32, String>, ifindex: u32) -> String {
    taps.get(&ifindex).cloned().unwrap_or_else(|| format!("if{ifindex}"))
}

fn queue(loaded: &Loaded, value: &Fields<'_>, taps: &BTreeMap<u32, String>) -> Option<Found> {
    macro_rules! word {
        ($field:ident) => {
            value.word(offset_of!(types::queue, $field))?
        };
    }
    macro_rules! number {
        ($field:ident) => {
            value.number(offset_of!(types::queue, $field))?
        };
    }
    let (index, ifindex, worker, irq) = (word!(index), word!(ifindex), word!(worker), word!(irq));
    let is_backend = word!(is_backend) != 0;
    let (pid, tid) = owner(loaded, index).unwrap_or_default();
    let number = usize::try_from(index).ok()?;
    // Of a batch that was not yet closed: written to the used ring, and no interrupt followed.
    let open = if number!(signalled_ns) == 0 { u64::from(word!(used)) } else { 0 };
    let interrupts = number!(batches);
    let queue = VmQueue {
        tap: name_of(taps, ifindex),
        queue: Some(word!(number)),
        workers: Some(worker).filter(|worker| *worker != 0).into_iter().collect(),
        vcpus: Some(word!(vcpu)).filter(|_| interrupts > 0).into_iter().collect(),
        vcpu_threads: Some(tid).filter(|tid| *tid != 0).into_iter().collect(),
        taken: number!(taken),
        interrupts,
        interrupted: number!(interrupted),
        without_interrupt: number!(unsignalled).saturating_add(open),
        // That of a device has been handled by the time that it is read, and that of a process written.
        deferred: number!(deferred).saturating_add(match irq != 0 || is_backend {
            true => word!(used).into(),
            false => 0,
        }),
        posted: number!(posted),
        from_host: number!(host),
        lost: number!(lost),
        spans: spans(loaded, number),
        cpus: cpus(loaded, number),
        transmit: None,
        late: None,
    };
    Some(Found { queue, worker, pid, index, irq, is_backend })
}

/// The process and the thread of the vCPU that took the queue's last packet.
fn owner(loaded: &Loaded, index: u32) -> Option<(u32, u32)> {
    let value = loaded.skeleton.maps.owners.lookup(&index.to_ne_bytes(), MapFlags::ANY).ok()??;
    let word = |at: usize| Some(u32::from_ne_bytes(value.get(at..at + 4)?.try_into().ok()?));
    Some((word(offset_of!(types::owner, pid))?, word(offset_of!(types::owner, tid))?))
}

fn spans(loaded: &Loaded, queue: usize) -> Vec<VmSpan> {
    let read = |(at, kind)| span(&loaded.histograms, queue * SPANS + at, kind);
    let mut spans: Vec<VmSpan> = KINDS.into_iter().enumerate().filter_map(read).collect();
    let ways = spans.iter().filter(|span| VmSpanKind::WAYS.contains(&span.span));
    spans.extend(VmSpan::sum(VmSpanKind::KvmToGuest, ways));
    spans.sort_by_key(|span| span.span);
    spans
}

/// The histogram with this number; `None` if it has no time.
pub fn span<K>(histograms: &Mapped, number: usize, kind: K) -> Option<VmSpan<K>> {
    let first = number * words_of::<types::histogram>();
    let word = |word: usize| histograms.get(first + word);
    let filled: Vec<(usize, u64)> = (0..BUCKETS)
        .map(|bucket| (bucket, word(word_of!(types::histogram, buckets) + bucket)))
        .filter(|(_, count)| *count > 0)
        .collect();
    VmSpan::new(kind, &filled, word(word_of!(types::histogram, max_ns)))
}

fn cpus(loaded: &Loaded, queue: usize) -> VmCpus {
    let at = |point: usize| by_cpu(&loaded.seen_on, queue * POINTS + point, loaded.cpus);
    VmCpus { handler: at(0), vhost: at(1), vcpu: at(2) }
}

/// What became of hardware timestamps.
pub fn stamps(loaded: &Loaded) -> Counted {
    let map = &loaded.skeleton.maps.cpus;
    let mut all = Counted::default();
    for cpu in (0..loaded.cpus).filter_map(|cpu| u32::try_from(cpu).ok()) {
        let Ok(Some(value)) = map.lookup(&cpu.to_ne_bytes(), MapFlags::ANY) else { continue };
        let fields = Fields(&value);
        for (sum, at) in [
            (&mut all.used, offset_of!(types::cpu, stamps_used)),
            (&mut all.ahead, offset_of!(types::cpu, stamps_ahead)),
            (&mut all.old, offset_of!(types::cpu, stamps_old)),
            (&mut all.unconverted, offset_of!(types::cpu, stamps_unconverted)),
            (&mut all.of_others, offset_of!(types::cpu, stamps_of_others)),
            (&mut all.opaque, offset_of!(types::cpu, stamps_opaque)),
        ] {
            *sum += fields.number(at).unwrap_or(0);
        }
    }
    all
}

/// The counters by CPU of a point with this number that are not 0.
pub fn by_cpu(counters: &Mapped, point: usize, cpus: usize) -> BTreeMap<u32, u64> {
    let counted = (0..cpus).map(|cpu| (cpu, counters.get(point * cpus + cpu)));
    let seen = counted.filter(|(_, count)| *count > 0);
    seen.filter_map(|(cpu, count)| Some((u32::try_from(cpu).ok()?, count))).collect()
}
