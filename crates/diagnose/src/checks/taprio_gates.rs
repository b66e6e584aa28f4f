//! taprio's gates against the times at which packets want to leave.
//!
//! Input: the gate list of each taprio, and, where scheduled transmission was measured, the period and the first time of its
//! probes. Output: classes whose gate never opens, and probes that find theirs closed. A period that is neither a
//! multiple nor a divisor of the cycle drifts through it: some packets wait for the gate, and their delay is a saw-tooth.
//!
//! Rules: tc-taprio(8), `get_packet_txtime` and `advance_sched` in net/sched/sch_taprio.c.

use super::etf_delta::leaves_by;
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{
    Finding, Nic, ScheduleClock, ScheduledTransmission, Scheduler, Severity, Subject, Taprio,
};

pub(super) const CHECK: Check =
    Check::new("taprio_gates", "gates of taprio that are closed when packets are to leave", run);

/// Probes whose times are compared with the gates.
const PROBES: u64 = 1_000;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.nics() {
        for qdisc in nic.qdiscs.iter().flatten() {
            let Some(Scheduler::Taprio(taprio)) = &qdisc.scheduler else { continue };
            outcome.findings.extend(never_open(nic, taprio));
            let measured = context.txtime.filter(|its| leaves_by(context, its, nic));
            match measured {
                Some(measured) => outcome.findings.extend(closed(nic, taprio, measured)),
                None => outcome.not_checked(format!(
                    "when packets are to leave by {} is unknown: measure it with 'nearpath bench latency --txtime'",
                    nic.name
                )),
            }
        }
    }
    outcome
}

fn never_open(nic: &Nic, taprio: &Taprio) -> Option<Finding> {
    let is_shut = |class: &u8| taprio.open_ns(*class) == 0;
    let class = taprio.classes.map.iter().copied().find(is_shut)?;
    let priorities = (0u32..).zip(taprio.classes.map).filter(|(_, its)| *its == class);
    let list: Vec<String> = priorities.map(|(priority, _)| priority.to_string()).collect();
    Some(
        Finding::new(
            Severity::Warning,
            format!("{}: the gate of traffic class {class} never opens", nic.name),
        )
        .about([Subject::Nic(nic.name.clone())])
        .evidence(format!("Packets of priority {} never leave.", list.join(", "))),
    )
}

fn closed(nic: &Nic, taprio: &Taprio, measured: &ScheduledTransmission) -> Option<Finding> {
    let class = taprio.classes.of_priority(measured.priority);
    let period = measured.period_ns.filter(|&period| period > 0)?;
    let (cycle, open) = (u64::try_from(taprio.cycle_ns).ok()?, taprio.open_ns(class));
    if open == 0 || cycle == 0 || open >= cycle {
        return None;
    }
    let drifts = period % cycle != 0 && cycle % period != 0;
    let share = share_closed(taprio, class, measured, period);
    if !drifts && share == Some(0.0) {
        return None;
    }
    let name = &nic.name;
    let title = match (drifts, share) {
        (true, _) => format!(
            "{name}: probes every {} drift through taprio's cycle of {}",
            text::time(period),
            text::time(cycle)
        ),
        (false, Some(share)) => format!(
            "{name}: {} of the probes are due while the gate of their class is closed",
            text::percent(share)
        ),
        // Whether they meet the gate is not known without its clock.
        (false, None) => return None,
    };
    let longest = cycle.saturating_sub(open);
    Some(
        Finding::new(Severity::Warning, title)
            .share(share.or(Some(longest as f64 / cycle as f64)), "the scheduled packets")
            .about([Subject::Nic(name.clone())])
            .evidence(format!(
                "The gate of class {class} (priority {}) is open for {} of each cycle: others wait up to {}.",
                measured.priority,
                text::time(open),
                text::time(longest)
            ))
            .evidence(if drifts {
                "Make the period a multiple of the cycle, or the cycle one of the period."
            } else {
                "Move the times, or taprio's base-time, so that packets are due while their gate is open."
            }),
    )
}

/// The share of probes that find their gate closed; `None` if the first time is unknown, or by another clock.
fn share_closed(
    taprio: &Taprio,
    class: u8,
    measured: &ScheduledTransmission,
    period: u64,
) -> Option<f64> {
    let first = i64::try_from(measured.first_ns?).ok()?;
    if taprio.clock != Some(ScheduleClock::Tai) {
        return None;
    }
    let at = |number: u64| {
        let later = i64::try_from(period.saturating_mul(number)).unwrap_or(i64::MAX);
        first.saturating_add(later)
    };
    let probes = measured.sent.clamp(1, PROBES);
    let shut = (0..probes).filter(|&number| !taprio.is_open_at(class, at(number))).count();
    Some(shut as f64 / probes as f64)
}
