//! `measure vm --guest`: the late spans of a guest, with what its vCPUs waited for in the host.

use super::table::{Table, left, or_none, right};
use super::units::{latency, printable};
use super::{heading, line};
use nearpath_model::vm::{GuestLate, GuestSpan, GuestWait};
use std::collections::BTreeSet;

/// Maximum number of spans shown, the longest; the JSON has all.
const SHOWN: usize = 20;

/// The late spans, the answer first.
pub(super) fn guest(late: &GuestLate) -> String {
    let mut out = String::new();
    heading(&mut out, &answer(late));
    if late.outside > 0 {
        let outside = match late.outside {
            1 => "1 late span of the guest is not".to_owned(),
            n => format!("{n} late spans of the guest are not"),
        };
        line!(out, "{outside} within the time that the host measured");
    }
    if !late.spans.is_empty() {
        line!(out);
        out.push_str(&table(late));
        if late.spans.len() > SHOWN {
            line!(out, "{} more (--json)", late.spans.len() - SHOWN);
        }
    }
    out
}

fn answer(late: &GuestLate) -> String {
    let (all, by_host) = (late.spans.len(), late.by_host());
    match (all, by_host) {
        (0, _) => "no late span in the guest's recording".to_owned(),
        (1, 0) => "the late span in the guest was not the host's: its vCPU ran".to_owned(),
        (_, 0) => format!("none of {all} late spans in the guest was the host's: its vCPUs ran"),
        _ => {
            let most = most(&late.waited)
                .map_or_else(String::new, |wait| format!(", most of it {}", for_what(wait)));
            let total = late.waited.iter().fold(0u64, |sum, wait| sum.saturating_add(wait.ns));
            let were = if by_host == 1 { "was" } else { "were" };
            let vcpus: BTreeSet<u32> = late.waited.iter().map(|wait| wait.vcpu).collect();
            let who = match vcpus.into_iter().collect::<Vec<_>>().as_slice() {
                [one] => format!("vCPU {one}"),
                _ => "vCPUs".to_owned(),
            };
            format!(
                "{by_host} of {all} late spans in the guest {were} the host's: its {who} waited {}{most}",
                latency(total)
            )
        }
    }
}

/// What the vCPUs waited for most, together.
fn most(waited: &[GuestWait]) -> Option<&GuestWait> {
    let same = |one: &GuestWait, other: &GuestWait| {
        (one.throttled, &one.behind) == (other.throttled, &other.behind)
    };
    let together = |wait: &&GuestWait| {
        let all = waited.iter().filter(|other| same(wait, other));
        std::cmp::Reverse(all.fold(0u64, |sum, other| sum.saturating_add(other.ns)))
    };
    waited.iter().min_by_key(together)
}

/// `behind hog`.
fn for_what(wait: &GuestWait) -> String {
    match (&wait.behind, wait.throttled) {
        (_, true) => "for its cgroup's quota".to_owned(),
        (Some(comm), _) => format!("behind {}", printable(comm)),
        (None, _) => "for a CPU".to_owned(),
    }
}

fn table(late: &GuestLate) -> String {
    let mut spans: Vec<&GuestSpan> = late.spans.iter().collect();
    spans.sort_by_key(|span| std::cmp::Reverse(span.span_ns));
    let mut table = Table::new(&[
        left("FROM"),
        left("TO"),
        right("TOOK"),
        right("VCPU"),
        right("STOLEN"),
        right("WAITED"),
        left("FOR"),
        left("FLOW").optional(),
    ]);
    let some = |ns: u64| if ns == 0 { "-".to_owned() } else { latency(ns) };
    for span in spans.into_iter().take(SHOWN) {
        let of = |wait: &GuestWait| match wait.vcpu == span.vcpu {
            true => for_what(wait),
            false => format!("vCPU {} {}", wait.vcpu, for_what(wait)),
        };
        let waits: Vec<String> = span.waited.iter().take(2).map(of).collect();
        table.row([
            printable(&span.from),
            printable(&span.to),
            latency(span.span_ns),
            span.vcpu.to_string(),
            some(span.stolen_ns),
            some(span.waited_ns()),
            waits.join(", "),
            or_none(span.flow.as_deref().map(printable)),
        ]);
    }
    table.render()
}
