//! Slow packets that wait for idle CPUs to wake.
//!
//! Input: the budgets of the packets that were slow: how long the CPU that should have run them was idle and on its way
//! out of it. Output: one finding when that is most of their time; a deep idle state, or a virtual machine's way to its
//! CPU, is behind it. A reader that polls does not sleep, so that no CPU has to wake for it; that costs the CPU, so it
//! is no remedy where nothing waits.
//!
//! Rules: everoute's analysis of latency tails (`net.core.busy_poll`, `net.core.busy_read`),
//! Documentation/networking/napi.rst (busy polling), Documentation/admin-guide/pm/cpuidle.rst (exit latency of idle
//! states).

use super::slow_packets::ENOUGH;
use crate::severity::{self, LATE_NS};
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Finding, ProposedChange, ShareKind, Subject, Sysctl};

pub(super) const CHECK: Check =
    Check::new("idle_wakeups", "how long slow packets wait for idle CPUs to wake", run);

/// Minimum share of the slow packets' time to report it.
const NOTABLE: f64 = 0.5;
/// How long a reader polls before it sleeps, in µs: what Documentation/admin-guide/sysctl/net.rst
/// recommends.
const POLL_US: &str = "50";
const SYSCTLS: [Sysctl; 2] = [Sysctl::BusyRead, Sysctl::BusyPoll];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measurement) = context.measurement else {
        outcome.not_checked("no measurement: how long packets wait is not known");
        return outcome;
    };
    let slow = measurement.slow;
    let idle = measurement.budget_totals.iter().filter(|cause| cause.share == ShareKind::Idle);
    let ns = idle.map(|cause| cause.ns).fold(0, u64::saturating_add).min(slow.span_ns);
    let share = ns as f64 / slow.span_ns.max(1) as f64;
    if slow.seen < ENOUGH || share < NOTABLE {
        return outcome;
    }
    let each = ns / slow.seen;
    let observed_s = measurement.observed_time_s().max(f64::MIN_POSITIVE);
    let seconds = ns as f64 / 1e9 / observed_s;
    // Only packets that wait for longer than any healthy wake-up takes are late.
    let late = if each >= LATE_NS { slow.seen.saturating_add(slow.lost) } else { 0 };
    let severity = severity::of_tail(late as f64, measurement.packets.started, observed_s);
    let mut finding = Finding::new(severity, "Slow packets wait for idle CPUs to wake")
        .share(Some(share), "the time of slow packets")
        .evidence(format!(
            "{} of the {} that {} took: their CPU was idle, {} for each.",
            text::percent(share),
            text::time(slow.span_ns),
            text::count(slow.seen, "slow packet"),
            text::time(each),
        ))
        .evidence(
            "Disable deep idle states with cpupower idle-set --disable-by-latency, or hold /dev/cpu_dma_latency \
             open; in a VM the hypervisor decides.",
        );
    finding.cost.seconds_per_second = Some(seconds);
    let idle = measurement.outliers.iter().filter(|outlier| {
        outlier.budget.iter().any(|part| part.share == ShareKind::Idle && part.ns > 0)
    });
    finding = finding.about(idle.map(|o| Subject::Span(o.from.clone(), o.to.clone())));
    // Only packets that a NIC's driver polls for can be waited for.
    if context.hardware_nics().next().is_some() {
        for sysctl in SYSCTLS {
            let now = context.host.sysctls.get(sysctl.name()).map(|now| now.trim());
            if now == Some("0") {
                finding = finding.change(ProposedChange::new(
                    sysctl,
                    Some("0".to_owned()),
                    POLL_US,
                    "A reader polls its queue for this many µs before it sleeps; each keeps a CPU busy.",
                ));
            }
        }
    }
    outcome.findings.push(finding);
    outcome
}
