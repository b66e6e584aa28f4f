//! `nearpath fix`: what the finding names is tried, and kept if packets are better for it.

use crate::scene::{Scene, document};
use nearpath_testing::require_program;
use nearpath_testing::veth::Side;
use serde_json::{Value, json};
use std::io::Read;
use std::process::{Command, Stdio};

/// A process that takes CPU 1 for 12 ms of each 62 ms, before all others.
const HOG: &str = "
import os, time
os.sched_setaffinity(0, {1})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
print('runs', flush=True)
while True:
    end = time.monotonic() + 0.012
    while time.monotonic() < end: pass
    time.sleep(0.05)
";

/// `nearpath fix` in the server's namespace, and what it says.
fn fixed(scene: &Scene, args: &[&str]) -> (Value, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    command.env("NEARPATH_STATE_DIR", scene.state.path()).stdin(Stdio::null());
    command.args(["fix", "--json", "--for", "4s", "--try-for", "40s", "--measure", "stages"]);
    command.args(args);
    let output = scene.inside(|| command.output().unwrap());
    (document(&output), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn fix_keeps_the_change_that_the_finding_names_and_no_other() {
    let Some(scene) = Scene::in_turn(true, 1) else { return };
    // What would be tried, and nothing is.
    let (dry, said) = fixed(&scene, &["--dry-run"]);
    assert_eq!((&dry["tried"], &dry["kept"]), (&json!([]), &json!([])), "{dry} {said}");
    let not_tried = dry["not_tried"].as_array().unwrap();
    assert!(not_tried.iter().any(|one| one["check"] == "rps_placement"), "{dry}");
    assert_eq!((scene.rps().as_str(), scene.journal()), ("1", json!([])));

    let (report, said) = fixed(&scene, &["--confirm-within", "1h"]);
    let tried = report["tried"].as_array().unwrap();
    let of_rps = tried.iter().find(|one| one["check"] == "rps_placement");
    let attempt = of_rps.unwrap_or_else(|| panic!("{report} {said}"));
    assert_eq!(
        (&attempt["verdict"], &attempt["kept"]),
        (&json!("better"), &json!(true)),
        "{report} {said}"
    );
    assert!(effect(attempt, "p50") < 0.95, "{report}");
    assert_eq!(scene.rps(), "0");
    let journal = scene.journal();
    let entries = journal.as_array().unwrap();
    assert_eq!(entries.len(), report["kept"].as_array().unwrap().len(), "{report} {journal}");
    assert!(entries.iter().all(|entry| entry["pending"]["confirm_by"].is_u64()), "{journal}");
    let mut confirm = scene.command(&["confirm"]);
    assert!(scene.inside(|| confirm.status().unwrap()).success());
    let confirmed = scene.journal();
    let is_decided = |entry: &Value| entry["pending"].is_null();
    assert!(confirmed.as_array().unwrap().iter().all(is_decided), "{confirmed}");
    let mut rollback = scene.command(&["rollback"]);
    assert!(scene.inside(|| rollback.status().unwrap()).success());
    assert_eq!((scene.rps().as_str(), scene.journal()), ("1", json!([])));
}

#[test]
fn fix_moves_a_task_only_if_it_may() {
    let Some(scene) = Scene::in_turn(true, 0) else { return };
    if !require_program("python3") {
        return;
    }
    scene.pair.write(Side::Server, "queues/rx-0/rps_cpus", "0").unwrap();
    let mut hog = Command::new("python3").args(["-c", HOG]).stdout(Stdio::piped()).spawn().unwrap();
    let runs = hog.stdout.as_mut().unwrap().read_exact(&mut [0; 5]);
    let cpus = || cpus_of_process(hog.id());
    // Without --yes and without a terminal it stays where it is.
    let (asked, said) = fixed(&scene, &[]);
    let before = cpus();
    let (report, said_then) = fixed(&scene, &["--yes"]);
    let after = cpus();
    hog.kill().unwrap();
    hog.wait().unwrap();
    runs.unwrap();
    let reasons = asked["not_tried"].to_string();
    assert!(reasons.contains("--yes permits that"), "{asked} {said}");
    assert_eq!((asked["kept"].clone(), before.as_str()), (json!([]), "1"), "{asked}");
    let tried = report["tried"].as_array().unwrap();
    let attempt = tried.iter().find(|one| one["check"] == "slow_packets" && one["kept"] == true);
    let attempt = attempt.unwrap_or_else(|| panic!("{report} {said_then}"));
    assert!(effect(attempt, "p99") < 0.5, "{report}");
    assert_ne!(after, "1");
}

/// The effect on a figure.
fn effect(attempt: &Value, name: &str) -> f64 {
    let figures = attempt["figures"].as_array().unwrap();
    figures.iter().find(|figure| figure["name"] == name).unwrap()["effect"].as_f64().unwrap()
}

/// Where the first thread of a process may run.
fn cpus_of_process(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}
