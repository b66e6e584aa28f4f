//! Latencies of packets into virtual machines.

use super::{Own, name_of, own};
use crate::metrics::Id;
use crate::store::{OTHERS, Store};
use nearpath_model::vm::{MeasuredVm, VmMeasurement, VmQueue, VmSpan, VmSpanKind};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Virtual machines with series of their own; there is room again when one has ended.
const VMS_MAX: usize = 32;

/// Spans that are kept: not the parts of [`VmSpanKind::KvmToGuest`].
const SPANS: [VmSpanKind; 6] = [
    VmSpanKind::InterruptToHandler,
    VmSpanKind::HandlerToVhost,
    VmSpanKind::VhostToKvm,
    VmSpanKind::VhostWakeup,
    VmSpanKind::KvmToGuest,
    VmSpanKind::Whole,
];

/// What a virtual machine got since an earlier reading.
#[derive(Debug, Default)]
pub(crate) struct VmInterval {
    /// Its process; `None` if unknown.
    pub pid: Option<u32>,
    /// By span: `(longest time in ns, packets)` of each bucket, and the longest time if it is the longest so far.
    pub spans: BTreeMap<VmSpanKind, (BTreeMap<u64, u64>, Option<u64>)>,
}

impl VmInterval {
    /// Packets, and interrupts of devices that are passed through or that processes serve.
    fn packets(&self) -> u64 {
        let counted = [VmSpanKind::Whole, VmSpanKind::InterruptToKvm, VmSpanKind::WriteToKvm];
        let buckets = counted.iter().filter_map(|kind| self.spans.get(kind));
        buckets.flat_map(|(buckets, _)| buckets.values()).fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// Spans of interrupts of devices that are passed through; not [`VmSpanKind::Whole`], which is that of packets.
const DEVICE_SPANS: [VmSpanKind; 2] = [VmSpanKind::InterruptToKvm, VmSpanKind::KvmToGuest];

/// The same of interrupts that processes write (vhost-user).
const BACKEND_SPANS: [VmSpanKind; 2] = [VmSpanKind::WriteToKvm, VmSpanKind::KvmToGuest];

/// What packets or interrupts come by.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way<'a> {
    /// A queue, by its tap and the thread that takes its packets: a tap may get another virtual machine.
    Queue(&'a str, Option<u32>, Option<u32>),
    /// An interrupt of a device, by the process.
    Device(Option<u32>, u32),
    /// The number of an eventfd that a process writes to.
    Backend(Option<u32>, u32),
}

/// The ways into a virtual machine, with what was measured of each and the spans that are kept.
fn ways(vm: &MeasuredVm) -> impl Iterator<Item = (Way<'_>, &[VmSpan], &'static [VmSpanKind])> {
    let queue = |queue: &VmQueue| queue.workers.first().copied();
    let queues = vm.queues.iter().map(move |one| {
        (Way::Queue(&one.tap, one.queue, queue(one)), one.spans.as_slice(), SPANS.as_slice())
    });
    let devices = vm.device_interrupts.iter().map(|one| {
        (Way::Device(vm.pid, one.source.irq), one.spans.as_slice(), DEVICE_SPANS.as_slice())
    });
    let backends = vm.backend_interrupts.iter().map(|one| {
        let way = Way::Backend(vm.pid, one.source.eventfd);
        (way, one.spans.as_slice(), BACKEND_SPANS.as_slice())
    });
    queues.chain(devices).chain(backends)
}

fn span_of(spans: &[VmSpan], kind: VmSpanKind) -> Option<&VmSpan> {
    spans.iter().find(|span| span.span == kind)
}

/// The name of a virtual machine: its own, or that of its program.
fn name(vm: &MeasuredVm) -> String {
    vm.name.clone().or_else(|| vm.comm.clone()).unwrap_or_else(|| "unknown".to_owned())
}

/// What each virtual machine got between two readings, by name.
pub(crate) fn between(now: &VmMeasurement, before: &VmMeasurement) -> BTreeMap<String, VmInterval> {
    let earlier: BTreeMap<Way<'_>, &[VmSpan]> =
        before.vms.iter().flat_map(ways).map(|(way, spans, _)| (way, spans)).collect();
    let mut vms: BTreeMap<String, VmInterval> = BTreeMap::new();
    for vm in &now.vms {
        for (way, spans, kinds) in ways(vm) {
            let was = earlier.get(&way).copied();
            for &kind in kinds {
                let Some(span) = span_of(spans, kind) else { continue };
                let old = was.and_then(|spans| span_of(spans, kind));
                let count = |upper: u64| {
                    let buckets = old.into_iter().flat_map(|span| &span.buckets);
                    buckets
                        .filter(|(at, _)| *at == upper)
                        .fold(0u64, |sum, (_, n)| sum.saturating_add(*n))
                };
                let more =
                    span.buckets.iter().map(|&(upper, n)| (upper, n.saturating_sub(count(upper))));
                let more: Vec<(u64, u64)> = more.filter(|(_, n)| *n > 0).collect();
                if more.is_empty() {
                    continue;
                }
                let interval = vms.entry(name(vm)).or_default();
                interval.pid = interval.pid.or(vm.pid);
                let (buckets, max_ns) = interval.spans.entry(kind).or_default();
                for (upper, n) in more {
                    let sum = buckets.entry(upper).or_default();
                    *sum = sum.saturating_add(n);
                }
                let longest = old.is_none_or(|old| old.max_ns < span.max_ns);
                *max_ns = (*max_ns).max(longest.then_some(span.max_ns));
            }
        }
    }
    vms
}

/// Of each virtual machine, packets between two readings that took longer than a limit, and all of its packets. Of devices
/// that are passed through and those that processes serve, interrupts.
pub(crate) fn late_packets(
    now: &VmMeasurement,
    before: &VmMeasurement,
    limit: Duration,
) -> Vec<(u64, u64)> {
    let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    let of_vm = |interval: &VmInterval| {
        let late = |kind| {
            let buckets = interval.spans.get(&kind).into_iter().flat_map(|(buckets, _)| buckets);
            // The bucket of the limit ends above it.
            let above = buckets.filter(|(upper, _)| **upper > limit_ns);
            above.fold(0_u64, |sum, (_, n)| sum.saturating_add(*n))
        };
        // What came by a queue is in both.
        (late(VmSpanKind::Whole).max(late(VmSpanKind::KvmToGuest)), interval.packets())
    };
    between(now, before).values().map(of_vm).collect()
}

/// The sum of the times, from the middles of their buckets: the kernel counts no sum. At most 2.2 % off.
pub(crate) fn sum_ns(buckets: &BTreeMap<u64, u64>) -> u64 {
    // A bucket begins where it would end if it were the one before: 2^(-1/16) of its end.
    let middle = (1.0 + f64::exp2(-1.0 / 16.0)) / 2.0;
    buckets.iter().map(|(&upper, &n)| upper as f64 * middle * n as f64).sum::<f64>() as u64
}

/// Adds what was measured since an earlier reading.
pub fn vms(store: &mut Store, now: &VmMeasurement, earlier: Option<&VmMeasurement>) {
    let nothing = VmMeasurement::default();
    let before = earlier.unwrap_or(&nothing);
    let mut known: BTreeSet<String> = store.first_labels(Id::VmLatency);
    let mut vms: Vec<(String, VmInterval)> = between(now, before).into_iter().collect();
    // Those with most packets get what room there is.
    vms.sort_by_key(|(_, interval)| Reverse(interval.packets()));
    for (name, interval) in vms {
        let has_room = known.contains(&name) || known.len() < VMS_MAX;
        let label = if has_room { name.as_str() } else { OTHERS };
        for (kind, (buckets, _)) in &interval.spans {
            let list: Vec<(u64, u64)> = buckets.iter().map(|(upper, n)| (*upper, *n)).collect();
            store.observe(Id::VmLatency, &[label, &name_of(kind)], &list, sum_ns(buckets));
        }
        if has_room {
            known.insert(name);
        }
    }
    own(store, "vms", now.into(), before.into());
}

impl From<&VmMeasurement> for Own {
    fn from(vms: &VmMeasurement) -> Self {
        Self {
            observed_s: vms.duration_s,
            duration_s: vms.duration_s,
            events_lost: vms.events_lost.saturating_add(vms.lost),
            cpu_percent: vms.cost.map_or(0.0, |cost| cost.cpu_percent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Value;
    use nearpath_model::histogram::bucket;
    use nearpath_model::vm::{VmDevice, VmDeviceInterrupt};

    /// A virtual machine with so many packets of 1 µs; its name may not be known yet.
    fn vm(number: u32, name: Option<&str>, packets: u64) -> MeasuredVm {
        let span = VmSpan::new(VmSpanKind::Whole, &[(bucket(1_000), packets)], 1_000);
        let queue = VmQueue {
            tap: format!("tap{number}"),
            queue: Some(0),
            workers: vec![number],
            spans: span.into_iter().collect(),
            ..VmQueue::default()
        };
        let name = name.map(str::to_owned);
        MeasuredVm {
            pid: Some(number),
            name,
            comm: None,
            queues: vec![queue],
            ..MeasuredVm::default()
        }
    }

    fn measured(vms: Vec<MeasuredVm>) -> VmMeasurement {
        VmMeasurement { vms, ..VmMeasurement::default() }
    }

    fn packets(store: &Store, vm: &str) -> Option<u64> {
        match store.snapshot().get(Id::VmLatency, &[vm, "whole"])? {
            Value::Histogram(buckets) => Some(buckets.count()),
            Value::Number(_) => None,
        }
    }

    #[test]
    fn a_packet_counts_once_also_if_its_machine_gets_a_name_or_starts_again() {
        let mut store = Store::default();
        let first = measured(vec![vm(1, None, 10)]);
        vms(&mut store, &first, None);
        let second = measured(vec![vm(1, Some("web"), 14)]);
        vms(&mut store, &second, Some(&first));
        assert_eq!((packets(&store, "unknown"), packets(&store, "web")), (Some(10), Some(4)));
        // The same tap with another thread is another machine.
        let mut other = vm(2, Some("db"), 3);
        other.queues[0].tap = "tap1".to_owned();
        let third = measured(vec![vm(1, Some("web"), 14), other]);
        vms(&mut store, &third, Some(&second));
        assert_eq!((packets(&store, "web"), packets(&store, "db")), (Some(4), Some(3)));
        // The instrument starts again.
        vms(&mut store, &measured(vec![vm(1, Some("web"), 5)]), None);
        assert_eq!(packets(&store, "web"), Some(9));
    }

    #[test]
    fn interrupts_of_devices_are_not_packets() {
        let spans = |count| {
            [VmSpanKind::InterruptToKvm, VmSpanKind::KvmToGuest, VmSpanKind::Whole]
                .into_iter()
                .filter_map(|kind| VmSpan::new(kind, &[(bucket(1_000), count)], 1_000))
                .collect()
        };
        let with = |irq, count| {
            let source = VmDevice { irq, ..VmDevice::default() };
            let spans = spans(count);
            let device = VmDeviceInterrupt { source, spans, ..VmDeviceInterrupt::default() };
            MeasuredVm { device_interrupts: vec![device], ..vm(1, Some("web"), 10) }
        };
        let mut store = Store::default();
        let first = measured(vec![with(40, 3)]);
        vms(&mut store, &first, None);
        vms(&mut store, &measured(vec![with(40, 5)]), Some(&first));
        assert_eq!(packets(&store, "web"), Some(10));
        for span in ["interrupt_to_kvm", "kvm_to_guest"] {
            let counted = match store.snapshot().get(Id::VmLatency, &["web", span]) {
                Some(Value::Histogram(buckets)) => buckets.count(),
                _ => 0,
            };
            assert_eq!(counted, 5, "{span}");
        }
    }

    #[test]
    fn the_largest_machines_have_series_of_their_own() {
        let mut store = Store::default();
        let names: Vec<String> = (0..40).map(|n| format!("vm{n}")).collect();
        let all = names.iter().zip(1..).map(|(name, n)| vm(n, Some(name), n.into()));
        vms(&mut store, &measured(all.collect()), None);
        assert_eq!(packets(&store, "vm39"), Some(40));
        assert_eq!(packets(&store, "vm7"), None);
        assert_eq!(packets(&store, "others"), Some((1..=8).sum()));
        assert_eq!(store.first_labels(Id::VmLatency).len(), VMS_MAX);
    }

    #[test]
    fn the_sum_is_within_the_width_of_a_bucket() {
        for ns in [100u64, 999, 123_456, 7_000_000] {
            let upper = nearpath_model::histogram::upper_ns(bucket(ns));
            let sum = sum_ns(&BTreeMap::from([(upper, 1_000)])) as f64;
            assert!((sum / (1_000.0 * ns as f64) - 1.0).abs() < 0.023, "{ns}: {sum}");
        }
    }
}
