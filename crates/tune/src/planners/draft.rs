//! A plan under construction: the changes so far, and the resulting placement.

use super::situation::{Situation, goes_to};
use nearpath_model::{
    CpuId, CpuSet, IfIndex, Irq, IrqNumber, Nic, PlannedChange, QueueId, Severity, Target, Value,
};
use std::collections::{BTreeMap, BTreeSet};

/// A plan under construction.
#[derive(Debug, Default)]
pub(super) struct Draft {
    changes: Vec<PlannedChange>,
    notes: Vec<String>,
    irqs: BTreeMap<IrqNumber, CpuSet>,
    queues_reset: BTreeSet<IfIndex>,
    reserved: BTreeSet<(IfIndex, QueueId)>,
    threads: BTreeMap<u32, CpuSet>,
    /// Processes placed by their cgroup.
    bound: BTreeSet<u32>,
}

/// A change as given by a planner; the rest follows from its kind.
pub(super) struct DraftChange {
    /// Its id in the plan.
    pub id: String,
    pub target: Target,
    pub before: Value,
    pub after: Value,
    pub why: String,
    pub finding: Option<String>,
}

impl Draft {
    /// Adds a change before all others so far.
    pub fn add_first(&mut self, wish: DraftChange) {
        self.add(wish);
        self.changes.rotate_right(1);
    }

    /// Adds a change.
    pub fn add(&mut self, wish: DraftChange) {
        let DraftChange { id, target, before, after, why, finding } = wish;
        let (reboot, optional) = (target.takes_reboot(), target.may_be_refused());
        self.changes.push(PlannedChange {
            id,
            target,
            before,
            after,
            why,
            finding,
            // Filled in when all changes are known.
            persist: vec![],
            reboot,
            optional,
            predicted: None,
        });
    }

    /// Adds what a finding proposes for a setting, as `id`, if it is at least a warning.
    pub fn add_proposed(&mut self, situation: &Situation<'_>, target: Target, id: String) {
        let Some((finding, change)) = situation.proposed(&target) else { return };
        let Some(before) = change.before.clone() else { return };
        if finding.severity < Severity::Warning {
            return;
        }
        self.add(DraftChange {
            id,
            target,
            before,
            after: change.after.clone(),
            why: change.why.trim_end_matches('.').to_owned(),
            finding: Some(finding.check.clone()),
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
        self.targets().any(|its| its == target)
    }

    /// The changes so far.
    pub fn changes(&self) -> impl Iterator<Item = &PlannedChange> {
        self.changes.iter()
    }

    /// The targets of the changes so far.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.changes.iter().map(|change| &change.target)
    }

    /// The change of this target, if one is planned.
    pub fn planned(&mut self, target: &Target) -> Option<&mut PlannedChange> {
        self.changes.iter_mut().find(|change| change.target == *target)
    }

    /// Whether nothing is planned.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes and notes.
    pub fn finish(self) -> (Vec<PlannedChange>, Vec<String>) {
        (self.changes, self.notes)
    }

    /// Marks an interface whose queues will be re-created.
    pub fn mark_queues_reset(&mut self, nic: IfIndex) {
        self.queues_reset.insert(nic);
    }

    /// The interfaces whose queues will be re-created.
    pub fn queues_reset(&self) -> &BTreeSet<IfIndex> {
        &self.queues_reset
    }

    /// Reserves a queue for packets steered by a rule.
    pub fn reserve(&mut self, nic: IfIndex, queue: QueueId) {
        self.reserved.insert((nic, queue));
    }

    /// Whether a queue is reserved.
    pub fn reserved(&self, nic: IfIndex, queue: QueueId) -> bool {
        self.reserved.contains(&(nic, queue))
    }

    /// Whether any queue of an interface is reserved.
    pub fn is_reserved(&self, nic: &Nic) -> bool {
        self.reserved.iter().any(|(index, _)| *index == nic.ifindex)
    }

    /// Records the CPU that an interrupt will go to, with or without a change.
    pub fn place_irq(&mut self, irq: IrqNumber, cpu: CpuId) {
        self.irqs.insert(irq, [cpu].into_iter().collect());
    }

    /// The placed interrupts, ascending.
    pub fn planned_irqs(&self) -> Vec<IrqNumber> {
        self.irqs.keys().copied().collect()
    }

    /// The CPU that an interrupt was placed on.
    pub fn placed(&self, irq: IrqNumber) -> Option<CpuId> {
        self.irqs.get(&irq)?.first()
    }

    /// The CPUs that an interrupt will go to.
    pub fn irq_cpus<'a>(&'a self, irq: &'a Irq) -> Option<&'a CpuSet> {
        self.irqs.get(&irq.irq).or_else(|| goes_to(irq))
    }

    /// The CPUs that interrupts of these NICs will go to.
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

    /// Records the CPUs of a thread.
    pub fn place_thread(&mut self, tid: u32, cpus: CpuSet) {
        self.threads.insert(tid, cpus);
    }

    /// The CPUs that a thread will be allowed on.
    pub fn thread_cpus<'a>(&'a self, tid: u32, now: &'a CpuSet) -> &'a CpuSet {
        self.threads.get(&tid).unwrap_or(now)
    }

    /// Marks a process as placed by its cgroup instead of per thread.
    pub fn bind(&mut self, pid: u32) {
        self.bound.insert(pid);
    }

    /// Whether a process is placed by its cgroup.
    pub fn is_bound(&self, pid: u32) -> bool {
        self.bound.contains(&pid)
    }
}
