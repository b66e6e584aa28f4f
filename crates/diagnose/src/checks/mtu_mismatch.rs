//! Interfaces that hand packets to each other and disagree on how large these may be.
//!
//! Input: the MTUs of interfaces, of the bridge or bond that they are ports of, and of the devices below them.
//! Output: one finding for each group. A packet larger than its egress port's MTU is dropped silently on a
//! bridge or a switch, as these send no ICMP.
//!
//! Rules: net/bridge/br_forward.c (`is_skb_forwardable`), net/8021q/vlan_dev.c (`vlan_dev_change_mtu`),
//! drivers/net/veth.c (`veth_forward_skb`).

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, Nic, NicKind, Subject};
use std::collections::BTreeMap;

pub(super) const CHECK: Check = Check::new(
    "mtu_mismatch",
    "ports of one bridge, and pairs of interfaces, with different MTUs",
    run,
);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.nics().filter(|nic| nic.mtu_bytes.is_none()) {
        outcome.not_checked(format!("the MTU of {} is unknown", nic.name));
    }
    outcome.findings.extend(ports(context));
    outcome.findings.extend(pairs(context));
    outcome
}

/// Ports of one master with different MTUs.
fn ports(context: &Context<'_>) -> Vec<Finding> {
    let mut masters: BTreeMap<&str, Vec<(&str, u32)>> = BTreeMap::new();
    for nic in context.nics() {
        // A VRF routes, and so notifies senders.
        let master = nic
            .master
            .as_deref()
            // The device of an OVS datapath is down as a rule.
            .filter(|name| {
                context.host.nics.iter().any(|n| n.name == **name && n.kind != NicKind::Other)
            });
        if let (Some(master), Some(mtu)) = (master, nic.mtu_bytes) {
            masters.entry(master).or_default().push((&nic.name, mtu));
        }
    }
    let differ = |ports: &[(&str, u32)]| {
        let (least, most) = bounds(ports);
        least != most
    };
    masters
        .into_iter()
        .filter(|(_, ports)| differ(ports))
        .map(|(master, ports)| {
            let (least, most) = bounds(&ports);
            let title = format!("{}: ports with MTU {least} and {most}", text::clean(master));
            let names = |mtu: u32| {
                let of: Vec<String> = ports
                    .iter()
                    .filter(|(_, its)| *its == mtu)
                    .take(8)
                    .map(|(name, _)| text::clean(name))
                    .collect();
                text::list(&of)
            };
            Finding::new(severity::UNFELT, title)
                .about(ports.iter().map(|(name, _)| Subject::Nic((*name).to_owned())))
                .evidence(format!("MTU {most}: {}; MTU {least}: {}.", names(most), names(least)))
                .evidence("Packets larger than the egress port's MTU are dropped silently.")
        })
        .collect()
}

fn bounds(ports: &[(&str, u32)]) -> (u32, u32) {
    let mtus = || ports.iter().map(|(_, mtu)| *mtu);
    (mtus().min().unwrap_or(0), mtus().max().unwrap_or(0))
}

/// The two ends of a veth pair, and a VLAN or macvlan larger than the device below it.
fn pairs(context: &Context<'_>) -> Vec<Finding> {
    let lower = |nic: &Nic| context.nics().find(|other| Some(&other.name) == nic.link.as_ref());
    let mut found = Vec::new();
    for nic in context.nics() {
        let Some(other) = lower(nic) else { continue };
        let (Some(own), Some(its)) = (nic.mtu_bytes, other.mtu_bytes) else { continue };
        let wrong = match nic.kind {
            // Each pair once.
            NicKind::Veth => own != its && nic.ifindex < other.ifindex,
            NicKind::Vlan | NicKind::Macvlan | NicKind::Macvtap => own > its,
            _ => false,
        };
        if wrong {
            let title = format!("{} has MTU {own}, {} {its}", nic.name, other.name);
            found.push(
                Finding::new(severity::UNFELT, title)
                    .about([Subject::Nic(nic.name.clone()), Subject::Nic(other.name.clone())])
                    .evidence("Packets larger than the smaller MTU are dropped between them."),
            );
        }
    }
    found
}
