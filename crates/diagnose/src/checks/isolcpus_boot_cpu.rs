//! `isolcpus=` and `nohz_full=` that contain CPU 0.
//!
//! Input: the kernel's command line and what is in effect. Output: one finding for each. The boot CPU keeps the time
//! for all others, so the kernel takes it out of `nohz_full` (kernel/time/tick-sched.c, `tick_nohz_init`), and what is
//! isolated with it loses its housekeeping.
//!
//! Rules: Documentation/admin-guide/kernel-parameters.txt, DPVS's guide to worker tuning (the first core is the
//! system's).

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuId, CpuSet, Finding};

pub(super) const CHECK: Check =
    Check::new("isolcpus_boot_cpu", "isolcpus= and nohz_full= with CPU 0", run);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let kernel = &context.host.kernel;
    let Some(line) = &kernel.cmdline else {
        let why = context.why_unknown("host", "cmdline");
        outcome.not_checked(format!("the kernel's command line is unknown{why}"));
        return outcome;
    };
    for (parameter, in_effect) in [("isolcpus", &kernel.isolated), ("nohz_full", &kernel.nohz_full)]
    {
        let prefix = format!("{parameter}=");
        // The last one counts.
        let value =
            line.split_ascii_whitespace().filter_map(|word| word.strip_prefix(&prefix)).next_back();
        let Some(value) = value else { continue };
        let Some(cpus) = cpus_of(value) else { continue };
        if !cpus.contains(CpuId(0)) {
            continue;
        }
        let title = format!("{parameter}={} contains CPU 0", text::clean(value));
        let mut finding = Finding::new(severity::UNFELT, title);
        if let Some(cpus) = in_effect {
            finding = finding.evidence(match cpus.contains(CpuId(0)) {
                true => format!("In effect: {}.", text::cpus_brief(cpus)),
                false => {
                    format!("The kernel has taken CPU 0 out: {} in effect.", text::cpus_brief(cpus))
                }
            });
        }
        outcome.findings.push(finding.evidence(
            "CPU 0 keeps the time and has interrupts that cannot move: leave it to the system.",
        ));
    }
    outcome
}

/// The CPUs of a value such as `domain,managed_irq,1-3`; `None` in a form that is not a plain list.
fn cpus_of(value: &str) -> Option<CpuSet> {
    let is_flag =
        |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let words: Vec<&str> = value.split(',').skip_while(is_flag).collect();
    CpuSet::from_list(&words.join(",")).ok()
}
