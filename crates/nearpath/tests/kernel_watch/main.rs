//! `nearpath tune watch` on this kernel: an interface that is removed and re-created gets its settings back as its queues
//! appear; external changes are skipped; SIGTERM stops it.

use nearpath_host::{Root, current_netns};
use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_netns, require_program, wait_for};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use tempfile::TempDir;

const RPS: &str = "/sys/class/net/np1/queues/rx-1/rps_cpus";
const FLOWS: &str = "/sys/class/net/np1/queues/rx-1/rps_flow_cnt";
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";
const QUEUES: &str = "numrxqueues 2 numtxqueues 2";

/// The server's namespace, and a journal.
struct Scene {
    journal: TempDir,
}

/// A watch that runs, and its lines.
struct Watch {
    child: Child,
    lines: Receiver<Value>,
}

fn in_scene(run: impl FnOnce(&Scene) + Send) {
    if !require_netns() || !require_program("unshare") {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    pair.run(Side::Server, |_| {
        run(&Scene { journal: tempfile::tempdir().unwrap() });
        io::Result::Ok(())
    })
    .unwrap();
}

impl Scene {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        command.env("NEARPATH_STATE_DIR", self.journal.path()).arg("tune").args(args);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let output = self.command(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        output
    }

    /// Applies these values to these files.
    fn apply(&self, wanted: &[(&str, &str)]) {
        let root = Root::live();
        let change = |(target, after): &(&str, &str)| {
            json!({"id": target, "kind": "test", "target": target, "before": text(target),
                "after": after, "why": "a test", "finding": null, "persist": [], "reboot": false,
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

    fn states(&self) -> Vec<String> {
        let document: Value =
            serde_json::from_slice(&self.run(&["status", "--json"]).stdout).unwrap();
        let entries = document["journal"].as_array().unwrap().clone();
        entries.iter().map(|entry| entry["state"].as_str().unwrap().to_owned()).collect()
    }

    /// A watch that checks at least at this interval.
    fn watch(&self, interval: &str) -> Watch {
        let mut command = self.command(&["watch", "--json", "--interval", interval]);
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
    fn next(&self, event: &str, target: &str) -> Value {
        let found = || {
            let line = self.lines.try_recv().ok()?;
            (line["event"] == event && line["target"] == target).then_some(line)
        };
        wait_for(&format!("{event} of {target}"), found)
    }

    /// Stops it with SIGTERM; returns its remaining output.
    fn end(mut self) -> Vec<Value> {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: sends a signal to a child that has not been reaped.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
        assert!(self.child.wait().unwrap().success(), "SIGTERM is no failure");
        self.lines.iter().collect()
    }
}

fn text(path: &str) -> String {
    Root::live().text(path).unwrap()
}

fn ip(words: &str) {
    assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
}

fn write(path: &str, value: &str) {
    // With the interfaces of this thread's namespace in /sys, as `ip netns exec` does.
    let mut echo = Command::new("unshare");
    let script = "mount -t sysfs sysfs /sys && echo $2 >$1";
    echo.args(["--mount", "sh", "-c", script, "sh", path, value]);
    assert!(echo.status().unwrap().success());
}

#[test]
fn a_re_created_device_gets_its_settings_back() {
    in_scene(|scene| {
        write(FLOWS, "32");
        scene.apply(&[(RPS, "1"), (FLOWS, "64"), (SOMAXCONN, "321")]);
        let watch = scene.watch("1day");
        ip("link del np1");
        watch.next("lost", RPS);
        assert_eq!(scene.states(), ["lost", "lost", "applied"]);
        ip(&format!("link add np1 {QUEUES} type veth peer name np0 {QUEUES}"));
        let restored = watch.next("restored", FLOWS);
        // The value before is that of the new queue, not of the old one.
        assert_eq!((&restored["before"], &restored["after"]), (&json!("0"), &json!("64")));
        assert_eq!(restored["lost"], 2);
        wait_for("the journal", || (scene.states() == ["applied"; 3]).then_some(()));
        assert_eq!((text(RPS).trim_start_matches('0'), text(FLOWS).as_str()), ("1", "64"));
        // Once more, without time to notice that it was gone.
        ip("link del np1");
        ip(&format!("link add np1 {QUEUES} type veth peer name np0 {QUEUES}"));
        watch.next("restored", FLOWS);
        assert!(watch.end().iter().all(|line| line["target"] != SOMAXCONN));
        scene.run(&["verify"]);
        scene.run(&["rollback"]);
        assert_eq!((text(RPS).trim_start_matches(['0', ',']), text(FLOWS).as_str()), ("", "0"));
        assert_ne!(text(SOMAXCONN), "321");
    });
}

#[test]
fn external_changes_are_reported_and_skipped() {
    in_scene(|scene| {
        scene.apply(&[(RPS, "1"), (FLOWS, "64")]);
        let watch = scene.watch("100ms");
        write(FLOWS, "128");
        let line = watch.next("drifted", FLOWS);
        assert!(line["reason"].as_str().unwrap().contains("128"), "{line}");
        // The queue was re-created with the kernel's value: the change is lost, which is not drift.
        ip("link del np1");
        ip(&format!("link add np1 {QUEUES} type veth peer name np0 {QUEUES}"));
        watch.next("restored", FLOWS);
        assert_eq!(text(FLOWS), "64");
        write(FLOWS, "256");
        watch.next("drifted", FLOWS);
        let more = watch.end();
        assert!(more.len() <= 1, "each is reported once: {more:?}");
        assert_eq!(text(FLOWS), "256");
        assert_eq!(scene.states(), ["applied", "drifted"]);
        scene.run(&["rollback", "--force"]);
    });
}

#[test]
fn once_re_applies_and_exits() {
    in_scene(|scene| {
        assert!(scene.run(&["watch", "--once"]).stdout.is_empty(), "nothing is changed yet");
        scene.apply(&[(RPS, "1")]);
        assert!(scene.run(&["watch", "--once"]).stdout.is_empty(), "nothing is lost");
        // A restored old value is intentional.
        write(RPS, "0");
        let said = String::from_utf8(scene.run(&["watch", "--once"]).stdout).unwrap();
        assert!(said.contains("skipped: changed back externally"), "{said}");
        assert!(!text(RPS).ends_with('1'));
        // On a re-created queue the change is lost.
        ip("link del np1");
        ip(&format!("link add np1 {QUEUES} type veth peer name np0 {QUEUES}"));
        let said = String::from_utf8(scene.run(&["watch", "--once"]).stdout).unwrap();
        assert!(said.contains("re-applied") && said.lines().count() == 1, "{said}");
        assert!(text(RPS).ends_with('1'));
        let bad = scene.command(&["watch", "--interval", "1ms"]).output().unwrap();
        assert_eq!(bad.status.code(), Some(2));
        scene.run(&["rollback"]);
    });
}
