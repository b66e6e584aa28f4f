//! Taps with one queue and many packets: one vhost thread moves all packets of the guest.
//!
//! Input: the queues of tap and macvtap devices, and their packets over the interval. Output: one finding for
//! each that is busy.
//!
//! Rules: Documentation/networking/tuntap.rst (multiqueue), drivers/vhost/net.c (one worker for each queue
//! pair).

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, Nic, NicKind, Subject};

pub(super) const CHECK: Check = Check::new("tap_queues", "busy taps with a single queue", run);

/// Packets in each second, both ways, from which one CPU is busy with moving them: vhost takes some 2 to 5 µs
/// for a packet.
const BUSY_PER_S: f64 = 100_000.0;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let taps = context.nics().filter(|nic| matches!(nic.kind, NicKind::Tap | NicKind::Macvtap));
    for nic in taps.filter(|nic| nic.rx_queues.len() == 1) {
        match packets(context, nic) {
            Some(packets) => outcome.findings.extend(finding(context, nic, packets)),
            None => outcome.not_checked(format!("the packets of {} are unknown", nic.name)),
        }
    }
    outcome
}

fn packets(context: &Context<'_>, nic: &Nic) -> Option<u64> {
    let count = |name| context.statistic(nic, name);
    Some(count("rx_packets")?.saturating_add(count("tx_packets")?))
}

fn finding(context: &Context<'_>, nic: &Nic, packets: u64) -> Option<Finding> {
    let rate = context.rate(packets).filter(|rate| *rate >= BUSY_PER_S)?;
    let title = format!("{}: {} packets/s through one queue", nic.name, text::digits(rate));
    Some(
        Finding::new(severity::of_condition(context, true, Some(rate), BUSY_PER_S), title)
            .about([Subject::Nic(nic.name.clone())])
            .evidence("One vhost thread, on one CPU at a time, moves all packets of the guest.")
            .evidence(
                "Give the guest several queues (queues=N of the netdev, mq=on of virtio-net-pci), and enable \
                 them in the guest (ethtool -L).",
            ),
    )
}
