//! An RSS indirection table that does not spread evenly over the receive queues.
//!
//! Input: the table and the number of queues. Output: one finding for each NIC whose queues
//! have unequal shares of the table or none.
//!
//! Rule: ethtool(8) `-X … equal N`; Cloudflare's "Perfect locality" (inspect the indirection table). Queues may be
//! left out of the table on purpose, for n-tuple rules or AF_XDP: then it is only reported.

use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Ethtool, Finding, Nic, NicSetting, ProposedChange, QueueId, Severity};
use std::collections::BTreeMap;

pub(super) const CHECK: Check =
    Check::new("rss_uneven", "an RSS indirection table that is uneven or leaves queues out", run);

/// More queues than any NIC has: a bound for the words of `weight`.
const MOST_QUEUES: usize = 1_024;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.hardware_nics().filter(|nic| nic.rx_queues.len() > 1) {
        match &nic.rss {
            Some(rss) if !rss.indirection.is_empty() => {
                outcome.findings.extend(finding(context, nic, &rss.indirection));
            }
            _ => {
                let why = context.why_unknown(&format!("nic {}", nic.name), "rss");
                outcome
                    .not_checked(format!("the indirection table of {} is unknown{why}", nic.name));
            }
        }
    }
    outcome
}

/// How many receive queues the hash may use.
fn queues(nic: &Nic) -> usize {
    let channels = nic.channels.and_then(|c| {
        let sum = c.rx.unwrap_or(0).saturating_add(c.combined.unwrap_or(0));
        usize::try_from(sum).ok().filter(|&n| n > 0)
    });
    channels.unwrap_or(nic.rx_queues.len()).min(nic.rx_queues.len()).min(MOST_QUEUES)
}

fn finding(context: &Context<'_>, nic: &Nic, table: &[QueueId]) -> Option<Finding> {
    let queues = queues(nic);
    let mut buckets: BTreeMap<QueueId, u64> =
        (0..u32::try_from(queues).ok()?).map(|queue| (QueueId(queue), 0)).collect();
    for queue in table {
        *buckets.entry(*queue).or_default() += 1;
    }
    let unused: Vec<QueueId> =
        buckets.iter().filter(|(_, n)| **n == 0).map(|(queue, _)| *queue).collect();
    let used = || buckets.values().copied().filter(|n| *n > 0);
    let (least, most) = (used().min()?, used().max()?);
    // A table that the number of queues does not divide differs by one.
    let uneven = most - least > 1;
    // With fewer buckets than queues some must be left out.
    let left_out = !unused.is_empty() && table.len() >= queues;
    if !uneven && !left_out {
        return None;
    }
    let received = context.statistic(nic, "rx_packets").and_then(|n| context.rate(n));
    let severity = match uneven && most >= 2 * least {
        true => severity::of_traffic(received),
        false => Severity::Info,
    };
    let title = match (uneven, unused.len()) {
        (true, _) => format!("RSS of {} is uneven", nic.name),
        (false, 1) => format!("RSS of {} leaves one of {queues} queues out", nic.name),
        (false, n) => format!("RSS of {} leaves {n} of {queues} queues out", nic.name),
    };
    let fair = ratio(1, used().count() as u64)?;
    let share = ratio(most, table.len() as u64)?;
    let mut finding = Finding::new(severity, title)
        .evidence(format!(
            "The busiest queue gets {} of the hash values, a fair share of the queues used is {}.",
            text::percent(share),
            text::percent(fair)
        ))
        .share(uneven.then_some(share - fair), "the hash values");
    if left_out {
        let names: Vec<&QueueId> = unused.iter().take(16).collect();
        let more = if unused.len() > 16 { ", …" } else { "" };
        finding =
            finding.evidence(format!("No hash value leads to queue {}{more}.", text::list(&names)));
    }
    let rules = nic.ntuple.iter().flatten().filter(|rule| rule.queue.is_some()).count();
    if rules > 0 {
        let rules = text::count(rules as u64, "n-tuple rule");
        finding = finding.evidence(format!("{rules} of {} may use queues on purpose.", nic.name));
    }
    let weights: Vec<String> = buckets.values().map(ToString::to_string).collect();
    Some(finding.change(ProposedChange::new(
        NicSetting::new(&nic.name, Ethtool::Rss),
        Some(format!("weight {}", weights.join(" "))),
        format!("equal {queues}"),
        "Spreads the hash values evenly over all queues.",
    )))
}
