//! `measure answers`: how long servers take from a request to its answer, those with the most answers first.

use super::line;
use super::table::{Table, left, or_none, right};
use super::units::{digits, latency, percentage, printable};
use super::unknown::unknown;
use nearpath_model::answers::{AnswerMeasurement, ServerAnswers};

/// The whole measurement.
pub fn answers(m: &AnswerMeasurement) -> String {
    let mut out = String::new();
    line!(out, "{}", in_a_line(m));
    line!(out, "measured for {}s", digits(m.observed_s));
    if let Some(cost) = m.cost {
        line!(
            out,
            "cost: {}ns per packet sent or part read, {} of one CPU",
            digits(cost.ns_per_event),
            percentage(cost.cpu_percent)
        );
    }
    if !m.servers.is_empty() {
        line!(out);
        out.push_str(&table(&m.servers));
    }
    if !m.unknown.is_empty() {
        line!(out);
        out.push_str(&unknown(&m.unknown, &[]));
    }
    out
}

/// `1,234 answers by 2 servers; nginx (tcp 443) takes 5.07ms at the median`: the slowest.
fn in_a_line(m: &AnswerMeasurement) -> String {
    let all = m.servers.iter().fold(0u64, |sum, server| sum.saturating_add(server.answers));
    let Some(slowest) = m.servers.iter().max_by_key(|server| server.p50_ns) else {
        return "no server answered".to_owned();
    };
    let name = match &slowest.comm {
        Some(comm) => format!("{comm} ({} {})", slowest.protocol, slowest.port),
        None => format!("the server of {} {}", slowest.protocol, slowest.port),
    };
    let (answers, servers) = (count(all, "answer"), count(m.servers.len() as u64, "server"));
    printable(&format!(
        "{answers} by {servers}: {name} takes {} from request to answer (p50), {} (p99)",
        latency(slowest.p50_ns),
        latency(slowest.p99_ns)
    ))
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn table(servers: &[ServerAnswers]) -> String {
    let columns = [
        left("SERVER"),
        left("PROTOCOL"),
        right("PORT"),
        right("ANSWERS"),
        right("P50"),
        right("P99"),
        right("MAX"),
    ];
    let mut table = Table::new(&columns);
    for server in servers {
        let process = match (&server.comm, server.pid) {
            (Some(comm), Some(pid)) => Some(format!("{comm}/{pid}")),
            (None, Some(pid)) => Some(pid.to_string()),
            (comm, None) => comm.clone(),
        };
        table.row([
            or_none(process),
            server.protocol.to_string(),
            server.port.to_string(),
            server.answers.to_string(),
            latency(server.p50_ns),
            latency(server.p99_ns),
            latency(server.max_ns),
        ]);
    }
    table.render()
}
