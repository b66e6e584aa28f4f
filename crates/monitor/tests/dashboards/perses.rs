//! The rules of Perses' dashboards: of its API (`pkg/model/api/v1` of perses/perses: names, references, kinds), and of
//! the closed CUE schemas of the plugins that are used here (`schemas` of perses/plugins: TimeSeriesChart, Table,
//! PrometheusTimeSeriesQuery, PrometheusLabelValuesVariable; `cue/common` of perses/shared). Written from them for what
//! they allow, not from what nearpath writes.

use serde_json::{Map, Value};

struct Faults(Vec<String>);

/// What is not as the schemas want it.
pub fn faults(document: &Value) -> Vec<String> {
    let mut faults = Faults(Vec::new());
    faults.dashboard(document);
    faults.0
}

/// `common.ValidateID`.
fn is_id(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    (1..=75).contains(&text.len()) && text.chars().all(allowed)
}

/// `(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?`
fn is_duration(text: &str) -> bool {
    let mut rest = text;
    for unit in ["y", "w", "d", "h", "m", "s", "ms"] {
        let digits = rest.chars().take_while(char::is_ascii_digit).count();
        let after = &rest[digits..];
        let follows = after.strip_prefix(unit).filter(|_| digits > 0);
        if let Some(after) = follows.filter(|after| unit != "m" || !after.starts_with('s')) {
            rest = after;
        }
    }
    !text.is_empty() && rest.is_empty()
}

const UNITS: &str = "nanoseconds microseconds milliseconds seconds minutes hours days weeks months years percent \
    percent-decimal decimal bits decbits bytes decbytes bits/sec decbits/sec bytes/sec decbytes/sec counts/sec \
    events/sec messages/sec ops/sec packets/sec reads/sec records/sec requests/sec rows/sec writes/sec";

impl Faults {
    fn say(&mut self, at: &str, what: &str) {
        self.0.push(format!("{at}: {what}"));
    }

