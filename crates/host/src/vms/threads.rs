//! The threads of a virtual machine: which of them run vCPUs, which are vhost workers, and where each may run.
//!
//! The thread of a vCPU is found, in this order: from KVM's debugfs (`kvm/PID-FD/vcpuN/pid`, since 6.1); by its name,
//! as QEMU (`CPU 3/KVM`), Firecracker (`fc_vcpu 3`), Cloud Hypervisor and crosvm (`vcpu3`) give it; by the system
//! call that it is in (`KVM_RUN` on the descriptor).

use super::descriptors::Descriptors;
use crate::Root;
use crate::cpu_table::printable;
use crate::placement::parse_thread_stat;
use crate::processes::parse_status;
use nearpath_model::clock::GuestTsc;
use nearpath_model::{CpuSet, NodeId, Topology, Vcpu, VmThread};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of threads read per process.
const MAX_THREADS: usize = 4096;
/// `KVM_RUN` of include/uapi/linux/kvm.h, and ioctl(2) on x86-64 and arm64.
const KVM_RUN: u64 = 0xae80;
const IOCTL: [u32; 2] = [16, 29];
const KVM_DEBUGFS: &str = "/sys/kernel/debug/kvm";

/// The threads of a virtual machine.
pub(super) struct Threads {
    pub vcpus: Vec<Vcpu>,
    pub vhost_workers: Vec<VmThread>,
    pub emulator: Vec<VmThread>,
    /// Why not all were read.
    pub incomplete: Option<String>,
}

/// Reads the threads of a process. `kernel_workers` are the processes `vhost-ID` of the kernel.
pub(super) fn read(
    (root, topology): (&Root, &Topology),
    pid: u32,
    descriptors: &Descriptors,
    kernel_workers: &[(u32, String)],
) -> Threads {
    let thread = |folder: &str, pid, tid| {
        let thread = thread(root, folder, pid, tid)?;
        let nodes = thread.cpus.as_ref().map(|cpus| online_nodes(topology, cpus));
        Some(VmThread { nodes: nodes.unwrap_or_default(), ..thread })
    };
    let folder = format!("/proc/{pid}/task");
    let tasks = root.list(&folder).unwrap_or_default();
    let tids: BTreeSet<u32> =
        tasks.iter().filter_map(|task| task.name.parse().ok()).take(MAX_THREADS).collect();
    let incomplete = (tasks.len() > MAX_THREADS)
        .then(|| format!("only {MAX_THREADS} of its {} threads were read", tasks.len()));
    let read = |tid: &u32| thread(&format!("{folder}/{tid}"), pid, *tid);
    let threads: BTreeMap<u32, VmThread> =
        tids.iter().filter_map(|tid| Some((*tid, read(tid)?))).collect();
    let by_number = vcpu_threads(root, pid, descriptors, &threads);
    let numbers: BTreeSet<u32> = descriptors.vcpus.values().copied().collect();
    let vcpu = |number: &u32| Vcpu {
        number: *number,
        thread: by_number.get(number).and_then(|tid| threads.get(tid)).cloned(),
    };
    let vcpus = numbers.iter().map(vcpu).collect();
    let of_vcpus: BTreeSet<u32> = by_number.values().copied().collect();
    let rest = threads.into_values().filter(|thread| !of_vcpus.contains(&thread.tid));
    let (mut vhost_workers, emulator): (Vec<_>, Vec<_>) =
        rest.partition(|thread| worker_of(&thread.comm).is_some() && thread.tid != pid);
    // The number in the name is that of the thread that became the owner.
    let own = kernel_workers
        .iter()
        .filter(|(_, comm)| worker_of(comm).is_some_and(|owner| tids.contains(&owner)));
    vhost_workers
        .extend(own.filter_map(|(worker, _)| thread(&format!("/proc/{worker}"), *worker, *worker)));
    Threads { vcpus, vhost_workers, emulator, incomplete }
}

/// The owner in the name of a vhost worker, `vhost-4711` (drivers/vhost/vhost.c).
fn worker_of(comm: &str) -> Option<u32> {
    comm.strip_prefix("vhost-")?.parse().ok()
}

