//! GRO and TSO switched off: each packet goes through the stack by itself.
//!
//! Input: the features of NICs and their packets. Output: one finding for each NIC with packets on which one
//! is off that could be on.
//!
//! Rule: Documentation/networking/segmentation-offloads.rst.

use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{
    Ethtool, Finding, Nic, NicKind, NicSetting, ProposedChange, Severity, Subject,
};

pub(super) const CHECK: Check =
    Check::new("offloads_off", "NICs with GRO or TSO switched off", run);

/// What is looked at, with the counter of the packets that it is for.
const FEATURES: [(&str, &str, &str); 2] =
    [(GRO, "GRO", "rx_packets"), ("tx-tcp-segmentation", "TSO", "tx_packets")];
const GRO: &str = "rx-gro";

/// What a packet costs that traverses the stack by itself, in seconds.
const PACKET_S: f64 = 0.5e-6;
/// Bytes of a mean packet from which there is something to aggregate.
const LARGE_BYTES: f64 = 700.0;
/// On a host that forwards packets, aggregation may be off on purpose.
const FORWARDING: &str = "net.ipv4.ip_forward";

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    // A veth hands over large packets as they are, and has no GRO unless it polls.
    let veths = context.nics().filter(|nic| nic.kind == NicKind::Veth);
    for nic in context.hardware_nics().chain(veths) {
        if nic.offloads.is_none() {
            let why = context.why_unknown(&format!("nic {}", nic.name), "offloads");
            outcome.not_checked(format!("the offloads of {} are unknown{why}", nic.name));
        }
        for (feature, name, packets) in FEATURES {
            let may_be_off = nic.kind == NicKind::Veth && feature == GRO;
            if is_off(nic, feature) && !may_be_off {
                outcome.findings.push(finding(context, nic, (feature, name, packets)));
            }
        }
    }
    outcome
}

/// Whether it is off and could be on.
fn is_off(nic: &Nic, feature: &str) -> bool {
    let fixed = nic.fixed_offloads.as_ref().is_some_and(|fixed| fixed.contains(feature));
    let off = nic.offloads.as_ref().and_then(|all| all.get(feature)).is_some_and(|on| !on);
    off && !fixed
}

/// By what the packets cost that could have been aggregated: large ones, on a host that does not forward.
fn severity_of(context: &Context<'_>, nic: &Nic, packets: &str, rate: Option<f64>) -> Severity {
    let bytes = packets.replace("packets", "bytes");
    let mean = context
        .statistic(nic, &bytes)
        .zip(context.statistic(nic, packets))
        .and_then(|(bytes, packets)| ratio(bytes, packets));
    let forwards = context.host.sysctls.get(FORWARDING).is_some_and(|on| on.trim() != "0");
    if forwards || nic.master.is_some() || mean.is_some_and(|mean| mean < LARGE_BYTES) {
        return severity::UNFELT;
    }
    severity::of_cpu_time(context, rate.unwrap_or(0.0) * PACKET_S)
}

fn finding(
    context: &Context<'_>,
    nic: &Nic,
    (feature, name, packets): (&str, &str, &str),
) -> Finding {
    let rate = context.statistic(nic, packets).and_then(|count| context.rate(count));
    let mut finding =
        Finding::new(severity_of(context, nic, packets, rate), format!("{}: {name} off", nic.name))
            .about([Subject::Nic(nic.name.clone())])
            .evidence(format!("{feature} is off and can be switched."));
    if let Some(rate) = rate {
        finding = finding.evidence(format!(
            "{} packets/s {} traverse the stack one by one (no aggregation).",
            text::digits(rate),
            context.since()
        ));
    }
    finding
        .evidence("It stays off on purpose where packets are forwarded unchanged, or captured.")
        .change(ProposedChange::new(
            NicSetting::new(&nic.name, Ethtool::Feature(feature.to_owned())),
            Some("off".to_owned()),
            "on".to_owned(),
            "Many packets of a connection traverse the stack as one.",
        ))
}
