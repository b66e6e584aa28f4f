//! The verdict of every fixture fits a screen: 24 lines of 100 columns, also with the longest names of interfaces and
//! with 64 CPUs that are no range; and each change of every fixture has a command or a reason why there is none.

use crate::support::{Fixture, fixtures_dir, load_dir};
use nearpath_diagnose::{CHECKS, Context, diagnose};
use nearpath_model::{CpuSet, Diagnosis, Finding};
use nearpath_views::text::{self, SCREEN_LINES};
use serde_json::Value;

/// Columns of a screen.
const COLUMNS: usize = 100;

/// Every fixture of every check.
fn fixtures() -> Vec<Fixture> {
    CHECKS.iter().flat_map(|check| load_dir(&fixtures_dir().join(check.name))).collect()
}

/// Without colours.
fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

/// What is wrong with the verdict's form.
fn complaints(what: &str, diagnosis: &Diagnosis) -> Vec<String> {
    let verdict = plain(&text::verdict(diagnosis, Some("nearpath fix"), SCREEN_LINES));
    let too_wide = verdict.lines().filter(|line| line.chars().count() > COLUMNS);
    let mut wrong: Vec<String> = too_wide.map(|line| format!("{what}: {line}")).collect();
    if verdict.lines().count() > SCREEN_LINES {
        wrong.push(format!("{what}: {} lines", verdict.lines().count()));
    }
    // Titles are cut only where names are long.
    if what.ends_with("as it is") && verdict.contains("…  [") {
        wrong.push(format!("{what}: a title is cut\n{verdict}"));
    }
    wrong
}

fn name(fixture: &Fixture) -> String {
    let path = fixture.path.strip_prefix(fixtures_dir()).unwrap();
    path.display().to_string()
}

#[test]
fn every_verdict_fits_the_screen() {
    let mut wrong = Vec::new();
    for fixture in fixtures() {
        let diagnosis = diagnose(&fixture.host, fixture.earlier.as_ref(), fixture.evidence());
        wrong.extend(complaints(&format!("{} as it is", name(&fixture)), &diagnosis));
        // Each check by itself too: what is behind others is not on the screen.
        for finding in &diagnosis.findings {
            let alone = Diagnosis { findings: vec![finding.clone()], ..diagnosis.clone() };
            wrong.extend(complaints(&format!("{} as it is", name(&fixture)), &alone));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The names of interfaces of a fixture.
fn interfaces(json: &Value) -> Vec<String> {
    let nics = json["host"]["nics"].as_array();
    let names = nics.into_iter().flatten().filter_map(|nic| nic["name"].as_str());
    names.map(str::to_owned).collect()
}

/// Replaces every text.
fn rewrite(value: &mut Value, how: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = how(text),
        Value::Array(list) => list.iter_mut().for_each(|value| rewrite(value, how)),
        Value::Object(fields) => fields.values_mut().for_each(|value| rewrite(value, how)),
        _ => {}
    }
}

/// With names of 15 characters, the longest that the kernel takes (IFNAMSIZ), and with lists of CPUs that cannot be
/// written as a range.
fn longest(diagnosis: &Diagnosis, names: &[String]) -> Diagnosis {
    let even: CpuSet = (0..64).map(|n| nearpath_model::CpuId(2 * n)).collect();
    let rename = |text: &str| {
        let mut text = text.to_owned();
        for (number, name) in names.iter().enumerate() {
            let long = format!("enp194s0f{number:02}npxx").chars().take(15).collect::<String>();
            text = text.replace(name.as_str(), &long);
        }
        text
    };
    let mut json = serde_json::to_value(diagnosis).unwrap();
    for finding in json["findings"].as_array_mut().unwrap() {
        rewrite(finding, &rename);
        for change in finding["changes"].as_array_mut().unwrap() {
            let target = change["target"].as_str().unwrap().to_owned();
            if target.ends_with("rps_cpus") || target.ends_with("xps_cpus") {
                change["after"] = even.to_mask().into();
            } else if target.starts_with("affinity") || target.ends_with("smp_affinity_list") {
                change["after"] = even.to_string().into();
            }
            change["before"] = even.to_string().into();
        }
    }
    serde_json::from_value(json).unwrap()
}

#[test]
fn long_names_and_lists_of_cpus_fit_the_screen() {
    let mut wrong = Vec::new();
    for fixture in fixtures() {
        let diagnosis = diagnose(&fixture.host, fixture.earlier.as_ref(), fixture.evidence());
        let json: Value =
            serde_json::from_str(&std::fs::read_to_string(&fixture.path).unwrap()).unwrap();
        let long = longest(&diagnosis, &interfaces(&json));
        for finding in &long.findings {
            let alone = Diagnosis { findings: vec![finding.clone()], ..long.clone() };
            wrong.extend(complaints(&format!("{} with long names", name(&fixture)), &alone));
        }
        wrong.extend(complaints(&format!("{} with long names", name(&fixture)), &long));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_change_has_a_command_or_a_reason() {
    let mut wrong = Vec::new();
    let mut changes = 0;
    for fixture in fixtures() {
        let context = Context::new(&fixture.host, fixture.earlier.as_ref(), fixture.evidence());
        for check in CHECKS {
            let outcome = check.check(&context);
            for change in outcome.findings.iter().flat_map(|finding| &finding.changes) {
                changes += 1;
                let one = Finding {
                    changes: vec![change.clone()],
                    ..Finding::new(nearpath_model::Severity::Warning, "t")
                };
                let diagnosis =
                    Diagnosis { findings: vec![one], ..diagnose(&fixture.host, None, None) };
                let shown = plain(&text::findings(&diagnosis));
                let line = shown.lines().find(|line| {
                    line.starts_with("   fix:    ") || line.starts_with("   or:     ")
                });
                if line.is_none_or(|line| line.len() < 16) {
                    wrong.push(format!("{}: {}\n{shown}", name(&fixture), change.target));
                }
            }
        }
    }
    assert!(changes > 100, "{changes}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
