//! Exported files against the programs that read them. Prometheus 3.0 or later: NEARPATH_PROMTOOL names its promtool.

use nearpath_monitor::export::{ALERTS, EXPORTERS, Scraped, rule_tests};
use std::path::Path;
use std::process::{Command, Output};

fn text(name: &str, scraped: Scraped) -> String {
    (EXPORTERS.iter().find(|exporter| exporter.name == name).unwrap().text)(scraped)
}

fn promtool() -> Option<String> {
    let named = std::env::var("NEARPATH_PROMTOOL").ok().filter(|name| !name.is_empty());
    if named.is_none() {
        nearpath_testing::skip("no NEARPATH_PROMTOOL");
    }
    named
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> (bool, String) {
    let said: Output = Command::new(program).args(arguments).current_dir(folder).output().unwrap();
    let text = [said.stdout, said.stderr].concat();
    (said.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn each_alert_fires_and_stays_silent_in_promtool() {
    let Some(promtool) = promtool() else { return };
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("rules.yml", &text("prometheus-rules", Scraped::Native));
    write("text.yml", &text("prometheus-rules", Scraped::Text));
    write("test.yml", &rule_tests("rules.yml"));
    for file in ["rules.yml", "text.yml"] {
        let (well, said) =
            run(&promtool, &["check", "rules", "--lint=all", "--lint-fatal", file], folder.path());
        assert!(well, "{said}");
    }
    let (well, said) = run(&promtool, &["test", "rules", "test.yml"], folder.path());
    assert!(well, "{said}");
    // The tests can fail: no alert is silent where it must fire.
    let tests =
        rule_tests("rules.yml").replace("exp_samples: []", "exp_samples: [{labels: x, value: 1}]");
    write("wrong.yml", &tests);
    let (well, said) = run(&promtool, &["test", "rules", "wrong.yml"], folder.path());
    assert!(!well && said.matches("got: nil").count() == ALERTS.len(), "{said}");
}

/// The expressions of a dashboard, with its variables replaced.
fn expressions(dashboard: &str) -> Vec<String> {
    let document: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let panels = document["panels"].as_array().unwrap();
    let expression = |panel: &serde_json::Value| {
        let text = panel["targets"][0]["expr"].as_str().unwrap();
        text.replace("$__rate_interval", "5m").replace("$instance", "a")
    };
    panels.iter().map(expression).collect()
}

#[test]
fn dashboards_have_panels_side_by_side_whose_expressions_prometheus_accepts() {
    let Some(promtool) = promtool() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (name, scraped) in [
        ("grafana", Scraped::Native),
        ("grafana", Scraped::Text),
        ("grafana-fleet", Scraped::Native),
    ] {
        let dashboard = text(name, scraped);
        let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
        for (at, expression) in expressions(&dashboard).iter().enumerate() {
            assert!(!expression.contains('$'), "{expression}");
            rules += &format!("      - {{record: 'a:{at}', expr: '{expression}'}}\n");
        }
        std::fs::write(folder.path().join("rules.yml"), rules).unwrap();
        let (well, said) = run(&promtool, &["check", "rules", "rules.yml"], folder.path());
        assert!(well, "{name}: {said}");
        // No panel covers another.
        let document: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
        let mut places: Vec<String> = document["panels"]
            .as_array()
            .unwrap()
            .iter()
            .map(|panel| panel["gridPos"].to_string())
            .collect();
        let all = places.len();
        places.sort();
        places.dedup();
        assert_eq!(places.len(), all);
    }
}

#[test]
fn prometheus_accepts_the_scrape_configuration() {
    let Some(promtool) = promtool() else { return };
    let folder = tempfile::tempdir().unwrap();
    for scraped in [Scraped::Native, Scraped::Text] {
        std::fs::write(folder.path().join("p.yml"), text("scrape-config", scraped)).unwrap();
        let (well, said) = run(&promtool, &["check", "config", "p.yml"], folder.path());
        assert!(well, "{said}");
    }
}

#[test]
fn alertmanager_accepts_its_configuration() {
    let named = std::env::var("NEARPATH_AMTOOL").ok().filter(|name| !name.is_empty());
    let Some(amtool) = named else {
        nearpath_testing::skip("no NEARPATH_AMTOOL");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yml"), text("alertmanager", Scraped::Native)).unwrap();
    let (well, said) = run(&amtool, &["check-config", "a.yml"], folder.path());
    assert!(well, "{said}");
}

#[test]
fn the_service_is_hardened() {
    if !nearpath_testing::require_program("systemd-analyze") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nearpath-monitor.service");
    std::fs::write(&file, text("systemd", Scraped::Native)).unwrap();
    // `--threshold` is in tenths.
    let arguments =
        ["security", "--offline=true", "--threshold=35", "--no-pager", file.to_str().unwrap()];
    let (well, said) = run("systemd-analyze", &arguments, folder.path());
    assert!(well, "{said}");
}
