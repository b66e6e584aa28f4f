//! A report as one HTML file that needs nothing else: no script, no request leaves it, as its policy says too.
//!
//! Input: a diagnosis, and what it was made from. Output: the document. It is readable in dark and light, on paper, with
//! a keyboard and with a screen reader: pictures have descriptions, and what they show is in words or tables beside them.

mod findings;
mod page;
mod tuning;

use crate::svg::{self, Interval};
use crate::text;
use findings::{findings, verdict};
use nearpath_model::{Diagnosis, Host, Outlier, Plan, TrialReport};
use page::{Page, escape, plain};

/// Slow packets that are drawn.
const PACKETS: usize = 5;

/// What a report is made from.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// The name of the host.
    pub host_name: &'a str,
    /// When it was observed, in words.
    pub when: &'a str,
    /// The host, if it is known: for its picture.
    pub host: Option<&'a Host>,
    /// Findings with their measurements.
    pub diagnosis: &'a Diagnosis,
    /// Latencies of whole paths over time, by the name of the path; empty of a single measurement.
    pub history: &'a [(String, Vec<Interval>)],
    /// What is planned against the findings; `None` if it is not part of the report.
    pub plan: Option<&'a Plan>,
    /// Trials of plans.
    pub trials: &'a [TrialReport],
}

/// Renders the document.
pub fn report(report: &Report<'_>) -> String {
    let diagnosis = report.diagnosis;
    let mut page = Page::new(&format!("{}: network path", report.host_name), report.when);
    page.verdict(&verdict(diagnosis));
    page.section("findings", "Findings", &findings(diagnosis));
    if let Some(plan) = report.plan {
        page.section("plan", "Plan", &tuning::plan(plan));
    }
    for (number, trial) in report.trials.iter().enumerate() {
        let (id, title) = match report.trials.len() {
            1 => ("trial".to_owned(), "Trial".to_owned()),
            _ => (format!("trial-{}", number + 1), format!("Trial {}", number + 1)),
        };
        page.section(&id, &title, &tuning::trial(trial));
    }
    measured(&mut page, report);
    if let Some(locality) = &diagnosis.locality {
        let about =
            "Heat map of packet locality: where packets were allocated and where they were freed";
        let words = plain(&text::locality(locality));
        page.section(
            "locality",
            "CPUs of packets",
            &figure(&svg::locality(locality), about, &words),
        );
    }
    let tables = [
        diagnosis.accepts.as_ref().map(|m| ("accepts", "Accepted connections", text::accepts(m))),
        diagnosis.tcp.as_ref().map(|m| ("tcp", "TCP connections", text::tcp(m, false, None))),
        diagnosis.memory.as_ref().map(|m| ("memory", "Memory", text::memory(m, false))),
        diagnosis
            .workers
            .as_ref()
            .filter(|workers| !workers.processes.is_empty())
            .map(|m| ("workers", "Workers", text::workers(m))),
        diagnosis
            .vm
            .as_ref()
            .filter(|vm| !vm.vms.is_empty())
            .map(|m| ("vms", "Virtual machines", text::vm(m))),
    ];
    for (id, title, table) in tables.into_iter().flatten() {
        page.section(id, title, &pre(&plain(&table)));
    }
    if let Some(host) = report.host {
        let about =
            "Packages, NUMA nodes, caches and CPUs of the host, with its NICs and their interrupts";
        page.section("host", "Host", &figure(&svg::host(host), about, &plain(&text::cpus(host))));
    }
    if !diagnosis.not_checked.is_empty() {
        let rows = diagnosis
            .not_checked
            .iter()
            .map(|not| format!("<li><b>{}</b>: {}</li>", escape(&not.check), escape(&not.reason)));
        page.section(
            "not-checked",
            "Not checked",
            &format!("<ul>{}</ul>", rows.collect::<String>()),
        );
    }
    page.finish()
}

/// Latencies, causes and slow packets.
fn measured(page: &mut Page, report: &Report<'_>) {
    for (name, intervals) in report.history.iter().filter(|(_, intervals)| intervals.len() > 1) {
        let title = format!("Latency over time: {name}");
        let about = "Heat map of latencies over time; the darker a cell, the more of the packets";
        let id = format!("history-{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        page.section(&id, &title, &figure(&svg::history(intervals), about, ""));
    }
    let Some(measurement) = &report.diagnosis.measurement else { return };
    if measurement.spans.iter().any(|span| span.count > 0) {
        let about = "Latency of whole paths and of each span between two stages";
        let words = plain(&text::measurement(measurement, None));
        page.section(
            "path",
            "Latency along the path",
            &figure(&svg::spans(measurement), about, &words),
        );
    }
    if measurement.budget_totals.iter().any(|share| share.share.is_time() && share.ns > 0) {
        let about = "What the slowest packets waited for, the largest first";
        let picture = svg::causes(&measurement.budget_totals);
        page.section("causes", "Why packets were late", &figure(&picture, about, ""));
    }
    let mut slow: Vec<&Outlier> = measurement.outliers.iter().collect();
    slow.sort_by_key(|outlier| std::cmp::Reverse(outlier.span_ns));
    let packets: String = slow.iter().take(PACKETS).map(|outlier| packet(outlier)).collect();
    if !packets.is_empty() {
        page.section("packets", "Slowest packets", &packets);
    }
}

fn packet(outlier: &Outlier) -> String {
    let flow = outlier.flow.as_deref().unwrap_or("a packet");
    let title =
        format!("{} in {} → {}: {flow}", text::latency(outlier.span_ns), outlier.from, outlier.to);
    let about = format!("Stages of the packet over time, with what the slow span went to: {title}");
    format!("<h3>{}</h3>{}", escape(&title), figure(&svg::timeline(outlier), &about, ""))
}

/// A picture with its description, and the same in words.
fn figure(svg: &str, about: &str, words: &str) -> String {
    let words = if words.is_empty() {
        String::new()
    } else {
        format!("<details><summary>as text</summary>{}</details>", pre(words))
    };
    format!(
        "<figure><div class=\"picture\" role=\"img\" aria-label=\"{}\" tabindex=\"0\">{svg}</div>\
         <figcaption>{}</figcaption>{words}</figure>",
        escape(about),
        escape(about)
    )
}

fn pre(text: &str) -> String {
    format!("<pre tabindex=\"0\">{}</pre>", escape(text))
}

#[cfg(test)]
mod tests;
