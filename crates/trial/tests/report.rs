//! The JSON of `tune try --json`.

use nearpath_model::PathKind;
use nearpath_model::{Block, Cycle, Observed, TRIAL_SCHEMA, Thresholds, TrialDesign, TrialReport};
use nearpath_trial::comparison::compare;

#[test]
fn the_json_has_the_documented_names() {
    let block = |metric| {
        let observed = Observed::Ratio { sum: metric, count: 1.0 };
        let (lost, errors, drops, cpus_busy, rate_per_s) = (0.0, 0.0, 0.0, 1.0, 5.0);
        Block { observed, lost, errors, drops, cpus_busy, rate_per_s }
    };
    let without = [block(2.0), block(2.0)];
    let with = [block(1.0), block(1.0)];
    let cycle = Cycle { without, with, placebo: false, with_first: false };
    let report = TrialReport {
        schema: TRIAL_SCHEMA,
        changes: vec!["irq-40".to_owned()],
        metric: "p99".to_owned(),
        path: Some(PathKind::Receive),
        comparison: compare(&vec![cycle; 6], &Thresholds::default()).unwrap(),
        design: TrialDesign {
            alternating: true,
            seed: 7,
            block_s: 2.0,
            settling_s: 0.5,
            settling_measured: false,
        },
        stopped: None,
        tail: None,
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
        "p_value",
        "p_adjusted",
        "placebo",
        "autocorrelation",
        "design",
        "stopped",
        "tail",
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
