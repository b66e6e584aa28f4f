//! State of the running system that planners need besides the host's facts: nearpath's configuration files, and whether
//! they are used. It is read before planning, as planners do not access the host; for a snapshot it is unknown.

pub(super) use super::cgroup_state::CgroupState;
use super::situation::is_hardware;
use super::workload::Workload;
use crate::configuration::Etc;
use crate::ethtool::{NapiValues, napi_instances};
use crate::files::settings_of;
use crate::hugepages::counts;
use crate::irqbalance::Bans;
use crate::migrate::{anonymous, nodes_of, start_bound};
use crate::setting::Setting;
use crate::steering::{Found, groups};
use crate::threads::find_thread;
use crate::units::booted;
use nearpath_host::{Root, memory_must_stay};
use nearpath_model::{
    ConfigFile, CpuId, CpuSet, FileOf, Host, HugepagePools, Irqbalance, Nic, PoolCounts, QueueId,
    SettingFile, Thread, UnitSetting,
};
use std::collections::BTreeMap;

/// The state of the running system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct System {
    /// The contents of configuration files and variables, by target; empty if there is none.
    files: BTreeMap<String, Result<String, String>>,
    /// Settings in sysfs and procfs files that are not facts of the host, by path.
    settings: BTreeMap<FileOf, String>,
    /// The traffic classes of transmit queues (mqprio), by interface and queue; those of no class are missing.
    traffic_classes: BTreeMap<String, BTreeMap<QueueId, u32>>,
    /// Threads of the kernel that poll queues, by id.
    kernel_threads: BTreeMap<u32, Thread>,
    /// The NAPI instances of each interface in the order of their ids, or why they are unknown.
    napi_instances: BTreeMap<String, Result<Vec<(u32, NapiValues)>, String>>,
    /// The CPUs of each frequency policy.
    policies: BTreeMap<u32, CpuSet>,
    /// Why a fragment of the kernel command line would not be read.
    no_fragments: Option<String>,
    /// The running irqbalance and its excluded interrupts, or why they are unknown.
    irqbalance: Option<(Irqbalance, Result<String, String>)>,
    /// The state of irqbalance's systemd service, or why it is unknown.
    irqbalance_service: Option<Result<String, String>>,
    /// The REUSEPORT groups of the requested ports, or why they are unknown.
    groups: Option<Result<Vec<Found>, String>>,
    /// The cgroups of processes, or why they have none with a cpuset.
    cgroups: BTreeMap<u32, Result<CgroupState, String>>,
    /// Why the memory of processes must not be moved, if so, or why that is unknown.
    must_stay: BTreeMap<u32, Result<Option<String>, String>>,
    /// The nodes of the anonymous memory of processes, and how to start them bound to a node.
    memory: BTreeMap<u32, (Option<String>, String)>,
    /// The pools of hugepages of a kernel without NUMA, which are no facts of a node.
    pools: BTreeMap<HugepagePools, PoolCounts>,
    /// The XDP programs of interfaces, as text, or why they are unknown.
    xdp: BTreeMap<String, Result<String, String>>,
}

/// Scripts that generate grub's menu; those of Debian read fragments, others do not.
const GRUB_MKCONFIG: [&str; 3] =
    ["/usr/sbin/grub-mkconfig", "/usr/sbin/grub2-mkconfig", "/usr/bin/grub-mkconfig"];

