//! Results of the instrument `vm`: the JSON of `measure vm --json`.

use crate::clock::{Clocks, GuestTsc};
use crate::histogram::{by_number, quantile_ns, upper_ns};
use crate::memory::NotAvailable;
use crate::{Cost, NicStamps};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod device;
mod guest;
mod late;
mod since;
mod transmit;

pub use device::{VmBackendInterrupt, VmDevice, VmDeviceInterrupt, VmInterrupt, VmKicks, VmWriter};
pub use guest::{GuestLate, GuestSpan, GuestWait, VcpuPause, VcpuPauses};
pub use late::{VmLate, VmLatePart, VmPart};
pub use transmit::{VmTransmit, VmTransmitCpus, VmTransmitSpanKind};

/// Version of [`VmMeasurement`].
pub const VM_MEASUREMENT_SCHEMA: u32 = 1;

/// Packets from the host's NIC into virtual machines, and back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VmMeasurement {
    /// The version of this document.
    pub schema: u32,
    /// How long was measured, in seconds.
    pub duration_s: f64,
    /// The virtual machines with the queues that packets came through, by process.
    pub vms: Vec<MeasuredVm>,
    /// Packets that reached a tap.
    pub started: u64,
    /// Packets not followed, as another one had their slot.
    pub collided: u64,
    /// Packets that vhost took and that were not seen at a tap: there since before the start.
    pub unseen: u64,
    /// Packets of queues beyond the number that can be observed, and of interrupts that had no slot.
    pub lost: u64,
    /// What could not be observed.
    pub not_available: Vec<NotAvailable>,
    /// Events that the kernel dropped (recursion misses of the programs).
    pub events_lost: u64,
    /// Measurement overhead; `None` if the kernel has no run-time statistics.
    pub cost: Option<Cost>,
    /// The clocks of the host; `None` where the CPU has no time stamp counter, and without a limit for late packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<Clocks>,
    /// Waits of vCPUs that were replaced by later ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pauses_lost: u64,
    /// Hardware timestamps; `None` if no NIC has any, or they are not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic_stamps: Option<NicStamps>,
    /// The late packets of a guest, by its own recording; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestLate>,
}

/// Whether a counter is to be left out.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl VmMeasurement {
    /// Keeps the virtual machine with this process id or name; whether there is one.
    pub fn keep(&mut self, wanted: &str) -> bool {
        self.vms.retain(|vm| vm.is(wanted));
        !self.vms.is_empty()
    }

    /// All queues of each virtual machine as one, and all interrupts of each of its devices and backends.
    pub fn merge_queues(&mut self) {
        for vm in &mut self.vms {
            let merged = vm.queues.drain(..).reduce(|mut all, queue| {
                all.merge(&queue);
                all
            });
            vm.queues.extend(merged);
            let devices = &mut vm.device_interrupts;
            VmInterrupt::merged(devices, |one, other| one.device == other.device);
            VmInterrupt::merged(&mut vm.backend_interrupts, |one, other| one.pid == other.pid);
        }
    }
}

/// A virtual machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredVm {
    /// Its process; `None` if unknown, as no packet reached it.
    pub pid: Option<u32>,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The name of its process.
    pub comm: Option<String>,
    /// Its queues, by tap and number.
    pub queues: Vec<VmQueue>,
    /// Interrupts of devices that are passed through to it (VFIO), by device and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_interrupts: Vec<VmDeviceInterrupt>,
    /// Interrupts that processes write to it (vhost-user), by process and eventfd.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backend_interrupts: Vec<VmBackendInterrupt>,
    /// Kicks of devices that processes serve, by process; `None` if they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_kicks: Option<Vec<VmKicks>>,
    /// Waits of its vCPUs; `None` without a limit for late packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pauses: Option<VcpuPauses>,
    /// Its time stamp counter; `None` if unknown (KVM shows it in debugfs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsc: Option<GuestTsc>,
}

impl MeasuredVm {
    /// Whether this is its name, or its process id.
    pub fn is(&self, wanted: &str) -> bool {
        self.name.as_deref() == Some(wanted)
            || wanted.parse().is_ok_and(|pid| self.pid == Some(pid))
    }
}

