//! A plan while it is made: the changes so far, and where things will be after them.

use super::situation::{Situation, goes_to};
use nearpath_model::{
    CpuId, CpuSet, IfIndex, Irq, IrqNumber, Nic, PlannedChange, QueueId, Target, Value,
};
use std::collections::{BTreeMap, BTreeSet};

/// A plan while it is made.
#[derive(Debug, Default)]
pub(super) struct Draft {
    changes: Vec<PlannedChange>,
    notes: Vec<String>,
    irqs: BTreeMap<IrqNumber, CpuSet>,
    renewed: BTreeSet<IfIndex>,
    reserved: BTreeSet<(IfIndex, QueueId)>,
    threads: BTreeMap<u32, CpuSet>,
    /// Processes whose cgroup places them.
    bound: BTreeSet<u32>,
}

/// What a planner says of a change; the rest follows from its kind.
pub(super) struct Wish {
    /// Its name within the plan.
    pub id: String,
    pub target: Target,
    pub before: Value,
    pub after: Value,
    pub why: String,
    pub finding: Option<String>,
}

impl Draft {
    /// Adds a change that is made before all others so far.
    pub fn add_first(&mut self, wish: Wish) {
        self.add(wish);
        self.changes.rotate_right(1);
    }

    /// Adds a change.
    pub fn add(&mut self, wish: Wish) {
        let Wish { id, target, before, after, why, finding } = wish;
        let (reboot, optional) = (target.takes_reboot(), target.may_be_refused());
        self.changes.push(PlannedChange {
            id,
            target,
            before,
            after,
            why,
            finding,
            // What follows from the others is entered when all are there.
            persist: vec![],
            reboot,
            optional,
            predicted: None,
        });
    }

    /// Adds a note, once.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Whether a change of this target is planned.
    pub fn has(&self, target: &Target) -> bool {
        self.changes.iter().any(|change| change.target == *target)
    }

    /// Whether nothing is planned.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes and notes.
    pub fn finish(self) -> (Vec<PlannedChange>, Vec<String>) {
        (self.changes, self.notes)
    }

    /// An interface will have other queues than now.
    pub fn renew(&mut self, nic: IfIndex) {
        self.renewed.insert(nic);
    }

    /// The interfaces that will have other queues than now.
    pub fn renewed(&self) -> &BTreeSet<IfIndex> {
        &self.renewed
    }

    /// Keeps a queue for packets that a rule leads to it.
    pub fn reserve(&mut self, nic: IfIndex, queue: QueueId) {
        self.reserved.insert((nic, queue));
    }

    /// Whether a queue is kept.
    pub fn reserved(&self, nic: IfIndex, queue: QueueId) -> bool {
        self.reserved.contains(&(nic, queue))
    }

    /// Whether some queue of an interface is kept.
    pub fn is_reserved(&self, nic: &Nic) -> bool {
        self.reserved.iter().any(|(index, _)| *index == nic.ifindex)
    }

    /// An interrupt will go to this CPU, whether it takes a change or not.
    pub fn place_irq(&mut self, irq: IrqNumber, cpu: CpuId) {
        self.irqs.insert(irq, [cpu].into_iter().collect());
    }

    /// The interrupts that are placed, ascending.
    pub fn planned_irqs(&self) -> Vec<IrqNumber> {
        self.irqs.keys().copied().collect()
    }

    /// Where an interrupt was placed.
    pub fn placed(&self, irq: IrqNumber) -> Option<CpuId> {
        self.irqs.get(&irq)?.first()
    }

    /// Where an interrupt will go.
    pub fn irq_cpus<'a>(&'a self, irq: &'a Irq) -> Option<&'a CpuSet> {
        self.irqs.get(&irq.irq).or_else(|| goes_to(irq))
    }

    /// The CPUs that some interrupt of these NICs will go to.
    pub fn cpus_of_irqs<'n>(
        &self,
        situation: &Situation<'_>,
        nics: impl Iterator<Item = &'n Nic>,
    ) -> CpuSet {
        let mut all = CpuSet::new();
        for nic in nics {
            for irq in situation.queue_irqs(nic).values().flatten() {
                self.irq_cpus(irq).into_iter().flat_map(CpuSet::iter).for_each(|c| all.insert(c));
            }
        }
        all
    }

    /// A thread may run on these.
    pub fn place_thread(&mut self, tid: u32, cpus: CpuSet) {
        self.threads.insert(tid, cpus);
    }

    /// Where a thread may run.
    pub fn thread_cpus<'a>(&'a self, tid: u32, now: &'a CpuSet) -> &'a CpuSet {
        self.threads.get(&tid).unwrap_or(now)
    }

    /// A process is placed by its cgroup, and its threads need not be.
    pub fn bind(&mut self, pid: u32) {
        self.bound.insert(pid);
    }

    /// Whether a process is placed by its cgroup.
    pub fn is_bound(&self, pid: u32) -> bool {
        self.bound.contains(&pid)
    }
}
