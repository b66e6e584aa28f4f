//! Recordings of several hosts in one directory, made here by recorders that have names and boots of their own: `alpha`, quiet;
//! `beta`, on which a socket overflows; and `gamma`, quiet in a network namespace of its own at the same time as `beta`.

use nearpath_testing::tmux::Tmux;
use nearpath_testing::{Running, begin, require_lengthy, require_netns, require_program};
use serde_json::Value;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Diagnoses take long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");

struct Scene(TempDir);

impl Scene {
    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A recorder in namespaces: its name and its boot id are its own.
    fn record(&self, host: &str, boot: char, namespaces: &[&str]) -> Running {
        let id = self.at(&format!("{host}.boot"));
        let digit = |length: usize| boot.to_string().repeat(length);
        let groups = [8, 4, 4, 4, 12].map(digit).join("-");
        std::fs::write(&id, groups + "\n").unwrap();
        let line = format!(
            "mount --bind {} /proc/sys/kernel/random/boot_id && echo {host} > /proc/sys/kernel/hostname && exec \"$@\"",
            id.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--uts", "--mount"]).args(namespaces).args(["sh", "-c", &line, "sh"]);
        command.args([NEARPATH, "record", "--interval", "500ms", "--findings-interval", "1s"]);
        command.args(["--segment", "1500ms", "--max-overhead", "none"]);
        command.args(["--source", "facts,findings", "-o"]).arg(self.at(host));
        command.env("NEARPATH_STATE_DIR", self.0.path()).stdin(Stdio::null());
        Running(begin(&mut command, "recording to"))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(NEARPATH);
        command.args(arguments).env("NEARPATH_STATE_DIR", self.0.path()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        output
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(arguments)).unwrap()
    }

    fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.stdout.is_empty() && output.status.code() == Some(1),
            "{arguments:?}: {said}"
        );
        said
    }

    /// Waits for a diagnosis that was recorded, and that has the full buffer or has it not; and for facts, which may come
    /// later on a fast machine. They come without a packet, too: nothing is sent on alpha.
    fn diagnosed(&self, host: &str, is_full: bool) {
        let folder = self.at(host);
        let ends = Instant::now() + PATIENCE;
        loop {
            let said = self.run(&["diagnose", "--json", "--recording", text(&folder)]).stdout;
            let diagnosis: Value = serde_json::from_slice(&said).unwrap_or_default();
            let some = |name: &str| diagnosis[name].as_array().is_some_and(|all| !all.is_empty());
            let looked = diagnosis.is_object() && (some("findings") || !some("not_checked"));
            let shows =
                || self.run(&["show", "--json", "--recording", text(&folder)]).status.success();
            if looked && full(&diagnosis) == is_full && shows() {
                return;
            }
            assert!(Instant::now() < ends, "{host}: {diagnosis}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A socket that nobody reads, and whose buffer overflows until this ends.
struct Overflow(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Overflow {
    fn begin() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let lazy = UdpSocket::bind("127.0.0.1:0").unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..50 {
                    socket.send_to(&[0; 512], lazy.local_addr().unwrap()).unwrap();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self(ends, Some(thread))
    }
}

impl Drop for Overflow {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

/// Whether a buffer of this process was full.
fn full(diagnosis: &Value) -> bool {
    let own = format!("(pid {})", std::process::id());
    let findings = diagnosis["findings"].as_array().into_iter().flatten();
    findings.into_iter().any(|finding| {
        finding["check"] == "socket_buffers" && finding["evidence"].to_string().contains(&own)
    })
}

/// Copies what is in a folder into another, as rsync would.
fn merge(from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    assert!(command.arg("-r").arg(from.join(".")).arg(to).status().unwrap().success());
}

#[test]
fn one_of_several_hosts_is_chosen() {
    if !require_lengthy() || !require_netns() || !require_program("unshare") {
        return;
    }
    let scene = Scene(tempfile::tempdir().unwrap());
    let alpha = scene.record("alpha", 'a', &[]);
    scene.diagnosed("alpha", false);
    alpha.end();
    let (beta, gamma) = (scene.record("beta", 'b', &[]), scene.record("gamma", 'c', &["--net"]));
    let overflow = Overflow::begin();
    scene.diagnosed("beta", true);
    scene.diagnosed("gamma", false);
    beta.end();
    gamma.end();
    drop(overflow);
    // A folder each below one, and all files in one folder.
    let (apart, merged) = (scene.at("apart"), scene.at("merged"));
    for host in ["alpha", "beta", "gamma"] {
        let own = apart.join(host);
        std::fs::create_dir_all(&own).unwrap();
        std::fs::create_dir_all(&merged).unwrap();
        merge(&scene.at(host), &own);
        merge(&scene.at(host), &merged);
    }
    for folder in [text(&apart), text(&merged)] {
        refused(&scene, folder);
        chosen(&scene, folder);
        shown(folder);
    }
    // One host needs no choice, and may be named.
    let alone = text(&merged).replace("merged", "beta");
    assert!(full(&scene.json(&["diagnose", "--json", "--recording", &alone])));
    assert!(full(&scene.json(&[
        "diagnose",
        "--json",
        "--recording",
        &alone,
        "--hostname",
        "beta"
    ])));
    damaged(&scene, &merged);
}

/// Without a name, and with one that is not there.
fn refused(scene: &Scene, folder: &str) {
    let report = scene.at("report.html");
    let report = text(&report);
    for command in [
        &["diagnose", "--recording", folder][..],
        &["show", "--recording", folder],
        &["report", "-o", report, "--recording", folder],
        &["top", folder],
    ] {
        let said = scene.fails(command);
        let all = format!("{folder} has 3 hosts: alpha, beta, gamma; choose one with --hostname");
        assert!(said.contains(&all), "{said}");
        let said = scene.fails(&[command, &["--hostname", "delta"]].concat());
        assert!(said.contains("has no host 'delta', but alpha, beta, gamma"), "{said}");
    }
    assert!(!Path::new(report).exists());
    // The host that is planned for is here none of them.
    let said = scene.fails(&["tune", "plan", "--findings", folder]);
    assert!(said.contains("but alpha, beta, gamma (--hostname)"), "{said}");
    for wrong in [&["show", "--hostname", "beta"][..], &["tune", "plan", "--hostname", "beta"]] {
        assert_eq!(scene.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// Each has what was wrong on it, and nothing of the others.
fn chosen(scene: &Scene, folder: &str) {
    for (host, is_full) in [("alpha", false), ("beta", true), ("gamma", false)] {
        let of = ["--recording", folder, "--hostname", host];
        let diagnosis = scene.json(&[&["diagnose", "--json"], &of[..]].concat());
        assert_eq!(full(&diagnosis), is_full, "{host}: {diagnosis}");
        let facts = scene.json(&[&["show", "--json"], &of[..]].concat());
        assert_eq!(facts["host"], host);
        let report = scene.at(&format!("{host}.html"));
        scene.text(&[&["report", "-o", text(&report)], &of[..]].concat());
        let page = std::fs::read_to_string(&report).unwrap();
        let own = format!("(pid {})", std::process::id());
        assert_eq!(page.contains(&own), is_full, "{host}");
        let plan = ["tune", "plan", "--json", "--findings", folder, "--hostname", host];
        let plan = scene.json(&plan);
        let raises = plan["changes"].to_string().contains("rmem");
        // Buffers of other processes of this machine may be full, too.
        let found = diagnosis["findings"].to_string().contains("socket_buffers");
        assert!(raises == found && (found || !is_full), "{host}: {plan}");
    }
}

/// `top` shows the chosen one, and says before it takes the screen that there are several.
fn shown(folder: &str) {
    if !require_program("tmux") || !require_program("stty") {
        return;
    }
    let tmux = Tmux::run(&format!("{NEARPATH} top {folder} --hostname beta"));
    let screen = tmux.shows("beta", |screen| screen.contains("beta"));
    assert!(!screen.contains("alpha") && !screen.contains("gamma"), "{screen}");
    tmux.press(&["q"]);
    tmux.is_restored("ended: 0");
}

/// What cannot be read of a host is reported, whoever is chosen; the others are read.
fn damaged(scene: &Scene, merged: &Path) {
    for table in std::fs::read_dir(merged).unwrap().map(|entry| entry.unwrap().path()) {
        if !table.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(&table).unwrap().map(|entry| entry.unwrap().path()) {
            if text(&file).contains("-aaaaaaaa") {
                std::fs::write(&file, b"PAR1").unwrap();
            }
        }
    }
    let said = scene.fails(&["show", "--recording", text(merged)]);
    assert!(said.contains("has 2 hosts: beta, gamma"), "{said}");
    let output = scene.run(&["diagnose", "--recording", text(merged), "--hostname", "beta"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("-aaaaaaaa") && output.status.success(), "{said}");
}
