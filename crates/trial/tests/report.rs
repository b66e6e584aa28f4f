//! The JSON of `tune try --json`.

use nearpath_model::PathKind;
use nearpath_model::{Block, Cycle, TRIAL_SCHEMA, Thresholds, TrialReport};
use nearpath_trial::comparison::compare;

#[test]
fn the_json_has_the_documented_names() {
    let block = |metric| Block { metric, lost: 0.0, cpus_busy: 1.0, rate_per_s: 5.0 };
    let cycle = Cycle { without: [block(2.0); 2], with: [block(1.0); 2] };
    let report = TrialReport {
        schema: TRIAL_SCHEMA,
        changes: vec!["irq-40".to_owned()],
        metric: "p99".to_owned(),
        path: Some(PathKind::Receive),
        comparison: compare(&[cycle; 4], &Thresholds::default(), 1).unwrap(),
        mechanism: None,
        kept: true,
        one_way: Vec::new(),
    };
    let json = serde_json::to_value(&report).unwrap();
    let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "metric",
        "path",
        "blocks",
        "baseline",
        "with_plan",
        "delta_percent",
        "ci95",
        "noise_floor_percent",
        "guards",
        "verdict",
        "kept",
        "schema",
        "changes",
        "mechanism",
    ];
    expected.sort_unstable();
    let mut names = names;
    names.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!((&json["verdict"], &json["path"]), (&"better".into(), &"receive".into()));
    assert_eq!(json["ci95"].as_array().unwrap().len(), 2);
    let back: TrialReport = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(back, report);
    // The format before paths were measured.
    let mut old = json;
    old.as_object_mut().unwrap().remove("path");
    let back: TrialReport = serde_json::from_value(old).unwrap();
    assert_eq!(back, TrialReport { path: None, ..report });
}
