//! Applications in containers: their CPUs are set by the runtime, which sets them again.
//!
//! Input: the cpuset and the cgroup of a process with sockets, of version 1 or 2. Output: the CPUs that its threads can have,
//! the runtime that set them, and what to set there instead. Nothing is planned beyond the cpuset: the kernel would leave
//! these CPUs out of an affinity, or refuse it.
//!
//! Rules: kernel/sched/syscalls.c (`__sched_setaffinity`), the Kubernetes pages "Control CPU Management Policies on the
//! Node" and "Control Topology Management Policies on a node", docker-run(1), podman-run(1), lxc.container.conf(5).

use super::exclusive_cpus;
use super::situation::{Situation, cpus};
use super::workload::Workload;
use nearpath_model::{CpuManager, CpuSet};

/// Endings of units of systemd that are no containers: the runtimes themselves run in such.
const UNITS: [&str; 3] = [".service", ".socket", ".mount"];
/// What is to be set with the static CPU manager, for a container with CPUs of its own and for one without.
const EXCLUSIVE: &str = "topologyManagerPolicy: single-numa-node in the kubelet's configuration, and a pod that requests the NIC's \
     function as a device, so that its CPUs are near it";
const SHARED: &str = "a Guaranteed pod that requests whole CPUs, and topologyManagerPolicy: single-numa-node in the kubelet's \
     configuration";

/// Runtimes by what is in the names of their cgroups, the outermost first; with what to set there.
const RUNTIMES: &[(&str, &str, &str)] = &[
    (
        "kubepods",
        "Kubernetes",
        "cpuManagerPolicy: static and topologyManagerPolicy: single-numa-node in the kubelet's configuration, with the CPUs \
         for interrupts in reservedSystemCPUs, and a Guaranteed pod that requests whole CPUs",
    ),
    ("libpod", "Podman", "podman update --cpuset-cpus CPUS --cpuset-mems NODE"),
    ("nerdctl-", "nerdctl", "nerdctl update --cpuset-cpus CPUS --cpuset-mems NODE"),
    ("docker", "Docker", "docker update --cpuset-cpus CPUS --cpuset-mems NODE"),
    ("lxc", "LXC", "lxc.cgroup2.cpuset.cpus = CPUS"),
    ("crio-", "CRI-O", "the cpuset of the container"),
    ("containerd", "containerd", "the cpuset of the container"),
];

/// The runtime that manages a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Runtime {
    /// Its name.
    pub name: &'static str,
    set_there: &'static str,
}

impl Runtime {
    /// With what is still to be set where the kubelet's CPU manager is static.
    fn with(self, kubelet: Option<&CpuManager>, has_own_cpus: bool) -> Self {
        match kubelet {
            Some(state) if self.name == "Kubernetes" && state.policy == "static" => {
                Self { set_there: if has_own_cpus { EXCLUSIVE } else { SHARED }, ..self }
            }
            _ => self,
        }
    }
}

/// The runtime of a cgroup.
pub(super) fn runtime(cgroup: &str) -> Option<Runtime> {
    let is_container = |name: &&str| !UNITS.iter().any(|ending| name.ends_with(ending));
    let has = |mark: &str| {
        cgroup.split('/').filter(is_container).any(|name| {
            // The kubelet's own root may be a slice: kubelet-kubepods.slice.
            let below = name.ends_with(".slice") && name.contains(&format!("-{mark}"));
            below
                || name.starts_with(mark)
                || name.strip_prefix("cri-").is_some_and(|n| n.starts_with(mark))
        })
    };
    let found = RUNTIMES.iter().find(|(mark, ..)| has(mark));
    found.map(|&(_, name, set_there)| Runtime { name, set_there })
}

/// The CPUs of a process, if not all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Confined {
    /// Those of its cpuset that are online and that no other container has alone.
    pub cpus: CpuSet,
    /// The runtime that has set them, if it is known.
    pub runtime: Option<Runtime>,
    /// Whether a cpuset limits them; otherwise it is CPUs of containers that are left out.
    has_cpuset: bool,
}

impl Confined {
    /// The limits of a process; `None` if there are none, or none are known.
    pub fn of(situation: &Situation<'_>, workload: &Workload) -> Option<Self> {
        let host = situation.host;
        let owner = host.owners.iter().find(|owner| owner.pid == workload.pid);
        let own = exclusive_cpus::of_process(host, workload.pid);
        let runtime = owner.and_then(|owner| runtime(owner.cgroup.as_deref()?));
        let runtime = runtime.map(|its| its.with(host.kubelet.as_ref(), !own.is_empty()));
        let online = &host.topology.online;
        let cpuset = owner.and_then(|owner| owner.cpuset.as_ref());
        let limit = cpuset.filter(|cpuset| !online.is_subset(cpuset));
        let others = exclusive_cpus::of(host).difference(&own);
        if limit.is_none() && runtime.is_none() && others.is_empty() {
            return None;
        }
        let cpus = limit.map_or_else(|| online.clone(), |cpuset| cpuset.intersection(online));
        let has_cpuset = limit.is_some() || runtime.is_some();
        Some(Self { cpus: cpus.difference(&others), runtime, has_cpuset })
    }

