//! Dashboards of Grafana, by its schema 39.

use super::Scraped;
use super::panels::{Draws, FLEET, HOST, Panel, Unit, name};
use crate::metrics::Id;
use serde_json::{Value, json};

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
        "fieldConfig": {"defaults": {"unit": unit(panel.unit), "custom": custom}, "overrides": []},
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

/// Grafana's name of a unit.
fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Number => "none",
        Unit::Seconds => "s",
        Unit::Share => "percentunit",
        Unit::Packets => "pps",
        Unit::Events => "cps",
        Unit::Bytes => "bytes",
    }
}
