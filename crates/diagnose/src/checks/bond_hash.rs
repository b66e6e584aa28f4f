//! Bonds whose hash sends nearly all packets by one port.
//!
//! Input: the mode and the hash of bonds, and the packets that their ports sent. Output: one finding for
//! each bond. How packets come in is the switch's choice.
//!
//! Rule: Documentation/networking/bonding.rst (`xmit_hash_policy`: layer2 sends all packets between two
//! hosts, and so all that go through one router, by the same port).

use crate::counters::{ratio, total};
use crate::severity::{self, TRAFFIC_PER_S};
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Finding, Nic, Severity, Subject, shell};

pub(super) const CHECK: Check =
    Check::new("bond_hash", "bonds that send nearly all packets by one port", run);

/// The policy that spreads connections.
const SPREADS: &str = "layer3+4";

/// Share of the packets by one of several ports from which the hash does not spread them.
const ONE_SIDED: f64 = 0.9;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.nics() {
        let Some(bond) = &nic.bond else { continue };
        if !matches!(bond.mode.as_str(), "802.3ad" | "balance-xor") {
            continue;
        }
        let ports: Vec<&Nic> =
            context.nics().filter(|port| port.master.as_ref() == Some(&nic.name)).collect();
        let sent: Option<Vec<(&Nic, u64)>> = ports
            .iter()
            .map(|port| Some((*port, context.statistic(port, "tx_packets")?)))
            .collect();
        match sent {
            Some(sent) => {
                outcome.findings.extend(finding(context, nic, bond.hash.as_deref(), &sent))
            }
            None => outcome
                .not_checked(format!("how many packets the ports of {} sent is unknown", nic.name)),
        }
    }
    outcome
}

fn finding(
    context: &Context<'_>,
    nic: &Nic,
    hash: Option<&str>,
    sent: &[(&Nic, u64)],
) -> Option<Finding> {
    let all = total(sent.iter().map(|(_, count)| *count));
    let (busiest, most) = sent.iter().max_by_key(|(_, count)| *count)?;
    let share = ratio(*most, all)?;
    let busy = context.rate(all).is_some_and(|rate| rate >= TRAFFIC_PER_S);
    if sent.len() < 2 || share < ONE_SIDED || !busy {
        return None;
    }
    // One stream stays on one port with any hash: worse than a note only where that port drops packets.
    let lost = context.statistic(busiest, "tx_dropped").unwrap_or(0);
    let can_spread = hash.is_some_and(|hash| hash != SPREADS);
    let severity = match severity::of_loss(context, lost, Some(*most)) {
        severity if can_spread && lost > 0 => severity.min(Severity::Warning),
        _ => severity::UNFELT,
    };
    let title = format!(
        "{} sends {} of its packets through {}",
        nic.name,
        text::percent(share),
        busiest.name
    );
    let named = text::clean(hash.unwrap_or("?"));
    let mut finding = Finding::new(severity, title)
        .share(Some(share), "its packets")
        .about([Subject::Nic(nic.name.clone())])
        .evidence(format!("Its hash is {named}, over {}.", text::count(sent.len() as u64, "port")))
        .evidence("layer3+4 spreads connections; one connection stays on one port with any hash.");
    if lost > 0 {
        finding = finding.evidence(format!("{} dropped {lost} {}.", busiest.name, context.since()));
    }
    if can_spread {
        let name = shell::word(&nic.name);
        let command = format!("ip link set dev {name} type bond xmit_hash_policy {SPREADS}");
        finding = finding.manual(command);
    }
    Some(finding)
}
