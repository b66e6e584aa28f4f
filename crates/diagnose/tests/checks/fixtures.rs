//! Every check on its fixtures: `fires*.json` must give a finding, `quiet*.json` nothing at all,
//! `unknown*.json` a reason and no finding. What was said stands beside each in a `.txt`. A
//! check without fixtures fails, and so does a folder without a check.

use crate::support::{Fixture, fixtures_dir, golden, load, load_dir, render, render_finding};
use nearpath_diagnose::{CHECKS, Check, Context, diagnose};
use nearpath_model::{Finding, Severity};
use std::collections::BTreeSet;

fn name(fixture: &Fixture) -> String {
    fixture.path.file_stem().unwrap().to_str().unwrap().to_owned()
}

/// What is wrong with what the check says of the fixture.
fn complaint(check: &Check, fixture: &Fixture) -> Result<(), String> {
    let context = Context::new(&fixture.host, fixture.earlier.as_ref(), fixture.evidence());
    let outcome = check.check(&context);
    let said = render(&outcome);
    let name = name(fixture);
    let wrong = |what: &str| Err(format!("{}: {what}:\n{said}", fixture.path.display()));
    let measured = fixture.measurement.is_some()
        || fixture.earlier.is_some()
        || fixture.tcp.is_some()
        || fixture.vm.is_some()
        || fixture.txtime.is_some();
    for finding in &outcome.findings {
        if finding.evidence.is_empty() {
            return wrong("no evidence");
        }
        if finding.severity == Severity::Critical && !measured {
            return wrong("critical without a measurement");
        }
    }
    match name.split('_').next() {
        Some("quiet") if !said.is_empty() => return wrong("is not quiet"),
        Some("quiet") => return Ok(()),
        Some("unknown") if !outcome.findings.is_empty() => return wrong("guesses"),
        Some("unknown") if said.is_empty() => return wrong("says not what is missing"),
        Some("fires") if outcome.findings.is_empty() => return wrong("does not fire"),
        Some("fires" | "unknown") => {}
        _ => return wrong("is neither fires, quiet nor unknown"),
    }
    golden(&fixture.path.with_extension("txt"), &said)
}

#[test]
fn every_check_does_what_its_fixtures_say() {
    let mut complaints = Vec::new();
    for check in CHECKS {
        let fixtures = load_dir(&fixtures_dir().join(check.name));
        for kind in ["fires", "quiet", "unknown"] {
            let some = fixtures.iter().any(|fixture| name(fixture).starts_with(kind));
            assert!(some, "{} has no {kind}.json", check.name);
        }
        complaints.extend(fixtures.iter().filter_map(|f| complaint(check, f).err()));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn every_folder_has_its_check_and_every_check_its_docs() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/checks.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    for check in CHECKS {
        assert!(docs.contains(&format!("\n## {}\n", check.name)), "{} in docs", check.name);
        let quoted = |name: &&str| format!("`{name}`");
        let causes = check.explained_by.iter().map(quoted).collect::<Vec<_>>().join(", ");
        let row = |line: &str| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            matches!(cells.as_slice(), [_, symptoms, of, _]
                if symptoms.contains(&quoted(&check.name)) && *of == causes)
        };
        let is_known = check.explained_by.is_empty() || docs.lines().any(row);
        assert!(is_known, "{}: its causes in the table of docs", check.name);
    }
    let mut known: BTreeSet<&str> = CHECKS.iter().map(|check| check.name).collect();
    assert_eq!(known.len(), CHECKS.len(), "names are unique");
    assert!(CHECKS.is_sorted_by_key(|check| check.name), "the registry goes by name");
    known.extend(["machines", "whole"]);
    for entry in std::fs::read_dir(fixtures_dir()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            let name = entry.file_name();
            assert!(known.contains(name.to_str().unwrap()), "{name:?} is no check's");
        }
    }
}

/// The whole diagnosis of a host that is wrong in several ways.
fn whole(name: &str) -> nearpath_model::Diagnosis {
    let fixture = load(&fixtures_dir().join("whole").join(format!("{name}.json")));
    let diagnosis = diagnose(&fixture.host, fixture.earlier.as_ref(), fixture.evidence());
    let mut text = String::new();
    for finding in &diagnosis.findings {
        text.push_str(&format!("[{}]\n{}\n", finding.check, render_finding(finding)));
    }
    for note in &diagnosis.not_checked {
        text.push_str(&format!("not checked: {}: {}\n", note.check, note.reason));
    }
    text.push_str(&format!("\n{}\n", serde_json::to_string_pretty(&diagnosis.host).unwrap()));
    golden(&fixture.path.with_extension("txt"), &text).unwrap_or_else(|e| panic!("{e}"));
    diagnosis
}

/// The checks of all findings on a fixture, each with those of its symptoms.
fn of_one_cause(fixture: &str) -> Vec<(String, Vec<String>)> {
    let fixture = load(&fixtures_dir().join(fixture));
    let diagnosis = diagnose(&fixture.host, fixture.earlier.as_ref(), fixture.evidence());
    let symptoms = |finding: &Finding| finding.symptoms.iter().map(|of| of.check.clone()).collect();
    let workers = diagnosis.findings.iter().filter(|finding| finding.check.starts_with("worker_"));
    workers.map(|finding| (finding.check.clone(), symptoms(finding))).collect()
}

#[test]
fn workers_that_do_not_keep_up_are_one_finding() {
    let finding = |check: &str, symptoms: &[&str]| {
        (check.to_owned(), symptoms.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
    };
    let busy = of_one_cause("worker_missed/fires_busy.json");
    assert_eq!(busy, [finding("worker_missed", &["worker_saturated"])]);
    let uneven = of_one_cause("worker_missed/fires_uneven.json");
    assert_eq!(uneven, [finding("worker_missed", &["worker_saturated"])]);
    let disturbed = of_one_cause("worker_missed/fires_disturbed.json");
    assert_eq!(disturbed, [finding("worker_disturbed", &["worker_missed"])]);
}

#[test]
fn on_the_demonstration_the_misplaced_rps_comes_first() {
    let diagnosis = whole("demo");
    let first = &diagnosis.findings[0];
    assert_eq!((first.check.as_str(), first.severity), ("rps_placement", Severity::Critical));
    let changes: Vec<_> = first.changes.iter().filter(|change| !change.alternative).collect();
    assert_eq!(changes.len(), 2, "one for each queue");
    assert!(changes.iter().all(|change| change.after == "00000000".into()));
}

#[test]
fn without_a_measurement_the_facts_still_speak() {
    let diagnosis = whole("facts_only");
    assert!(diagnosis.findings.iter().all(|finding| finding.severity < Severity::Critical));
    assert!(diagnosis.findings.iter().any(|finding| finding.check == "rps_placement"));
    assert!(!diagnosis.not_checked.is_empty());
}
