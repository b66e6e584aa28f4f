//! Queues of virtual machines that do not match their vCPUs: a single queue for several vCPUs, or more queues than vCPUs.
//!
//! Input: the queues of each tap that a virtual machine has open, its vCPUs, and the packets of the tap. Output: one
//! finding for each tap.
//!
//! Rules: Documentation/networking/tuntap.rst (multiqueue), drivers/net/virtio_net.c (as many queue pairs are used as
//! there are vCPUs at most, `virtnet_set_affinity`), drivers/vhost/net.c (one worker for each queue pair).

use crate::vms::{name, traffic, vms};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, Subject, Vm, VmTap};

pub(super) const CHECK: Check = Check::new(
    "vm_queues",
    "taps with one queue for several vCPUs, or more queues than vCPUs",
    run,
);

/// Packets in each second, both ways, from which several workers share the work with benefit: below, one has time.
const BUSY_PER_S: f64 = 20_000.0;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for vm in vms(context, &mut outcome) {
        if vm.vcpus.is_empty() {
            outcome.not_checked(format!("how many vCPUs {} has is unknown", name(vm)));
            continue;
        }
        // A second machine of the process may have some of the queues.
        for tap in vm.taps.iter().filter(|_| vm.machines == 1) {
            outcome.findings.extend(finding(context, vm, tap));
        }
    }
    outcome
}

fn finding(context: &Context<'_>, vm: &Vm, tap: &VmTap) -> Option<Finding> {
    let (vcpus, queues) = (vm.vcpus.len(), tap.queues as usize);
    let tap_name = text::clean(&tap.name);
    let about = |finding: Finding| finding.about([Subject::Nic(tap_name.clone())]);
    if queues > vcpus {
        let title = format!(
            "{}: {tap_name} has {queues} queues for {}",
            name(vm),
            text::count(vcpus as u64, "vCPU")
        );
        let finding = Finding::new(severity::UNFELT, title).evidence(
            "A guest uses one queue for each vCPU: the others have workers and buffers without use.",
        );
        return Some(about(finding));
    }
    let rate = traffic(context, vm);
    if queues != 1 || vcpus < 2 || rate.is_some_and(|rate| rate < BUSY_PER_S) {
        return None;
    }
    let title = format!("{}: {tap_name} has one queue for {vcpus} vCPUs", name(vm));
    let finding =
        Finding::new(severity::of_condition(context, true, rate, BUSY_PER_S), title).evidence(
            "One vhost worker copies all packets, and one vCPU takes all interrupts. Give it more queues \
             (queues=N of the netdev, mq=on of virtio-net-pci; <driver queues='N'/>).",
        );
    Some(about(finding))
}
