//! A plan: an ordered list of changes as plain data, with their predicted effect.
//!
//! `tune plan --json` prints it and `tune apply FILE` reads it: values and targets are text, so that a person
//! can read it, remove changes, and save it.

use crate::{Change, CpuSet, NicIrq, Target, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Version of the JSON form of [`Plan`].
pub const PLAN_SCHEMA: u32 = 1;

/// Changes in the order in which they are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`PLAN_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Its goal.
    pub goal: Goal,
    /// The boot in which it was made: interrupts and threads have other numbers in the next boot. `None` if it
    /// was made for another host.
    pub boot: Option<String>,
    /// When reading the host for it began, in clock ticks since boot, like the start of threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_ticks: Option<u64>,
    /// Inode of the network namespace in which it was made.
    pub netns: Option<u64>,
    /// The changes.
    pub changes: Vec<PlannedChange>,
    /// Shares of packets on the host as it is now.
    pub now: Crossings,
    /// Shares predicted with the plan.
    pub predicted: Crossings,
    /// What is not planned, with the reason; and notes to read before it is applied.
    pub notes: Vec<String>,
}

/// The goal of tuning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Low latency: no steering that costs a hop.
    #[default]
    Latency,
    /// Throughput: idle CPUs help with RPS if there are fewer queues than CPUs.
    Throughput,
    /// Isolation: no interrupts on the application's CPUs.
    Isolation,
}

/// Shares of packets, from 0 to 1; `None` is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Crossings {
    /// Packets processed by two or more CPUs.
    pub other_cpu: Option<f64>,
    /// Packets that cross to another last-level cache.
    pub other_llc: Option<f64>,
    /// Packets that cross to another node.
    pub other_node: Option<f64>,
}

/// A change of a plan. In JSON, target and values are text ([`Target::to_plan`]), with the target's kind
/// beside them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct PlannedChange {
    /// Its id within the plan: `eth0/rx-0/rps_cpus`.
    pub id: String,
    /// The target of the write.
    pub target: Target,
    /// The value when the plan is made.
    pub before: Value,
    /// The new value.
    pub after: Value,
    /// Why, in one sentence with its evidence.
    pub why: String,
    /// The check whose finding it fixes, if there is one.
    pub finding: Option<String>,
    /// The system's own means to make it persistent.
    pub persist: Vec<String>,
    /// Whether it requires a reboot.
    pub reboot: bool,
    /// Whether the plan continues without it if the kernel does not support it (a managed interrupt).
    pub optional: bool,
    /// Predicted shares of packets after it and the changes before it; `None` if the plan has no prediction.
    pub predicted: Option<Crossings>,
}

/// The JSON of a [`PlannedChange`].
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    id: String,
    /// `irq_affinity`, `rps_cpus`, `sysctl`, …; derived from the target, for readers.
    #[serde(default)]
    kind: String,
    /// A path, `affinity pid PID tid TID start TICKS`, or a path and a variable in the file.
    target: String,
    before: String,
    after: String,
    why: String,
    finding: Option<String>,
    persist: Vec<String>,
    reboot: bool,
    optional: bool,
    #[serde(default)]
    predicted: Option<Crossings>,
    /// For the affinity of a queue's interrupt: identifies it when its number has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interrupt: Option<NicIrq>,
}

impl From<PlannedChange> for Written {
    fn from(change: PlannedChange) -> Self {
        let interrupt = change.interrupt().cloned();
        let PlannedChange { id, target, before, after, why, finding, persist, .. } = change;
        let PlannedChange { reboot, optional, predicted, .. } = change;
        Self {
            id,
            kind: target.kind().to_owned(),
            before: before.to_plan(),
            after: after.to_plan(),
            target: target.to_plan(),
            why,
            finding,
            persist,
            reboot,
            optional,
            predicted,
            interrupt,
        }
    }
}

impl TryFrom<Written> for PlannedChange {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written { id, target, before, after, why, finding, persist, .. } = written;
        let Written { reboot, optional, predicted, interrupt, .. } = written;
        let mut target = Target::parse(&target, None).ok_or_else(|| {
            format!("{target:?} of the plan is not a setting that nearpath changes")
        })?;
        if let Target::File(file) = &mut target {
            file.interrupt = interrupt;
        }
        let value = |text: &str| {
            let refuse = || format!("{target}: {text:?} is not a valid value");
            Value::parse(&target, text).ok_or_else(refuse)
        };
        let (before, after) = (value(&before)?, value(&after)?);
        let change =
            Self { id, target, before, after, why, finding, persist, reboot, optional, predicted };
        Ok(change)
    }
}

/// A plan that does not apply to this machine, or to its current state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the plan {0}")]
pub struct PlanRefused(String);

