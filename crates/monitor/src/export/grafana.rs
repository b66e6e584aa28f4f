//! Dashboards of Grafana: of a fleet, and of a host. A panel is one row of a table here.

use super::Scraped;
use crate::metrics::{Id, METRICS};
use serde_json::{Value, json};

/// What a panel draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draws {
    /// Lines over time.
    Lines,
    /// Areas over time, on top of each other.
    Stack,
    /// A histogram over time.
    Heatmap,
    /// The values of now.
    Table,
}

/// A panel.
#[derive(Debug, Clone, Copy)]
pub struct Panel {
    /// Its title.
    pub title: &'static str,
    /// What it draws.
    pub draws: Draws,
    /// Grafana's name of the unit.
    pub unit: &'static str,
    /// Its expression; `$host` is a selector of the host.
    pub expression: fn(Scraped) -> String,
    /// The legend, with `{{label}}`.
    pub legend: &'static str,
}

fn name(id: Id) -> &'static str {
    METRICS[id as usize].name
}

fn rate(id: Id) -> String {
    format!("rate({}{{$host}}[$__rate_interval])", name(id))
}

/// A quantile of a span's or a path's latency.
fn quantile(scraped: Scraped, q: &str, id: Id) -> String {
    let suffix = if scraped == Scraped::Native { "" } else { "_bucket" };
    format!("histogram_quantile({q}, rate({}{suffix}{{$host}}[$__rate_interval]))", name(id))
}

/// The panels of a fleet.
pub const FLEET: &[Panel] = &[
    Panel {
        title: "Hosts by the cost of their findings",
        draws: Draws::Table,
        unit: "s",
        expression: |_| format!("sort_desc(sum by (instance) ({}))", name(Id::FindingCost)),
        legend: "{{instance}}",
    },
    Panel {
        title: "Critical findings",
        draws: Draws::Table,
        unit: "none",
        expression: |_| format!("{}{{severity=\"critical\"}} == 1", name(Id::FindingActive)),
        legend: "{{instance}} {{check}} {{subject}}",
    },
    Panel {
        title: "99th percentile of received packets",
        draws: Draws::Lines,
        unit: "s",
        expression: |_| {
            "topk(10, nearpath:path_latency_seconds:p99{direction=\"receive\"})".to_owned()
        },
        legend: "{{instance}}",
    },
    Panel {
        title: "Share of packets that stay on their CPU",
        draws: Draws::Lines,
        unit: "percentunit",
        expression: |_| "bottomk(10, nearpath:locality:share{direction=\"rx\"})".to_owned(),
        legend: "{{instance}}",
    },
    Panel {
        title: "Changes that are no longer in effect",
        draws: Draws::Lines,
        unit: "none",
        expression: |_| {
            let name = name(Id::SteeringSettings);
            format!("sum by (instance) ({name}{{state=~\"drifted|lost\"}}) > 0")
        },
        legend: "{{instance}}",
    },
    Panel {
        title: "CPU time of observing",
        draws: Draws::Lines,
        unit: "percentunit",
        expression: |_| format!("topk(10, rate({}[$__rate_interval]))", name(Id::ObservingCpu)),
        legend: "{{instance}}",
    },
];