impl System {
    /// Reads it for these processes, with their requested services, and these ports.
    pub fn read(root: &Root, workloads: &[Workload], ports: &[u16]) -> Self {
        let etc = Etc::live();
        let services = workloads.iter().filter_map(|workload| workload.service.as_deref());
        let drop_ins = services.filter_map(ConfigFile::drop_in);
        let text = |file: ConfigFile| {
            let missing = || format!("{file}: no such directory");
            let text = etc.setting(&file).and_then(|its| its.read()).map_err(|e| e.to_string());
            (file.to_string(), text.and_then(|text| text.ok_or_else(missing)))
        };
        let running = crate::irqbalance::find_irqbalance(root);
        let as_service = running.is_some() && booted();
        Self {
            files: drop_ins.chain([ConfigFile::CommandLine]).map(text).collect(),
            settings: settings(root),
            traffic_classes: traffic_classes(root),
            xdp: BTreeMap::new(),
            kernel_threads: BTreeMap::new(),
            napi_instances: BTreeMap::new(),
            policies: policies(root),
            no_fragments: no_fragments(root),
            irqbalance: running.map(|irqbalance| {
                let banned = Bans { root, irqbalance: &irqbalance }.read();
                let banned =
                    banned.map_err(|error| error.to_string()).map(Option::unwrap_or_default);
                (irqbalance, banned)
            }),
            irqbalance_service: as_service.then(|| {
                let state = UnitSetting::irqbalance().read().map_err(|error| error.to_string());
                state.and_then(|state| state.ok_or("it is not a systemd service".to_owned()))
            }),
            memory: workloads.iter().map(|workload| memory(root, workload.pid)).collect(),
            pools: pools(root),
            groups: (!ports.is_empty()).then(|| {
                groups(root, None, |socket| ports.contains(&socket.port)).map_err(|e| e.to_string())
            }),
            cgroups: workloads
                .iter()
                .map(|workload| (workload.pid, CgroupState::of(root, workload.pid)))
                .collect(),
            must_stay: workloads
                .iter()
                .map(|workload| workload.pid)
                .map(|pid| (pid, memory_must_stay(root, pid).map_err(|error| error.to_string())))
                .collect(),
        }
    }

    /// The nodes that the anonymous memory of a process is on, as a list.
    pub(super) fn memory_nodes(&self, pid: u32) -> Option<String> {
        self.memory.get(&pid)?.0.clone()
    }

    /// How to start a process bound to the node `NODE`.
    pub(super) fn start_bound(&self, pid: u32) -> String {
        self.memory.get(&pid).map(|(_, command)| command.clone()).unwrap_or_default()
    }

    /// The pool of hugepages of a size, on a kernel without NUMA.
    pub(super) fn pool(&self, pools: HugepagePools) -> Option<PoolCounts> {
        self.pools.get(&pools).cloned()
    }

    /// The contents of a configuration file.
    ///
    /// # Errors
    /// Why it is unknown.
    pub(super) fn text(&self, target: &str) -> Result<&str, String> {
        match self.files.get(target) {
            Some(Ok(text)) => Ok(text),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err(format!("{target}: known on the running host only")),
        }
    }

    /// The text of a setting in a file.
    pub(super) fn setting(&self, file: &FileOf) -> Option<&str> {
        self.settings.get(file).map(String::as_str)
    }

    /// Reads which threads of the kernel these are, so that none that comes later is taken for one of them.
    pub fn read_kernel_threads(&mut self, root: &Root, host: &Host) {
        let of_kernel = host.net_threads.iter().filter(|thread| thread.process.is_none());
        let found = of_kernel.filter_map(|its| find_thread(root, its.pid, its.pid));
        self.kernel_threads = found.map(|thread| (thread.tid, thread)).collect();
    }

    /// Reads the parameters of the NAPI instances of the host's interfaces.
    pub fn read_napi_instances(&mut self, host: &Host) {
        let read = |nic: &Nic| {
            let found = napi_instances(&nic.name).map_err(|error| error.to_string());
            (nic.name.clone(), found.map(Option::unwrap_or_default))
        };
        self.napi_instances = host.nics.iter().filter(|nic| is_hardware(nic)).map(read).collect();
    }

    /// The NAPI instances of an interface in the order of their ids: id and parameters, or why they are unknown.
    pub(super) fn napi_instances(&self, nic: &str) -> Result<&[(u32, NapiValues)], &str> {
        match self.napi_instances.get(nic) {
            Some(Ok(found)) => Ok(found),
            Some(Err(reason)) => Err(reason),
            None => Err("they are read on the running host only"),
        }
    }

    /// Reads the XDP programs of the interfaces in the current network namespace.
    pub fn read_xdp(&mut self, host: &Host) {
        let of = |name: &str| match crate::xdp::current(name) {
            Ok(found) => found.map(Ok),
            Err(error) => Some(Err(error.to_string())),
        };
        let found = host.nics.iter().filter_map(|nic| Some((nic.name.clone(), of(&nic.name)?)));
        self.xdp = found.collect();
    }

