//! Dashboards of Perses, of its kind `Dashboard`. Queries go to the project's default Prometheus datasource.
//!
//! Perses' heat map has a linear axis, in seconds with three digits, and takes native histograms alone: what arrives
//! within microseconds would be one row, labelled 0.000. Percentiles stand in its place.

use super::Scraped;
use super::panels::{Draws, FLEET, HOST, Panel, Unit, name, received};
use crate::metrics::Id;
use serde_json::{Map, Value, json};

/// Perses has 24 columns, too.
const WIDTH: usize = 12;
const HEIGHT: usize = 8;
/// Percentiles instead of a heat map, with their names.
const QUANTILES: [(&str, &str); 4] =
    [("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99"), ("0.999", "p99.9")];

/// The dashboard of a fleet.
pub fn fleet(scraped: Scraped) -> String {
    dashboard("nearpath-fleet", "nearpath: fleet", FLEET, scraped, json!([]))
}

/// The dashboard of a host.
pub fn host(scraped: Scraped) -> String {
    let instance = json!({
        "kind": "ListVariable",
        "spec": {
            "name": "instance",
            "allowAllValue": false,
            "allowMultiple": false,
            "plugin": {
                "kind": "PrometheusLabelValuesVariable",
                "spec": {"labelName": "instance", "matchers": [name(Id::BuildInfo)]},
            },
        },
    });
    dashboard("nearpath-host", "nearpath: host", HOST, scraped, json!([instance]))
}

fn dashboard(
    id: &str,
    title: &str,
    panels: &[Panel],
    scraped: Scraped,
    variables: Value,
) -> String {
    let key = |at: usize| format!("panel-{}", at + 1);
    let items: Vec<Value> = (0..panels.len())
        .map(|at| {
            json!({
                "x": WIDTH * (at % 2),
                "y": HEIGHT * (at / 2),
                "width": WIDTH,
                "height": HEIGHT,
                "content": {"$ref": format!("#/spec/panels/{}", key(at))},
            })
        })
        .collect();
    let panels: Map<String, Value> = panels
        .iter()
        .enumerate()
        .map(|(at, panel)| (key(at), panel_json(panel, scraped)))
        .collect();
    let document = json!({
        "kind": "Dashboard",
        "metadata": {"name": id, "project": "nearpath"},
        "spec": {
            "display": {"name": title},
            "variables": variables,
            "panels": panels,
            "layouts": [{"kind": "Grid", "spec": {"items": items}}],
            "duration": "3h",
            "refreshInterval": "30s",
        },
    });
    // Plain values: they are always serialized.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

fn panel_json(panel: &Panel, scraped: Scraped) -> Value {
    let queries: Vec<Value> = match panel.draws {
        Draws::Heatmap => {
            QUANTILES.iter().map(|(q, legend)| query(&received(scraped, q), legend)).collect()
        }
        _ => vec![query(&(panel.expression)(scraped), panel.legend)],
    };
    json!({
        "kind": "Panel",
        "spec": {
            "display": {"name": panel.title},
            "plugin": plugin(panel),
            "queries": queries,
        },
    })
}

fn plugin(panel: &Panel) -> Value {
    let format = json!({"unit": unit(panel.unit)});
    match panel.draws {
        // Its queries are of now.
        Draws::Table => json!({
            "kind": "Table",
            "spec": {"columnSettings": [
                {"name": "timestamp", "hide": true},
                {"name": "value", "header": "Value", "format": format},
            ]},
        }),
        draws => {
            let visual = match draws {
                Draws::Stack => json!({"stack": "all", "areaOpacity": 0.6}),
                _ => json!({}),
            };
            json!({
                "kind": "TimeSeriesChart",
                "spec": {
                    "legend": {"position": "bottom", "mode": "list"},
                    "yAxis": {"format": format},
                    "visual": visual,
                },
            })
        }
    }
}

fn query(expression: &str, legend: &str) -> Value {
    json!({
        "kind": "TimeSeriesQuery",
        "spec": {"plugin": {
            "kind": "PrometheusTimeSeriesQuery",
            "spec": {
                "query": expression.replace("$host", "instance=\"$instance\""),
                "seriesNameFormat": legend,
            },
        }},
    })
}

/// Perses' name of a unit.
fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Number => "decimal",
        Unit::Seconds => "seconds",
        Unit::Share => "percent-decimal",
        Unit::Packets => "packets/sec",
        Unit::Events => "events/sec",
        Unit::Bytes => "bytes",
    }
}
