//! CPU masks of Open vSwitch that name CPUs that are not online.
//!
//! Input: `other_config` of the switch. Output: one finding for each mask. Open vSwitch starts no PMD thread for such a CPU
//! and says so in its log alone.
//!
//! Rule: Open vSwitch's ovs-vswitchd.conf.db(5) (`pmd-cpu-mask`, `dpdk-lcore-mask`: hexadecimal, CPU 0 is the lowest bit).

use crate::workers::process_name;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuId, CpuSet, Finding};

pub(super) const CHECK: Check =
    Check::new("ovs_masks", "CPU masks of Open vSwitch with CPUs that are not online", run);

const MASKS: [&str; 2] = ["pmd-cpu-mask", "dpdk-lcore-mask"];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let online = &context.host.topology.online;
    for process in context.polling_processes() {
        for mask in MASKS {
            let Some(value) = process.other_config.get(mask) else { continue };
            let shown = text::clean(value);
            let Some(cpus) = parse(value) else {
                outcome.not_checked(format!("{mask} is no hexadecimal mask: {shown}"));
                continue;
            };
            let gone = cpus.difference(online);
            if gone.is_empty() || online.is_empty() {
                continue;
            }
            let title =
                format!("{mask} of Open vSwitch names {}, not online", text::cpus_brief(&gone));
            outcome.findings.push(
                Finding::new(severity::UNFELT, title)
                    .evidence(format!(
                        "{} has {mask}={shown}, that is {}.",
                        process_name(process),
                        text::cpus_brief(&cpus)
                    ))
                    .evidence(format!("Online are {}.", text::cpus_brief(online)))
                    .evidence("These CPUs get no thread: set the mask to CPUs that are there."),
            );
        }
    }
    outcome
}

/// CPUs of a hexadecimal mask, with or without `0x`.
fn parse(mask: &str) -> Option<CpuSet> {
    let digits = mask.trim().trim_start_matches("0x").trim_start_matches("0X");
    if digits.is_empty() || digits.len() > 2048 {
        return None;
    }
    let mut cpus = Vec::new();
    for (at, digit) in (0u32..).zip(digits.chars().rev()) {
        let bits = digit.to_digit(16)?;
        cpus.extend((0..4).filter(|bit| bits & (1 << bit) != 0).map(|bit| CpuId(at * 4 + bit)));
    }
    Some(cpus.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_hexadecimal() {
        let list = |mask: &str| parse(mask).map(|cpus| cpus.to_string());
        assert_eq!(list("0x6"), Some("1-2".to_owned()));
        assert_eq!(list("100000000000000000"), Some("68".to_owned()));
        assert_eq!((list(""), list("0x"), list("1-3")), (None, None, None));
    }
}