/// A change for the executor, and whether it is optional.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The change.
    pub change: Change,
    /// Whether the plan continues without it if the kernel does not support it.
    pub optional: bool,
}

/// The part of a plan that can be re-applied after a reboot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AtBoot {
    /// The changes that can be.
    pub steps: Vec<Step>,
    /// The ids of those that cannot be, each with the reason.
    pub left_out: Vec<(String, &'static str)>,
}

impl Plan {
    /// The steps for the executor: all changes, or those of these ids.
    ///
    /// # Errors
    /// The plan is of a newer nearpath, of another boot, network namespace or machine, or contains no change
    /// with such an id.
    pub fn steps(
        &self,
        only: &[String],
        boot: &str,
        netns: Option<u64>,
    ) -> Result<Vec<Step>, PlanRefused> {
        let refuse = |reason: &str| Err(PlanRefused(reason.to_owned()));
        if self.schema > PLAN_SCHEMA {
            return refuse(&format!("was made by a newer nearpath (schema {})", self.schema));
        }
        match &self.boot {
            None => return refuse("was made of another host's facts; make one on this machine"),
            Some(its) if its != boot => {
                return refuse("was made before the machine was booted; make a new one");
            }
            Some(_) => {}
        }
        if self.netns != netns {
            return refuse("was made in another network namespace; use the same --netns");
        }
        let mut ids = BTreeSet::new();
        if let Some(twice) = self.changes.iter().find(|change| !ids.insert(change.id.as_str())) {
            return refuse(&format!("has two changes with the id {:?}", twice.id));
        }
        if let Some(unknown) = only.iter().find(|id| !ids.contains(id.as_str())) {
            return refuse(&format!("has no change with the id {unknown:?}"));
        }
        let wanted = |change: &&PlannedChange| only.is_empty() || only.contains(&change.id);
        let step = |change: &PlannedChange| {
            let mut step = change.step(netns);
            if let Target::Thread(thread) = &mut step.change.target {
                thread.since_ticks = self.made_ticks;
                thread.planned = self.planned_since(thread.pid);
            }
            step
        };
        Ok(self.changes.iter().filter(wanted).map(step).collect())
    }
}

impl Plan {
    /// The threads of a process that started after reading the host began, and have a change: listed later than that.
    fn planned_since(&self, pid: u32) -> Vec<(u32, u64)> {
        let Some(since) = self.made_ticks else { return vec![] };
        let threads = self.changes.iter().filter_map(|change| match &change.target {
            Target::Thread(thread) => Some(thread),
            _ => None,
        });
        let newer = threads.filter(|thread| thread.pid == pid && thread.start_ticks >= since);
        newer.map(|thread| (thread.tid, thread.start_ticks)).collect()
    }

    /// The changes that can be re-applied after a reboot: all, or those with these ids. The namespace is the
    /// current one at that time, and the values found then differ from the plan's.
    ///
    /// # Errors
    /// The plan is of a newer nearpath, or contains no change with such an id.
    pub fn at_boot(&self, only: &[String], netns: Option<u64>) -> Result<AtBoot, PlanRefused> {
        let same = Self { boot: Some(String::new()), netns, ..self.clone() };
        let mut made = AtBoot::default();
        let wanted = |change: &&PlannedChange| only.is_empty() || only.contains(&change.id);
        let ids = same.changes.iter().filter(wanted).map(|change| change.id.clone());
        for (id, step) in ids.zip(same.steps(only, "", netns)?) {
            match step.change.target.lost_for_good() {
                None => made.steps.push(step),
                Some(reason) => made.left_out.push((id, reason)),
            }
        }
        Ok(made)
    }

    /// How much each change alone lowers the shares, after those before it: to another node, cache, CPU; zero
    /// if unknown.
    fn gains(&self) -> Vec<[f64; 3]> {
        let mut before = self.now;
        let gain = |change: &PlannedChange| {
            let after = change.predicted.unwrap_or(before);
            let of = |share: fn(&Crossings) -> Option<f64>| {
                share(&before).zip(share(&after)).map_or(0.0, |(before, after)| before - after)
            };
            let gain = [of(|c| c.other_node), of(|c| c.other_llc), of(|c| c.other_cpu)];
            before = after;
            gain
        };
        self.changes.iter().map(gain).collect()
    }

    /// The ids of the changes by predicted effect, largest first: the one that keeps most packets on their
    /// node, then under their cache, then on their CPU. Others follow in the plan's order.
    pub fn by_effect(&self) -> Vec<String> {
        let mut changes: Vec<_> = self.changes.iter().zip(self.gains()).collect();
        changes.sort_by(|(_, a), (_, b)| b.partial_cmp(a).unwrap_or(std::cmp::Ordering::Equal));
        changes.into_iter().map(|(change, _)| change.id.clone()).collect()
    }
}

