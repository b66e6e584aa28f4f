//! PCIe links that run slower or narrower than both ends can, or than the NIC's own speed.
//!
//! Input: the links of NICs. Output: one finding for each. A link that trained down points to the slot, the
//! riser or the firmware; no setting fixes it.
//!
//! Rules: Documentation/ABI/testing/sysfs-bus-pci (`current_link_speed`, `max_link_width`), the PCI Express
//! base specification (8b/10b up to 5 GT/s, 128b/130b from 8 GT/s).

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, Nic, NicKind, PcieLink, Subject};

pub(super) const CHECK: Check =
    Check::new("pcie_link", "PCIe links below what the device and its slot can do", run);

/// The part of a link's bandwidth that packets get: the rest is headers and flow control.
const USABLE: f64 = 0.85;

/// Share of what the link carries from which packets wait for it.
const BUSY: f64 = 0.5;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let guest = context.host.kernel.virtualisation.as_deref() != Some("none");
    for nic in context.nics().filter(|nic| nic.kind == NicKind::Physical) {
        match nic.pcie {
            // Those of a guest are what its hypervisor pretends.
            Some(_) if guest => {}
            Some(link) => outcome.findings.extend(finding(context, nic, link)),
            // A hypervisor shows no link; USB and platform devices have none.
            None if guest || !nic.bus.as_ref().is_some_and(|bus| bus.contains(':')) => {}
            None => outcome.not_checked(format!("the PCIe link of {} is unknown", nic.name)),
        }
    }
    outcome
}

fn finding(context: &Context<'_>, nic: &Nic, link: PcieLink) -> Option<Finding> {
    let trained_down = link.speed_mts < link.max_speed_mts || link.width < link.max_width;
    let too_slow = nic.speed_mbps.filter(|speed| (*speed as f64) > usable_mbps(link));
    if !trained_down && too_slow.is_none() {
        return None;
    }
    let used = busiest_way_mbps(context, nic).map(|mbps| mbps / usable_mbps(link));
    let severity = severity::of_condition(context, too_slow.is_some(), used, BUSY);
    let now = words(link.speed_mts, link.width);
    let best = words(link.max_speed_mts, link.max_width);
    let title = match trained_down {
        true => format!("{}: PCIe link at {now} of {best}", nic.name),
        false => format!("{}: PCIe link at {now} is slower than the NIC", nic.name),
    };
    let mut finding = Finding::new(severity, title)
        .about([Subject::Nic(nic.name.clone())])
        .evidence(format!("It carries about {} Gbit/s of packets.", gigabits(usable_mbps(link))));
    if let Some(speed) = nic.speed_mbps {
        finding = finding.evidence(format!("The NIC's link is {} Gbit/s.", gigabits(speed as f64)));
    }
    if trained_down {
        finding = finding
            .evidence("Reseat the card, try another slot or riser, and check firmware settings.");
    }
    Some(finding)
}

/// Megabits per second of the busier direction.
fn busiest_way_mbps(context: &Context<'_>, nic: &Nic) -> Option<f64> {
    let bytes = ["rx_bytes", "tx_bytes"].map(|name| context.statistic(nic, name));
    let rate = context.rate(bytes.into_iter().flatten().max()?)?;
    Some(rate * 8.0 / 1e6)
}

/// `8 GT/s x16`.
fn words(speed_mts: u32, width: u32) -> String {
    let speed = f64::from(speed_mts) / 1000.0;
    format!("{speed} GT/s x{width}")
}

fn gigabits(mbps: f64) -> String {
    text::digits(mbps / 1000.0)
}

fn usable_mbps(link: PcieLink) -> f64 {
    let coding = if link.speed_mts <= 5_000 { 0.8 } else { 128.0 / 130.0 };
    f64::from(link.speed_mts) * f64::from(link.width) * coding * USABLE
}
