//! Predicts the share of packets that cross to another CPU, cache or node, from the placement of interrupts, RPS and
//! readers.
//!
//! Input: the queues with their packets as weights, and changes. Output: the shares now and after each change. A packet's
//! path has three legs: from the NIC's node to the CPU that it arrives on, from there to the CPU that RPS selects, and to
//! the thread that reads it. If several CPUs are possible, each is equally likely. The last leg counts only for requested
//! readers: which packets other threads read is unknown.
//!
//! A packet stays if its three places are the same. So the share that stays is the sum over all places of the share
//! delivered there times the share read there, and a change of a queue or thread affects only its own terms: a plan of a
//! thousand changes for a thousand CPUs is predicted in milliseconds.

use super::situation::{Situation, goes_to};
use super::system::CgroupState;
use nearpath_diagnose::node_with_cpus;
use nearpath_model::{
    CpuId, CpuSet, CpusetFile, Crossings, FileOf, Irq, IrqNumber, Nic, NodeId, PlannedChange,
    QueueFile, QueueId, RxQueue, Target, UnitProperty,
};
use std::collections::BTreeMap;

/// The level at which two CPUs are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Cpu,
    Llc,
    Node,
}

const BOUNDS: [Bound; 3] = [Bound::Cpu, Bound::Llc, Bound::Node];

/// Shares by CPU, cache or node number.
type Weights = BTreeMap<u32, f64>;

/// The current shares.
pub(super) fn crossings(situation: &Situation<'_>) -> Crossings {
    Flows::now(situation).crossings()
}

/// The cumulative shares after each of these changes.
pub(super) fn effects(situation: &Situation<'_>, changes: &[PlannedChange]) -> Vec<Crossings> {
    let mut flows = Flows::now(situation);
    let mut last = flows.crossings();
    let after = |change: &PlannedChange| {
        if flows.make(change) {
            last = flows.crossings();
        }
        last
    };
    changes.iter().map(after).collect()
}

/// A weighted queue.
struct Queue {
    node: Option<NodeId>,
    irq: Option<IrqNumber>,
    /// Its interface and number.
    name: (String, QueueId),
    /// Its packets.
    weight: f64,
    /// The CPUs that its packets arrive on, with their shares; `None` if unknown.
    arrive: Option<BTreeMap<CpuId, f64>>,
    /// The CPUs that RPS sends them to; `None` if unknown.
    rps: Option<CpuSet>,
}

/// All flows of packets, which changes are applied to.
struct Flows<'a> {
    situation: &'a Situation<'a>,
    queues: Vec<Queue>,
    by_irq: BTreeMap<IrqNumber, Vec<usize>>,
    by_name: BTreeMap<(String, QueueId), usize>,
    /// The CPUs of each reader thread.
    threads: BTreeMap<u32, CpuSet>,
    /// Per level; `None` if something is unknown.
    sums: [Option<Sums>; 3],
}

/// The packets that stay at one level.
struct Sums {
    /// Packets delivered in a place without having crossed before.
    delivered: Weights,
    /// Readers of a place; `None` if none were requested.
    read: Option<Weights>,
}

impl<'a> Flows<'a> {
    fn now(situation: &'a Situation<'a>) -> Self {
        let queues = queues(situation);
        let mut by_irq: BTreeMap<IrqNumber, Vec<usize>> = BTreeMap::new();
        let mut by_name = BTreeMap::new();
        for (index, queue) in queues.iter().enumerate() {
            queue.irq.iter().for_each(|&irq| by_irq.entry(irq).or_default().push(index));
            by_name.insert(queue.name.clone(), index);
        }
        let workers = situation.workloads.iter().flat_map(|workload| &workload.threads);
        let threads = workers.map(|worker| (worker.thread.tid, worker.cpus.clone())).collect();
        let sums = [None, None, None];
        let mut flows = Self { situation, queues, by_irq, by_name, threads, sums };
        flows.sums = BOUNDS.map(|bound| flows.sums(bound));
        flows
    }

    fn sums(&self, bound: Bound) -> Option<Sums> {
        let mut delivered = Weights::new();
        for queue in &self.queues {
            self.add_queue(&mut delivered, bound, queue, 1.0)?;
        }
        let mut read = Weights::new();
        for cpus in self.threads.values() {
            self.add_reader(&mut read, bound, cpus, 1.0)?;
        }
        let read = if read.is_empty() { None } else { Some(read) };
        Some(Sums { delivered, read })
    }

    /// Adds `times` what a queue delivers to each place; `None` if that is unknown.
    fn add_queue(&self, to: &mut Weights, bound: Bound, queue: &Queue, times: f64) -> Option<()> {
        let topology = &self.situation.host.topology;
        let rps = queue.rps.as_ref()?.intersection(&topology.online);
        let at_home = |key: u32| match (bound, queue.node) {
            (Bound::Node, Some(node)) => key == node.0,
            _ => true,
        };
        let mut arrive = Weights::new();
        for (&cpu, share) in queue.arrive.as_ref()? {
            *arrive.entry(self.place(cpu, bound)?).or_default() += share;
        }
        let mut add = |key: u32, share: f64| {
            if at_home(key) {
                *to.entry(key).or_default() += times * queue.weight * share;
            }
        };
        if rps.is_empty() {
            arrive.into_iter().for_each(|(key, share)| add(key, share));
        } else {
            for cpu in rps.iter() {
                let key = self.place(cpu, bound)?;
                let came = arrive.get(&key).copied().unwrap_or(0.0);
                add(key, came / rps.len() as f64);
            }
        }
        Some(())
    }