/// The thread of each vCPU by its number, as far as known.
fn vcpu_threads(
    root: &Root,
    pid: u32,
    descriptors: &Descriptors,
    threads: &BTreeMap<u32, VmThread>,
) -> BTreeMap<u32, u32> {
    let numbers: BTreeSet<u32> = descriptors.vcpus.values().copied().collect();
    // With several machines in a process, numbers are not unique: only the descriptor is.
    let mut found = BTreeMap::new();
    if descriptors.machines == 1 {
        found.extend(from_debugfs(root, pid, &numbers));
        found.retain(|_, tid| threads.contains_key(tid));
        for (tid, thread) in threads {
            let number = vcpu_of_name(&thread.comm).filter(|number| numbers.contains(number));
            if let Some(number) = number {
                found.entry(number).or_insert(*tid);
            }
        }
    }
    if numbers.iter().all(|number| found.contains_key(number)) {
        return found;
    }
    for tid in threads.keys() {
        let call = root.text(&format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
        let descriptor = descriptor_of_run(&call);
        if let Some(number) = descriptor.and_then(|fd| descriptors.vcpus.get(&fd)) {
            found.entry(*number).or_insert(*tid);
        }
    }
    found
}

/// The threads that KVM reports in debugfs; none if it is not mounted, or the kernel is older than 6.1.
fn from_debugfs(root: &Root, pid: u32, numbers: &BTreeSet<u32>) -> BTreeMap<u32, u32> {
    let Some(folder) = debugfs_folder(root, pid) else { return BTreeMap::new() };
    let tid = |number: &u32| {
        let path = format!("{folder}/vcpu{number}/pid");
        Some((*number, root.text(&path).ok()?.parse().ok().filter(|tid| *tid != 0)?))
    };
    numbers.iter().filter_map(tid).collect()
}

/// The folder of KVM's debugfs of a process's virtual machine: of several, one of them.
fn debugfs_folder(root: &Root, pid: u32) -> Option<String> {
    let prefix = format!("{pid}-");
    let folders = root.list(KVM_DEBUGFS).ok()?;
    let folder = folders.into_iter().find(|folder| folder.name.starts_with(&prefix))?;
    Some(format!("{KVM_DEBUGFS}/{}", folder.name))
}

/// How the time stamp counter of the guest is made from the host's (`tsc-offset`, `tsc-scaling-ratio` and
/// `tsc-scaling-ratio-frac-bits` of arch/x86/kvm/debugfs.c; the last two only where the CPU can multiply). All vCPUs have
/// the same, unless their VMM or their guest sets them apart.
pub(super) fn tsc(root: &Root, pid: u32, descriptors: &Descriptors) -> Option<GuestTsc> {
    if descriptors.machines != 1 {
        return None;
    }
    let first = descriptors.vcpus.values().min()?;
    let folder = format!("{}/vcpu{first}", debugfs_folder(root, pid)?);
    let offset = root.text(&format!("{folder}/tsc-offset")).ok()?.parse().ok()?;
    let number = |name: &str| root.text(&format!("{folder}/{name}")).ok()?.parse::<u64>().ok();
    let (ratio, bits) = (number("tsc-scaling-ratio"), number("tsc-scaling-ratio-frac-bits"));
    let (ratio, bits) = ratio.zip(bits).unwrap_or((1, 0));
    Some(GuestTsc { offset, ratio, fraction_bits: u32::try_from(bits).ok()? })
}

/// The number of the vCPU in the name of its thread.
fn vcpu_of_name(comm: &str) -> Option<u32> {
    let qemu = || comm.strip_prefix("CPU ")?.strip_suffix("/KVM");
    let others = || ["fc_vcpu ", "vcpu", "crosvm_vcpu"].iter().find_map(|p| comm.strip_prefix(p));
    qemu().or_else(others)?.parse().ok()
}

/// The descriptor in `/proc/PID/task/TID/syscall` (fs/proc/base.c, `proc_pid_syscall`), if the call is `KVM_RUN`:
/// `16 0x1a 0xae80 0x0 …`. A thread on a CPU has only `running` in it.
pub fn descriptor_of_run(text: &str) -> Option<u32> {
    let mut words = text.split_ascii_whitespace();
    let call: u32 = words.next()?.parse().ok()?;
    let mut number = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (descriptor, request) = (number()?, number()?);
    (IOCTL.contains(&call) && request == KVM_RUN).then(|| u32::try_from(descriptor).ok())?
}

fn online_nodes(topology: &Topology, cpus: &CpuSet) -> Vec<NodeId> {
    topology.nodes_of(&cpus.intersection(&topology.online))
}

/// Reads a thread, without its nodes; `None` if it has exited.
fn thread(root: &Root, folder: &str, pid: u32, tid: u32) -> Option<VmThread> {
    let comm = root.read(&format!("{folder}/comm")).ok()?;
    let status = root.read(&format!("{folder}/status")).ok();
    let stat = root.read(&format!("{folder}/stat")).ok();
    let stat = stat.and_then(|bytes| parse_thread_stat(&bytes));
    let times = root.text(&format!("{folder}/schedstat")).unwrap_or_default();
    let mut times = times.split(' ').map(|time| time.parse().ok());
    Some(VmThread {
        tid,
        pid,
        comm: printable(comm.trim_ascii_end()),
        cpus: status.and_then(|bytes| parse_status(&bytes).ok()?.cpus),
        nodes: Vec::new(),
        start_ticks: stat.as_ref().map(|stat| stat.start_ticks),
        last_cpu: stat.map(|stat| stat.cpu),
        run_ns: times.next().flatten(),
        wait_ns: times.next().flatten(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn threads_have_the_numbers_of_vcpus_in_their_names() {
        assert_eq!(vcpu_of_name("CPU 12/KVM"), Some(12));
        assert_eq!(vcpu_of_name("fc_vcpu 3"), Some(3));
        assert_eq!(vcpu_of_name("vcpu3"), Some(3));
        assert_eq!(vcpu_of_name("CPU x/KVM"), None);
        assert_eq!(vcpu_of_name("CPU 1/TCG"), None);
        assert_eq!((worker_of("vhost-70"), worker_of("vhost-")), (Some(70), None));
    }

    #[test]
    fn a_thread_in_kvm_run_has_the_descriptor() {
        let text = "16 0x1a 0xae80 0x0 0x7f1c 0x0 0x0 0x7f1c12fff 0x7f1c13";
        assert_eq!(descriptor_of_run(text), Some(26));
        for other in ["running", "16 0x1a 0xae81 0x0", "0 0x1a 0xae80", "16 26 0xae80", "16", ""] {
            assert_eq!(descriptor_of_run(other), None, "{other}");
        }
        assert_eq!(descriptor_of_run("16 0xffffffffffffffff 0xae80 0"), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,80}") {
            let _ = descriptor_of_run(&text);
            let _ = vcpu_of_name(&text);
        }
    }
}
