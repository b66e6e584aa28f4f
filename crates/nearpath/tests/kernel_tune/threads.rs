//! A process that starts threads all the time, through `tune plan`, `apply` and `rollback`: whichever of them are born
//! before, while or after the plan is made, all are moved, and all are moved back.

use nearpath_host::{Root, thread_cpus};
use nearpath_testing::{require_program, require_root, skip, wait_for};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Starts a thread every ten milliseconds, which starts another one and waits, until its input ends. Fewer once there
/// are many, as applying takes the longer the more there are.
const SPAWNER: &str = "
import sys, threading
threading.stack_size(128 * 1024)
ended = threading.Event()
def waits():
    ended.wait()
def bears():
    threading.Thread(target=waits).start()
    ended.wait()
def spawns():
    for count in range(1000):
        threading.Thread(target=bears).start()
        if ended.wait(0.01 if count < 200 else 0.1):
            break
threading.Thread(target=spawns).start()
sys.stdin.read()
ended.set()
";

struct Spawner(Child);

impl Spawner {
    fn start() -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", SPAWNER]).stdin(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// The affinities of its threads now.
    fn affinities(&self) -> Vec<String> {
        let (root, pid) = (Root::live(), self.0.id());
        let tasks = root.list(&format!("/proc/{pid}/task")).unwrap_or_default();
        let tids = tasks.iter().filter_map(|task| task.name.parse().ok());
        tids.filter_map(|tid| thread_cpus(&root, pid, tid)).map(|cpus| cpus.to_string()).collect()
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        let _ = self.0.stdin.take().map(|mut input| input.flush());
        let _ = self.0.wait();
    }
}

fn tune(journal: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    command.env("NEARPATH_STATE_DIR", journal).arg("tune").args(args).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    output
}

#[test]
fn threads_born_at_any_time_are_moved_and_moved_back() {
    if !require_root() || !require_program("python3") {
        return;
    }
    let journal = tempfile::tempdir_in("/dev/shm").unwrap();
    let spawner = Spawner::start();
    let many = || Some(spawner.affinities()).filter(|all| all.len() > 10);
    let before = wait_for("its threads", many)[0].clone();
    let Some(cpu) = before.split(['-', ',']).next_back().filter(|cpu| **cpu != before) else {
        return skip("requires two CPUs");
    };
    let pid = spawner.0.id().to_string();
    let plan = tune(journal.path(), &["plan", "--pid", &pid, "--app-cpus", cpu, "--json"]);
    let mut plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let changes = plan["changes"].as_array_mut().unwrap();
    changes.retain(|change| change["kind"] == "thread_affinity");
    let planned = changes.len();
    let file = journal.path().join("plan.json");
    std::fs::write(&file, plan.to_string()).unwrap();
    tune(journal.path(), &["apply", file.to_str().unwrap()]);
    let moved = spawner.affinities();
    assert!(moved.len() > planned, "none was born since the plan: {planned}");
    let others = moved.iter().filter(|cpus| *cpus != cpu).count();
    assert_eq!(others, 0, "of {}, planned {planned}", moved.len());
    tune(journal.path(), &["rollback"]);
    let back = spawner.affinities();
    let others = back.iter().filter(|cpus| **cpus != before).count();
    assert_eq!(others, 0, "of {}, planned {planned}", back.len());
}