    /// Why threads cannot go to these CPUs, and what would allow it.
    pub fn note(&self, workload: &Workload, wanted: &CpuSet) -> String {
        let Workload { comm, pid, .. } = workload;
        let may = cpus(&self.cpus);
        let left = self.cpus.intersection(wanted);
        let moved = match left.is_empty() {
            true => "it is not moved".to_owned(),
            false => format!("it is moved to {} only", cpus(&left)),
        };
        if !self.has_cpuset {
            let taken = cpus(&wanted.difference(&self.cpus));
            return format!("{comm} ({pid}): containers have {taken} alone: {moved}");
        }
        let set = match self.runtime {
            Some(Runtime { name, set_there }) => format!(
                "{name} sets it; for {} set there: {}",
                cpus(wanted),
                set_there.replace("CPUS", &wanted.to_string())
            ),
            None => format!("for {} change that cpuset", cpus(wanted)),
        };
        format!("the cpuset of {comm} ({pid}) has {may}: {moved}; {set}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::system::CgroupState;
    use super::super::tests::{TWO_NODES, eth0, host, of_kind, planned_for, set, workload};
    use super::super::{Plan, Request, System};
    use super::*;
    use nearpath_model::SocketOwner;
    use nearpath_testing::trees::Machine;

    #[test]
    fn runtimes_are_known_by_their_cgroups() {
        for (cgroup, name) in [
            ("/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope", Some("Kubernetes")),
            ("/kubepods/burstable/pod1/4f", Some("Kubernetes")),
            ("/system.slice/docker-4f2.scope", Some("Docker")),
            ("/docker/4f2", Some("Docker")),
            ("/machine.slice/libpod-4f2.scope/container", Some("Podman")),
            ("/lxc.payload.web", Some("LXC")),
            ("/system.slice/cri-containerd-a.scope", Some("containerd")),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2f.slice/crio-9.scope/container",
                Some("Kubernetes"),
            ),
            (
                "/docker/4f/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod2f.slice/cri-containerd-9.scope",
                Some("Kubernetes"),
            ),
            ("/kubelet/kubepods/besteffort/pod2f/9", Some("Kubernetes")),
            ("/system.slice/crio-9.scope", Some("CRI-O")),
            ("/system.slice/nerdctl-9.scope", Some("nerdctl")),
            (
                "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-9.scope/container",
                Some("Podman"),
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/docker-9.scope",
                Some("Docker"),
            ),
            // The runtimes themselves, and what has a name like theirs.
            ("/system.slice/docker.service", None),
            ("/system.slice/containerd.service", None),
            ("/system.slice/lxcfs.service", None),
            ("/system.slice/docker.socket", None),
            ("/system.slice/nginx.service", None),
            ("/user.slice/my-docker.scope", None),
            ("/", None),
        ] {
            assert_eq!(runtime(cgroup).map(|its| its.name), name, "{cgroup}");
        }
    }

    const OWN: &str = "/a";

    /// The plan for a server of two threads in a container with these CPUs.
    fn planned(cgroup: &str, cpuset: Option<&str>) -> Plan {
        let far: &[u32] = &[0];
        let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[far; 2])));
        host.owners = vec![SocketOwner {
            pid: 70,
            comm: "server".to_owned(),
            cpuset: cpuset.map(set),
            cgroup: Some(cgroup.to_owned()),
            ..SocketOwner::default()
        }];
        let state = CgroupState {
            cgroup: cgroup.to_owned(),
            inode: 9,
            service: None,
            cpus: "0-15".to_owned(),
            mems: "0-1".to_owned(),
            partition: None,
            effective: set("0-15"),
            allowed: set("0-15"),
            processes: [70].into(),
        };
        let system = System::default().with_cgroup(70, state);
        let request = Request { cpuset: cgroup != OWN, system, ..Request::default() };
        planned_for(&host, &request, &[workload(&["0-15", "0"])]).unwrap()
    }

    #[test]
    fn threads_stay_in_the_cpuset_of_their_container() {
        const POD: &str = "/kubepods/pod1/4f";
        let threads = |plan: &Plan| {
            let values = of_kind(plan, "thread_affinity").into_values();
            values.map(str::to_owned).collect::<Vec<_>>()
        };
        let said = |plan: &Plan, words: &str| plan.notes.iter().any(|note| note.contains(words));
        // The interrupts are on 4 and 5, and the server may go to 6-7 and 12-15.
        let part = planned(POD, Some("0-3,7,12"));
        assert_eq!(threads(&part), ["7,12", "7"]);
        assert!(
            said(&part, "it is moved to CPUs 7,12 only; Kubernetes sets it"),
            "{:?}",
            part.notes
        );
        assert!(said(&part, "is not bound through its cpuset: Kubernetes"), "{:?}", part.notes);
        let far = planned(POD, Some("0-3"));
        assert_eq!(threads(&far), Vec::<String>::new());
        assert!(said(&far, "has CPUs 0-3: it is not moved"), "{:?}", far.notes);
        assert!(said(&far, "cpuManagerPolicy: static"), "{:?}", far.notes);
        // A cpuset without a runtime, and a container without one.
        let own = planned(OWN, Some("0-3,13"));
        assert_eq!(threads(&own), ["13", "13"]);
        assert!(said(&own, "change that cpuset"), "{:?}", own.notes);
        assert_eq!(threads(&planned("/docker/4f", None)), ["6-7,12-15", "6"]);
        // CPUs that are offline are none.
        assert_eq!(threads(&planned("/docker/4f", Some("7,99"))), ["7", "7"]);
    }
}
