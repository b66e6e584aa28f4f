//! Moves vhost workers and emulator threads of virtual machines to the CPUs that the checks `vm_vhost` and
//! `vm_slow_packets` propose.
//!
//! Input: the findings of these checks, and the threads of the host's virtual machines. Output: affinity changes of
//! these threads. vCPUs are not moved: their pins belong to the guest's configuration. A note has the lines for
//! libvirt, which make the pins of emulator threads and vhost workers (libvirt's emulator cgroup has both) last beyond
//! this run.
//!
//! Rules: Linaro's latencies to virtual machines ("move vhost process to CPU#3"), libvirt's `<cputune>`.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use nearpath_model::{CpuSet, Proposal, ProposedChange, Thread, Vm, VmThread, shell};

pub(super) const PLANNER: Planner = Planner {
    name: "vm_threads",
    plans: "vhost workers and emulator threads near their guest, off the CPUs of its vCPUs",
    run,
};

/// In this order: where packets were late, that is where the worker must not be.
const CHECKS: [&str; 2] = ["vm_slow_packets", "vm_vhost"];

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let of = |check| situation.findings.iter().filter(move |finding| finding.check == check);
    let changes = CHECKS.into_iter().flat_map(|check| {
        of(check).flat_map(move |finding| finding.changes.iter().map(move |change| (check, change)))
    });
    for (check, change) in changes {
        let Some((vm, thread)) = thread_of(&situation.host.vms, change) else { continue };
        let Some(after) = change.after.text().and_then(|list| CpuSet::from_list(list).ok()) else {
            continue;
        };
        let (Some(start_ticks), Some(before)) = (thread.start_ticks, &thread.cpus) else {
            let (comm, tid) = (&thread.comm, thread.tid);
            draft.note(format!("{comm} ({tid}) is not moved: when it started is unknown"));
            continue;
        };
        let target = Thread::new(thread.pid, thread.tid, start_ticks).into();
        if *before == after || draft.has(&target) {
            continue;
        }
        draft.place_thread(thread.tid, after.clone());
        draft.add(DraftChange {
            id: format!("thread-{}", thread.tid),
            target,
            before: before.to_string().into(),
            after: after.to_string().into(),
            why: format!("{} of {}: {}", thread.comm, vm.label(), change.why),
            finding: Some(check.to_owned()),
        });
        draft.note(for_libvirt(vm, &after));
    }
}

/// The thread that a change proposes to move.
fn thread_of<'a>(vms: &'a [Vm], change: &ProposedChange) -> Option<(&'a Vm, &'a VmThread)> {
    let Proposal::Affinity { pid, tid } = change.target else { return None };
    vms.iter().find_map(|vm| {
        let mut threads = vm.vhost_workers.iter().chain(&vm.emulator);
        let thread = threads.find(|t| t.pid == pid && t.tid == tid.unwrap_or(pid))?;
        Some((vm, thread))
    })
}

