//! Accelerated RFS: the NIC itself puts each flow on the queue whose interrupt is nearest to its reader.
//!
//! Input: findings that packets are read elsewhere than they arrive, the goal, the NIC's driver and features. Output: the
//! feature `rx-ntuple-filter` on, beside RFS of all its queues ([`super::rps`]); RPS may be off, as hardware does the rest.
//!
//! Rule: Documentation/networking/scaling.rst ("Accelerated RFS"); the drivers are those with `ndo_rx_flow_steer` in
//! drivers/net/ethernet. Others accept the feature for rules that administrators make, and steer no flow.

use super::draft::{Draft, DraftChange};
use super::priority::FEATURE;
use super::situation::Situation;
use nearpath_model::{Ethtool, Nic, NicSetting, Severity};

/// Drivers that steer flows to queues.
const DRIVERS: [&str; 10] = [
    "bnxt_en",
    "enic",
    "hns3",
    "ice",
    "mlx4_core",
    "mlx4_en",
    "mlx5_core",
    "qede",
    "sfc",
    "sfc_siena",
];
/// What finds that packets are read elsewhere than they arrive.
const CHECKS: [&str; 2] = ["reader_placement", "rx_freed_elsewhere"];

/// Turns it on if a finding asks for it; whether RFS of the NIC's queues is to be on for it.
pub(super) fn plan(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) -> bool {
    let Some(check) = asked_by(situation) else { return false };
    let steers = nic.driver.as_deref().is_some_and(|driver| DRIVERS.contains(&driver));
    // Rules for priorities share the NIC's table.
    if !steers || nic.rx_queues.len() < 2 || !situation.request.priorities.is_empty() {
        return false;
    }
    let is_fixed = nic.fixed_offloads.as_ref().is_some_and(|all| all.contains(FEATURE));
    match nic.offloads.as_ref().and_then(|all| all.get(FEATURE)) {
        Some(true) => true,
        Some(false) if !is_fixed => {
            draft.add(DraftChange {
                id: format!("{}/{FEATURE}", nic.name),
                target: NicSetting::new(&nic.name, Ethtool::Feature(FEATURE.to_owned())).into(),
                before: "off".into(),
                after: "on".into(),
                why: format!(
                    "{} then puts each flow on the queue next to its reader (accelerated RFS)",
                    nic.name
                ),
                finding: Some(check.to_owned()),
            });
            true
        }
        _ => {
            draft
                .note(format!("no accelerated RFS of {}: {FEATURE} cannot be turned on", nic.name));
            false
        }
    }
}

fn asked_by<'a>(situation: &Situation<'a>) -> Option<&'a str> {
    let asks = |finding: &&nearpath_model::Finding| {
        finding.severity >= Severity::Warning && CHECKS.contains(&finding.check.as_str())
    };
    situation.findings.iter().find(asks).map(|finding| finding.check.as_str())
}
