//! RPS on an OVS internal port, where it steers only part of the packets.
//!
//! Input: the `rps_cpus` of OVS internal ports and the queues of the NICs in OVS. Output: one
//! finding for each such port, with RPS on the NIC as the change.
//!
//! Rule: an internal port has one receive queue, and `get_rps_cpu` (net/core/dev.c) does not
//! steer a packet that carries the number of a queue which the device does not have; so only
//! packets of the NIC's queue 0 are steered. Document 000 advises RPS on the port.

use crate::steering::{nics_below, rps_change};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuSet, Finding, Nic, NicKind, Subject};

pub(super) const CHECK: Check = Check::new(
    "ovs_port_rps",
    "RPS on an OVS internal port, which steers only packets of the NIC's queue 0",
    run,
)
.explained_by(&["rps_placement"]);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let ports = || context.nics().filter(|nic| nic.kind == NicKind::OvsInternal);
    for nic in ports().filter(|nic| nic.rx_queues.iter().any(|q| q.rps_cpus.is_none())) {
        let why = context.why_unknown(&format!("nic {}", nic.name), "rps_cpus");
        outcome.not_checked(format!("rps_cpus of {} is unknown{why}", nic.name));
    }
    for port in context.steered().iter().filter(|s| s.nic.kind == NicKind::OvsInternal) {
        let lower = nics_below(context, port.nic);
        if let Some(share) = unsteered(&lower) {
            outcome.findings.push(finding(context, port.nic, &port.cpus, &lower, share));
        }
    }
    outcome
}

/// The share of queues whose packets are not steered.
fn unsteered(lower: &[&Nic]) -> Option<f64> {
    let queues: usize = lower.iter().map(|nic| nic.rx_queues.len()).sum();
    crate::counters::ratio((queues - lower.len()) as u64, queues as u64)
}

fn finding(
    context: &Context<'_>,
    port: &Nic,
    cpus: &CpuSet,
    lower: &[&Nic],
    share: f64,
) -> Finding {
    let names: Vec<&str> = lower.iter().map(|nic| nic.name.as_str()).collect();
    let names = text::list(&names);
    let title = format!("RPS on the OVS port {} steers only packets of RX queue 0", port.name);
    let received = context.statistic(port, "rx_packets").and_then(|n| context.rate(n));
    let mut finding = Finding::new(severity::of_traffic(received), title)
        .about([Subject::Nic(port.name.clone())])
        .evidence(format!(
            "{} is an OVS internal port with one receive queue; its RPS steers to {}.",
            port.name,
            text::cpus(cpus)
        ))
        .evidence(format!(
            "Packets of {names} carry the number of the queue that they came by, and the kernel \
             does not steer those whose queue the port does not have: {} of the queues.",
            text::percent(share)
        ))
        .share(Some(share), "the queues");
    for nic in lower {
        for queue in &nic.rx_queues {
            let why = "RPS on the NIC steers the packets of all its queues.";
            finding = finding.change(rps_change(nic, queue, cpus, why));
        }
    }
    for queue in &port.rx_queues {
        let why = "Steered once, on the NIC, packets need no second steering on the port.";
        finding = finding.change(rps_change(port, queue, &CpuSet::new(), why));
    }
    finding
}
