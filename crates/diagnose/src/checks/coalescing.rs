//! Interrupts held back for longer than the packets' way through the stack takes.
//!
//! Input: the coalescing settings of NICs and how often their interrupts came. Output: one finding for each
//! NIC that always waits long, with a shorter wait that its driver accepts.
//!
//! Rule: Documentation/networking/ethtool-netlink.rst (`rx-usecs`: microseconds from a packet's arrival to
//! its interrupt).

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Ethtool, Finding, Nic, NicSetting, ProposedChange, Subject};

pub(super) const CHECK: Check =
    Check::new("coalescing", "interrupts that a NIC holds back for long", run);

/// A wait from which it is most of a packet's latency: drivers' defaults are from 3 to 50.
const LONG_US: u64 = 64;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.hardware_nics() {
        if nic.coalesce.is_none() {
            let why = context.why_unknown(&format!("nic {}", nic.name), "coalesce");
            // Without coalescing in the driver there is no delay.
            if !why.contains("not supported") {
                outcome.not_checked(format!("the coalescing of {} is unknown{why}", nic.name));
            }
            continue;
        }
        let adaptive = nic.adaptive_rx() == Some(true);
        let wait = nic.rx_usecs().filter(|us| *us >= LONG_US && !adaptive);
        outcome.findings.extend(wait.map(|us| finding(context, nic, us)));
    }
    outcome
}

fn finding(context: &Context<'_>, nic: &Nic, us: u64) -> Finding {
    let received = context.statistic(nic, "rx_packets");
    let rate = received.and_then(|count| context.rate(count));
    let wait = text::time(us.saturating_mul(1_000));
    let title = format!("{}: interrupts held back for {wait}", nic.name);
    Finding::new(severity::of_traffic(rate), title)
        .about([Subject::Nic(nic.name.clone())])
        .evidence(format!(
            "rx-usecs is {us} and adaptive-rx is off: the first packet of a burst waits that long."
        ))
        .change(ProposedChange::new(
            NicSetting::new(&nic.name, Ethtool::Coalesce),
            Some(format!("rx-usecs {us}")),
            format!("rx-usecs {}", nic.latency_usecs()),
            "Packets are taken sooner, at the price of more interrupts.",
        ))
}