    /// Adds a thread `times` to each place that it may read in.
    fn add_reader(&self, to: &mut Weights, bound: Bound, cpus: &CpuSet, times: f64) -> Option<()> {
        let cpus = cpus.intersection(&self.situation.host.topology.online);
        for cpu in cpus.iter() {
            *to.entry(self.place(cpu, bound)?).or_default() += times / cpus.len() as f64;
        }
        Some(())
    }

    /// The number of the CPU, cache or node of a CPU; without nodes all are on one.
    fn place(&self, cpu: CpuId, bound: Bound) -> Option<u32> {
        let topology = &self.situation.host.topology;
        match bound {
            Bound::Cpu => Some(cpu.0),
            Bound::Llc => topology.llc_of(cpu).map(|llc| llc.0),
            Bound::Node if topology.nodes.is_empty() => Some(0),
            Bound::Node => topology.node_of(cpu).map(|node| node.0),
        }
    }

    /// Applies a change; returns whether it affects the prediction.
    fn make(&mut self, change: &PlannedChange) -> bool {
        let Some(cpus) = change.cpus_after() else { return false };
        match &change.target {
            Target::File(file) => match &file.of {
                FileOf::Irq(irq) => {
                    for index in self.by_irq.get(irq).cloned().unwrap_or_default() {
                        self.change_queue(index, |queue| queue.arrive = Some(evenly(&cpus)));
                    }
                    true
                }
                FileOf::Queue { nic, queue, file: QueueFile::RpsCpus } => {
                    let Some(&index) = self.by_name.get(&(nic.clone(), *queue)) else {
                        return false;
                    };
                    self.change_queue(index, |queue| queue.rps = Some(cpus));
                    true
                }
                _ => false,
            },
            Target::Thread(thread) => self.change_thread(thread.tid, cpus),
            Target::Cpuset(cpuset) if cpuset.what == CpusetFile::Cpus => {
                self.change_cgroup(&|state| state.cgroup == cpuset.cgroup, &cpus)
            }
            Target::Unit(unit) if unit.property == UnitProperty::AllowedCpus => {
                self.change_cgroup(&|state| state.service.as_ref() == Some(&unit.unit), &cpus)
            }
            _ => false,
        }
    }

    fn change_queue(&mut self, index: usize, change: impl FnOnce(&mut Queue)) {
        let mut sums = std::mem::take(&mut self.sums);
        self.update(&mut sums, index, -1.0);
        if let Some(queue) = self.queues.get_mut(index) {
            change(queue);
        }
        self.update(&mut sums, index, 1.0);
        self.sums = sums;
    }

    /// Adds a queue to all sums; an unknown queue makes the sum unknown.
    fn update(&self, sums: &mut [Option<Sums>; 3], index: usize, times: f64) {
        let Some(queue) = self.queues.get(index) else { return };
        for (bound, sums) in BOUNDS.into_iter().zip(sums) {
            let known = sums
                .as_mut()
                .and_then(|sums| self.add_queue(&mut sums.delivered, bound, queue, times));
            if known.is_none() {
                *sums = None;
            }
        }
    }

    fn change_thread(&mut self, tid: u32, cpus: CpuSet) -> bool {
        let Some(before) = self.threads.insert(tid, cpus.clone()) else { return false };
        let mut sums = std::mem::take(&mut self.sums);
        for (bound, sums) in BOUNDS.into_iter().zip(&mut sums) {
            let known = sums.as_mut().and_then(|sums| {
                let read = sums.read.as_mut()?;
                self.add_reader(read, bound, &before, -1.0)?;
                self.add_reader(read, bound, &cpus, 1.0)
            });
            if known.is_none() {
                *sums = None;
            }
        }
        self.sums = sums;
        true
    }

    /// Restricts the threads of a cgroup to these CPUs, or allows all of them if none remain.
    fn change_cgroup(&mut self, is_it: &dyn Fn(&CgroupState) -> bool, cpus: &CpuSet) -> bool {
        let system = &self.situation.request.system;
        let inside = |pid| system.cgroup(pid).is_ok_and(is_it);
        let workloads = self.situation.workloads.iter().filter(|workload| inside(workload.pid));
        let tids: Vec<u32> =
            workloads.flat_map(|workload| &workload.threads).map(|w| w.thread.tid).collect();
        for &tid in &tids {
            let kept = self.threads.get(&tid).map(|now| now.intersection(cpus));
            let kept = kept.filter(|kept| !kept.is_empty()).unwrap_or_else(|| cpus.clone());
            self.change_thread(tid, kept);
        }
        !tids.is_empty()
    }

