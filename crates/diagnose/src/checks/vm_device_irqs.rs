//! Interrupts of devices passed through to a guest that go to another node than its vCPUs run on.
//!
//! Input: the devices of each virtual machine (VFIO), the interrupts that VFIO has requested for them, and where the
//! vCPUs may run. Output: one finding for each virtual machine, with the CPUs of their node for each interrupt. The
//! host's handler passes the interrupt on to KVM, which wakes the vCPU: from another node, over the interconnect.
//!
//! Rules: Linaro's latencies to virtual machines (VFIO), drivers/vfio/pci/vfio_pci_intrs.c
//! (`vfio-msix[0](0000:01:10.0)`). With posted interrupts of an IOMMU the host's handler does not run while the vCPU
//! does.

use super::nic_irq_node::affinity_change;
use crate::context::irq_cpus;
use crate::vms::{name, union, vcpus, vms};
use crate::{Check, CheckOutcome, Context, cpus_near_node, severity, text};
use nearpath_model::{CpuSet, Finding, Irq, NodeId, Vm};

pub(super) const CHECK: Check = Check::new(
    "vm_device_irqs",
    "interrupts of devices passed through that go to another node than the vCPUs",
    run,
);

/// Changes proposed for each finding.
const MAX_CHANGES: usize = 16;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.nodes_with_cpus() < 2 {
        return outcome;
    }
    for vm in vms(context, &mut outcome).iter().filter(|vm| !vm.devices.is_empty()) {
        let vcpus = vcpus(context, vm, &mut outcome);
        let nodes = context.host.topology.nodes_of(&union(&vcpus));
        // vCPUs on several nodes are near every interrupt in part.
        let [node] = nodes.as_slice() else { continue };
        let irqs = irqs_of(context, vm);
        let unknown = irqs.iter().filter(|irq| irq_cpus(irq).is_none()).count();
        if irqs.is_empty() || unknown > 0 {
            let what = format!("where interrupts of the devices of {} go is unknown", name(vm));
            outcome.not_checked(what);
        }
        let near = cpus_near_node(&context.host.topology, Some(*node));
        let is_off =
            |irq: &&&Irq| irq_cpus(irq).is_some_and(|cpus| cpus.intersection(&near).is_empty());
        let off: Vec<&Irq> = irqs.iter().filter(is_off).copied().collect();
        outcome.findings.extend(finding(context, vm, *node, &off, &near));
    }
    outcome
}

/// The interrupts of its devices.
fn irqs_of<'a>(context: &Context<'a>, vm: &Vm) -> Vec<&'a Irq> {
    let addresses: Vec<String> = vm
        .devices
        .iter()
        .filter_map(|device| device.name.as_ref())
        .map(|address| format!("({address})"))
        .collect();
    let is_its = |irq: &&Irq| {
        irq.name.starts_with("vfio-") && addresses.iter().any(|address| irq.name.ends_with(address))
    };
    context.host.irqs.iter().filter(is_its).collect()
}

fn finding(
    context: &Context<'_>,
    vm: &Vm,
    node: NodeId,
    off: &[&Irq],
    near: &CpuSet,
) -> Option<Finding> {
    let first = off.first()?;
    let count = off.iter().map(|irq| context.irq_total(irq)).fold(0, u64::saturating_add);
    let severity = severity::of_traffic(context.rate(count));
    let title = format!(
        "{}: {} of its devices off the node of its vCPUs",
        name(vm),
        text::count(off.len() as u64, "interrupt")
    );
    let places =
        off.iter().filter_map(|irq| irq_cpus(irq)).fold(CpuSet::new(), |all, c| all.union(c));
    let mut finding = Finding::new(severity, title)
        .evidence(format!("Its vCPUs run on node {node}; these go to {}.", text::cpus(&places)))
        .evidence(format!("Interrupt {} is {}.", first.irq, text::clean(&first.name)));
    for irq in off.iter().take(MAX_CHANGES) {
        let why = format!("The handler runs on node {node}, where it wakes the vCPU.");
        finding = finding.change(affinity_change(irq, near, why));
    }
    Some(finding)
}