    /// Sets that of an interface.
    #[cfg(test)]
    pub(super) fn set_xdp(&mut self, nic: &str, now: Result<&str, &str>) {
        self.xdp.insert(nic.to_owned(), now.map(str::to_owned).map_err(str::to_owned));
    }

    /// The XDP program of an interface, or why it is unknown; `None` if it was not read.
    pub(super) fn xdp(&self, nic: &str) -> Option<Result<&str, String>> {
        Some(self.xdp.get(nic)?.as_deref().map_err(Clone::clone))
    }

    /// The traffic classes of an interface's transmit queues; `None` if they are unknown.
    pub(super) fn traffic_classes(&self, nic: &str) -> Option<&BTreeMap<QueueId, u32>> {
        self.traffic_classes.get(nic)
    }

    /// A thread of the kernel.
    pub(super) fn kernel_thread(&self, tid: u32) -> Option<&Thread> {
        self.kernel_threads.get(&tid)
    }

    /// The frequency policies with their CPUs.
    pub(super) fn policies(&self) -> &BTreeMap<u32, CpuSet> {
        &self.policies
    }

    /// The number in a file of an interface.
    pub(super) fn number(&self, file: &SettingFile) -> Option<u64> {
        self.settings.get(&file.of)?.parse().ok()
    }

    /// Why a fragment of the kernel command line would not be read.
    pub(super) fn no_fragments(&self) -> Option<&str> {
        self.no_fragments.as_deref()
    }

    /// The running irqbalance and its excluded interrupts.
    ///
    /// # Errors
    /// Why they are unknown.
    pub(super) fn irqbalance(&self) -> Result<(&Irqbalance, &str), String> {
        match &self.irqbalance {
            Some((irqbalance, Ok(banned))) => Ok((irqbalance, banned)),
            Some((_, Err(reason))) => Err(reason.clone()),
            None => Err("its socket exists on the running host only".to_owned()),
        }
    }

    /// `ActiveState` of irqbalance's service.
    ///
    /// # Errors
    /// Why it is unknown.
    pub(super) fn irqbalance_service(&self) -> Result<&str, String> {
        match &self.irqbalance_service {
            Some(Ok(state)) => Ok(state),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("systemd is not running, or is not visible".to_owned()),
        }
    }

    /// The REUSEPORT groups of the requested ports.
    ///
    /// # Errors
    /// Why they are unknown.
    pub(super) fn groups(&self) -> Result<&[Found], String> {
        match &self.groups {
            None => Ok(&[]),
            Some(Ok(groups)) => Ok(groups),
            Some(Err(reason)) => Err(reason.clone()),
        }
    }

    /// The cgroup of a process.
    ///
    /// # Errors
    /// Why it has none with a cpuset.
    pub(super) fn cgroup(&self, pid: u32) -> Result<&CgroupState, String> {
        match self.cgroups.get(&pid) {
            Some(Ok(state)) => Ok(state),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("its cgroup is unknown".to_owned()),
        }
    }

    /// Why the memory of a process must not be moved, if so: a device may write to it.
    pub(super) fn memory_must_stay(&self, pid: u32) -> Option<String> {
        const UNKNOWN: &str = "it is unknown whether a device writes to its memory";
        match self.must_stay.get(&pid) {
            Some(Ok(reason)) => reason.clone(),
            Some(Err(reason)) => Some(format!("{UNKNOWN}: {reason}")),
            None => Some(UNKNOWN.to_owned()),
        }
    }

    /// The same, with an irqbalance that excludes these.
    #[cfg(test)]
    pub(super) fn with_irqbalance(self, irqbalance: Irqbalance, banned: &str) -> Self {
        Self { irqbalance: Some((irqbalance, Ok(banned.to_owned()))), ..self }
    }

    /// The same, with irqbalance's service in this state.
    #[cfg(test)]
    pub(super) fn with_irqbalance_service(self, state: &str) -> Self {
        Self { irqbalance_service: Some(Ok(state.to_owned())), ..self }
    }