/// The panels of a host.
pub const HOST: &[Panel] = &[
    Panel {
        title: "Latency of paths, 99th percentile",
        draws: Draws::Lines,
        unit: "s",
        expression: |scraped| quantile(scraped, "0.99", Id::PathLatency),
        legend: "{{direction}}",
    },
    Panel {
        title: "Longest path of the last minute",
        draws: Draws::Lines,
        unit: "s",
        expression: |_| format!("{}{{$host}}", name(Id::PathLatencyMax)),
        legend: "{{direction}}",
    },
    Panel {
        title: "Received packets by latency",
        draws: Draws::Heatmap,
        unit: "s",
        expression: |scraped| {
            let name = name(Id::PathLatency);
            let selector = "{$host,direction=\"receive\"}";
            match scraped {
                Scraped::Native => format!("rate({name}{selector}[$__rate_interval])"),
                Scraped::Text => {
                    format!("sum by (le) (rate({name}_bucket{selector}[$__rate_interval]))")
                }
            }
        },
        legend: "{{le}}",
    },
    Panel {
        title: "Spans of the path, 99th percentile",
        draws: Draws::Lines,
        unit: "s",
        expression: |scraped| quantile(scraped, "0.99", Id::SpanLatency),
        legend: "{{direction}} {{from}} > {{to}}",
    },
    Panel {
        title: "Why the slowest packets were late",
        draws: Draws::Stack,
        unit: "s",
        expression: |_| rate(Id::LateSeconds),
        legend: "{{cause}}",
    },
    Panel {
        title: "Distance between the CPUs of packets",
        draws: Draws::Stack,
        unit: "pps",
        expression: |_| format!("sum by (distance) ({})", rate(Id::LocalityPackets)),
        legend: "{{distance}}",
    },
    Panel {
        title: "Distance between receiving and accepting CPU",
        draws: Draws::Stack,
        unit: "cps",
        expression: |_| format!("sum by (distance) ({})", rate(Id::Accepts)),
        legend: "{{distance}}",
    },
    Panel {
        title: "Dropped packets",
        draws: Draws::Stack,
        unit: "pps",
        expression: |_| rate(Id::Drops),
        legend: "{{reason}} {{device}}",
    },
    Panel {
        title: "Interrupts of queues",
        draws: Draws::Lines,
        unit: "cps",
        expression: |_| rate(Id::QueueInterrupts),
        legend: "{{device}} {{queue}}",
    },
    Panel {
        title: "Queues that interrupt another node",
        draws: Draws::Table,
        unit: "none",
        expression: |_| format!("{}{{$host}} == 0", name(Id::QueueIrqLocal)),
        legend: "{{device}} {{queue}}",
    },
    Panel {
        title: "Memory on nodes where its process does not run",
        draws: Draws::Lines,
        unit: "bytes",
        expression: |_| format!("{}{{$host}}", name(Id::ProcessRemoteMemory)),
        legend: "{{comm}}",
    },
    Panel {
        title: "Variance of round-trip times, 99th percentile",
        draws: Draws::Lines,
        unit: "s",
        expression: |scraped| quantile(scraped, "0.99", Id::TcpRttvar),
        legend: "rttvar",
    },
    Panel {
        title: "What limits connections",
        draws: Draws::Stack,
        unit: "s",
        expression: |_| rate(Id::TcpLimited),
        legend: "{{limit}}",
    },
    Panel {
        title: "Polling workers",
        draws: Draws::Lines,
        unit: "percentunit",
        expression: |_| format!("{}{{$host}}", name(Id::WorkerBusy)),
        legend: "{{app}} {{lcore}}",
    },
    Panel {
        title: "Findings",
        draws: Draws::Table,
        unit: "none",
        expression: |_| format!("{}{{$host}} == 1", name(Id::FindingActive)),
        legend: "{{severity}} {{check}} {{subject}}",
    },
];

/// The dashboard of a fleet.
pub fn fleet(scraped: Scraped) -> String {
    dashboard("nearpath-fleet", "nearpath: fleet", FLEET, scraped, false)
}

/// The dashboard of a host.
pub fn host(scraped: Scraped) -> String {
    dashboard("nearpath-host", "nearpath: host", HOST, scraped, true)
}

fn dashboard(uid: &str, title: &str, panels: &[Panel], scraped: Scraped, of_host: bool) -> String {
    let mut variables =
        vec![json!({"name": "datasource", "type": "datasource", "query": "prometheus"})];
    if of_host {
        variables.push(json!({
            "name": "instance",
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": format!("label_values({}, instance)", name(Id::BuildInfo)),
            "refresh": 2,
        }));
    }
    let panels: Vec<Value> =
        panels.iter().enumerate().map(|(at, panel)| panel_json(at, panel, scraped)).collect();
    let document = json!({
        "uid": uid,
        "title": title,
        "tags": ["nearpath"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    });
    // Plain values: they are always serialized.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

fn panel_json(at: usize, panel: &Panel, scraped: Scraped) -> Value {
    let kind = match panel.draws {
        Draws::Lines | Draws::Stack => "timeseries",
        Draws::Heatmap => "heatmap",
        Draws::Table => "table",
    };
    let is_table = panel.draws == Draws::Table;
    let native = panel.draws == Draws::Heatmap && scraped == Scraped::Native;
    let format = match panel.draws {
        Draws::Table => "table",
        Draws::Heatmap if !native => "heatmap",
        _ => "time_series",
    };
    let custom = match panel.draws {
        Draws::Stack => json!({"stacking": {"mode": "normal"}, "fillOpacity": 60}),
        _ => json!({}),
    };
    let expression = (panel.expression)(scraped).replace("$host", "instance=\"$instance\"");
    json!({
        "id": at + 1,
        "title": panel.title,
        "type": kind,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": 12 * (at % 2), "y": 8 * (at / 2), "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [{
            "refId": "A",
            "expr": expression,
            "legendFormat": panel.legend,
            "format": format,
            "instant": is_table,
            "range": !is_table,
        }],
    })
}
