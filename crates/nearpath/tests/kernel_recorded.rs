//! What was wrong at a time: `diagnose`, `show`, `tune plan --findings` and `report` of a recording made here.
//!
//! A recorder runs, ends, and runs again; a socket overflows and a setting drifts in a known part of the first run. The judge of
//! times and counts is who made them, and the kernel's own counters.

use nearpath_testing::{Running, begin, require_netns, require_program, wait_for};
use serde_json::{Value, json};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const RPS: &str = "/sys/class/net/npr0/queues/rx-0/rps_cpus";
/// Two diagnoses, and an interval that is not over.
const STILL: Duration = Duration::from_millis(2_500);

struct Scene {
    folder: TempDir,
}

/// An interface whose setting drifts; ends with the test.
struct Link;

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).status().unwrap().success()
}

impl Link {
    fn new() -> Self {
        // Of a test that was killed.
        let _ = Command::new("ip").args(["link", "del", "npr0"]).stderr(Stdio::null()).status();
        assert!(ip("link add npr0 type veth peer name npr1"));
        Self
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        ip("link del npr0");
    }
}

/// A time as the options take it.
fn text(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

impl Scene {
    fn recording(&self) -> String {
        self.folder.path().join("rec").to_str().unwrap().to_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        command.env("NEARPATH_STATE_DIR", self.folder.path()).env("NO_COLOR", "1");
        command.args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        output
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The status and the standard error of one that fails.
    fn fails(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        assert!(output.stdout.is_empty(), "{arguments:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    fn record(&self, sources: &str) -> Running {
        let recording = self.recording();
        let mut command = self.command(&["record", "--interval", "500ms"]);
        command.args([
            "--findings-interval",
            "1s",
            "--segment",
            "1500ms",
            "--max-overhead",
            "none",
        ]);
        command.args(["--source", sources, "-o", &recording]);
        Running(begin(&mut command, "recording to"))
    }

    /// Changes a setting through nearpath's journal.
    fn apply(&self) {
        let change = json!({"id": "a", "kind": "test", "target": RPS, "before": "0", "after": "1",
            "why": "a test", "finding": null, "persist": [], "reboot": false, "optional": false});
        let shares = json!({"other_cpu": null, "other_llc": null, "other_node": null});
        let root = nearpath_host::Root::live();
        let plan = json!({"schema": 1, "goal": "latency",
            "boot": root.text("/proc/sys/kernel/random/boot_id").unwrap(),
            "netns": nearpath_host::current_netns(&root).inode,
            "changes": [change], "now": shares, "predicted": shares, "notes": []});
        let file = self.folder.path().join("plan.json");
        std::fs::write(&file, plan.to_string()).unwrap();
        let output = self.run(&["tune", "apply", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Fills the buffer of a socket that nobody reads; returns the datagrams sent.
fn overflow(time: Duration) -> u64 {
    let lazy = UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (began, mut sent) = (std::time::Instant::now(), 0);
    while began.elapsed() < time {
        for _ in 0..50 {
            socket.send_to(&[0; 512], lazy.local_addr().unwrap()).unwrap();
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    sent
}

/// Packets of all CPUs, as the kernel counts them.
fn processed() -> u64 {
    let stat = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let first = |line: &str| u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    stat.lines().map(first).sum()
}

/// The parts of the recording.
struct Phases {
    began: SystemTime,
    overflow: SystemTime,
    overflowed: SystemTime,
    drifted: SystemTime,
    ended: SystemTime,
    again: SystemTime,
    sent: u64,
    processed: u64,
}

fn phases(scene: &Scene) -> Phases {
    scene.apply();
    let (began, before) = (SystemTime::now(), processed());
    let recorder = scene.record("facts,steering,findings");
    std::thread::sleep(STILL);
    let overflow_at = SystemTime::now();
    let sent = overflow(STILL);
    let overflowed = SystemTime::now();
    std::thread::sleep(STILL);
    std::fs::write(RPS, "2").unwrap();
    let drifted = SystemTime::now();
    std::thread::sleep(STILL);
    recorder.end();
    let (ended, after) = (SystemTime::now(), processed());
    std::thread::sleep(STILL);
    let again = SystemTime::now();
    let second = scene.record("facts,steering,findings");
    wait_for("a diagnosis of the second run", || {
        let (recording, from) = (scene.recording(), text(again));
        let diagnosis = scene.run(&["diagnose", "--recording", &recording, "--from", &from]);
        let said = String::from_utf8(diagnosis.stdout).unwrap();
        (diagnosis.status.success() && !said.starts_with("Nothing could be checked")).then_some(())
    });
    second.end();
    let processed = after - before;
    Phases { began, overflow: overflow_at, overflowed, drifted, ended, again, sent, processed }
}

/// Whether a buffer of this process was full: others on this machine may have full buffers too.
fn is_full(diagnosis: &Value) -> bool {
    let findings = diagnosis["findings"].as_array().unwrap();
    let own = format!("(pid {})", std::process::id());
    let is = |finding: &&Value| {
        finding["check"] == "socket_buffers" && finding["evidence"].to_string().contains(&own)
    };
    findings.iter().any(|finding| is(&finding))
}

#[test]
fn what_was_wrong_at_a_time() {
    if !require_netns() || !require_program("ip") || !require_program("unshare") {
        return;
    }
    let _link = Link::new();
    let scene = Scene { folder: tempfile::tempdir().unwrap() };
    let phases = phases(&scene);
    diagnosed(&scene, &phases);
    shown(&scene, &phases);
    planned(&scene, &phases);
    without_rows(&scene, &phases);
    cut(&scene, &phases);
}

fn diagnosed(scene: &Scene, phases: &Phases) {
    let recording = scene.recording();
    let between = |from: SystemTime, to: SystemTime| {
        let (from, to) = (text(from), text(to));
        is_full(&scene.json(&[
            "diagnose",
            "--json",
            "--recording",
            &recording,
            "--from",
            &from,
            "--to",
            &to,
        ]))
    };
    assert!(!between(phases.began, phases.overflow));
    // A diagnosis in the middle of it.
    let diagnosis = Duration::from_millis(1_500);
    assert!(between(phases.overflow, phases.overflowed));
    assert!(!between(phases.overflowed + diagnosis, phases.ended));
    assert!(!between(phases.again, SystemTime::now()));
    // Two minutes around: all of it.
    let at = text(phases.overflow);
    let around = scene.json(&["diagnose", "--json", "--recording", &recording, "--at", &at]);
    assert!(is_full(&around));
    let said = scene.run(&["diagnose", "--recording", &recording, "--at", &at, "--exit-code"]);
    assert!([1, 2].contains(&said.status.code().unwrap()));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("[socket_buffers]"), "{said}");
}

fn shown(scene: &Scene, phases: &Phases) {
    let recording = scene.recording();
    let facts = |from: SystemTime, to: SystemTime| {
        let (from, to) = (text(from), text(to));
        scene.json(&["show", "--json", "--recording", &recording, "--from", &from, "--to", &to])
    };
    let state = |facts: &Value| facts["settings"]["rows"][0]["state"].as_str().unwrap().to_owned();
    let (first, last) = (facts(phases.began, phases.drifted), facts(phases.drifted, phases.ended));
    assert_eq!((state(&first).as_str(), state(&last).as_str()), ("applied", "drifted"));
    let rows = |facts: &Value| facts["softnet"]["rows"].as_array().unwrap().clone();
    let packets = |facts: &Value| -> u64 {
        rows(facts).iter().map(|cpu| cpu["processed"].as_u64().unwrap()).sum()
    };
    let all = packets(&facts(phases.began, phases.ended));
    assert!(all >= phases.sent && all <= phases.processed, "{all}, {} sent", phases.sent);
    let output =
        scene.run(&["show", "settings", "--recording", &recording, "--to", &text(phases.ended)]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(RPS) && said.contains("drifted"), "{said}");
    let output = scene.run(&["show", "softnet", "--recording", &recording]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("packets by CPU: "));
}

/// The plan is that of the same findings in a file.
fn planned(scene: &Scene, phases: &Phases) {
    let (recording, at) = (scene.recording(), text(phases.overflow));
    let found = scene.run(&["diagnose", "--json", "--recording", &recording, "--at", &at]);
    let file = scene.folder.path().join("found.json");
    std::fs::write(&file, &found.stdout).unwrap();
    let changes = |arguments: &[&str]| {
        let plan = scene.json(&[&["tune", "plan", "--json"], arguments].concat());
        plan["changes"].clone()
    };
    let of_file = changes(&["--findings", file.to_str().unwrap()]);
    assert_eq!(changes(&["--findings", &recording, "--at", &at]), of_file);
    let sysctls = of_file.as_array().unwrap().iter().filter_map(|change| change["target"].as_str());
    let sysctls: Vec<&str> = sysctls.filter(|target| target.contains("rmem")).collect();
    assert!(!sysctls.is_empty(), "{of_file}");
    let (status, said) =
        scene.fails(&["tune", "plan", "--findings", file.to_str().unwrap(), "--at", &at]);
    assert!(status == 1 && said.contains("is not a folder"), "{said}");
    // Another host's findings are not for this one.
    let renamed = "echo elsewhere > /proc/sys/kernel/hostname && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--uts", "sh", "-c", renamed, "sh", env!("CARGO_BIN_EXE_nearpath")]);
    command.args(["tune", "plan", "--findings", &recording, "--at", &at]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("has no host 'elsewhere', but "), "{said}");
}

/// Times of which nothing is there say so, and never that nothing was wrong.
fn without_rows(scene: &Scene, phases: &Phases) {
    let recording = scene.recording();
    let hour = Duration::from_secs(3600);
    let gap = phases.ended + (phases.again.duration_since(phases.ended).unwrap()) / 2;
    let (before, after) = (text(phases.began - hour), text(phases.ended + hour));
    let gap = [text(gap), text(gap + Duration::from_millis(200))];
    let times: [&[&str]; 3] =
        [&["--at", &before], &["--at", &after], &["--from", &gap[0], "--to", &gap[1]]];
    for time in times {
        let report = scene.folder.path().join("report.html");
        for command in [
            &["diagnose", "--recording", &recording][..],
            &["show", "--recording", &recording],
            &["report", "-o", report.to_str().unwrap(), "--recording", &recording],
        ] {
            let (status, said) = scene.fails(&[command, time].concat());
            assert!(status == 1 && said.contains("nothing is recorded from"), "{said}");
        }
        assert!(!report.exists());
    }
    let (status, said) = scene.fails(&["tune", "plan", "--findings", &recording, "--at", &before]);
    assert!(status == 1 && said.contains("nothing is recorded from"), "{said}");
    for wrong in [
        &["diagnose", "--recording", &recording, "--at", "noon"][..],
        &["diagnose", "--recording", &recording, "--dev", "lo"],
        &["diagnose", "--recording", &recording, "--snapshot", "x"],
        &["diagnose", "--at", "03:12"],
        &["show", "--recording", &recording, "--netns", "x"],
        &["show", "queues", "--recording", &recording],
        &["show", "--recording", &recording, "--from", "04:00", "--to", "03:00"],
        &["show", "settings"],
    ] {
        assert_eq!(scene.fails(wrong).0, 2, "{wrong:?}");
    }
    // A time in which there was no diagnosis, while counters were recorded.
    let alone = text(SystemTime::now());
    let recorder = scene.record("facts");
    wait_for("counters", || {
        overflow(Duration::from_millis(10));
        let facts = scene.run(&["show", "--recording", &recording, "--from", &alone]);
        facts.status.success().then_some(())
    });
    recorder.end();
    let said = scene.run(&["diagnose", "--recording", &recording, "--from", &alone]).stdout;
    let said = String::from_utf8(said).unwrap();
    assert!(said.starts_with("Nothing could be checked: no diagnosis was recorded"), "{said}");
}

/// Files that are cut are left out, and reported; the rest is read.
fn cut(scene: &Scene, phases: &Phases) {
    let recording = scene.recording();
    let at = text(phases.overflow);
    for table in ["softnet", "findings", "settings"] {
        let folder = Path::new(&recording).join(table);
        let files: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
        // All findings, so that nothing may be said of them, and two files in three of the others.
        let is_cut = |n: usize| table == "findings" || !n.is_multiple_of(3);
        for (n, file) in files.iter().enumerate().filter(|(n, _)| is_cut(*n)) {
            let whole = std::fs::read(file).unwrap();
            let left = [0, 3, 4, whole.len() / 2, whole.len() - 4, whole.len() - 1][n % 6];
            std::fs::write(file, &whole[..left]).unwrap();
        }
    }
    for command in [&["diagnose", "--json"][..], &["show", "--json"]] {
        let output = scene.run(&[command, &["--recording", &recording, "--at", &at]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(".parquet"), "{said}");
        assert!(output.status.success(), "{said}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap();
    }
    let said = scene.run(&["diagnose", "--recording", &recording, "--at", &at]).stdout;
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.starts_with("No problems found; no packets were measured; 1 check could not run"),
        "{said}"
    );
}
