//! What was measured between two readings of one measurement.

use super::{
    MeasuredVm, VmCpus, VmDevice, VmInterrupt, VmLate, VmMeasurement, VmQueue, VmSpan, VmTransmit,
    VmTransmitCpus, VmWriter,
};
use crate::histogram::by_number;
use std::collections::BTreeMap;

impl VmMeasurement {
    /// What was measured since an earlier reading of the same start. Waits of vCPUs and the cost are those of now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let vms = self.vms.iter().map(|vm| {
            let was = earlier.vms.iter().find(|was| (was.pid, &was.name) == (vm.pid, &vm.name));
            was.map_or_else(|| vm.clone(), |was| vm.since(was))
        });
        Self {
            duration_s: self.duration_s - earlier.duration_s,
            vms: vms.collect(),
            started: self.started.saturating_sub(earlier.started),
            collided: self.collided.saturating_sub(earlier.collided),
            unseen: self.unseen.saturating_sub(earlier.unseen),
            lost: self.lost.saturating_sub(earlier.lost),
            events_lost: self.events_lost.saturating_sub(earlier.events_lost),
            pauses_lost: self.pauses_lost.saturating_sub(earlier.pauses_lost),
            ..self.clone()
        }
    }
}

impl MeasuredVm {
    fn since(&self, earlier: &Self) -> Self {
        let queues = self.queues.iter().map(|queue| {
            let id =
                |queue: &VmQueue| (queue.tap.clone(), queue.queue, queue.workers.first().copied());
            let was = earlier.queues.iter().find(|was| id(was) == id(queue));
            was.map_or_else(|| queue.clone(), |was| queue.since(was))
        });
        let is_irq = |one: &VmDevice, was: &VmDevice| one.irq == was.irq;
        let is_eventfd = |one: &VmWriter, was: &VmWriter| one.eventfd == was.eventfd;
        Self {
            queues: queues.collect(),
            device_interrupts: VmInterrupt::all_since(
                &self.device_interrupts,
                &earlier.device_interrupts,
                is_irq,
            ),
            backend_interrupts: VmInterrupt::all_since(
                &self.backend_interrupts,
                &earlier.backend_interrupts,
                is_eventfd,
            ),
            ..self.clone()
        }
    }
}

impl VmQueue {
    fn since(&self, earlier: &Self) -> Self {
        let transmit = self.transmit.as_ref().map(|sent| match &earlier.transmit {
            Some(was) => sent.since(was),
            None => sent.clone(),
        });
        Self {
            taken: self.taken.saturating_sub(earlier.taken),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            interrupted: self.interrupted.saturating_sub(earlier.interrupted),
            without_interrupt: self.without_interrupt.saturating_sub(earlier.without_interrupt),
            deferred: self.deferred.saturating_sub(earlier.deferred),
            posted: self.posted.saturating_sub(earlier.posted),
            from_host: self.from_host.saturating_sub(earlier.from_host),
            lost: self.lost.saturating_sub(earlier.lost),
            spans: VmSpan::all_since(&self.spans, &earlier.spans),
            cpus: VmCpus {
                handler: by_cpu_since(&self.cpus.handler, &earlier.cpus.handler),
                vhost: by_cpu_since(&self.cpus.vhost, &earlier.cpus.vhost),
                vcpu: by_cpu_since(&self.cpus.vcpu, &earlier.cpus.vcpu),
            },
            transmit,
            late: self.late.as_ref().map(|late| late.since(earlier.late.as_ref())),
            ..self.clone()
        }
    }
}

impl VmTransmit {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            kicks: self.kicks.saturating_sub(earlier.kicks),
            sent: self.sent.saturating_sub(earlier.sent),
            batches: self.batches.saturating_sub(earlier.batches),
            kicked: self.kicked.saturating_sub(earlier.kicked),
            reached_nic: self.reached_nic.saturating_sub(earlier.reached_nic),
            collided: self.collided.saturating_sub(earlier.collided),
            spans: VmSpan::all_since(&self.spans, &earlier.spans),
            cpus: VmTransmitCpus {
                kick: by_cpu_since(&self.cpus.kick, &earlier.cpus.kick),
                vhost: by_cpu_since(&self.cpus.vhost, &earlier.cpus.vhost),
                nic: by_cpu_since(&self.cpus.nic, &earlier.cpus.nic),
            },
            ..self.clone()
        }
    }
}

impl<S: Clone> VmInterrupt<S> {
    fn all_since(now: &[Self], earlier: &[Self], are_same: impl Fn(&S, &S) -> bool) -> Vec<Self> {
        let since = |one: &Self| {
            let was = earlier.iter().find(|was| are_same(&one.source, &was.source));
            was.map_or_else(|| one.clone(), |was| one.since(was))
        };
        now.iter().map(since).collect()
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            set: self.set.saturating_sub(earlier.set),
            posted: self.posted.saturating_sub(earlier.posted),
            deferred: self.deferred.saturating_sub(earlier.deferred),
            lost: self.lost.saturating_sub(earlier.lost),
            spans: VmSpan::all_since(&self.spans, &earlier.spans),
            handled_on: by_cpu_since(&self.handled_on, &earlier.handled_on),
            entered_on: by_cpu_since(&self.entered_on, &earlier.entered_on),
            late: self.late.as_ref().map(|late| late.since(earlier.late.as_ref())),
            ..self.clone()
        }
    }
}

