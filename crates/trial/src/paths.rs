//! Comparison of paths to targets, as in Linaro's latencies to virtual machines: host, tap, macvtap and so on, each
//! with and without load on it.
//!
//! Input: blocks of probes of each path and load, in random order, each with what was observed of them on their way
//! into a virtual machine. Output: the table.

use crate::background::BackgroundReport;
use crate::latency::{LatencyReport, samples_beyond};
use nearpath_model::vm::{MeasuredVm, VmCpus, VmDevice, VmMeasurement, VmQueue};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON form of [`PathsReport`].
pub const PATHS_SCHEMA: u32 = 1;
/// The percentiles reported, with the share of samples that do not exceed them.
const PERCENTILES: [(&str, f64); 4] = [("50", 0.5), ("90", 0.9), ("99", 0.99), ("99.9", 0.999)];

/// The load on a path while it is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathLoad {
    /// None.
    None,
    /// TCP streams.
    Tcp,
    /// UDP streams.
    Udp,
}

impl PathLoad {
    /// As in options and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Each pair once a round, in an order that is random in each round, and the same for the same seed.
pub fn random_order<T: Copy>(pairs: &[T], rounds: usize, seed: u64) -> Vec<T> {
    let mut random = fastrand::Rng::with_seed(seed);
    let round = |_| {
        let mut round = pairs.to_vec();
        random.shuffle(&mut round);
        round
    };
    (0..rounds).flat_map(round).collect()
}

/// A seed for [`random_order`], short enough to be typed.
pub fn random_seed() -> u64 {
    fastrand::u64(..1 << 32)
}

/// What datagrams of nearpath's own carried, where iperf3 had no server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnLoad {
    /// Datagrams sent to the target.
    pub sent: u64,
    /// Of which it answered.
    pub answered: u64,
    /// Payload of each, in bytes.
    pub size_bytes: u32,
    /// How long, in seconds.
    pub seconds: f64,
}

impl OwnLoad {
    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.answered += other.answered;
        self.seconds += other.seconds;
        self.size_bytes = other.size_bytes;
    }
}

/// A measured block.
#[derive(Debug, Clone)]
pub struct PathBlock {
    /// The probes.
    pub latency: LatencyReport,
    /// Probes sent that do not count: first contact, warm-up, and one at the end.
    pub uncounted: u64,
    /// What was observed of those that count; `None` if the instrument does not run.
    pub seen: Option<VmMeasurement>,
    /// Streams of iperf3.
    pub streams: Vec<BackgroundReport>,
    /// Datagrams of nearpath's own.
    pub own: Option<OwnLoad>,
}

/// The paths side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathsReport {
    /// Version of this form.
    pub schema: u32,
    /// The network namespace that probes were sent from; `None`: that of nearpath.
    pub from: Option<String>,
    /// Of the order of blocks.
    pub seed: u64,
    /// Blocks of each path and load.
    pub rounds: usize,
    /// Duration of a block in seconds.
    pub block_s: f64,
    /// Probes per second.
    pub rate_per_s: u32,
    /// Payload of a probe in bytes.
    pub size_bytes: u32,
    /// The order in which the blocks were measured: path and load of each.
    pub order: Vec<(String, PathLoad)>,
    /// Each path and load.
    pub paths: Vec<PathResult>,
    /// Notes on the result.
    pub notes: Vec<String>,
}

/// A path with a load, over all of its blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathResult {
    /// Name of the path.
    pub path: String,
    /// Address of the target.
    pub target: String,
    /// The load.
    pub load: PathLoad,
    /// Probes sent.
    pub sent: u64,
    /// Of which answered.
    pub received: u64,
    /// Of which not.
    pub lost: u64,
    /// Probes sent besides that do not count.
    pub uncounted: u64,
    /// The shortest round trip; exact, as mean, standard deviation and longest.
    pub min_ns: Option<u64>,
    /// Their mean.
    pub mean_ns: Option<f64>,
    /// Their standard deviation.
    pub stddev_ns: Option<f64>,
    /// By percentile, as far as there are enough samples.
    pub percentiles: BTreeMap<String, u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// Where it went into a virtual machine of this host; `None` if it could not be split, with the reason.
    pub vm: Option<PathVm>,
    /// Why not, or which of the probes are missing.
    pub not_split: Option<String>,
    /// What streams of iperf3 carried, in each block.
    pub streams: Vec<BackgroundReport>,
    /// What nearpath's own datagrams carried.
    pub own_load: Option<OwnLoad>,
}

