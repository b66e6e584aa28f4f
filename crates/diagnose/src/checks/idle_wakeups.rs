//! Slow packets that wait for idle CPUs to wake.
//!
//! In go the budgets of the packets that were slow: how long the CPU that should have run them was idle
//! and on its way out of it. Out comes one finding when that is most of their time; one of weight when a
//! wake-up takes so long that a deep idle state, or a virtual machine's way to its CPU, must be behind it.
//! A reader that polls does not sleep, so that no CPU has to wake for it; that costs the CPU, so it is no
//! remedy where nothing waits.
//!
//! Rules: document 000 (`net.core.busy_poll`, `net.core.busy_read`), Documentation/networking/napi.rst
//! (busy polling), Documentation/admin-guide/pm/cpuidle.rst (exit latency of idle states).

use super::slow_packets::ENOUGH;
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Finding, ProposedChange, SettingFile, Severity, ShareKind};

pub(super) const CHECK: Check = Check {
    name: "idle_wakeups",
    looks_at: "how long slow packets wait for idle CPUs to wake",
    run,
};

/// Share of the slow packets' time from which it is told.
const NOTABLE: f64 = 0.5;
/// What a slow packet waits for a wake-up on average, from which it is of weight: shallow idle states take
/// a few µs to leave, deep ones a hundred and more.
const LONG_NS: u64 = 50_000;
/// How long a reader polls before it sleeps, in µs: what Documentation/admin-guide/sysctl/net.rst
/// recommends.
const POLL_US: &str = "50";
const SYSCTLS: [&str; 2] = ["net.core.busy_read", "net.core.busy_poll"];

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
    let severity = if each >= LONG_NS { Severity::Warning } else { Severity::Info };
    let mut finding = Finding::new(severity, "Slow packets wait for idle CPUs to wake")
        .share(Some(share))
        .evidence(format!(
            "{} of the {} that {} took: their CPU was idle, {} for each.",
            text::percent(share),
            text::time(slow.span_ns),
            text::count(slow.seen, "slow packet"),
            text::time(each),
        ))
        .evidence(
            "Deep idle states are left out with cpupower idle-set --disable-by-latency, or by who holds \
             /dev/cpu_dma_latency open; in a virtual machine the host below decides.",
        );
    finding.cost.seconds_per_second =
        Some(ns as f64 / 1e9 / measurement.observed_time_s().max(f64::MIN_POSITIVE));
    // Only packets that a NIC's driver polls for can be waited for.
    if context.hardware_nics().next().is_some() {
        for name in SYSCTLS {
            let now = context.host.sysctls.get(name).map(|now| now.trim());
            if now == Some("0") {
                finding = finding.change(ProposedChange::new(
                    SettingFile::sysctl(name),
                    Some("0".to_owned()),
                    POLL_US,
                    "A reader polls its queue for so many µs before it sleeps; each keeps a CPU busy.",
                ));
            }
        }
    }
    outcome.findings.push(finding);
    outcome
}
