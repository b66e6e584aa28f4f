//! How NAPI polls the queues, on request: deferred interrupts, values for programs that busy-poll, interrupts that are
//! suspended while these find packets, or polling in threads.
//!
//! Input: the files of the interfaces, and the NAPI threads with the planned CPU of each queue's interrupt. Output:
//! `napi_defer_hard_irqs` with the timer that it needs, `gro_flush_timeout`; these and `irq_suspend_timeout` of each NAPI
//! instance; or `threaded`, and once its threads exist,
//! their affinities: each on the CPU of its queue's interrupt, which only wakes it, so that packets stay there.
//!
//! Rules: Documentation/networking/napi.rst ("Software IRQ coalescing", "IRQ suspension", "Threaded NAPI"), af_xdp.rst (values for
//! `SO_PREFER_BUSY_POLL`), commit 6f8b12d661d0 (values for deferred interrupts), `napi_kthread_create` of net/core/dev.c.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, cpus};
use nearpath_model::{
    CpuSet, Ethtool, InterfaceFile, NetThread, Nic, NicSetting, SettingFile, Target,
};
use std::collections::BTreeSet;

pub(super) const PLANNER: Planner = Planner {
    name: "napi",
    plans: "deferred interrupts, values for busy polling, or threads that poll, placed (--napi)",
    run,
};

/// How NAPI polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Napi {
    /// After traffic, a timer polls a few times before interrupts are enabled again: fewer interrupts.
    Defer,
    /// For programs that poll their sockets themselves: interrupts only if they stop.
    BusyPoll,
    /// As `BusyPoll` for programs that poll with epoll: no interrupts as long as they find packets.
    Suspend,
    /// In threads, which the scheduler runs beside others.
    Threaded,
}

/// Longest name of a thread that kernels before 5.17 keep.
const TRUNCATED: usize = 15;

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let Some(napi) = situation.request.napi else { return };
    for nic in situation.hardware() {
        match napi {
            Napi::Defer => deferred(situation, draft, nic, 10, 20_000, &|rounds, us| {
                format!(
                    "up to {rounds} polls of {us}µs follow traffic on {} before its interrupts are enabled: fewer \
                     interrupts; the price is up to {us}µs for packets that come in between",
                    nic.name
                )
            }),
            Napi::BusyPoll => deferred(situation, draft, nic, 2, 200_000, &|rounds, us| {
                format!(
                    "a program that prefers busy polling (SO_PREFER_BUSY_POLL) polls {} itself; the price is up to \
                     {}µs for packets when it does not",
                    nic.name,
                    us * rounds
                )
            }),
            Napi::Suspend => suspended(situation, draft, nic),
            Napi::Threaded => threaded(situation, draft, nic),
        }
    }
}

fn deferred(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    rounds: u64,
    timeout_ns: u64,
    why: &dyn Fn(u64, u64) -> String,
) {
    let values =
        [(InterfaceFile::GroFlushTimeout, timeout_ns), (InterfaceFile::NapiDeferHardIrqs, rounds)];
    // Each does nothing without the other.
    let of = |file| SettingFile::interface(&nic.name, file);
    if values.iter().any(|(file, _)| situation.request.system.number(&of(*file)).is_none()) {
        return draft.note(format!(
            "napi_defer_hard_irqs of {} is not available: it requires Linux 5.8",
            nic.name
        ));
    }
    for (file, after) in values {
        set(situation, draft, nic, file, after, why(rounds, timeout_ns / 1000));
    }
}

/// Interrupts that are suspended while a program finds packets: the longest that it takes for what it found, and low values
/// for when it finds none.
const SUSPENDED: &str = "defer-hard-irqs 2 gro-flush-timeout 20000 irq-suspend-timeout 20000000";