/// What keeps it so where libvirt starts the guest. The numbers are those of vCPUs that are pinned already.
fn for_libvirt(vm: &Vm, after: &CpuSet) -> String {
    let pin = |vcpu: &nearpath_model::Vcpu| {
        let cpus = vcpu.thread.as_ref()?.cpus.as_ref()?;
        let pin = format!("<vcpupin vcpu='{}' cpuset='{cpus}'/>", vcpu.number);
        (cpus.len() == 1).then_some(pin)
    };
    let pins: String = vm.vcpus.iter().filter_map(pin).collect();
    let memory = vm
        .main_node()
        .map(|(node, _)| format!("<numatune><memory mode='strict' nodeset='{node}'/></numatune>"));
    format!(
        "to keep it with libvirt, virsh edit {}: <cputune>{pins}<emulatorpin cpuset='{after}'/></cputune>{}",
        shell::word(vm.name.as_deref().unwrap_or("DOMAIN")),
        memory.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TWO_NODES, eth0, host};
    use super::super::{Request, plan};
    use super::*;
    use nearpath_model::{Finding, Host, NodeId, Severity, Value, Vcpu};
    use nearpath_testing::trees::Machine;
    use std::collections::BTreeMap;

    const CHECK: &str = "vm_vhost";

    fn thread(pid: u32, tid: u32, cpus: &str, start_ticks: Option<u64>) -> VmThread {
        let cpus = Some(CpuSet::from_list(cpus).unwrap());
        let comm = "vhost-700".to_owned();
        VmThread { tid, pid, comm, cpus, start_ticks, ..VmThread::default() }
    }

    fn with_vm(workers: Vec<VmThread>) -> Host {
        let vcpu = Vcpu { number: 0, thread: Some(thread(700, 701, "4", Some(5))) };
        let vm = Vm {
            pid: 700,
            name: Some("web1".to_owned()),
            vcpus: vec![vcpu],
            vhost_workers: workers,
            emulator: vec![thread(700, 700, "0-15", Some(4))],
            memory: Some(BTreeMap::from([(NodeId(1), 4096)])),
            ..Vm::default()
        };
        Host { vms: vec![vm], ..host(Machine::regular(TWO_NODES).nic(eth0(&[&[0]]))) }
    }

    fn finding(pid: u32, tid: Option<u32>, after: &str) -> Finding {
        let target = Proposal::Affinity { pid, tid };
        let mut finding = Finding::new(Severity::Warning, "vhost is far").change(
            ProposedChange::new(target, None, after.to_owned(), "Copies packets on its node."),
        );
        finding.check = CHECK.to_owned();
        finding
    }

    fn moved(host: &Host, findings: &[Finding]) -> (Vec<(String, String, String)>, Vec<String>) {
        let plan = plan(host, findings, &Request::default(), &[], None, None).unwrap();
        let text = |value: &Value| value.text().unwrap().to_owned();
        let of = plan.changes.iter().filter(|change| change.finding.as_deref() == Some(CHECK));
        let changes = of.map(|c| (c.target.to_string(), text(&c.before), text(&c.after))).collect();
        (changes, plan.notes)
    }

    /// Its place was the better one by facts alone, and packets wait there.
    #[test]
    fn where_packets_were_late_is_decided_by_the_measurement() {
        let host = with_vm(vec![thread(700, 702, "0-3", Some(6))]);
        let by_facts = finding(700, Some(702), "5-7");
        let late =
            Finding { check: "vm_slow_packets".to_owned(), ..finding(700, Some(702), "6-7") };
        let plan = plan(&host, &[by_facts, late], &Request::default(), &[], None, None).unwrap();
        let of_threads = plan.changes.iter().filter(|change| change.id.starts_with("thread-"));
        let after: Vec<_> = of_threads.map(|c| (c.finding.as_deref(), c.after.text())).collect();
        assert_eq!(after, [(Some("vm_slow_packets"), Some("6-7"))]);
    }

    #[test]
    fn a_thread_of_the_process_and_one_of_the_kernel_are_moved_alone() {
        let host = with_vm(vec![thread(700, 702, "0-3", Some(6)), thread(90, 90, "0-3", Some(7))]);
        let findings = [finding(700, Some(702), "5-7"), finding(90, None, "5-7")];
        let (changes, notes) = moved(&host, &findings);
        let expected = |target: &str| (target.to_owned(), "0-3".to_owned(), "5-7".to_owned());
        assert_eq!(
            changes,
            [
                expected("affinity pid 700 tid 702 start 6"),
                expected("affinity pid 90 tid 90 start 7")
            ]
        );
        let note = notes.iter().find(|note| note.contains("libvirt")).unwrap();
        let pins = "<cputune><vcpupin vcpu='0' cpuset='4'/><emulatorpin cpuset='5-7'/></cputune>";
        assert!(note.contains("virsh edit web1") && note.contains(pins), "{note}");
        assert!(note.contains("<memory mode='strict' nodeset='1'/>"), "{note}");
        // Once they are there, nothing is planned.
        let host = with_vm(vec![thread(700, 702, "5-7", Some(6)), thread(90, 90, "5-7", Some(7))]);
        assert_eq!(moved(&host, &findings).0, []);
    }

    #[test]
    fn what_is_unknown_is_not_moved() {
        let host = with_vm(vec![thread(700, 702, "0-3", None)]);
        let findings = [finding(700, Some(702), "5-7"), finding(700, Some(799), "5-7")];
        let (changes, notes) = moved(&host, &findings);
        assert_eq!(changes, []);
        assert!(notes.iter().any(|note| note.contains("702) is not moved")), "{notes:?}");
        // A vCPU is never moved, nor is a process as a whole.
        let findings = [finding(700, Some(701), "5-7"), finding(701, None, "5-7")];
        assert_eq!(moved(&host, &findings).0, []);
    }
}
