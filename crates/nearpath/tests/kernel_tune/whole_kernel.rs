//! A sysctl of the whole kernel, for a network namespace that does not even show it.

use crate::in_scene;
use rustix::thread::gettid;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::thread;

const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";
const NAME: &str = "net.core.netdev_max_backlog";

fn backlog() -> String {
    std::fs::read_to_string(BACKLOG).unwrap().trim().to_owned()
}

/// Changes it on behalf of a namespace, and rolls back.
fn applied_and_rolled_back(netns: &str) {
    let state = tempfile::tempdir().unwrap();
    let tune = |args: &[&str]| -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        command.env("NEARPATH_STATE_DIR", state.path()).arg("tune").args(args);
        let output = command.args(["--netns", netns]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    };
    let before = backlog();
    let after = (before.parse::<u64>().unwrap() + 1).to_string();
    tune(&["apply", "--sysctl", &format!("{NAME}={after}"), "--only", NAME]);
    assert_eq!(backlog(), after);
    let journal = || -> Value {
        let status: Value = serde_json::from_slice(&tune(&["status", "--json"]).stdout).unwrap();
        status["journal"].clone()
    };
    assert_eq!(
        (&journal()[0]["target"], &journal()[0]["state"]),
        (&BACKLOG.into(), &"applied".into())
    );
    tune(&["rollback"]);
    assert_eq!(backlog(), before);
    assert_eq!(journal().as_array().unwrap().len(), 0);
}

#[test]
fn a_sysctl_of_the_whole_kernel_is_changed_for_any_namespace() {
    if !Path::new(BACKLOG).exists() {
        return nearpath_testing::skip("not in the initial network namespace");
    }
    let (here, there) = channel();
    let (end, ended) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            in_scene(move |_| {
                assert!(!Path::new(BACKLOG).exists(), "another namespace shows it");
                let tid = gettid().as_raw_nonzero();
                here.send(format!("/proc/{}/task/{tid}/ns/net", std::process::id())).unwrap();
                let _ = ended.recv();
            });
        });
        // Nothing comes if there are no namespaces here.
        if let Ok(netns) = there.recv() {
            applied_and_rolled_back(&netns);
        }
        drop(end);
    });
}