/// The way of a path's probes into a virtual machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathVm {
    /// Its process.
    pub pid: Option<u32>,
    /// Its name, or that of its process.
    pub name: Option<String>,
    /// The queues that the probes came through, as one; only the probes that count. With a device, its interrupts while
    /// the probes were sent: `taken` from it, and `interrupts` that KVM set.
    pub queue: VmQueue,
    /// The device that is passed through, of which the host sees no packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl PathVm {
    /// The interrupts of the devices of a virtual machine; `None` if there were none.
    fn of_devices(vm: &MeasuredVm) -> Option<Self> {
        let all = vm.device_interrupts.iter().cloned().reduce(|mut all, one| {
            all.merge(&one);
            all
        })?;
        let VmDevice { device, name, irq } = all.source;
        let device = device.or(name).unwrap_or_else(|| format!("interrupt {irq}"));
        let queue = VmQueue {
            tap: device.clone(),
            vcpus: all.vcpus,
            vcpu_threads: all.vcpu_threads,
            taken: all.interrupts,
            interrupts: all.set,
            interrupted: all.set,
            deferred: all.deferred,
            posted: all.posted,
            lost: all.lost,
            spans: all.spans,
            cpus: VmCpus { handler: all.handled_on, vcpu: all.entered_on, ..VmCpus::default() },
            ..VmQueue::default()
        };
        Some(Self { pid: vm.pid, name: name_of(vm), queue, device: Some(device) })
    }
}

fn name_of(vm: &MeasuredVm) -> Option<String> {
    vm.name.clone().or_else(|| vm.comm.clone())
}

/// The table's row of the blocks of a path with a load. If its target is a virtual machine with a device passed
/// through, `by_device` is its name or process id.
pub fn result(
    path: &str,
    target: &str,
    load: PathLoad,
    blocks: &[PathBlock],
    by_device: Option<&str>,
) -> PathResult {
    let sum = |of: fn(&PathBlock) -> u64| blocks.iter().map(of).sum::<u64>();
    let mut buckets: BTreeMap<u64, u64> = BTreeMap::new();
    for &(upper, count) in blocks.iter().flat_map(|block| &block.latency.histogram) {
        *buckets.entry(upper).or_default() += count;
    }
    let (mean_ns, stddev_ns) = pooled(blocks.iter().filter_map(|block| {
        let LatencyReport { received, mean_ns, stddev_ns, .. } = block.latency;
        Some((received as f64, mean_ns?, stddev_ns.unwrap_or(0.0)))
    }));
    let sent = sum(|block| block.latency.sent);
    let (vm, not_split) = match by_device {
        Some(wanted) => split_by_device(blocks, wanted),
        None => split(blocks, sent),
    };
    let mut own_load: Option<OwnLoad> = None;
    for own in blocks.iter().filter_map(|block| block.own) {
        own_load.get_or_insert_default().add(&own);
    }
    PathResult {
        path: path.to_owned(),
        target: target.to_owned(),
        load,
        sent,
        received: sum(|block| block.latency.received),
        lost: sum(|block| block.latency.lost),
        uncounted: sum(|block| block.uncounted),
        min_ns: blocks.iter().filter_map(|block| block.latency.min_ns).min(),
        mean_ns,
        stddev_ns,
        percentiles: percentiles(&buckets),
        max_ns: blocks.iter().filter_map(|block| block.latency.max_ns).max(),
        vm,
        not_split,
        streams: blocks.iter().flat_map(|block| block.streams.clone()).collect(),
        own_load,
    }
}

/// Mean and standard deviation of parts with a count, a mean and a standard deviation each.
fn pooled(parts: impl Iterator<Item = (f64, f64, f64)>) -> (Option<f64>, Option<f64>) {
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for (n, of, stddev) in parts.filter(|part| part.0 > 0.0) {
        let delta = of - mean;
        squares += stddev * stddev * (n - 1.0) + delta * delta * count * n / (count + n);
        count += n;
        mean += delta * n / count;
    }
    let stddev = (count > 1.0).then(|| f64::sqrt(squares / (count - 1.0)));
    ((count > 0.0).then_some(mean), stddev)
}

fn percentiles(buckets: &BTreeMap<u64, u64>) -> BTreeMap<String, u64> {
    let count: u64 = buckets.values().sum();
    let of = |share: f64| {
        let rank = count - samples_beyond(count, share)?;
        let mut seen = 0;
        let mut reaching = buckets.iter().filter(|(_, n)| {
            seen += **n;
            seen >= rank
        });
        reaching.next().map(|(upper, _)| *upper)
    };
    let named = |(name, share): (&str, f64)| Some((name.to_owned(), of(share)?));
    PERCENTILES.into_iter().filter_map(named).collect()
}

