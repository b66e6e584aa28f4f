//! Loads fixtures: readable JSON of partial hosts and measurements, and renders the
//! output of a check.
//!
//! A fixture is `{"what", "machine", "host", "earlier", "measurement", "locality", "accepts", "tcp", "memory",
//! "workers", "vm"}`.
//! `machine`
//! names the topology in `fixtures/machines/`; the others hold only what matters, over empty defaults and, for the
//! elements of lists, over `fixtures/templates.json` (those below `tcp` there for the lists of `tcp`); `earlier`
//! holds what was different then. A key that the types do not know fails the test instead of being ignored.

use nearpath_diagnose::{CheckOutcome, Evidence};
use nearpath_model::accepts::AcceptMeasurement;
use nearpath_model::answers::AnswerMeasurement;
use nearpath_model::drops::DropMeasurement;
use nearpath_model::locality::Locality;
use nearpath_model::memory::MemoryMeasurement;
use nearpath_model::tcp::TcpMeasurement;
use nearpath_model::vm::VmMeasurement;
use nearpath_model::{Finding, Host, Measurement, ProposedChange, ScheduledTransmission, Workers};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A fixture, loaded.
#[derive(Debug, Clone)]
pub struct Fixture {
    /// Its file.
    pub path: PathBuf,
    pub host: Host,
    pub earlier: Option<Host>,
    pub measurement: Option<Measurement>,
    pub drops: Option<DropMeasurement>,
    pub locality: Option<Locality>,
    pub accepts: Option<AcceptMeasurement>,
    pub answers: Option<AnswerMeasurement>,
    pub tcp: Option<TcpMeasurement>,
    pub memory: Option<MemoryMeasurement>,
    pub workers: Option<Workers>,
    pub vm: Option<VmMeasurement>,
    pub txtime: Option<ScheduledTransmission>,
}

impl Fixture {
    /// All that was measured.
    pub fn evidence(&self) -> Evidence<'_> {
        Evidence {
            stages: self.measurement.as_ref(),
            drops: self.drops.as_ref(),
            locality: self.locality.as_ref(),
            accepts: self.accepts.as_ref(),
            answers: self.answers.as_ref(),
            tcp: self.tcp.as_ref(),
            memory: self.memory.as_ref(),
            workers: self.workers.as_ref(),
            vm: self.vm.as_ref(),
            txtime: self.txtime.as_ref(),
        }
    }
}

/// `crates/diagnose/fixtures`.
pub fn fixtures_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The fixtures in a folder, by name.
pub fn load_dir(dir: &Path) -> Vec<Fixture> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "json"))
        .collect();
    paths.sort();
    paths.iter().map(|path| load(path)).collect()
}

/// Loads one fixture.
pub fn load(path: &Path) -> Fixture {
    let fixture = json_file(path);
    for key in fixture.as_object().unwrap().keys() {
        let known = [
            "what",
            "machine",
            "host",
            "earlier",
            "measurement",
            "drops",
            "locality",
            "accepts",
            "answers",
            "tcp",
            "memory",
            "workers",
            "vm",
            "txtime",
        ];
        assert!(known.contains(&key.as_str()), "{}: unknown key {key}", path.display());
    }
    assert!(fixture["what"].is_string(), "{}: says not what it shows", path.display());
    let templates = json_file(&fixtures_dir().join("templates.json"));
    let mut host = serde_json::to_value(Host::default()).unwrap();
    if let Some(machine) = fixture["machine"].as_str() {
        let file = fixtures_dir().join("machines").join(format!("{machine}.json"));
        merge(&mut host, &json!({ "topology": json_file(&file) }));
    }
    merge(&mut host, &fixture["host"]);
    let earlier = fixture["earlier"].is_object().then(|| {
        let mut earlier = host.clone();
        merge(&mut earlier, &fixture["earlier"]);
        typed::<Host>(path, earlier, &templates)
    });
    Fixture {
        path: path.to_owned(),
        host: typed(path, host, &templates),
        earlier,
        measurement: measured(path, &fixture["measurement"], &templates),
        drops: measured(path, &fixture["drops"], &templates["drop_totals"]),
        locality: measured(path, &fixture["locality"], &templates),
        accepts: measured(path, &fixture["accepts"], &templates),
        answers: measured(path, &fixture["answers"], &templates),
        tcp: measured(path, &fixture["tcp"], &templates["tcp"]),
        memory: measured(path, &fixture["memory"], &templates["memory"]),
        workers: measured(path, &fixture["workers"], &templates["polling"]),
        vm: measured(path, &fixture["vm"], &templates["into_vms"]),
        txtime: measured(path, &fixture["txtime"], &templates),
    }
}