    fn crossings(&self) -> Crossings {
        let total: f64 = self.queues.iter().map(|queue| queue.weight).sum();
        let [other_cpu, other_llc, other_node] = self.sums.each_ref().map(|sums| {
            let stays = sums.as_ref()?.stays();
            // Clamp rounding errors.
            (total > 0.0).then(|| ((1.0 - stays / total) * 1e9).round().clamp(0.0, 1e9) / 1e9)
        });
        Crossings { other_cpu, other_llc, other_node }
    }
}

impl Sums {
    /// Packets that stay.
    fn stays(&self) -> f64 {
        let Some(read) = &self.read else { return self.delivered.values().sum() };
        let readers: f64 = read.values().sum();
        let of = |(key, count): (&u32, &f64)| {
            count * read.get(key).copied().unwrap_or(0.0) / readers.max(f64::MIN_POSITIVE)
        };
        self.delivered.iter().map(of).sum()
    }
}

/// The weighted queues: those of hardware; without hardware, those of other devices for which the arrival CPUs were
/// measured.
fn queues(situation: &Situation<'_>) -> Vec<Queue> {
    let traffic = &situation.request.traffic;
    let claims = claims(situation);
    let mut queues = Vec::new();
    for nic in situation.hardware() {
        let measured = nic.rx_queues.iter().any(|queue| traffic.of(nic, queue.queue).is_some());
        for queue in &nic.rx_queues {
            let irq = queue.irq.and_then(|irq| situation.irq(irq));
            let weight = if measured {
                traffic.of(nic, queue.queue).map(|packets| packets as f64)
            } else {
                irq.map(|irq| weight(situation, irq, &claims))
            };
            // An idle queue counts as one packet, so that a freshly booted host has shares too.
            let weight = weight.unwrap_or(0.0).max(1.0);
            let arrive = irq.and_then(goes_to).map(evenly);
            let name = (nic.name.clone(), queue.queue);
            let of_nic = nic.numa_node;
            let node = of_nic.and_then(|node| node_with_cpus(&situation.host.topology, node));
            let (irq, rps) = (queue.irq, queue.rps_cpus.clone());
            queues.push(Queue { node, irq, name, weight, arrive, rps });
        }
    }
    if queues.is_empty() && !traffic.arrivals.is_empty() {
        queues = software_queues(situation);
    }
    queues
}

/// The queues of devices without interrupts: packets arrive on the CPU that passes them on.
fn software_queues(situation: &Situation<'_>) -> Vec<Queue> {
    let traffic = &situation.request.traffic;
    let all: f64 = traffic.arrivals.values().map(|&packets| packets as f64).sum();
    let shares = || traffic.arrivals.iter().map(|(&cpu, &n)| (cpu, n as f64 / all)).collect();
    let queue = |nic: &Nic, queue: &RxQueue| Queue {
        node: None,
        irq: None,
        name: (nic.name.clone(), queue.queue),
        weight: traffic.of(nic, queue.queue).unwrap_or(0).max(1) as f64,
        arrive: Some(shares()),
        rps: queue.rps_cpus.clone(),
    };
    let of_nic = |nic: &'_ Nic| nic.rx_queues.iter().map(|rx| queue(nic, rx)).collect::<Vec<_>>();
    situation.nics().flat_map(of_nic).collect()
}

/// The number of receive interrupts per CPU; those that go to several CPUs count proportionally.
fn claims(situation: &Situation<'_>) -> BTreeMap<CpuId, f64> {
    let mut claims = BTreeMap::new();
    let nics = situation.hardware().chain(situation.other_hardware());
    for queue in nics.flat_map(|nic| &nic.rx_queues) {
        let irq = queue.irq.and_then(|irq| situation.irq(irq));
        for (cpu, share) in irq.and_then(goes_to).map(evenly).unwrap_or_default() {
            *claims.entry(cpu).or_default() += share;
        }
    }
    claims
}

/// The packets of a queue: its share of the packets measured on the CPUs of its interrupt; without a measurement, its
/// interrupts since boot.
fn weight(situation: &Situation<'_>, irq: &Irq, claims: &BTreeMap<CpuId, f64>) -> f64 {
    let polled = &situation.request.traffic.polled;
    if polled.is_empty() {
        return irq.counts.values().map(|&count| count as f64).sum();
    }
    let part = |(cpu, share): (CpuId, f64)| {
        let packets = polled.get(&cpu).copied().unwrap_or(0) as f64;
        packets * share / claims.get(&cpu).copied().unwrap_or(1.0)
    };
    goes_to(irq).map(evenly).unwrap_or_default().into_iter().map(part).sum()
}

/// Equally likely on each.
fn evenly(cpus: &CpuSet) -> BTreeMap<CpuId, f64> {
    cpus.iter().map(|cpu| (cpu, 1.0 / cpus.len() as f64)).collect()
}

#[cfg(test)]
mod tests;