/// Sets each NAPI instance of a NIC: there is no file for all of them.
fn suspended(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let name = &nic.name;
    let found = match situation.request.system.napi_instances(name) {
        Ok(found) => found,
        Err(reason) => {
            return draft.note(format!("the NAPI instances of {name} are unknown: {reason}"));
        }
    };
    if !found.iter().any(|(_, now)| now.0.contains_key("irq-suspend-timeout")) {
        return draft.note(match found.is_empty() {
            true => format!("{name} has no NAPI instance while it is down"),
            false => {
                format!("irq_suspend_timeout of {name} is not available: it requires Linux 6.13")
            }
        });
    }
    // Some drivers have instances for transmit queues alone, which nobody polls for packets.
    let receives: BTreeSet<u32> = nic.rx_queues.iter().filter_map(|queue| queue.napi_id).collect();
    for (place, (id, now)) in (0..).zip(found) {
        if !receives.is_empty() && !receives.contains(id) {
            continue;
        }
        let setting = NicSetting::new(name.clone(), Ethtool::Napi(place));
        let Some(before) = now.before(SUSPENDED) else { continue };
        let queue = nic.rx_queues.iter().find(|queue| queue.napi_id == Some(*id));
        let what = match queue {
            Some(queue) => format!("queue {} of {name}", queue.queue),
            None => format!("NAPI instance {id} of {name}"),
        };
        draft.add(DraftChange {
            id: format!("{name}/napi-{place}"),
            target: setting.into(),
            before: before.to_string().into(),
            after: SUSPENDED.into(),
            why: format!(
                "a program that polls {what} with epoll and prefers busy polling (EPIOCSPARAMS) gets no interrupts while \
                 it finds packets; the price is up to 20ms for packets if it stalls"
            ),
            finding: None,
        });
    }
    draft.note(format!(
        "these parameters last as long as the queues of {name}: after a change of its channels, plan again"
    ));
}

fn threaded(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let file = InterfaceFile::Threaded;
    let name = &nic.name;
    match situation.request.system.number(&SettingFile::interface(name, file)) {
        None => draft.note(format!("{name} cannot poll in threads: it requires Linux 5.12")),
        Some(0) => {
            let why = format!(
                "the queues of {name} are polled in softirqs, which hold up the threads of their CPU; in threads the \
                 scheduler shares it, at the price of a wake-up for each poll"
            );
            set(situation, draft, nic, file, 1, why);
            draft.note(format!(
                "the threads that poll {name} exist once this is applied: plan again then to place them"
            ));
        }
        Some(_) => place(situation, draft, nic),
    }
}

/// Places the threads that poll a NIC's queues.
fn place(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let name = &nic.name;
    if nic.rx_queues.iter().all(|queue| queue.napi_id.is_none()) {
        return draft.note(format!(
            "which thread polls which queue of {name} is unknown: it requires Linux 6.8"
        ));
    }
    for queue in &nic.rx_queues {
        let (Some(id), Some(irq)) = (queue.napi_id, queue.irq.and_then(|irq| situation.irq(irq)))
        else {
            continue;
        };
        let cpu = draft.irq_cpus(irq).filter(|cpus| cpus.len() == 1).cloned();
        let (Some(after), Some(thread)) = (cpu, thread_of(situation, name, id)) else { continue };
        let Some(target) = situation.request.system.kernel_thread(thread.pid) else { continue };
        let Some(before) = thread.cpus.as_ref().filter(|before| **before != after) else {
            continue;
        };
        draft.add(DraftChange {
            id: format!("thread-{}", thread.pid),
            target: Target::from(target.clone()),
            before: before.to_string().into(),
            after: after.to_string().into(),
            why: why_there(&thread.comm, queue.queue.0, name, &after, before),
            finding: None,
        });
    }
}

fn why_there(thread: &str, queue: u32, nic: &str, after: &CpuSet, before: &CpuSet) -> String {
    format!(
        "{thread} polls queue {queue} of {nic}, whose interrupt goes to {}; it may run on {}",
        cpus(after),
        cpus(before)
    )
}