/// What an instrument measured, over an empty measurement.
fn measured<T: Default + Serialize + DeserializeOwned>(
    path: &Path,
    part: &Value,
    templates: &Value,
) -> Option<T> {
    part.is_object().then(|| {
        let mut whole = serde_json::to_value(T::default()).unwrap();
        merge(&mut whole, part);
        typed::<T>(path, whole, templates)
    })
}

fn json_file(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Fills the elements of lists from the templates and deserialises; every key must have
/// arrived in the type.
fn typed<T: DeserializeOwned + Serialize>(path: &Path, mut json: Value, templates: &Value) -> T {
    fill(&mut json, templates);
    let value = serde_json::from_value(json.clone())
        .unwrap_or_else(|e| panic!("{}: {e}\n{json:#}", path.display()));
    let back = serde_json::to_value(&value).unwrap();
    assert_within(&json, &back, path, "");
    value
}

/// Puts `over` on `base`: objects key by key, anything else replaced.
fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (base, over) => *base = over.clone(),
    }
}

fn fill(value: &mut Value, templates: &Value) {
    match value {
        Value::Array(elements) => elements.iter_mut().for_each(|e| fill(e, templates)),
        Value::Object(fields) => {
            for (key, field) in fields {
                if let (Value::Array(elements), Some(template)) = (&mut *field, templates.get(key))
                {
                    for element in elements.iter_mut().filter(|e| e.is_object()) {
                        let mut whole = template.clone();
                        merge(&mut whole, element);
                        *element = whole;
                    }
                }
                fill(field, templates);
            }
        }
        _ => {}
    }
}

fn assert_within(part: &Value, whole: &Value, path: &Path, at: &str) {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            for (key, value) in part {
                let other = whole.get(key);
                let other = other.unwrap_or_else(|| panic!("{}: {at}/{key}?", path.display()));
                assert_within(value, other, path, &format!("{at}/{key}"));
            }
        }
        (Value::Array(part), Value::Array(whole)) => {
            assert_eq!(part.len(), whole.len(), "{}: {at}", path.display());
            for (part, whole) in part.iter().zip(whole) {
                assert_within(part, whole, path, at);
            }
        }
        (Value::Number(part), Value::Number(whole)) => {
            assert_eq!(part.as_f64(), whole.as_f64(), "{}: {at}", path.display());
        }
        (part, whole) => assert_eq!(part, whole, "{}: {at}", path.display()),
    }
}

/// What a check said, for people.
pub fn render(outcome: &CheckOutcome) -> String {
    let mut text = String::new();
    for finding in &outcome.findings {
        text.push_str(&render_finding(finding));
    }
    for reason in &outcome.not_checked {
        text.push_str(&format!("not checked: {reason}\n"));
    }
    text
}

/// A finding, for people.
pub fn render_finding(finding: &Finding) -> String {
    let severity = serde_json::to_value(finding.severity).unwrap();
    let mut text = format!("{}: {}\n", severity.as_str().unwrap(), finding.title);
    let cost = &finding.cost;
    let costs = [
        cost.seconds_per_second.map(|s| format!("{s:.4}s/s")),
        cost.share_percent.map(|p| format!("{p:.2}% of {}", cost.share_of)),
        cost.per_packet_ns.map(|ns| format!("{ns}ns a packet")),
    ];
    let costs: Vec<String> = costs.into_iter().flatten().collect();
    if !costs.is_empty() {
        text.push_str(&format!("  cost: {}\n", costs.join(", ")));
    }
    for sentence in &finding.evidence {
        text.push_str(&format!("  {sentence}\n"));
    }
    for symptom in &finding.symptoms {
        text.push_str(&format!("  causes: {} [{}]\n", symptom.title, symptom.check));
    }
    for change in &finding.changes {
        let ProposedChange { target, before, after, why, alternative, netns: _ } = change;
        let mark = if *alternative { "or" } else { "=>" };
        let before = before.as_ref().map_or("?".to_owned(), ToString::to_string);
        text.push_str(&format!("  {mark} {target}: {before} -> {after}\n     {why}\n"));
    }
    text
}

/// Compares with a golden file; with NEARPATH_BLESS=1 it is written instead.
pub fn golden(path: &Path, text: &str) -> Result<(), String> {
    if std::env::var_os("NEARPATH_BLESS").is_some() {
        return std::fs::write(path, text).map_err(|e| e.to_string());
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    if golden == text {
        return Ok(());
    }
    let path = path.display();
    Err(format!("{path} differs (NEARPATH_BLESS=1 rewrites it):\n{golden}--- now:\n{text}"))
}