impl VmLate {
    fn since(&self, earlier: Option<&Self>) -> Self {
        let mut parts = self.parts.clone();
        for part in &mut parts {
            let kind = part.part;
            let was = earlier.and_then(|late| late.parts.iter().find(|was| was.part == kind));
            let Some(was) = was else { continue };
            part.packets = part.packets.saturating_sub(was.packets);
            part.time_ns = part.time_ns.saturating_sub(was.time_ns);
            for (comm, packets) in &mut part.behind {
                *packets = packets.saturating_sub(was.behind.get(comm).copied().unwrap_or(0));
            }
            part.behind.retain(|_, packets| *packets > 0);
        }
        parts.retain(|part| part.packets > 0);
        parts.sort_by_key(|part| u64::MAX - part.packets);
        Self { slow_ns: self.slow_ns, parts }
    }
}

impl<K: Copy + PartialEq> VmSpan<K> {
    fn all_since(now: &[Self], earlier: &[Self]) -> Vec<Self> {
        let since = |one: &Self| match earlier.iter().find(|was| was.span == one.span) {
            Some(was) => one.since(was),
            None => Some(one.clone()),
        };
        now.iter().filter_map(since).collect()
    }

    /// `None` without a packet. The longest is exact if it is the longest of all, else the end of its bucket.
    fn since(&self, earlier: &Self) -> Option<Self> {
        let was: BTreeMap<usize, u64> = by_number(&earlier.buckets).into_iter().collect();
        let left = |(bucket, n): (usize, u64)| {
            let more = n.saturating_sub(was.get(&bucket).copied().unwrap_or(0));
            (more > 0).then_some((bucket, more))
        };
        let filled: Vec<_> = by_number(&self.buckets).into_iter().filter_map(left).collect();
        let end = filled.last().map_or(0, |(bucket, _)| crate::histogram::upper_ns(*bucket));
        let is_longest = self.max_ns > earlier.max_ns;
        let longest = if is_longest { self.max_ns } else { end.min(self.max_ns) };
        Self::new(self.span, &filled, longest)
    }
}

fn by_cpu_since(now: &BTreeMap<u32, u64>, was: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    let left = |(cpu, n): (&u32, &u64)| {
        let more = n.saturating_sub(was.get(cpu).copied().unwrap_or(0));
        (more > 0).then_some((*cpu, more))
    };
    now.iter().filter_map(left).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::bucket;
    use crate::vm::{VmLatePart, VmPart, VmSpanKind};

    /// A reading after packets that took so long, of which those of 1 ms and more waited for vhost.
    fn reading(times: &[u64]) -> VmMeasurement {
        let mut filled: BTreeMap<usize, u64> = BTreeMap::new();
        times.iter().for_each(|ns| *filled.entry(bucket(*ns)).or_default() += 1);
        let filled: Vec<_> = filled.into_iter().collect();
        let longest = times.iter().copied().max().unwrap_or(0);
        let late: Vec<u64> = times.iter().copied().filter(|ns| *ns >= 1_000_000).collect();
        let part = VmLatePart {
            part: VmPart::VhostWaited,
            packets: late.len() as u64,
            time_ns: late.iter().sum(),
            behind: BTreeMap::from([("hog".to_owned(), late.len() as u64)]),
        };
        let queue = VmQueue {
            tap: "tap0".into(),
            workers: vec![7],
            taken: times.len() as u64,
            spans: VmSpan::new(VmSpanKind::Whole, &filled, longest).into_iter().collect(),
            cpus: VmCpus { vcpu: BTreeMap::from([(1, times.len() as u64)]), ..VmCpus::default() },
            late: Some(VmLate { slow_ns: 1_000_000, parts: vec![part] }),
            ..VmQueue::default()
        };
        let vm = MeasuredVm { pid: Some(4), queues: vec![queue], ..MeasuredVm::default() };
        let seconds = times.len() as f64;
        VmMeasurement { duration_s: seconds, vms: vec![vm], ..VmMeasurement::default() }
    }

    #[test]
    fn a_later_reading_is_an_earlier_one_and_what_came_since() {
        let (first, then) = ([5_000, 9_000_000, 20_000], [7_000, 3_000_000, 2_000_000]);
        let all: Vec<u64> = first.iter().chain(&then).copied().collect();
        let since = reading(&all).since(&reading(&first));
        let (queue, alone) = (&since.vms[0].queues[0], reading(&then));
        assert_eq!((since.duration_s, queue.taken, queue.cpus.vcpu[&1]), (3.0, 3, 3));
        let [part] = queue.late.as_ref().unwrap().parts.as_slice() else { panic!("{queue:?}") };
        assert_eq!((part.packets, part.time_ns, part.behind["hog"]), (2, 5_000_000, 2));
        // The longest of all came before: of these it is known by its bucket.
        let (span, expected) = (&queue.spans[0], &alone.vms[0].queues[0].spans[0]);
        assert_eq!((span.count, &span.buckets), (3, &expected.buckets));
        assert!((3_000_000..3_300_000).contains(&span.max_ns), "{span:?}");
    }

    #[test]
    fn nothing_came_since() {
        let same = reading(&[5_000, 9_000_000]);
        let queue = &same.since(&same).vms[0].queues[0];
        assert!(queue.spans.is_empty() && queue.cpus.vcpu.is_empty(), "{queue:?}");
        assert_eq!(queue.late, Some(VmLate { slow_ns: 1_000_000, parts: Vec::new() }));
        // Another worker is another start.
        let mut other = same.clone();
        other.vms[0].queues[0].workers = vec![8];
        assert_eq!(same.since(&other).vms[0].queues[0].taken, 2);
    }
}
