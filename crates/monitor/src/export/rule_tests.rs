//! Unit tests of the rules for `promtool test rules`: each alert fires, and stays silent.

use super::alerts::{ALERTS, Alert};
use super::rules::quoted;
use std::fmt::Write;

/// The tests of the file of rules with this name, scraped by protobuf.
pub fn rule_tests(rules: &str) -> String {
    let mut file = format!("rule_files: [{}]\nevaluation_interval: 1m\ntests:\n", quoted(rules));
    for alert in ALERTS {
        // Writing to a string does not fail.
        let _ = test(&mut file, alert, "fires", alert.fires, true);
        let _ = test(&mut file, alert, "is silent", alert.silent, false);
    }
    file
}

fn test(
    file: &mut String,
    alert: &Alert,
    what: &str,
    series: &[(&str, &str)],
    fires: bool,
) -> std::fmt::Result {
    writeln!(file, "  - name: {} {what}\n    interval: 1m\n    input_series:", alert.name)?;
    for (name, values) in series {
        writeln!(file, "      - series: {}\n        values: {}", quoted(name), quoted(values))?;
    }
    writeln!(file, "    promql_expr_test:")?;
    // The number of alerts alone: annotations have values in them.
    let labels: Vec<String> = [("alertname", alert.name), ("severity", alert.severity)]
        .iter()
        .chain(alert.labels)
        .map(|(name, value)| format!("{name}=\"{value}\""))
        .collect();
    let all = format!("ALERTS{{alertname=\"{}\",alertstate=\"firing\"}}", alert.name);
    writeln!(file, "      - expr: {}\n        eval_time: {}", quoted(&all), alert.at)?;
    if fires {
        let sample = format!("ALERTS{{alertstate=\"firing\",{}}}", labels.join(","));
        writeln!(
            file,
            "        exp_samples:\n          - labels: {}\n            value: 1",
            quoted(&sample)
        )?;
    } else {
        writeln!(file, "        exp_samples: []")?;
    }
    Ok(())
}