/// A queue of a tap.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VmQueue {
    /// The tap; its index if it is in another network namespace. Of several, the first.
    pub tap: String,
    /// The number of the queue; `None` for several.
    pub queue: Option<u32>,
    /// Threads of vhost that took the packets.
    pub workers: Vec<u32>,
    /// vCPUs that were interrupted last.
    pub vcpus: Vec<u32>,
    /// Threads of these vCPUs.
    pub vcpu_threads: Vec<u32>,
    /// Packets that vhost took from the tap.
    pub taken: u64,
    /// Interrupts that KVM set for them.
    pub interrupts: u64,
    /// Packets that these announced.
    pub interrupted: u64,
    /// Packets in the used ring without an interrupt: the guest had switched it off, as it polls.
    pub without_interrupt: u64,
    /// Packets whose interrupt KVM left to a kernel worker.
    pub deferred: u64,
    /// Packets whose interrupt goes to the guest without the host (posted interrupts, AVIC): their path ends at the
    /// notification.
    pub posted: u64,
    /// Packets that came from the host itself, not from a softirq.
    pub from_host: u64,
    /// Packets that could not be followed further.
    pub lost: u64,
    /// Their times.
    pub spans: Vec<VmSpan>,
    /// Packets by CPU, at the ends of the spans.
    pub cpus: VmCpus,
    /// The transmit direction; `None` if nothing was sent, or it is not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transmit: Option<VmTransmit>,
    /// Why packets were late; `None` without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<VmLate>,
}

impl VmQueue {
    /// Packets that reached the guest.
    pub fn entered(&self) -> u64 {
        self.span(VmSpanKind::Whole).map_or(0, |span| span.count)
    }

    /// A span that packets have passed.
    pub fn span(&self, kind: VmSpanKind) -> Option<&VmSpan> {
        self.spans.iter().find(|span| span.span == kind)
    }

    /// Adds another queue, or the same at another time.
    pub fn merge(&mut self, other: &Self) {
        if (&self.tap, self.queue) != (&other.tap, other.queue) {
            self.queue = None;
        }
        for (all, more) in [
            (&mut self.workers, &other.workers),
            (&mut self.vcpus, &other.vcpus),
            (&mut self.vcpu_threads, &other.vcpu_threads),
        ] {
            add_ids(all, more);
        }
        for (sum, more) in [
            (&mut self.taken, other.taken),
            (&mut self.interrupts, other.interrupts),
            (&mut self.interrupted, other.interrupted),
            (&mut self.without_interrupt, other.without_interrupt),
            (&mut self.deferred, other.deferred),
            (&mut self.posted, other.posted),
            (&mut self.from_host, other.from_host),
            (&mut self.lost, other.lost),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.spans = VmSpan::sums(&self.spans, &other.spans);
        self.cpus.add(&other.cpus);
        match (&mut self.transmit, &other.transmit) {
            (Some(all), Some(more)) => all.add(more),
            (all @ None, more) => all.clone_from(more),
            (Some(_), None) => {}
        }
        VmLate::add_to(&mut self.late, other.late.as_ref());
    }
}

/// Adds ids that are not there yet; ascending.
fn add_ids(all: &mut Vec<u32>, more: &[u32]) {
    all.extend(more);
    all.sort_unstable();
    all.dedup();
}

/// Packets by CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmCpus {
    /// Where the softirq ran that brought them to the tap, or the sender.
    pub handler: BTreeMap<u32, u64>,
    /// Where the vhost worker took them.
    pub vhost: BTreeMap<u32, u64>,
    /// Where the vCPU was entered.
    pub vcpu: BTreeMap<u32, u64>,
}

impl VmCpus {
    fn add(&mut self, other: &Self) {
        for (all, more) in [
            (&mut self.handler, &other.handler),
            (&mut self.vhost, &other.vhost),
            (&mut self.vcpu, &other.vcpu),
        ] {
            add_by_cpu(all, more);
        }
    }
}

fn add_by_cpu(all: &mut BTreeMap<u32, u64>, more: &BTreeMap<u32, u64>) {
    for (cpu, packets) in more {
        let sum = all.entry(*cpu).or_default();
        *sum = sum.saturating_add(*packets);
    }
}

/// A span of the path into the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmSpanKind {
    /// From the NIC's hardware timestamp to its interrupt; unknown without either.
    NicToInterrupt,
    /// (a) From the NIC's interrupt to NET_RX.
    InterruptToHandler,
    /// (b) From NET_RX to the tap, where vhost is woken.
    HandlerToVhost,
    /// (c) From the tap to KVM's interrupt.
    VhostToKvm,
    /// The part of (c) that the worker, if it was woken, needed to run.
    VhostWakeup,
    /// From the interrupt of a device that is passed through to KVM's.
    InterruptToKvm,
    /// From a process's write to the eventfd to KVM's interrupt.
    WriteToKvm,
    /// (d) From KVM's interrupt to the entry into the guest.
    KvmToGuest,
    /// Those of (d) whose vCPU was halted, and had to be woken.
    Halted,
    /// Those whose vCPU was polling before it halts (`halt_poll_ns`).
    Polling,
    /// Those whose vCPU was running the guest, and was kicked out.
    Running,
    /// Those whose vCPU was in the host for another reason, or preempted.
    InHost,
    /// From the first point known of the packet to the guest.
    Whole,
}

