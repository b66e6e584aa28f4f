//! vhost's zero-copy transmit, which makes a guest wait for packets that others hold.
//!
//! Input: the parameter `experimental_zcopytx` of vhost_net, and the virtual machines with vhost-net. Output: one finding
//! for the host. A packet that is not copied occupies the guest's ring until the last holder has freed it: a full
//! queueing discipline, or a receiver on the same host that does not read, stops all other packets of the queue.
//!
//! Rules: drivers/vhost/net.c (`vhost_exceeds_maxpend`), commit 098eadce3c62 "vhost_net: disable zerocopy by default".

use crate::vms::{traffic, vms};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, Vm};

pub(super) const CHECK: Check = Check::new(
    "vm_zero_copy",
    "vhost's zero-copy transmit, which lets packets wait for others",
    run,
);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let all = vms(context, &mut outcome);
    let of_vhost: Vec<&Vm> = all.iter().filter(|vm| vm.vhost_net > 0).collect();
    if of_vhost.is_empty() {
        return outcome;
    }
    let Some(zero_copy) = context.host.kvm.and_then(|kvm| kvm.zero_copy_tx) else {
        let why = context.why_unknown("host", "experimental_zcopytx");
        outcome.not_checked(format!("whether vhost sends without a copy is unknown{why}"));
        return outcome;
    };
    if zero_copy {
        let rates = of_vhost.iter().filter_map(|vm| traffic(context, vm));
        let rate = rates.reduce(|all, one| all + one);
        let severity = severity::of_condition(context, true, rate, severity::TRAFFIC_PER_S);
        let guests = text::count(of_vhost.len() as u64, "guest");
        outcome.findings.push(
            Finding::new(severity, "vhost sends without a copy (zero-copy)")
                .evidence(format!(
                    "Packets of {guests} stay in the guest's ring until all holders have freed them: one that is held \
                     in a queue delays those behind it."
                ))
                .evidence(
                    "Load vhost_net with experimental_zcopytx=0, the default (options vhost_net \
                     experimental_zcopytx=0 in /etc/modprobe.d), once no guest uses it.",
                ),
        );
    }
    outcome
}
