//! Facts of virtual machines that several checks need.

use crate::{CheckOutcome, Context, text};
use nearpath_model::{CpuId, CpuSet, Proposal, Vm, VmThread};

/// The virtual machines; notes why they are unknown, if they are.
pub(crate) fn vms<'a>(context: &Context<'a>, outcome: &mut CheckOutcome) -> &'a [Vm] {
    let why = context.why_unknown("host", "virtual machines");
    if !why.is_empty() {
        outcome.not_checked(format!("which virtual machines there are is unknown{why}"));
    }
    &context.host.vms
}

/// Its name for a title: `web1 (4711)`.
pub(crate) fn name(vm: &Vm) -> String {
    format!("{} ({})", text::clean(vm.name.as_deref().unwrap_or(&vm.comm)), vm.pid)
}

/// The threads of the vCPUs with the online CPUs where each may run; notes those that are unknown.
pub(crate) fn vcpus<'a>(
    context: &Context<'_>,
    vm: &'a Vm,
    outcome: &mut CheckOutcome,
) -> Vec<(&'a VmThread, CpuSet)> {
    let threads: Vec<&VmThread> = vm.vcpus.iter().filter_map(|v| v.thread.as_ref()).collect();
    let known = placed(context, &threads);
    if known.len() < vm.vcpus.len() {
        let unknown = text::count((vm.vcpus.len() - known.len()) as u64, "vCPU");
        outcome.not_checked(format!("where {unknown} of {} may run is unknown", name(vm)));
    }
    known
}

/// The vhost workers in the same way.
pub(crate) fn workers<'a>(
    context: &Context<'_>,
    vm: &'a Vm,
    outcome: &mut CheckOutcome,
) -> Vec<(&'a VmThread, CpuSet)> {
    let threads: Vec<&VmThread> = vm.vhost_workers.iter().collect();
    let known = placed(context, &threads);
    if known.len() < threads.len() || (vm.vhost_net > 0 && threads.is_empty()) {
        outcome.not_checked(format!("where vhost workers of {} may run is unknown", name(vm)));
    }
    known
}

/// Threads with the online CPUs where they may run.
pub(crate) fn placed<'a>(
    context: &Context<'_>,
    threads: &[&'a VmThread],
) -> Vec<(&'a VmThread, CpuSet)> {
    let online = &context.host.topology.online;
    let known = |thread: &&'a VmThread| {
        let cpus = thread.cpus.as_ref()?.intersection(online);
        (!cpus.is_empty()).then_some((*thread, cpus))
    };
    threads.iter().filter_map(known).collect()
}

/// The CPU of a thread that may run on one only.
pub(crate) fn pinned(cpus: &CpuSet) -> Option<CpuId> {
    if cpus.len() == 1 { cpus.first() } else { None }
}

/// All CPUs of some threads.
pub(crate) fn union(threads: &[(&VmThread, CpuSet)]) -> CpuSet {
    threads.iter().fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus))
}

/// The affinity of a thread of a virtual machine, as a target of a change. A vhost worker that is a process of the kernel
/// has no other threads.
pub(crate) fn affinity(vm: &Vm, thread: &VmThread) -> Proposal {
    let tid = (thread.pid == vm.pid).then_some(thread.tid);
    Proposal::Affinity { pid: thread.pid, tid }
}

/// Packets of its taps in each second, both ways; `None` if that is unknown.
pub(crate) fn traffic(context: &Context<'_>, vm: &Vm) -> Option<f64> {
    let is_its = |name: &str| vm.taps.iter().any(|tap| tap.name == name);
    let taps = context.nics().filter(|nic| is_its(&nic.name));
    let counts = taps
        .flat_map(|nic| ["rx_packets", "tx_packets"].map(|name| context.statistic(nic, name)))
        .flatten();
    counts.reduce(u64::saturating_add).and_then(|count| context.rate(count))
}
