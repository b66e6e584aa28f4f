//! A namespace with an interface, a journal, and the commands that use them.

use nearpath_host::{Root, current_netns};
use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_netns, require_program, wait_for};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use tempfile::TempDir;

/// The two namespaces, and a journal.
pub struct Scene {
    pub pair: Arc<VethPair>,
    pub journal: TempDir,
}

/// A watch that runs, and its lines.
pub struct Watch {
    child: Child,
    lines: Receiver<Value>,
}

/// Runs in the server's namespace; not at all where there are none.
pub fn in_scene(run: impl FnOnce(&Scene) + Send) {
    if !require_netns() || !require_program("unshare") {
        return;
    }
    let scene =
        Scene { pair: Arc::new(VethPair::new(2).unwrap()), journal: tempfile::tempdir().unwrap() };
    scene.on(Side::Server, || run(&scene));
}

impl Scene {
    /// Runs in the namespace of a side.
    pub fn on<T: Send>(&self, side: Side, run: impl FnOnce() -> T + Send) -> T {
        self.pair.run(side, |_| io::Result::Ok(run())).unwrap()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        command.env("NEARPATH_STATE_DIR", self.journal.path()).arg("tune").args(args);
        command.stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        let output = self.command(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        output
    }

    /// Applies these values to these files.
    pub fn apply(&self, wanted: &[(&str, &str)]) {
        let wanted: Vec<_> =
            wanted.iter().map(|(file, after)| (*file, text(file), *after)).collect();
        self.apply_because("a test", &wanted);
    }

    /// Applies changes, each from one value to another, with this reason.
    pub fn apply_because(&self, why: &str, wanted: &[(&str, String, &str)]) {
        let root = Root::live();
        let change = |(target, before, after): &(&str, String, &str)| {
            json!({"id": target, "kind": "test", "target": target, "before": before,
                "after": after, "why": why, "finding": null, "persist": [], "reboot": false,
                "optional": false})
        };
        let changes: Vec<Value> = wanted.iter().map(change).collect();
        let shares = json!({"other_cpu": null, "other_llc": null, "other_node": null});
        let boot = root.text("/proc/sys/kernel/random/boot_id").unwrap();
        let plan = json!({"schema": 1, "goal": "latency", "boot": boot,
            "netns": current_netns(&root).inode, "changes": changes, "now": shares,
            "predicted": shares, "notes": []});
        let file = self.journal.path().join("plan.json");
        std::fs::write(&file, plan.to_string()).unwrap();
        self.run(&["apply", file.to_str().unwrap()]);
    }

    /// The changes of the journal, as seen from the calling thread's namespace.
    pub fn status(&self) -> Vec<Value> {
        let document: Value =
            serde_json::from_slice(&self.run(&["status", "--json"]).stdout).unwrap();
        document["journal"].as_array().unwrap().clone()
    }

    /// Their states; `unknown` if that is not visible from here.
    pub fn states(&self) -> Vec<String> {
        let state = |entry: &Value| entry["state"].as_str().unwrap_or("unknown").to_owned();
        self.status().iter().map(state).collect()
    }

    /// A watch that checks at least at this interval.
    pub fn watch(&self, interval: &str, more: &[&str]) -> Watch {
        let mut command = self.command(&["watch", "--json", "--interval", interval]);
        command.args(more);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It subscribes to events before it prints its message.
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("watching the changes"), "{said}");
        let lines = lines(child.stdout.take().unwrap());
        Watch { child, lines }
    }
}

fn lines(out: ChildStdout) -> Receiver<Value> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let _ = send.send(serde_json::from_str(&line).unwrap());
        }
    });
    receive
}

impl Watch {
    /// The next line with this event and file; earlier lines are skipped.
    pub fn next(&self, event: &str, target: &str) -> Value {
        let found = || {
            let line = self.lines.try_recv().ok()?;
            (line["event"] == event && line["target"] == target).then_some(line)
        };
        wait_for(&format!("{event} of {target}"), found)
    }

    /// Stops it with SIGTERM; returns its remaining output.
    pub fn end(mut self) -> Vec<Value> {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: sends a signal to a child that has not been reaped.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
        assert!(self.child.wait().unwrap().success(), "SIGTERM is no failure");
        self.lines.iter().collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // After a test that failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text(path: &str) -> String {
    Root::live().text(path).unwrap()
}

pub fn ip(words: &str) {
    assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
}

pub fn write(path: &str, value: &str) {
    // With the interfaces of this thread's namespace in /sys, as `ip netns exec` does.
    let mut echo = Command::new("unshare");
    let script = "mount -t sysfs sysfs /sys && echo $2 >$1";
    echo.args(["--mount", "sh", "-c", script, "sh", path, value]);
    assert!(echo.status().unwrap().success());
}
