//! GRO and TSO switched off: each packet goes through the stack by itself.
//!
//! Input: the features of NICs and their packets. Output: one finding for each NIC with packets on which one
//! is off that could be on.
//!
//! Rule: Documentation/networking/segmentation-offloads.rst.

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Ethtool, Finding, Nic, NicSetting, ProposedChange, Subject};

pub(super) const CHECK: Check =
    Check::new("offloads_off", "NICs with GRO or TSO switched off", run);

/// What is looked at, with the counter of the packets that it is for.
const FEATURES: [(&str, &str, &str); 2] =
    [("rx-gro", "GRO", "rx_packets"), ("tx-tcp-segmentation", "TSO", "tx_packets")];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.hardware_nics() {
        if nic.offloads.is_none() {
            let why = context.why_unknown(&format!("nic {}", nic.name), "offloads");
            outcome.not_checked(format!("the offloads of {} are unknown{why}", nic.name));
        }
        for (feature, name, packets) in FEATURES {
            if is_off(nic, feature) {
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

fn finding(
    context: &Context<'_>,
    nic: &Nic,
    (feature, name, packets): (&str, &str, &str),
) -> Finding {
    let rate = context.statistic(nic, packets).and_then(|count| context.rate(count));
    let mut finding = Finding::new(severity::of_traffic(rate), format!("{}: {name} off", nic.name))
        .about([Subject::Nic(nic.name.clone())])
        .evidence(format!("{feature} is off and can be switched."));
    if let Some(rate) = rate {
        finding = finding.evidence(format!(
            "{} packets/s {} pass the stack individually.",
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
            "Many packets of a connection pass the stack as one.",
        ))
}