    /// An object that has the required members, and no others than the optional ones.
    fn object<'a>(
        &mut self,
        value: &'a Value,
        at: &str,
        required: &[&str],
        optional: &[&str],
    ) -> Option<&'a Map<String, Value>> {
        let Some(object) = value.as_object() else {
            self.say(at, "no object");
            return None;
        };
        let mut is_whole = true;
        for name in required.iter().filter(|name| !object.contains_key(**name)) {
            self.say(at, &format!("no {name}"));
            is_whole = false;
        }
        let known = |name: &str| required.contains(&name) || optional.contains(&name);
        for name in object.keys().filter(|name| !known(name)) {
            self.say(at, &format!("{name} is not allowed"));
        }
        is_whole.then_some(object)
    }

    fn one_of(&mut self, value: &Value, at: &str, allowed: &[&str]) {
        if !value.as_str().is_some_and(|text| allowed.contains(&text)) {
            self.say(at, &format!("{value} is none of {allowed:?}"));
        }
    }

    fn holds(&mut self, holds: bool, at: &str, what: &str) {
        if !holds {
            self.say(at, what);
        }
    }

    fn dashboard(&mut self, document: &Value) {
        let Some(top) = self.object(document, "dashboard", &["kind", "metadata", "spec"], &[])
        else {
            return;
        };
        self.one_of(&top["kind"], "kind", &["Dashboard"]);
        let allowed = ["createdAt", "updatedAt", "version", "tags"];
        if let Some(metadata) =
            self.object(&top["metadata"], "metadata", &["name", "project"], &allowed)
        {
            for name in ["name", "project"] {
                self.holds(metadata[name].as_str().is_some_and(is_id), name, "no id");
            }
        }
        let allowed = ["display", "datasources", "variables", "refreshInterval", "links"];
        let Some(spec) =
            self.object(&top["spec"], "spec", &["panels", "layouts", "duration"], &allowed)
        else {
            return;
        };
        for name in ["duration", "refreshInterval"] {
            let is = spec.get(name).is_none_or(|value| value.as_str().is_some_and(is_duration));
            self.holds(is, name, "no duration");
        }
        for (at, variable) in
            spec.get("variables").and_then(Value::as_array).into_iter().flatten().enumerate()
        {
            self.variable(variable, &format!("variable {at}"));
        }
        let panels = spec["panels"].as_object().cloned().unwrap_or_default();
        self.holds(!panels.is_empty(), "panels", "none");
        for (name, panel) in &panels {
            self.holds(is_id(name), name, "no id");
            self.panel(panel, name);
        }
        let layouts = spec["layouts"].as_array().cloned().unwrap_or_default();
        self.layouts(&layouts, &panels);
    }

    fn variable(&mut self, value: &Value, at: &str) {
        let Some(variable) = self.object(value, at, &["kind", "spec"], &[]) else { return };
        self.one_of(&variable["kind"], at, &["ListVariable"]);
        let allowed = [
            "display",
            "defaultValue",
            "allowAllValue",
            "allowMultiple",
            "customAllValue",
            "capturingRegexp",
            "sort",
        ];
        let Some(spec) = self.object(&variable["spec"], at, &["name", "plugin"], &allowed) else {
            return;
        };
        let is_name = |name: &str| is_id(name) && name.parse::<u64>().is_err();
        self.holds(spec["name"].as_str().is_some_and(is_name), at, "no name of a variable");
        let Some(plugin) = self.object(&spec["plugin"], at, &["kind", "spec"], &[]) else { return };
        self.one_of(&plugin["kind"], at, &["PrometheusLabelValuesVariable"]);
        let spec = self.object(&plugin["spec"], at, &["labelName"], &["datasource", "matchers"]);
        let matchers = spec.and_then(|spec| spec.get("matchers")).and_then(Value::as_array);
        let are_text = matchers.into_iter().flatten().all(Value::is_string);
        self.holds(are_text, at, "matchers are no text");
    }

    fn panel(&mut self, value: &Value, at: &str) {
        let Some(panel) = self.object(value, at, &["kind", "spec"], &[]) else { return };
        self.one_of(&panel["kind"], at, &["Panel"]);
        let allowed = ["display", "queries", "links"];
        let Some(spec) = self.object(&panel["spec"], at, &["plugin"], &allowed) else { return };
        if let Some(display) = spec.get("display") {
            self.object(display, at, &[], &["name", "description"]);
        }
        if let Some(plugin) = self.object(&spec["plugin"], at, &["kind", "spec"], &[]) {
            match plugin["kind"].as_str() {
                Some("TimeSeriesChart") => self.chart(&plugin["spec"], at),
                Some("Table") => self.table(&plugin["spec"], at),
                other => self.say(at, &format!("plugin {other:?}")),
            }
        }
        for query in spec.get("queries").and_then(Value::as_array).into_iter().flatten() {
            self.query(query, at);
        }
    }

    fn chart(&mut self, value: &Value, at: &str) {
        let allowed = ["legend", "tooltip", "yAxis", "thresholds", "visual", "querySettings"];
        let Some(spec) = self.object(value, at, &[], &allowed) else { return };
        if let Some(legend) = spec.get("legend")
            && let Some(legend) =
                self.object(legend, at, &["position"], &["mode", "size", "values"])
        {
            self.one_of(&legend["position"], at, &["bottom", "right"]);
            if let Some(mode) = legend.get("mode") {
                self.one_of(mode, at, &["list", "table"]);
            }
        }
        if let Some(axis) = spec.get("yAxis") {
            let axis = self.object(axis, at, &[], &["show", "label", "format", "min", "max"]);
            if let Some(format) = axis.and_then(|axis| axis.get("format")) {
                self.format(format, at);
            }
        }
        let Some(visual) = spec.get("visual") else { return };
        let allowed = [
            "display",
            "lineWidth",
            "lineStyle",
            "areaOpacity",
            "showPoints",
            "palette",
            "pointRadius",
            "stack",
            "connectNulls",
        ];
        let Some(visual) = self.object(visual, at, &[], &allowed) else { return };
        if let Some(stack) = visual.get("stack") {
            self.one_of(stack, at, &["all", "percent"]);
        }
        if let Some(opacity) = visual.get("areaOpacity") {
            let is = opacity.as_f64().is_some_and(|share| (0.0..=1.0).contains(&share));
            self.holds(is, at, "no opacity");
        }
    }

    fn table(&mut self, value: &Value, at: &str) {
        let allowed = [
            "density",
            "defaultColumnWidth",
            "defaultColumnHeight",
            "defaultColumnHidden",
            "pagination",
            "enableFiltering",
            "columnSettings",
            "cellSettings",
            "transforms",
        ];
        let Some(spec) = self.object(value, at, &[], &allowed) else { return };
        for column in spec.get("columnSettings").and_then(Value::as_array).into_iter().flatten() {
            let allowed = [
                "header",
                "headerDescription",
                "cellDescription",
                "plugin",
                "format",
                "align",
                "enableSorting",
                "sort",
                "width",
                "hide",
                "cellSettings",
                "dataLink",
            ];
            let Some(column) = self.object(column, at, &["name"], &allowed) else { continue };
            self.holds(column["name"].as_str().is_some_and(|name| !name.is_empty()), at, "column");
            self.holds(column.get("hide").is_none_or(Value::is_boolean), at, "hide");
            if let Some(format) = column.get("format") {
                self.format(format, at);
            }
        }
    }

    fn format(&mut self, value: &Value, at: &str) {
        let allowed = ["decimalPlaces", "shortValues"];
        if let Some(format) = self.object(value, at, &["unit"], &allowed) {
            let units: Vec<&str> = UNITS.split_whitespace().collect();
            self.one_of(&format["unit"], at, &units);
        }
    }

    fn query(&mut self, value: &Value, at: &str) {
        let Some(query) = self.object(value, at, &["kind", "spec"], &[]) else { return };
        self.one_of(&query["kind"], at, &["TimeSeriesQuery"]);
        let Some(spec) = self.object(&query["spec"], at, &["plugin"], &["name"]) else { return };
        let Some(plugin) = self.object(&spec["plugin"], at, &["kind", "spec"], &[]) else { return };
        self.one_of(&plugin["kind"], at, &["PrometheusTimeSeriesQuery"]);
        let allowed = ["datasource", "seriesNameFormat", "minStep", "resolution"];
        if let Some(spec) = self.object(&plugin["spec"], at, &["query"], &allowed) {
            self.holds(spec["query"].as_str().is_some_and(|text| !text.is_empty()), at, "query");
            let is_text = spec.get("seriesNameFormat").is_none_or(Value::is_string);
            self.holds(is_text, at, "seriesNameFormat");
        }
    }

    /// Each panel has one place, in 24 columns, that no other covers.
    fn layouts(&mut self, layouts: &[Value], panels: &Map<String, Value>) {
        let mut placed: Vec<(String, [i64; 4])> = Vec::new();
        for layout in layouts {
            let Some(layout) = self.object(layout, "layout", &["kind", "spec"], &[]) else {
                continue;
            };
            self.one_of(&layout["kind"], "layout", &["Grid"]);
            let allowed = ["display", "repeatVariable"];
            let Some(spec) = self.object(&layout["spec"], "layout", &["items"], &allowed) else {
                continue;
            };
            for item in spec["items"].as_array().into_iter().flatten() {
                let names = ["x", "y", "width", "height"];
                let required = [&names[..], &["content"]].concat();
                let Some(item) = self.object(item, "item", &required, &[]) else { continue };
                let place = names.map(|name| item[name].as_i64().unwrap_or(-1));
                let reference = item["content"]["$ref"].as_str().unwrap_or_default();
                let name = reference.strip_prefix("#/spec/panels/").unwrap_or_default().to_owned();
                let [x, y, width, height] = place;
                let fits = x >= 0 && y >= 0 && width > 0 && height > 0 && x + width <= 24;
                if !panels.contains_key(&name) {
                    self.say("item", &format!("{reference} is no panel"));
                } else if !fits {
                    self.say(&name, &format!("place {place:?}"));
                } else {
                    placed.push((name, place));
                }
            }
        }
        for (at, (name, [x, y, width, height])) in placed.iter().enumerate() {
            for (other, [x2, y2, width2, height2]) in &placed[..at] {
                let apart = x + width <= *x2
                    || x2 + width2 <= *x
                    || y + height <= *y2
                    || y2 + height2 <= *y;
                self.holds(apart && name != other, name, &format!("on {other}"));
            }
        }
    }
}
