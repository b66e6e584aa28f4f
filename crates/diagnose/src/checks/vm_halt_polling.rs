//! Halt polling that is off where guests receive packets, or so long that it costs power and CPU time.
//!
//! Input: KVM's parameter `halt_poll_ns`, and the packets of the taps of virtual machines. Output: one finding for the
//! host. A vCPU that polls takes a packet's interrupt without a wake-up of its thread.
//!
//! Rule: Documentation/virt/kvm/halt-polling.rst (the default is 200 µs on x86).

use crate::vms::{traffic, vms};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{FileOf, Finding, ProposedChange, SettingFile};

pub(super) const CHECK: Check =
    Check::new("vm_halt_polling", "vCPUs that never poll before they sleep, or for long", run);

/// The kernel's default on x86, in ns.
const DEFAULT_NS: u64 = 200_000;
/// From here on a vCPU polls for longer than several wake-ups of its thread take: the gain is gone, the cost stays.
const LONG_NS: u64 = 1_000_000;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let vms = vms(context, &mut outcome);
    if vms.is_empty() {
        return outcome;
    }
    let Some(ns) = context.host.kvm.and_then(|kvm| kvm.halt_poll_ns) else {
        let why = context.why_unknown("host", "halt_poll_ns");
        outcome.not_checked(format!("how long vCPUs poll before they sleep is unknown{why}"));
        return outcome;
    };
    let rate = vms.iter().filter_map(|vm| traffic(context, vm)).reduce(|all, one| all + one);
    match ns {
        0 if rate.is_some_and(|rate| rate >= severity::TRAFFIC_PER_S) => {
            outcome.findings.push(off(context, rate));
        }
        LONG_NS.. => outcome.findings.push(long(ns)),
        _ => {}
    }
    outcome
}

fn off(context: &Context<'_>, rate: Option<f64>) -> Finding {
    let severity = severity::of_condition(context, true, rate, severity::TRAFFIC_PER_S);
    let title = "vCPUs do not poll before they sleep: halt_poll_ns is 0";
    Finding::new(severity, title)
        .evidence(format!(
            "Each packet for a halted vCPU waits until its thread is woken; {} packets/s pass the taps.",
            text::digits(rate.unwrap_or_default())
        ))
        .evidence("For power, leave it: polling costs CPU time while guests are idle.")
        .change(to_default(0, "The default: a vCPU that polls takes an interrupt without a wake-up, for CPU time."))
}

fn long(ns: u64) -> Finding {
    let title = format!("vCPUs poll for up to {} before they sleep", text::time(ns));
    Finding::new(severity::UNFELT, title)
        .evidence("Polling longer than a few wake-ups take saves little latency; it keeps CPUs busy that have nothing to do.")
        .change(to_default(ns, "The default: saves power and CPU time."))
}

fn to_default(now: u64, why: &str) -> ProposedChange {
    let file = SettingFile::from(FileOf::HaltPolling);
    ProposedChange::new(file, Some(now.to_string()), DEFAULT_NS.to_string(), why)
}