/// The thread that polls with this NAPI id.
fn thread_of<'a>(situation: &Situation<'a>, nic: &str, id: u32) -> Option<&'a NetThread> {
    let full = format!("napi/{nic}-{id}");
    let is_it = |thread: &&NetThread| {
        thread.process.is_none()
            && (thread.comm == full
                || (thread.comm.len() == TRUNCATED && full.starts_with(&thread.comm)))
    };
    let mut found = situation.host.net_threads.iter().filter(is_it);
    // Two names that are equal where they were cut.
    found.next().filter(|_| found.next().is_none())
}

fn set(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    file: InterfaceFile,
    after: u64,
    why: String,
) {
    let setting = SettingFile::interface(&nic.name, file);
    let Some(before) = situation.request.system.number(&setting).filter(|now| *now != after) else {
        return;
    };
    draft.add(DraftChange {
        id: format!("{}/{file}", nic.name),
        target: setting.into(),
        before: before.to_string().into(),
        after: after.to_string().into(),
        why,
        finding: None,
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TWO_NODES, eth0, host, of_kind, planned_for, set as cpu_set};
    use super::super::{Plan, Request, System};
    use super::*;
    use crate::ethtool::NapiValues;
    use nearpath_model::{Goal, Host, Thread};
    use nearpath_testing::trees::Machine;
    use std::collections::BTreeMap;

    fn planned(host: &Host, napi: Option<Napi>, values: &[(InterfaceFile, &str)]) -> Plan {
        let files: Vec<(SettingFile, &str)> = values
            .iter()
            .map(|(file, value)| (SettingFile::interface("eth0", *file), *value))
            .collect();
        let threads = host.net_threads.iter().map(|its| Thread::new(its.pid, its.pid, 7));
        let system =
            System::default().with_interface_files(&files).with_kernel_threads(threads.collect());
        let request = Request { goal: Goal::Latency, napi, system, ..Request::default() };
        planned_for(host, &request, &[]).unwrap()
    }

    fn values(plan: &Plan) -> BTreeMap<&str, &str> {
        ["gro_flush_timeout", "napi_defer_hard_irqs", "threaded"]
            .iter()
            .flat_map(|kind| of_kind(plan, kind).into_values().map(move |value| (*kind, value)))
            .collect()
    }

    #[test]
    fn deferral_and_its_timer_are_set_together() {
        let host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4], &[5]])));
        let (timer, rounds) = (InterfaceFile::GroFlushTimeout, InterfaceFile::NapiDeferHardIrqs);
        let off = [(timer, "0"), (rounds, "0")];
        let with = |napi, files: &[(InterfaceFile, &str)]| planned(&host, napi, files);
        assert!(values(&with(None, &off)).is_empty());
        let plan = with(Some(Napi::Defer), &off);
        let expected = [("gro_flush_timeout", "20000"), ("napi_defer_hard_irqs", "10")];
        assert_eq!(values(&plan), expected.into());
        let why = &plan.changes.iter().find(|its| its.id == "eth0/gro_flush_timeout").unwrap().why;
        assert!(why.contains("the price is up to 20µs"), "{why}");
        let plan = with(Some(Napi::BusyPoll), &off);
        let expected = [("gro_flush_timeout", "200000"), ("napi_defer_hard_irqs", "2")];
        assert_eq!(values(&plan), expected.into());
        // Neither is turned off again, as it would be for latency.
        assert!(
            values(&with(Some(Napi::BusyPoll), &[(timer, "200000"), (rounds, "2")])).is_empty()
        );
        let old = with(Some(Napi::Defer), &[(timer, "0")]);
        assert!(values(&old).is_empty() && old.notes.iter().any(|n| n.contains("Linux 5.8")));
    }

    #[test]
    fn interrupts_are_suspended_by_napi_instance() {
        let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4], &[5]])));
        host.nics[0].rx_queues[1].napi_id = Some(8194);
        let unlinked = {
            let mut host = host.clone();
            host.nics[0].rx_queues[1].napi_id = None;
            host
        };
        let with_host = |host: &Host, found: Vec<(u32, &str)>| {
            let found = found
                .into_iter()
                .map(|(id, values)| (id, NapiValues::parse(values).unwrap_or_default()));
            let system = System::default().with_napi_instances("eth0", found.collect());
            let napi = Some(Napi::Suspend);
            let request = Request { goal: Goal::Latency, napi, system, ..Request::default() };
            planned_for(host, &request, &[]).unwrap()
        };
        let with = |found| with_host(&host, found);
        let now = "defer-hard-irqs 0 gro-flush-timeout 0 irq-suspend-timeout 0 threaded 0";
        // The third has the values already.
        let all = vec![(8193, now), (8194, now), (8195, SUSPENDED)];
        let targets = |plan: &Plan| -> Vec<String> {
            let napi = plan.changes.iter().filter(|its| its.kind() == "napi");
            napi.map(|its| its.target.to_plan()).collect()
        };
        let plan = with_host(&unlinked, all.clone());
        assert_eq!(targets(&plan), ["napi eth0 0", "napi eth0 1"]);
        assert!(plan.changes.iter().any(|its| its.why.contains("NAPI instance 8193 of eth0")));
        // The first sends only.
        let plan = with(all);
        assert_eq!(targets(&plan), ["napi eth0 1"]);
        let napi: Vec<_> = plan.changes.iter().filter(|its| its.kind() == "napi").collect();
        let before = "defer-hard-irqs 0 gro-flush-timeout 0 irq-suspend-timeout 0";
        assert_eq!(napi[0].before.text(), Some(before));
        assert_eq!(napi[0].after.text(), Some(SUSPENDED));
        assert!(napi[0].why.contains("queue 1 of eth0"), "{}", napi[0].why);
        let old = with(vec![(8193, "")]);
        assert!(old.notes.iter().any(|note| note.contains("Linux 6.13")), "{:?}", old.notes);
        let down = with(Vec::new());
        assert!(down.notes.iter().any(|note| note.contains("is down")), "{:?}", down.notes);
        let unknown = planned(&host, Some(Napi::Suspend), &[]);
        assert!(unknown.notes.iter().any(|n| n.contains("running host")), "{:?}", unknown.notes);
    }

    #[test]
    fn threads_that_poll_are_placed_once_they_exist() {
        let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4], &[5], &[6]])));
        let threaded = InterfaceFile::Threaded;
        let plan = planned(&host, Some(Napi::Threaded), &[(threaded, "0")]);
        assert_eq!(values(&plan), [("threaded", "1")].into());
        assert!(plan.notes.iter().any(|note| note.contains("plan again")), "{:?}", plan.notes);
        let unknown = planned(&host, Some(Napi::Threaded), &[(threaded, "1")]);
        assert!(unknown.notes.iter().any(|n| n.contains("Linux 6.8")), "{:?}", unknown.notes);
        for (queue, id) in host.nics[0].rx_queues.iter_mut().zip(8193..) {
            queue.napi_id = Some(id);
        }
        let thread = |pid, comm: &str, process| NetThread {
            pid,
            process,
            comm: comm.to_owned(),
            cpus: Some(cpu_set("0-15")),
            run_ns: None,
            wait_ns: None,
        };
        host.net_threads = vec![
            thread(900, "napi/eth0-8193", None),
            // Of another interface, and a program that has the name.
            thread(901, "napi/eth01-8194", None),
            thread(902, "napi/eth0-8194", Some(70)),
            thread(903, "napi/eth0-8195", None),
        ];
        let plan = planned(&host, Some(Napi::Threaded), &[(threaded, "1")]);
        let placed: Vec<(&str, &str)> = plan
            .changes
            .iter()
            .filter(|change| change.kind() == "thread_affinity")
            .map(|change| (change.id.as_str(), change.after.text().unwrap()))
            .collect();
        assert_eq!(placed, [("thread-900", "4"), ("thread-903", "6")]);
        let none = planned(&host, Some(Napi::Threaded), &[]);
        assert!(none.notes.iter().any(|n| n.contains("Linux 5.12")), "{:?}", none.notes);
    }
}