impl VmSpanKind {
    /// All, in the order of the path.
    pub const ALL: [Self; 13] = [
        Self::NicToInterrupt,
        Self::InterruptToHandler,
        Self::HandlerToVhost,
        Self::VhostToKvm,
        Self::VhostWakeup,
        Self::InterruptToKvm,
        Self::WriteToKvm,
        Self::KvmToGuest,
        Self::Halted,
        Self::Polling,
        Self::Running,
        Self::InHost,
        Self::Whole,
    ];
    /// The parts of [`Self::KvmToGuest`].
    pub const WAYS: [Self; 4] = [Self::Halted, Self::Polling, Self::Running, Self::InHost];
}

/// The times of a span.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpan<K = VmSpanKind> {
    /// Which.
    pub span: K,
    /// Packets; exact.
    pub count: u64,
    /// Median; `None` if there are too few samples, like all percentiles.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// Longest; exact.
    pub max_ns: u64,
    /// `[upper_ns, count]` of each histogram bucket that is not empty, ascending.
    pub buckets: Vec<(u64, u64)>,
}

impl VmSpan {
    /// The spans of two queues, or of one at two times, each as one; in the order of the path.
    fn sums(one: &[Self], other: &[Self]) -> Vec<Self> {
        let of = |kind| one.iter().chain(other).filter(move |span| span.span == kind);
        VmSpanKind::ALL.into_iter().filter_map(|kind| Self::sum(kind, of(kind))).collect()
    }
}

impl<K> VmSpan<K> {
    /// From `(bucket, count)`, ascending; `None` without a packet.
    pub fn new(span: K, filled: &[(usize, u64)], max_ns: u64) -> Option<Self> {
        let count = filled.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // A bucket is wide: what is interpolated in it may exceed the longest.
        let quantile =
            |q: f64| quantile_ns(filled, q).map(|ns| (ns.round().max(0.0) as u64).min(max_ns));
        let buckets = filled.iter().map(|&(bucket, n)| (upper_ns(bucket), n)).collect();
        (count > 0).then(|| Self {
            span,
            count,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            max_ns,
            buckets,
        })
    }

    /// Several spans as one; `None` without a packet.
    pub fn sum<'a>(span: K, spans: impl Iterator<Item = &'a Self>) -> Option<Self>
    where
        K: 'a,
    {
        let mut all: BTreeMap<usize, u64> = BTreeMap::new();
        let mut longest = 0;
        for one in spans {
            longest = longest.max(one.max_ns);
            for (bucket, n) in by_number(&one.buckets) {
                let sum = all.entry(bucket).or_default();
                *sum = sum.saturating_add(n);
            }
        }
        Self::new(span, &all.into_iter().collect::<Vec<_>>(), longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::bucket;

    fn queue(number: u32, kind: VmSpanKind, times: &[u64]) -> VmQueue {
        let mut filled: BTreeMap<usize, u64> = BTreeMap::new();
        times.iter().for_each(|ns| *filled.entry(bucket(*ns)).or_default() += 1);
        let filled: Vec<_> = filled.into_iter().collect();
        let span = VmSpan::new(kind, &filled, times.iter().copied().max().unwrap_or(0));
        VmQueue {
            queue: Some(number),
            taken: times.len() as u64,
            workers: vec![7],
            spans: span.into_iter().collect(),
            cpus: VmCpus { vcpu: BTreeMap::from([(number, 2)]), ..VmCpus::default() },
            ..VmQueue::default()
        }
    }

    #[test]
    fn queues_are_merged_with_their_distributions() {
        let queues = vec![
            queue(0, VmSpanKind::Whole, &[1000, 2000, 3000]),
            queue(1, VmSpanKind::Whole, &[9000, 8000]),
            queue(2, VmSpanKind::Halted, &[500]),
        ];
        let vm =
            MeasuredVm { pid: Some(4), name: Some("web".into()), queues, ..MeasuredVm::default() };
        let mut measured = VmMeasurement { vms: vec![vm], ..VmMeasurement::default() };
        measured.merge_queues();
        let [queue] = measured.vms[0].queues.as_slice() else { panic!("{measured:?}") };
        assert_eq!((queue.queue, queue.taken, queue.entered()), (None, 6, 5));
        assert_eq!(queue.workers, [7]);
        let whole = queue.span(VmSpanKind::Whole).unwrap();
        assert_eq!((whole.count, whole.max_ns, whole.p99_ns), (5, 9000, None));
        assert_eq!(queue.span(VmSpanKind::Halted).unwrap().count, 1);
        assert_eq!(queue.cpus.vcpu.len(), 3);
        assert!(measured.clone().keep("web") && measured.clone().keep("4"));
        assert!(!measured.keep("5") && measured.vms.is_empty());
    }

    #[test]
    fn percentiles_do_not_exceed_the_longest() {
        let span = queue(0, VmSpanKind::Whole, &[1000; 200]).spans.pop().unwrap();
        assert_eq!(span.max_ns, 1000);
        assert!(span.p99_ns.unwrap() <= 1000 && span.p50_ns.unwrap() >= 950, "{span:?}");
        assert_eq!(VmSpan::new(VmSpanKind::Whole, &[], 0), None);
    }
}