    /// The same, with a process in this cgroup.
    #[cfg(test)]
    pub(super) fn with_cgroup(mut self, pid: u32, state: CgroupState) -> Self {
        self.cgroups.insert(pid, Ok(state));
        self.must_stay.insert(pid, Ok(None));
        self
    }

    /// A system with these processes in these cgroups.
    #[cfg(test)]
    pub(super) fn with_cgroups(cgroups: BTreeMap<u32, Result<CgroupState, String>>) -> Self {
        let must_stay = cgroups.keys().map(|pid| (*pid, Ok(None))).collect();
        Self { cgroups, must_stay, ..Self::default() }
    }

    /// The same, with a process whose memory must stay, or is unknown.
    #[cfg(test)]
    pub(super) fn with_memory_that_stays(mut self, pid: u32, why: Result<&str, &str>) -> Self {
        let why = why.map(|reason| Some(reason.to_owned())).map_err(str::to_owned);
        self.must_stay.insert(pid, why);
        self
    }

    /// The same, with these values in files of interfaces.
    #[cfg(test)]
    pub(super) fn with_interface_files(mut self, files: &[(SettingFile, &str)]) -> Self {
        let of = |(file, text): &(SettingFile, &str)| (file.of.clone(), (*text).to_owned());
        self.settings.extend(files.iter().map(of));
        self
    }

    /// The same with these traffic classes of an interface's queues.
    #[cfg(test)]
    pub(super) fn with_traffic_classes(mut self, nic: &str, classes: &[(u32, u32)]) -> Self {
        let classes = classes.iter().map(|&(queue, class)| (QueueId(queue), class)).collect();
        self.traffic_classes.insert(nic.to_owned(), classes);
        self
    }

    /// The same with these threads of the kernel.
    #[cfg(test)]
    pub(super) fn with_napi_instances(mut self, nic: &str, found: Vec<(u32, NapiValues)>) -> Self {
        self.napi_instances.insert(nic.to_owned(), Ok(found));
        self
    }

    #[cfg(test)]
    pub(super) fn with_kernel_threads(mut self, threads: Vec<Thread>) -> Self {
        self.kernel_threads = threads.into_iter().map(|thread| (thread.tid, thread)).collect();
        self
    }

    /// The same with these settings, and these CPUs of frequency policies.
    #[cfg(test)]
    pub(super) fn with_settings(
        mut self,
        files: &[(&str, &str)],
        policies: &[(u32, &str)],
    ) -> Self {
        let of = |(path, text): &(&str, &str)| (FileOf::parse(path).unwrap(), (*text).to_owned());
        self.settings.extend(files.iter().map(of));
        let policy = |(number, cpus): &(u32, &str)| (*number, CpuSet::from_list(cpus).unwrap());
        self.policies.extend(policies.iter().map(policy));
        self
    }

    /// A system with these files, where fragments are read.
    #[cfg(test)]
    pub(super) fn with(files: &[(&str, &str)]) -> Self {
        let text = |&(target, text): &(&str, &str)| (target.to_owned(), Ok(text.to_owned()));
        Self { files: files.iter().map(text).collect(), ..Self::default() }
    }
}

/// The existing settings of interfaces, power management and isolation; those of queues are facts of the host.
fn settings(root: &Root) -> BTreeMap<FileOf, String> {
    let text = |bytes: &[u8]| Some(std::str::from_utf8(bytes).ok()?.trim_end().to_owned());
    let is_wanted = |file: &FileOf| {
        matches!(
            file,
            FileOf::Interface { .. }
                | FileOf::Cpu { .. }
                | FileOf::Frequency { .. }
                | FileOf::WorkqueueCpumask
                | FileOf::DefaultAffinity
        )
    };
    settings_of(root, is_wanted)
        .into_iter()
        .filter_map(|(file, bytes)| Some((file, text(&bytes)?)))
        .collect()
}

