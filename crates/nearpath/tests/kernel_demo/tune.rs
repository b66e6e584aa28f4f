//! `nearpath demo tune`: its report matches what it did, and nothing is left behind however it ends.

use super::NEARPATH;
use super::running::Running;
use serde_json::{Value, json};
use std::process::Command;

const SHORT: [&str; 4] = ["demo", "tune", "--json", "--for=1s"];

fn changes(shown: &Value) -> usize {
    shown["plan"]["changes"].as_array().unwrap().len()
}

#[test]
fn the_path_is_fixed_and_everything_undone() {
    if !nearpath_testing::require_lengthy()
        || !nearpath_testing::require_bpf()
        || !nearpath_testing::require_netns()
    {
        return;
    }
    let output = Command::new(NEARPATH).args(SHORT).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("namespaces removed"), "{said}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["not_restored"], json!([]), "{shown}");
    assert!(shown["settings"].as_u64().unwrap() >= 10, "{shown}");
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        assert_eq!(shown["not_tried"], "the plan has no changes");
        nearpath_testing::skip("one CPU: nothing can be misplaced");
        return;
    }
    assert_eq!(shown["findings"][0]["check"], "rps_placement", "{shown}");
    assert!(changes(&shown) >= 2, "{shown}");
    let trial = &shown["trial"];
    let hops = |which: &str| trial["mechanism"][which]["other_cpu"].as_f64().unwrap();
    assert!(hops("with") < hops("without"), "{trial}");
    let kept = trial["kept"].as_bool().unwrap();
    // RPS costs each packet two hops: without it, they are faster.
    assert!(kept && trial["verdict"] == "better", "{trial}");
    // What was in the journal afterwards was applied, and was undone in reverse order.
    let ids = |of: &str| -> Vec<u64> {
        shown[of].as_array().unwrap().iter().map(|one| one["id"].as_u64().unwrap()).collect()
    };
    let (stood, mut undone) = (ids("journal"), ids("undone"));
    undone.reverse();
    assert_eq!(stood, undone, "{shown}");
    assert_eq!(stood.len(), if kept { changes(&shown) } else { 0 }, "{shown}");
    for entry in shown["journal"].as_array().unwrap() {
        assert_eq!(entry["state"], "applied", "{entry}");
    }
}

#[test]
fn a_signal_in_the_trial_undoes_the_plan() {
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let running = Running::start(&SHORT, "trying the plan");
    running.signal(libc::SIGINT);
    let (status, stdout, said) = running.end();
    assert!(status.success(), "{status} {said}");
    let shown: Value = serde_json::from_slice(&stdout).unwrap();
    let why = shown["not_tried"].as_str().unwrap();
    assert_eq!(why, "plan undone: stopped early by a signal");
    assert_eq!((&shown["trial"], &shown["not_restored"]), (&Value::Null, &json!([])));
    assert_eq!((&shown["journal"], &shown["undone"]), (&json!([]), &json!([])));
}

#[test]
fn a_killed_trial_leaves_nothing_behind() {
    if !nearpath_testing::require_lengthy()
        || !nearpath_testing::require_bpf()
        || !nearpath_testing::require_netns()
    {
        return;
    }
    let running = Running::start(&SHORT, "trying the plan");
    running.signal(libc::SIGKILL);
    let (status, stdout, _) = running.end();
    assert!(!status.success() && stdout.is_empty(), "{status}");
}