impl Plan {
    /// The ids of changes in groups that are tried together, in the order of [`Plan::by_effect`]: changes of a kind that
    /// belong to one interface, process or cgroup, like all interrupts of a NIC.
    pub fn groups(&self) -> Vec<Vec<String>> {
        let mut groups: Vec<((&str, String), Vec<String>)> = Vec::new();
        for id in self.by_effect() {
            let Some(change) = self.changes.iter().find(|change| change.id == id) else { continue };
            let key = (change.kind(), change.target.owner());
            let key = if key.1.is_empty() { (key.0, id.clone()) } else { key };
            match groups.iter_mut().find(|(other, _)| *other == key) {
                Some((_, ids)) => ids.push(id),
                None => groups.push((key, vec![id])),
            }
        }
        groups.into_iter().map(|(_, ids)| ids).collect()
    }
}

impl PlannedChange {
    /// The kind of setting: `irq_affinity`, `rps_cpus`, `sysctl`, `thread_affinity`, `unit_drop_in`,
    /// `kernel_command_line`.
    pub fn kind(&self) -> &'static str {
        self.target.kind()
    }

    /// For the affinity of a queue's interrupt: identifies it when its number has changed.
    pub fn interrupt(&self) -> Option<&NicIrq> {
        match &self.target {
            Target::File(file) => file.interrupt.as_ref(),
            _ => None,
        }
    }

    /// The CPUs that it sets; `None` if it does not set CPUs.
    pub fn cpus_after(&self) -> Option<CpuSet> {
        self.target.set_of(&self.after)
    }

    fn step(&self, netns: Option<u64>) -> Step {
        let change = Change {
            target: self.target.clone().in_netns(netns),
            before: self.before.clone(),
            after: self.after.clone(),
            persistence: self.target.persistence(),
            snapshot: Vec::new(),
            why: self.why.clone(),
        };
        Step { change, optional: self.optional }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SettingFile, Thread};

    fn planned(id: &str, target: &str) -> PlannedChange {
        PlannedChange {
            id: id.to_owned(),
            target: Target::parse(target, None).unwrap(),
            before: "0".into(),
            after: "1".into(),
            why: "a test".to_owned(),
            finding: None,
            persist: vec![],
            reboot: false,
            optional: id == "irq",
            predicted: None,
        }
    }

    fn plan() -> Plan {
        Plan {
            schema: PLAN_SCHEMA,
            goal: Goal::Latency,
            boot: Some("now".to_owned()),
            made_ticks: None,
            netns: Some(5),
            changes: vec![
                planned("irq", "/proc/irq/40/smp_affinity_list"),
                planned("rps", "/sys/class/net/eth0/queues/rx-0/rps_cpus"),
                planned("thread", "affinity pid 7 tid 8 start 99"),
            ],
            now: Crossings::default(),
            predicted: Crossings::default(),
            notes: vec![],
        }
    }

    #[test]
    fn a_plan_becomes_steps() {
        let steps = plan().steps(&[], "now", Some(5)).unwrap();
        let targets: Vec<Target> = steps.iter().map(|step| step.change.target.clone()).collect();
        let file = |path: &str, netns| SettingFile::parse(path, netns).unwrap().into();
        let thread = Thread::new(7, 8, 99);
        assert_eq!(
            targets,
            [
                file("/proc/irq/40/smp_affinity_list", None),
                file("/sys/class/net/eth0/queues/rx-0/rps_cpus", Some(5)),
                Target::Thread(thread),
            ]
        );
        assert_eq!(
            steps.iter().map(|step| step.optional).collect::<Vec<_>>(),
            [true, false, false]
        );
        // Threads that start later follow it.
        let timed = Plan { made_ticks: Some(100), ..plan() };
        let steps_of_timed = timed.steps(&["thread".to_owned()], "now", Some(5)).unwrap();
        let Target::Thread(thread) = &steps_of_timed[0].change.target else { panic!() };
        assert_eq!((thread.since_ticks, thread.planned.as_slice()), (Some(100), &[][..]));
        // Those with a change of their own do not.
        let mut newer = timed.clone();
        newer.changes.push(planned("newer", "affinity pid 7 tid 9 start 100"));
        newer.changes.push(planned("other", "affinity pid 6 tid 6 start 100"));
        let steps_of_newer = newer.steps(&["thread".to_owned()], "now", Some(5)).unwrap();
        let Target::Thread(thread) = &steps_of_newer[0].change.target else { panic!() };
        assert_eq!(thread.planned, [(9, 100)]);
        let some = plan().steps(&["rps".to_owned()], "now", Some(5)).unwrap();
        assert_eq!(some, steps[1..2]);
    }

    #[test]
    fn the_json_has_the_documented_names() {
        let json = serde_json::to_value(plan()).unwrap();
        for name in ["goal", "changes", "predicted"] {
            assert!(json.get(name).is_some(), "{name}");
        }
        for share in ["other_cpu", "other_llc", "other_node"] {
            assert!(json["predicted"].get(share).is_some(), "{share}");
        }
        for name in [
            "id", "kind", "target", "before", "after", "why", "finding", "persist", "reboot",
            "optional",
        ] {
            assert!(json["changes"][0].get(name).is_some(), "{name}");
        }
        // A plan from before per-change predictions is still accepted.
        let mut older = json;
        older["changes"][0].as_object_mut().unwrap().remove("predicted");
        assert_eq!(serde_json::from_value::<Plan>(older).unwrap(), plan());
    }

    #[test]
    fn changes_are_sorted_by_effect() {
        let shares = |node: f64, cpu: f64| Crossings {
            other_cpu: Some(cpu),
            other_llc: None,
            other_node: Some(node),
        };
        let mut plan = Plan { now: shares(1.0, 1.0), ..plan() };
        plan.changes.push(planned("xps", "/sys/class/net/eth0/queues/tx-0/xps_cpus"));
        assert_eq!(plan.by_effect(), ["irq", "rps", "thread", "xps"], "no prediction");
        // A fifth fewer packets to another node, then fewer to another CPU only, then all of the rest.
        let effects = [shares(0.8, 1.0), shares(0.8, 0.5), shares(0.0, 0.5), shares(0.0, 0.5)];
        for (change, effect) in plan.changes.iter_mut().zip(effects) {
            change.predicted = Some(effect);
        }
        assert_eq!(plan.by_effect(), ["thread", "irq", "rps", "xps"]);
    }

    #[test]
    fn changes_of_a_kind_are_one_group() {
        let mut plan = plan();
        let irq = |id: &str, number: u32, nic: &str| {
            let mut change = planned(id, &format!("/proc/irq/{number}/smp_affinity_list"));
            let Target::File(file) = &mut change.target else { panic!() };
            file.interrupt = Some(NicIrq { nic: nic.to_owned(), name: format!("{nic}-{number}") });
            change
        };
        plan.changes = vec![
            irq("irq-40", 40, "eth0"),
            irq("irq-50", 50, "eth1"),
            planned("rps-0", "/sys/class/net/eth0/queues/rx-0/rps_cpus"),
            irq("irq-41", 41, "eth0"),
            planned("busy_poll", "/proc/sys/net/core/busy_poll"),
            planned("rps-1", "/sys/class/net/eth0/queues/rx-1/rps_cpus"),
            planned("busy_read", "/proc/sys/net/core/busy_read"),
            planned("thread-8", "affinity pid 7 tid 8 start 99"),
            planned("thread-9", "affinity pid 7 tid 9 start 99"),
            planned("rings", "ethtool eth0 rings"),
        ];
        assert_eq!(
            plan.groups(),
            [
                vec!["irq-40", "irq-41"],
                vec!["irq-50"],
                vec!["rps-0", "rps-1"],
                vec!["busy_poll"],
                vec!["busy_read"],
                vec!["thread-8", "thread-9"],
                vec!["rings"],
            ]
        );
        let disrupts: Vec<bool> =
            plan.changes.iter().map(|change| change.target.disrupts().is_some()).collect();
        assert_eq!(disrupts.iter().position(|disrupts| *disrupts), Some(9));
    }

    #[test]
    fn plans_of_other_machines_are_refused() {
        let said = |plan: &Plan, only: &[String], boot, netns| {
            plan.steps(only, boot, netns).unwrap_err().to_string()
        };
        assert!(said(&plan(), &[], "later", Some(5)).contains("before the machine was booted"));
        assert!(said(&plan(), &[], "now", Some(6)).contains("another network namespace"));
        assert!(said(&plan(), &["x".to_owned()], "now", Some(5)).contains("no change with the id"));
        let other = Plan { boot: None, ..plan() };
        assert!(said(&other, &[], "now", Some(5)).contains("another host's facts"));
        let newer = Plan { schema: 2, ..plan() };
        assert!(said(&newer, &[], "now", Some(5)).contains("newer nearpath"));
        let file = "/proc/sys/net/core/busy_poll";
        let twice = Plan { changes: vec![planned("a", file), planned("a", file)], ..plan() };
        assert!(said(&twice, &[], "now", Some(5)).contains("two changes"));
    }

    #[test]
    fn a_plan_with_an_unknown_setting_is_rejected() {
        let json = serde_json::to_value(plan()).unwrap();
        for (field, text) in [("target", "/etc/passwd"), ("target", "ethtool x flash")] {
            let mut bad = json.clone();
            bad["changes"][0][field] = text.into();
            let refused = serde_json::from_value::<Plan>(bad).unwrap_err().to_string();
            assert!(refused.contains("not a setting that nearpath changes"), "{refused}");
        }
    }
}
