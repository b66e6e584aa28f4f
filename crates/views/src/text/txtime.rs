//! `bench latency --txtime`: departures and arrivals against the schedule, drops by reason, and findings.
//!
//! Input: the measurement. Output: lines.

use super::table::{Table, left, right};
use super::units::printable;
use super::{latency, line};
use nearpath_model::{Deviation, Finding, ScheduledTransmission};

const PERCENTILES: [(&str, &str); 4] =
    [("50", "P50"), ("90", "P90"), ("99", "P99"), ("99.9", "P99.9")];

/// `departures after the schedule (driver): p50 -4.68ms, max -374µs; 2 of 40 probes lost, 2 dropped by qdiscs (2 missed
/// their time)`: by the NIC's timestamps where there are any, else the driver's, else as they arrive. A qdisc may drop a
/// packet without a report: those that are lost are the greater number.
pub(super) fn answer(its: &ScheduledTransmission, lost: u64) -> String {
    let measured = [
        (its.departure_hardware.as_ref(), "departures after the schedule (NIC)"),
        (its.departure.as_ref(), "departures after the schedule (driver)"),
        (its.arrival.as_ref(), "arrivals after the schedule, beyond the earliest"),
    ];
    let times = measured.into_iter().find_map(|(part, what)| {
        let part = part.filter(|part| part.count > 0)?;
        let percentile = |(name, shown)| {
            part.percentiles.get(name).map(|&ns| format!("{shown} {}, ", signed(ns)))
        };
        let percentiles: String =
            [("50", "p50"), ("99", "p99")].into_iter().filter_map(percentile).collect();
        Some(format!("{what}: {percentiles}max {}", signed(part.max_ns?)))
    });
    let times = times.unwrap_or_else(|| "no departure was seen".to_owned());
    let dropped = match its.dropped() {
        0 => String::new(),
        count => format!(", {count} dropped by qdiscs{}", reasons(its)),
    };
    format!("{times}; {lost} of {} probes lost{dropped}", its.sent)
}

/// The lines about scheduled transmission.
pub(super) fn scheduled(its: &ScheduledTransmission) -> String {
    let mut out = String::new();
    let device = its.device.as_deref().map(|name| format!(" by {}", printable(name)));
    line!(
        out,
        "scheduled{} with priority {}, handed over {} ahead",
        device.unwrap_or_default(),
        its.priority,
        latency(its.lead_ns)
    );
    if its.tai_offset_s == Some(0) {
        line!(
            out,
            "CLOCK_TAI is not set: its offset is 0 s, and the times are those of the wall clock"
        );
    }
    let mut columns = vec![left("AFTER THE SCHEDULE"), right("COUNT"), right("MIN"), right("MEAN")];
    columns.push(right("STDDEV"));
    columns.extend(PERCENTILES.iter().map(|(_, heading)| right(heading).optional()));
    columns.push(right("MAX"));
    let mut table = Table::new(&columns);
    for (name, part) in [
        ("handed over", Some(&its.wake_up)),
        ("departure (driver)", its.departure.as_ref()),
        ("departure (NIC)", its.departure_hardware.as_ref()),
        ("arrival, beyond the earliest", its.arrival.as_ref()),
        ("answer", its.answer.as_ref()),
    ] {
        if let Some(part) = part {
            table.row(row(name, part));
        }
    }
    out.push_str(&table.render());
    out
}

fn reasons(its: &ScheduledTransmission) -> String {
    let all = [
        (its.dropped_missed, "missed their time"),
        (its.dropped_invalid, "invalid"),
        (its.dropped_other, "for another reason"),
    ];
    let all: Vec<String> = all
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, reason)| format!("{count} {reason}"))
        .collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

fn row(name: &str, part: &Deviation) -> Vec<String> {
    let whole = |ns: Option<i64>| ns.map(signed).unwrap_or_default();
    let rounded = |ns: Option<f64>| whole(ns.map(|ns| ns.round() as i64));
    let mut cells = vec![name.to_owned(), part.count.to_string(), whole(part.min_ns)];
    cells.extend([rounded(part.mean_ns), rounded(part.stddev_ns)]);
    cells.extend(PERCENTILES.iter().map(|(name, _)| whole(part.percentiles.get(*name).copied())));
    cells.push(whole(part.max_ns));
    cells
}

fn signed(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", latency(ns.unsigned_abs()))
}

/// Findings with their evidence.
pub(super) fn findings(findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        line!(out, "finding: {} [{}]", printable(&finding.title), printable(&finding.check));
        for sentence in &finding.evidence {
            line!(out, "  {}", printable(sentence));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Severity;

    #[test]
    fn drops_and_signed_differences_are_shown() {
        let part = |ns: i64| Deviation {
            count: 9,
            min_ns: Some(-ns),
            mean_ns: Some(0.4),
            stddev_ns: None,
            percentiles: [("50".to_owned(), -7)].into(),
            max_ns: Some(ns),
        };
        let its = ScheduledTransmission {
            device: Some("nic0".to_owned()),
            priority: 3,
            lead_ns: 20_000_000,
            tai_offset_s: Some(0),
            sent: 12,
            dropped_missed: 2,
            dropped_invalid: 1,
            wake_up: part(1_000),
            departure: Some(part(5_000_000)),
            ..ScheduledTransmission::default()
        };
        let text = scheduled(&its);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "scheduled by nic0 with priority 3, handed over 20.0ms ahead");
        assert_eq!(
            answer(&its, 4),
            "departures after the schedule (driver): p50 -7ns, max 5.00ms; 4 of 12 probes lost, 3 dropped by qdiscs (2 missed their \
             time, 1 invalid)"
        );
        let none = ScheduledTransmission { sent: 5, ..ScheduledTransmission::default() };
        assert_eq!(answer(&none, 5), "no departure was seen; 5 of 5 probes lost");
        assert!(lines[1].starts_with("CLOCK_TAI is not set"), "{text}");
        let words: Vec<&str> = lines[4].split_whitespace().collect();
        assert_eq!(
            words,
            ["departure", "(driver)", "9", "-5.00ms", "0ns", "-", "-7ns", "5.00ms"],
            "{text}"
        );
        assert_eq!(lines.len(), 5, "{text}");
    }

    #[test]
    fn findings_have_their_evidence_below() {
        let mut finding = Finding::new(Severity::Critical, "nic0: late").evidence("Because.");
        finding.check = "etf_delta".to_owned();
        assert_eq!(findings(&[finding]), "finding: nic0: late [etf_delta]\n  Because.\n");
    }
}
