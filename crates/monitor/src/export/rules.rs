//! Rules of Prometheus.

use super::Scraped;
use super::alerts::{ALERTS, RECORDS};
use std::fmt::Write;

/// The file of rules.
pub fn rules(scraped: Scraped) -> String {
    let how = match scraped {
        Scraped::Native => "scraped by protobuf, with native histograms",
        Scraped::Text => "scraped as text, with classic histograms",
    };
    let mut file = format!(
        "# Rules for hosts with nearpath monitor, {how}.\n\
         # Written by: nearpath monitor export prometheus-rules. Check with: promtool check rules FILE\n\
         groups:\n  - name: nearpath-records\n    interval: 1m\n    rules:\n"
    );
    for record in RECORDS {
        // Writing to a string does not fail.
        let _ = writeln!(file, "      - record: {}", record.name);
        let _ = writeln!(file, "        expr: {}", quoted(&(record.expression)(scraped)));
    }
    file.push_str("  - name: nearpath-alerts\n    interval: 15s\n    rules:\n");
    for alert in ALERTS {
        let _ = writeln!(file, "      - alert: {}", alert.name);
        let _ = writeln!(file, "        expr: {}", quoted(&(alert.expression)(scraped)));
        let _ = writeln!(file, "        for: {}", alert.lasts);
        let _ = writeln!(file, "        labels: {{severity: {}}}", alert.severity);
        file.push_str("        annotations:\n");
        let _ = writeln!(file, "          summary: {}", quoted(alert.summary));
        let _ = writeln!(file, "          description: {}", quoted(alert.description));
    }
    file
}

/// A YAML scalar in single quotes.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
