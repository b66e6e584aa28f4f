//! Findings in HTML: the worst first, each with evidence, cost, and the commands that would fix it.

use super::page::escape;
use crate::text;
use nearpath_model::{Diagnosis, Finding, ProposedChange, Severity};

fn class(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "critical",
        Severity::Warning => "warning",
        Severity::Info => "info",
    }
}

/// The answer in a line.
pub(super) fn verdict(diagnosis: &Diagnosis) -> String {
    let number = |severity| diagnosis.findings.iter().filter(|f| f.severity == severity).count();
    let (critical, warnings) = (number(Severity::Critical), number(Severity::Warning));
    let worst = diagnosis.findings.iter().max_by_key(|finding| finding.severity);
    let serious = worst.filter(|finding| finding.severity > Severity::Info);
    let Some(worst) = serious else {
        return "<p class=\"verdict\">Nothing found that makes packets late.</p>".to_owned();
    };
    // Ranked: the first of the worst severity is the most expensive.
    let first = diagnosis.findings.iter().find(|f| f.severity == worst.severity).unwrap_or(worst);
    format!(
        "<p class=\"verdict {}\"><b>{}</b><br><span class=\"faint\">{critical} critical, {warnings} warning{}</span></p>",
        class(worst.severity),
        escape(&first.title),
        if warnings == 1 { "" } else { "s" }
    )
}

/// All findings.
pub(super) fn findings(diagnosis: &Diagnosis) -> String {
    if diagnosis.findings.is_empty() {
        return "<p>None.</p>".to_owned();
    }
    diagnosis.findings.iter().map(finding).collect()
}

fn finding(finding: &Finding) -> String {
    let class = class(finding.severity);
    let open = if finding.severity > Severity::Info { " open" } else { "" };
    let mut html = format!(
        "<details class=\"finding {class}\"{open}><summary><span class=\"badge\">{class}</span>{}</summary>",
        escape(&finding.title)
    );
    html.push_str(&cost(finding));
    html.push_str(&list(&finding.evidence));
    let changes: Vec<&ProposedChange> = finding.changes.iter().collect();
    let commands = text::commands(&changes);
    let lines: Vec<String> = commands
        .iter()
        .map(|command| command.line.clone())
        .chain(finding.manual.iter().cloned())
        .collect();
    if !lines.is_empty() {
        html.push_str(&format!("<pre tabindex=\"0\">{}</pre>", escape(&lines.join("\n"))));
    }
    let symptoms: Vec<String> = finding.symptoms.iter().map(|s| s.title.clone()).collect();
    if !symptoms.is_empty() {
        html.push_str("<p>It explains:</p>");
        html.push_str(&list(&symptoms));
    }
    html.push_str("</details>");
    html
}

fn cost(finding: &Finding) -> String {
    let cost = &finding.cost;
    let seconds = cost.seconds_per_second.filter(|s| s.is_finite() && *s > 0.0);
    let parts = [
        seconds.map(|s| format!("packets wait {} per second", text::latency((s * 1e9) as u64))),
        cost.share_percent.map(|p| format!("{p:.1}% of {}", cost.share_of)),
        cost.per_packet_ns.map(|ns| format!("{} per packet", text::latency(ns))),
        cost.max_ns.map(|ns| format!("at most {}", text::latency(ns))),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return String::new();
    }
    format!("<p class=\"faint\">{}</p>", escape(&parts.join(" · ")))
}

fn list(lines: &[String]) -> String {
    let items: String = lines.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
    if items.is_empty() { items } else { format!("<ul>{items}</ul>") }
}