/// The traffic classes of the transmit queues of each interface (`traffic_class_show` of net/core/net-sysfs.c: with a
/// subordinate channel `0-1`, and an error for queues of no class).
fn traffic_classes(root: &Root) -> BTreeMap<String, BTreeMap<QueueId, u32>> {
    let names = |path: &str| root.list(path).unwrap_or_default().into_iter().map(|its| its.name);
    let of = |nic: String| {
        let queues = format!("/sys/class/net/{nic}/queues");
        let class = |name: String| {
            let queue = QueueId(name.strip_prefix("tx-")?.parse().ok()?);
            let text = root.text(&format!("{queues}/{name}/traffic_class")).ok()?;
            Some((queue, text.split('-').next()?.trim().parse().ok()?))
        };
        let classes: BTreeMap<QueueId, u32> = names(&queues).filter_map(class).collect();
        (!classes.is_empty()).then_some((nic, classes))
    };
    names("/sys/class/net").filter_map(of).collect()
}

/// The CPUs of each frequency policy.
fn policies(root: &Root) -> BTreeMap<u32, CpuSet> {
    const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";
    let entries = root.list(POLICIES).unwrap_or_default();
    let numbers =
        entries.iter().filter_map(|entry| entry.name.strip_prefix("policy")?.parse().ok());
    let cpus = |number: u32| {
        let text = root.text(&format!("{POLICIES}/policy{number}/affected_cpus")).ok()?;
        let cpus: Option<CpuSet> =
            text.split_ascii_whitespace().map(|cpu| cpu.parse().ok().map(CpuId)).collect();
        Some((number, cpus?))
    };
    numbers.filter_map(cpus).collect()
}

fn memory(root: &Root, pid: u32) -> (u32, (Option<String>, String)) {
    let nodes = anonymous(root, pid).ok().map(|bytes| nodes_of(&bytes, None));
    (pid, (nodes, start_bound(root, pid, None)))
}

/// The pools of hugepages by size.
fn pools(root: &Root) -> BTreeMap<HugepagePools, PoolCounts> {
    let entries = root.list("/sys/kernel/mm/hugepages").unwrap_or_default();
    let size = |name: &str| {
        HugepagePools::parse(&format!("hugepages {}", name.strip_prefix("hugepages-")?))
    };
    let sizes = entries.iter().filter_map(|entry| size(&entry.name));
    sizes.filter_map(|pools| Some((pools, counts(root, pools).ok()??))).collect()
}

fn no_fragments(root: &Root) -> Option<String> {
    let scripts: Vec<String> =
        GRUB_MKCONFIG.iter().filter_map(|script| root.text(script).ok()).collect();
    if scripts.is_empty() {
        return Some("there is no grub-mkconfig".to_owned());
    }
    let reads = scripts.iter().any(|script| script.contains("/default/grub.d"));
    (!reads).then(|| "this grub-mkconfig does not read /etc/default/grub.d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_have_their_traffic_class_unless_they_are_of_none() {
        let dir = tempfile::tempdir().unwrap();
        for (queue, class) in
            [("tx-0", Some("0\n")), ("tx-1", Some("1-1\n")), ("tx-2", None), ("rx-0", Some("5"))]
        {
            let folder = dir.path().join("sys/class/net/eth0/queues").join(queue);
            std::fs::create_dir_all(&folder).unwrap();
            class
                .iter()
                .for_each(|text| std::fs::write(folder.join("traffic_class"), text).unwrap());
        }
        std::fs::create_dir_all(dir.path().join("sys/class/net/lo/queues/tx-0")).unwrap();
        let found = traffic_classes(&Root::tree(dir.path()).unwrap());
        assert_eq!(found, [("eth0".to_owned(), [(QueueId(0), 0), (QueueId(1), 1)].into())].into());
    }

    #[test]
    fn grubs_own_script_shows_whether_fragments_are_read() {
        let said = |files: &[(&str, &str)]| {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in files.iter().chain(&[("/proc/x", "")]) {
                let path = dir.path().join(path.trim_start_matches('/'));
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            no_fragments(&Root::tree(dir.path()).unwrap())
        };
        assert!(said(&[]).unwrap().contains("no grub-mkconfig"));
        let debian = "for x in ${sysconfdir}/default/grub.d/*.cfg ; do";
        assert_eq!(said(&[("/usr/sbin/grub-mkconfig", debian)]), None);
        let fedora = ". ${sysconfdir}/default/grub";
        assert!(said(&[("/usr/sbin/grub2-mkconfig", fedora)]).unwrap().contains("does not read"));
    }
}