/// The interrupts of a virtual machine's devices while probes were sent, which cannot be recognised there.
fn split_by_device(blocks: &[PathBlock], wanted: &str) -> (Option<PathVm>, Option<String>) {
    let seen: Vec<&VmMeasurement> = blocks.iter().filter_map(|block| block.seen.as_ref()).collect();
    if seen.is_empty() {
        return (None, None);
    }
    let found = seen.iter().flat_map(|seen| &seen.vms).filter(|vm| vm.is(wanted));
    let found = found.filter_map(PathVm::of_devices).reduce(|mut all, more| {
        all.queue.merge(&more.queue);
        all
    });
    let missing = match &found {
        None => Some(format!(
            "no interrupt of a device that is passed through to {wanted} came while probes were sent, or the IOMMU \
             posts them to the guest"
        )),
        Some(PathVm { queue, .. }) => followed(queue, queue.taken, "interrupts", &[]),
    };
    (found, missing)
}

/// The way into the virtual machine, and what is unknown of it.
fn split(blocks: &[PathBlock], sent: u64) -> (Option<PathVm>, Option<String>) {
    let seen: Vec<&VmMeasurement> = blocks.iter().filter_map(|block| block.seen.as_ref()).collect();
    if seen.is_empty() {
        return (None, None);
    }
    let mut found: Option<PathVm> = None;
    for vm in seen.iter().flat_map(|seen| &seen.vms) {
        for queue in vm.queues.iter().filter(|queue| queue.taken > 0) {
            match &mut found {
                None => {
                    let (name, queue) = (name_of(vm), queue.clone());
                    found = Some(PathVm { pid: vm.pid, name, queue, device: None });
                }
                Some(found) => {
                    if found.pid != vm.pid {
                        let reason = "the probes went to several virtual machines";
                        return (None, Some(reason.to_owned()));
                    }
                    found.queue.merge(queue);
                }
            }
        }
    }
    let started: u64 = seen.iter().map(|seen| seen.started).sum();
    let collided: u64 = seen.iter().map(|seen| seen.collided).sum();
    let unseen: u64 = seen.iter().map(|seen| seen.unseen).sum();
    let Some(found) = found else {
        let reason = if started > 0 {
            format!("{started} of {sent} probes reached a tap, and no vhost took them from it")
        } else {
            let passed = if unseen > 0 {
                format!("; vhost took {unseen} packets that were seen at no tap")
            } else {
                String::new()
            };
            format!(
                "none of the probes reached a tap or macvtap of this host: the target is no virtual machine of it, \
                 or reached by VFIO (--vfio) or vhost-user{passed}"
            )
        };
        return (None, Some(reason));
    };
    let before = [
        (sent.saturating_sub(started + collided), "did not reach the tap"),
        (collided, "could not be followed at the tap"),
        (started.saturating_sub(found.queue.taken), "were not taken from the tap by vhost"),
        (found.queue.without_interrupt, "needed no interrupt: the guest polled its ring"),
    ];
    let missing = followed(&found.queue, sent, "probes", &before);
    (Some(found), missing)
}

