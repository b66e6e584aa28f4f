//! Reclaim of a node's memory before memory of another node is used.
//!
//! Input: `vm.zone_reclaim_mode`, and how often it reclaimed in the interval. Output: one finding where it is on and
//! several nodes have memory: an allocation then drops the page cache of its node, and may wait for that, while other
//! nodes have memory free.
//!
//! Rule: Documentation/admin-guide/sysctl/vm.rst (`zone_reclaim_mode`: beneficial only for workloads partitioned by node).

use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Finding, ProposedChange, Severity, Sysctl};

pub(super) const CHECK: Check = Check::new(
    "zone_reclaim",
    "reclaim of a node's memory while other nodes have memory free",
    run,
);

const SYSCTL: Sysctl = Sysctl::ZoneReclaimMode;
/// Reclaims in an interval that are more than a hint.
const MANY: u64 = 10;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.topology.nodes.len() < 2 {
        return outcome;
    }
    let mode =
        context.host.sysctls.get(SYSCTL.name()).and_then(|value| value.trim().parse::<u32>().ok());
    let Some(mode) = mode else {
        let why = context.why_unknown("sysctl", SYSCTL.name());
        outcome.not_checked(format!("{SYSCTL} is unknown{why}"));
        return outcome;
    };
    if mode == 0 {
        return outcome;
    }
    let vmstat = context.memory.filter(|m| m.duration_s.is_some()).map(|m| &m.vmstat);
    let counter = |name: &str| vmstat.and_then(|vmstat| vmstat.get(name)).copied();
    let reclaimed = counter("zone_reclaim_success");
    let failed = counter("zone_reclaim_failed");
    let runs = reclaimed.unwrap_or(0).saturating_add(failed.unwrap_or(0));
    let severity = if runs >= MANY { Severity::Warning } else { Severity::Info };
    let mut finding =
        Finding::new(severity, "a full node reclaims memory before other nodes are used")
            .evidence(format!("{SYSCTL} is {mode}."))
            .change(ProposedChange::new(
                SYSCTL,
                Some(mode.to_string()),
                "0",
                "Allocations use free memory of another node instead of waiting for reclaim.",
            ));
    if reclaimed.is_some() || failed.is_some() {
        finding = finding.evidence(format!(
            "In the interval an allocation reclaimed {}; {} of these failed.",
            text::count(runs, "time"),
            failed.unwrap_or(0)
        ));
    }
    outcome.findings.push(finding);
    outcome
}
