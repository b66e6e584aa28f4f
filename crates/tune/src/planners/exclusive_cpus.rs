//! CPUs that containers have alone: the kubelet's static CPU manager gives them to Guaranteed pods.
//!
//! Input: the kubelet's assignment, and the requested processes. Output: the CPUs that interrupts, RPS and other programs stay
//! off; a request that names one is refused, and a note says where CPUs for interrupts are set aside.
//!
//! Rules: the Kubernetes page "Control CPU Management Policies on the Node" (`static`: "no other containers" run there, and
//! interrupts are not kept off by it; `reservedSystemCPUs` are given to no container).

use super::Request;
use super::draft::Draft;
use super::situation::{Situation, cpus};
use super::workload::Workload;
use crate::TuneError;
use nearpath_diagnose::cpus_near_node;
use nearpath_model::{CpuSet, Host};

/// The CPUs that containers have alone, of those that are online.
pub(super) fn of(host: &Host) -> CpuSet {
    let assigned = host.kubelet.as_ref().map(nearpath_model::CpuManager::exclusive_cpus);
    assigned.unwrap_or_default().intersection(&host.topology.online)
}

/// Those of a process in such a container; empty for all others.
pub(super) fn of_process(host: &Host, pid: u32) -> CpuSet {
    let owner = host.owners.iter().find(|owner| owner.pid == pid);
    let cpuset = owner.and_then(|owner| owner.cpuset.as_ref());
    let containers = host.kubelet.iter().flat_map(|kubelet| &kubelet.exclusive);
    let mut all = containers.map(|container| &container.cpus);
    let own = cpuset.filter(|cpuset| all.any(|cpus| cpuset.is_subset(cpus)));
    own.cloned().unwrap_or_default()
}

/// Those of all requested processes.
pub(super) fn of_workloads(host: &Host, workloads: &[Workload]) -> CpuSet {
    let each = workloads.iter().map(|workload| of_process(host, workload.pid));
    each.fold(CpuSet::new(), |all, cpus| all.union(&cpus))
}

/// # Errors
/// The request names CPUs of a container for something else.
pub(super) fn check(
    host: &Host,
    request: &Request,
    workloads: &[Workload],
) -> Result<(), TuneError> {
    let Some(kubelet) = &host.kubelet else { return Ok(()) };
    let foreign = of(host).difference(&of_workloads(host, workloads));
    let priorities = request.priority_cpus();
    for (name, named, taken) in [
        ("--irq-cpus", request.irq_cpus.as_ref(), of(host)),
        ("--app-cpus", request.app_cpus.as_ref(), foreign.clone()),
        ("--priority", Some(&priorities), foreign),
    ] {
        let both = named.map(|named| named.intersection(&taken)).unwrap_or_default();
        let Some(first) = both.first() else { continue };
        let owner = kubelet.exclusive.iter().find(|its| its.cpus.contains(first));
        let container = owner.map(|its| match its.container.as_str() {
            "" => format!("pod {}", its.pod),
            name => format!("container {name} of pod {}", its.pod),
        });
        return Err(TuneError::Refused(format!(
            "{} of {name}: the kubelet has given CPU {first} to {} alone ({}); CPUs for interrupts are set aside with \
             reservedSystemCPUs in its configuration",
            cpus(&both),
            container.unwrap_or_default(),
            kubelet.file
        )));
    }
    Ok(())
}