/// How many were followed to the guest, if not all, and what became of the others: `before` they came to KVM, and
/// there.
fn followed(queue: &VmQueue, all: u64, what: &str, before: &[(u64, &str)]) -> Option<String> {
    let entered = queue.entered();
    let there = [
        (queue.deferred, "whose interrupt KVM left to a kernel worker"),
        (queue.posted, "end at the notification: the interrupt is posted"),
        (queue.lost, "could not be followed further"),
    ];
    let parts = before.iter().chain(&there).filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
    (entered < all).then(|| {
        format!("{entered} of {all} {what} were followed to the guest: {}", parts.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::vm::{VmDevice, VmDeviceInterrupt, VmSpan, VmSpanKind};
    use serde_json::json;

    fn latency(values: &[u64]) -> LatencyReport {
        let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
        let squares: f64 = values.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum();
        let histogram: Vec<(u64, u64)> = values.iter().map(|ns| (*ns, 1)).collect();
        serde_json::from_value(json!({"schema": 1, "target": "10.0.0.2:7", "transport": "udp",
            "mode": {"open": "constant"}, "size_bytes": 64, "connections": 1, "asked_rate_per_s": 50,
            "duration_s": 1.0, "sent": values.len() + 1, "received": values.len(), "lost": 1, "late": 0,
            "reordered": 0, "duplicated": 0, "ignored": 0, "not_sent": 0, "rate_per_s": 50.0,
            "min_ns": values.iter().min(), "mean_ns": mean,
            "stddev_ns": (squares / (values.len() - 1) as f64).sqrt(), "percentiles": {},
            "max_ns": values.iter().max(), "histogram": histogram, "split": null, "unknown": []}))
        .unwrap()
    }

    fn block(values: &[u64], seen: Option<VmMeasurement>) -> PathBlock {
        let latency = latency(values);
        PathBlock { latency, uncounted: 3, seen, streams: Vec::new(), own: None }
    }

    fn seen(pid: u32, packets: u64) -> VmMeasurement {
        let span = VmSpan::new(VmSpanKind::Whole, &[(100, packets)], 9);
        let queue =
            VmQueue { taken: packets, spans: span.into_iter().collect(), ..VmQueue::default() };
        let vm = MeasuredVm { pid: Some(pid), queues: vec![queue], ..MeasuredVm::default() };
        VmMeasurement { vms: vec![vm], started: packets, ..VmMeasurement::default() }
    }

    #[test]
    fn the_order_is_random_whole_and_repeatable() {
        let pairs: Vec<u32> = (0..20).collect();
        let order = random_order(&pairs, 3, 7);
        assert_eq!(order, random_order(&pairs, 3, 7));
        assert_ne!(order, random_order(&pairs, 3, 8));
        for round in order.chunks(20) {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, pairs);
        }
        assert_ne!(order[..20], order[20..40]);
    }

    #[test]
    fn blocks_are_pooled_as_if_they_were_one() {
        let all = [5, 9, 1, 40, 12, 3, 8, 22];
        let (left, right) = (block(&all[..3], None), block(&all[3..], None));
        let both = result("tap", "10.0.0.2:7", PathLoad::None, &[left, right], None);
        let one = latency(&all);
        assert_eq!((both.min_ns, both.max_ns), (Some(1), Some(40)));
        assert!((both.mean_ns.unwrap() - one.mean_ns.unwrap()).abs() < 1e-9);
        assert!((both.stddev_ns.unwrap() - one.stddev_ns.unwrap()).abs() < 1e-9);
        assert_eq!((both.sent, both.received, both.lost, both.uncounted), (10, 8, 2, 6));
        assert_eq!(both.percentiles["50"], 8);
        assert!(both.vm.is_none() && both.not_split.is_none());
    }

    #[test]
    fn a_device_is_split_by_its_interrupts() {
        let with = |pid: u32, interrupts: u64| {
            let span = VmSpan::new(VmSpanKind::Whole, &[(100, interrupts)], 9);
            let one = VmDeviceInterrupt {
                source: VmDevice {
                    device: Some("0000:81:10.0".to_owned()),
                    irq: 77,
                    ..VmDevice::default()
                },
                interrupts,
                set: interrupts,
                spans: span.into_iter().collect(),
                ..VmDeviceInterrupt::default()
            };
            let mut other = one.clone();
            other.source.irq = 78;
            let device_interrupts = vec![one, other];
            let vm = MeasuredVm { pid: Some(pid), device_interrupts, ..MeasuredVm::default() };
            VmMeasurement { vms: vec![vm], ..VmMeasurement::default() }
        };
        let blocks = [block(&[1, 2], Some(with(4, 3))), block(&[1, 2], Some(with(4, 2)))];
        let of = |blocks: &[PathBlock], vm: &str| {
            result("vf", "10.0.0.2:7", PathLoad::None, blocks, Some(vm))
        };
        let vm = of(&blocks, "4").vm.unwrap();
        assert_eq!((vm.queue.taken, vm.queue.entered()), (10, 10));
        assert_eq!(vm.device.as_deref(), Some("0000:81:10.0"));
        let other = of(&blocks, "web1");
        assert!(other.vm.is_none() && other.not_split.unwrap().contains("passed through to web1"));
        // Who does not say that it is by a device gets nothing of it.
        let unknown = result("vf", "10.0.0.2:7", PathLoad::None, &blocks, None);
        assert!(unknown.vm.is_none() && unknown.not_split.unwrap().contains("--vfio"));
    }

    #[test]
    fn what_is_not_split_has_a_reason() {
        let of = |blocks: &[PathBlock]| result("tap", "10.0.0.2:7", PathLoad::Udp, blocks, None);
        let whole = of(&[block(&[1, 2], Some(seen(4, 3))), block(&[1, 2], Some(seen(4, 3)))]);
        assert_eq!(whole.vm.unwrap().queue.entered(), 6);
        assert_eq!(whole.not_split, None);
        let part = of(&[block(&[1, 2, 3], Some(seen(4, 3)))]);
        let reason = part.not_split.unwrap();
        assert_eq!(reason, "3 of 4 probes were followed to the guest: 1 did not reach the tap");
        let two = of(&[block(&[1, 2], Some(seen(4, 3))), block(&[1, 2], Some(seen(5, 3)))]);
        assert!(two.vm.is_none() && two.not_split.unwrap().contains("several"));
        let none = of(&[block(&[1, 2], Some(VmMeasurement::default()))]);
        assert!(none.not_split.unwrap().starts_with("none of the probes reached a tap"));
        let unseen = VmMeasurement { unseen: 3, ..VmMeasurement::default() };
        let reason = of(&[block(&[1, 2], Some(unseen))]).not_split.unwrap();
        assert!(reason.ends_with("; vhost took 3 packets that were seen at no tap"), "{reason}");
    }
}
