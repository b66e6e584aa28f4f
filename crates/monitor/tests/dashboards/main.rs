//! Dashboards: Perses' by the rules of its published schemas (and by `percli`, if NEARPATH_PERCLI names one), and all
//! expressions of both kinds answered by a real Prometheus that scrapes nearpath's exposition.

mod perses;
#[path = "../kernel_prometheus/prometheus.rs"]
mod prometheus;
mod served;

use nearpath_monitor::export::{EXPORTERS, Scraped};
use prometheus::{Prometheus, program};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

fn document(name: &str, scraped: Scraped) -> Value {
    let exporter = EXPORTERS.iter().find(|exporter| exporter.name == name).unwrap();
    serde_json::from_str(&(exporter.text)(scraped)).unwrap()
}

/// Title and expression of each query of a dashboard.
fn queries(document: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    if let Some(panels) = document["panels"].as_array() {
        let query = |panel: &Value| (text(&panel["title"]), text(&panel["targets"][0]["expr"]));
        return panels.iter().map(query).collect();
    }
    let panels = document["spec"]["panels"].as_object().unwrap().values();
    panels
        .flat_map(|panel| {
            let title = text(&panel["spec"]["display"]["name"]);
            let queries = panel["spec"]["queries"].as_array().unwrap();
            queries
                .iter()
                .map(move |query| (title.clone(), text(&query["spec"]["plugin"]["spec"]["query"])))
        })
        .collect()
}

const DASHBOARDS: [&str; 4] = ["grafana", "grafana-fleet", "perses", "perses-fleet"];

#[test]
fn dashboards_of_perses_keep_to_its_schemas() {
    for name in ["perses", "perses-fleet"] {
        for scraped in [Scraped::Native, Scraped::Text] {
            let wrong = perses::faults(&document(name, scraped));
            assert!(wrong.is_empty(), "{name}: {wrong:#?}");
        }
    }
    // The rules can fail.
    for (pointer, value) in [
        ("/kind", "Board"),
        ("/metadata/name", "near path"),
        ("/spec/duration", "3 hours"),
        ("/spec/layouts/0/spec/items/1/content/$ref", "#/spec/panels/none"),
        ("/spec/panels/panel-1/spec/plugin/spec/yAxis/format/unit", "s"),
        ("/spec/panels/panel-1/spec/plugin/kind", "Lines"),
        ("/spec/panels/panel-1/spec/queries/0/spec/plugin/spec/query", ""),
        ("/spec/variables/0/spec/plugin/kind", "Labels"),
    ] {
        let mut document = document("perses", Scraped::Native);
        *document.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value.into();
        assert_eq!(perses::faults(&document).len(), 1, "{pointer}");
    }
    let mut extra = document("perses", Scraped::Native);
    extra["spec"]["panels"]["panel-1"]["spec"]["plugin"]["spec"]["instant"] = true.into();
    extra["spec"]["layouts"][0]["spec"]["items"][0]["width"] = 25.into();
    assert_eq!(perses::faults(&extra).len(), 2, "{:?}", perses::faults(&extra));
    let mut over = document("perses", Scraped::Native);
    over["spec"]["layouts"][0]["spec"]["items"][1]["x"] = 11.into();
    assert_eq!(perses::faults(&over).len(), 1);
}

#[test]
fn percli_accepts_the_dashboards_of_perses() {
    let Some(percli) = std::env::var("NEARPATH_PERCLI").ok().filter(|name| !name.is_empty()) else {
        nearpath_testing::skip("no NEARPATH_PERCLI");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dashboard.json");
    let lint = |document: &Value| {
        std::fs::write(&file, document.to_string()).unwrap();
        let mut command = Command::new(&percli);
        command.args(["lint", "-f"]).arg(&file).env("HOME", folder.path());
        command.output().unwrap().status.success()
    };
    for name in ["perses", "perses-fleet"] {
        for scraped in [Scraped::Native, Scraped::Text] {
            assert!(lint(&document(name, scraped)), "{name}");
        }
    }
    let mut wrong = document("perses", Scraped::Native);
    wrong["spec"]["layouts"][0]["spec"]["items"][0]["content"]["$ref"] =
        "#/spec/panels/none".into();
    assert!(!lint(&wrong));
}

#[test]
fn a_real_prometheus_has_data_for_each_expression() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    let Some(program) = program("NEARPATH_PROMETHEUS", "prometheus") else { return };
    for scraped in [Scraped::Native, Scraped::Text] {
        let served = served::Served::start(scraped);
        let rules = EXPORTERS.iter().find(|exporter| exporter.name == "prometheus-rules").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.yml");
        // Recorded each second instead of each minute.
        let text = (rules.text)(scraped).replace("interval: 1m", "interval: 1s");
        std::fs::write(&file, text).unwrap();
        let protocol = match scraped {
            Scraped::Native => "PrometheusProto",
            Scraped::Text => "PrometheusText0.0.4",
        };
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_protocols: [{protocol}]}}\n\
             rule_files: ['{}']\n\
             scrape_configs:\n- {{job_name: one, static_configs: [{{targets: ['{}']}}]}}\n",
            file.display(),
            served.address
        );
        let prometheus = Prometheus::with(&program, &config, &[]);
        let host = format!("instance=\"{}\"", served.address);
        let mut open: Vec<(&str, String, String)> = Vec::new();
        for name in DASHBOARDS {
            for (title, expression) in queries(&document(name, scraped)) {
                let expression = expression.replace("$__rate_interval", "5m");
                open.push((name, title, expression.replace("instance=\"$instance\"", &host)));
            }
        }
        assert!(open.iter().all(|(_, _, expression)| !expression.contains('$')), "{open:?}");
        assert!(open.len() > 2 * (16 + 7), "{}", open.len());
        // A rate takes two scrapes, a recorded one two evaluations.
        let end = Instant::now() + Duration::from_secs(120);
        while !open.is_empty() {
            assert!(Instant::now() < end, "{scraped:?}, no data for {open:#?}");
            open.retain(|(_, _, expression)| !has_data(&prometheus, expression));
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(!has_data(&prometheus, "nearpath_vm_latency_secs"), "what does not exist");
        // The machines' own percentiles, not those of others.
        let p99 = |vm: &str, span: &str| {
            let suffix = if scraped == Scraped::Native { "" } else { "_bucket" };
            let series =
                format!("nearpath_vm_latency_seconds{suffix}{{vm=\"{vm}\",span=\"{span}\"}}[5m]");
            let results =
                prometheus.query(&format!("histogram_quantile(0.99, rate({series}))"), "vm");
            results[0].1
        };
        let (quick, slow) = (p99("quick", "whole"), p99("slow", "whole"));
        assert!(quick < 100e-6 && slow > 1e-3, "{quick} {slow}");
        assert!(p99("slow", "handler_to_vhost") < slow);
    }
}

/// Whether there is an answer, and a number (a histogram is one) in each of its series.
fn has_data(prometheus: &Prometheus, expression: &str) -> bool {
    let document: Value = serde_json::from_slice(&prometheus.answer(expression)).unwrap();
    assert_eq!(document["status"], "success", "{expression}: {document}");
    let results = document["data"]["result"].as_array().unwrap();
    let is_number = |result: &Value| {
        let number = result["value"][1].as_str().is_some_and(|value| value != "NaN");
        number || result["histogram"][1]["count"].is_string()
    };
    !results.is_empty() && results.iter().all(is_number)
}