/// Which CPUs near the NICs are left out, and what would keep some for interrupts.
pub(super) fn notes(situation: &Situation<'_>, draft: &mut Draft) {
    let Some(kubelet) = &situation.host.kubelet else { return };
    for nic in situation.hardware() {
        let near = cpus_near_node(&situation.host.topology, nic.numa_node);
        let taken = of(situation.host).intersection(&near);
        if taken.is_empty() {
            continue;
        }
        let stay = if near.is_subset(&taken) { ", and those that are there stay" } else { "" };
        draft.note(format!(
            "{} near {}: given to containers alone by the kubelet ({}): no interrupts and no RPS go there{stay}; CPUs \
             for these are set aside with reservedSystemCPUs in the kubelet's configuration",
            cpus(&taken),
            nic.name,
            kubelet.file
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TWO_NODES, eth0, host, of_kind, planned_for, set, workload};
    use super::super::{Plan, Request};
    use super::*;
    use nearpath_model::{CpuId, CpuManager, ExclusiveCpus, SocketOwner, TrafficClass};
    use nearpath_testing::trees::Machine;

    /// A host whose NIC with two queues is on node 1 (CPUs 4-7 and 12-15), and whose kubelet has given away these CPUs.
    fn with_kubelet(exclusive: &[(&str, &str)], cpuset: &str) -> Host {
        let far: &[u32] = &[0];
        let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[far; 2])));
        let container = |(name, cpus): &(&str, &str)| ExclusiveCpus {
            pod: "2f1a".to_owned(),
            container: (*name).to_owned(),
            cpus: set(cpus),
        };
        host.kubelet = Some(CpuManager {
            file: "/var/lib/kubelet/cpu_manager_state".to_owned(),
            policy: "static".to_owned(),
            shared: set("0"),
            exclusive: exclusive.iter().map(container).collect(),
        });
        host.owners = vec![SocketOwner {
            pid: 70,
            comm: "server".to_owned(),
            cpuset: Some(set(cpuset)),
            cgroup: Some("/kubepods/pod2f1a/4f".to_owned()),
            ..SocketOwner::default()
        }];
        host
    }

    fn interrupts(plan: &Plan) -> CpuSet {
        let all = of_kind(plan, "irq_affinity").into_values().map(set);
        all.fold(CpuSet::new(), |all, cpus| all.union(&cpus))
    }

    fn threads(plan: &Plan) -> Vec<String> {
        of_kind(plan, "thread_affinity").into_values().map(str::to_owned).collect()
    }

    fn said(plan: &Plan, words: &str) -> bool {
        plan.notes.iter().any(|note| note.contains(words))
    }

    #[test]
    fn interrupts_keep_off_cpus_of_guaranteed_pods() {
        let plan = |exclusive: &[(&str, &str)]| {
            let host = with_kubelet(exclusive, "0-3,8-11");
            planned_for(&host, &Request::default(), &[]).unwrap()
        };
        let free = plan(&[]);
        assert_eq!(interrupts(&free), set("4-5"));
        // The CPUs that the plan without it takes.
        let taken = plan(&[("dpdk", "4-5,12"), ("log", "1")]);
        assert_eq!(interrupts(&taken), set("6-7"));
        assert!(
            said(&taken, "CPUs 4-5,12 near eth0: given to containers alone"),
            "{:?}",
            taken.notes
        );
        assert!(said(&taken, "reservedSystemCPUs"), "{:?}", taken.notes);
        // A sibling of an exclusive CPU is what is left.
        assert_eq!(interrupts(&plan(&[("dpdk", "4-7,13-15")])), set("12"));
        // All near CPUs: the interrupts stay, also on the far node.
        let all = plan(&[("dpdk", "4-7,12-15")]);
        assert!(interrupts(&all).is_empty());
        assert!(said(&all, "those that are there stay"), "{:?}", all.notes);
        assert!(said(&all, "no CPU near eth0 is left"), "{:?}", all.notes);
    }

    #[test]
    fn rps_keeps_off_them_too() {
        let mut host = with_kubelet(&[("dpdk", "4-5")], "0-3");
        for queue in &mut host.nics[0].rx_queues {
            queue.rps_cpus = Some(CpuSet::new());
        }
        let request = Request { goal: nearpath_model::Goal::Throughput, ..Request::default() };
        let plan = planned_for(&host, &request, &[]).unwrap();
        let rps: Vec<CpuSet> = of_kind(&plan, "rps_cpus")
            .into_values()
            .map(|mask| CpuSet::from_mask(mask).unwrap())
            .collect();
        assert!(!rps.is_empty());
        for cpus in rps {
            assert!(!cpus.is_empty() && cpus.is_subset(&set("6-7,12-15")), "{cpus}");
        }
    }

    #[test]
    fn a_pod_keeps_its_own_cpus_and_nobody_else_gets_them() {
        let moved = |exclusive: &[(&str, &str)], cpuset: &str, affinity: &str| {
            let host = with_kubelet(exclusive, cpuset);
            planned_for(&host, &Request::default(), &[workload(&[affinity])]).unwrap()
        };
        // Near already.
        let near = moved(&[("server", "6-7")], "6-7", "6-7");
        assert!(threads(&near).is_empty(), "{:?}", near.changes);
        // On the far node, where the topology manager let it: nothing but the kubelet can move it.
        let far = moved(&[("server", "2-3")], "2-3", "2-3");
        assert!(threads(&far).is_empty());
        assert!(said(&far, "topologyManagerPolicy: single-numa-node"), "{:?}", far.notes);
        assert!(!said(&far, "cpuManagerPolicy: static"), "{:?}", far.notes);
        // Partly near.
        assert_eq!(threads(&moved(&[("server", "3,7")], "3,7", "3,7")), ["7"]);
        // In the shared pool, which has no CPU near: it needs CPUs of its own.
        let shared = moved(&[("other", "4-7,12-15")], "0-3,8-11", "0-3,8-11");
        assert!(threads(&shared).is_empty());
        // A program of the host may run everywhere, and is not moved to CPUs of a pod.
        let mut host = with_kubelet(&[("other", "6-7")], "0-15");
        host.owners[0].cpuset = None;
        host.owners[0].cgroup = Some("/system.slice/nginx.service".to_owned());
        let plan = planned_for(&host, &Request::default(), &[workload(&["0-15"])]).unwrap();
        assert_eq!(threads(&plan), ["12-15"], "{:?}", plan.notes);
    }

    #[test]
    fn cpus_of_a_pod_are_refused_by_name() {
        let host = with_kubelet(&[("server", "6-7")], "6-7");
        let refused = |request: &Request, workloads: &[Workload]| {
            planned_for(&host, request, workloads).unwrap_err().to_string()
        };
        let own = [workload(&["6-7"])];
        let irq = Request { irq_cpus: Some(set("5-6")), ..Request::default() };
        let app = Request { app_cpus: Some(set("7")), ..Request::default() };
        let class = TrafficClass::Pcp(3);
        let priority = Request { priorities: vec![(class, CpuId(6))], ..Request::default() };
        for (request, name) in
            [(&irq, "--irq-cpus"), (&app, "--app-cpus"), (&priority, "--priority")]
        {
            let said = refused(request, &[]);
            assert!(
                said.contains(name) && said.contains("container server of pod 2f1a alone"),
                "{said}"
            );
        }
        assert!(refused(&irq, &own).contains("CPU 6 of --irq-cpus"));
        // Its own.
        assert!(planned_for(&host, &app, &own).is_ok());
    }
}
