//! `nearpath tune` on a NIC whose driver makes its queues again when their number or their rings change: a plan
//! of channels, RSS, rings, interrupts and queues is all there, `status` says so, and `rollback` restores all
//! that ethtool(8), the interrupts and the files of the queues say, to the byte.
//!
//! Run on a virtual host (lab/tests/test_tune_undo.py): the NIC, of four queues, is what
//! `NEARPATH_TUNE_NIC` names, and the program is what is on the path.

#[path = "../kernel_tune/killer.rs"]
mod killer;
mod steps;

use nearpath_host::{Root, current_netns};
use nearpath_testing::skip;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What the NIC has before a plan, none of it as it booted; `$1` is its name.
const ODD: &str = r"
cd /sys/class/net/$1/queues
ethtool -X $1 weight 1 3
ethtool -C $1 rx-usecs 50
echo 5 >rx-0/rps_cpus; echo a >rx-1/rps_cpus; echo 3 >rx-2/rps_cpus; echo c >rx-3/rps_cpus
echo 256 >rx-1/rps_flow_cnt; echo 512 >rx-3/rps_flow_cnt
echo 8 >tx-0/xps_cpus; echo 4 >tx-1/xps_cpus; echo 2 >tx-2/xps_cpus; echo 1 >tx-3/xps_cpus
echo 2 >tx-1/xps_rxqs; echo 8 >tx-3/xps_rxqs
";

/// One scene at a time: they share the NIC.
static ALONE: Mutex<()> = Mutex::new(());

/// The NIC, a journal, and what the host had.
struct Scene {
    nic: String,
    journal: TempDir,
    before: String,
}

/// Runs with the NIC, if there is one to change.
fn with_nic(run: impl FnOnce(&Scene)) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(nic) = std::env::var_os("NEARPATH_TUNE_NIC") else {
        return skip("NEARPATH_TUNE_NIC names no NIC that may be changed");
    };
    let nic = nic.into_string().unwrap();
    let set = Command::new("sh").args(["-ec", ODD, "sh", &nic]).status().unwrap();
    assert!(set.success());
    for (place, (_, irq)) in interrupts(&nic).iter().enumerate() {
        write(irq, ["3", "1", "0-2", "1-3", "2"][place % 5]);
    }
    // Nothing is lost with the machine here, so the disk need not be waited for.
    let journal = tempfile::tempdir_in("/dev/shm").unwrap();
    run(&Scene { before: everything(&nic), nic, journal });
}

fn write(path: &str, value: &str) {
    fs::write(path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

/// The affinity files of a NIC's interrupts, by their handlers.
fn interrupts(nic: &str) -> BTreeMap<String, String> {
    let table = fs::read_to_string("/proc/interrupts").unwrap();
    let mut found = BTreeMap::new();
    for line in table.lines() {
        let (Some((irq, _)), Some(handler)) = (line.split_once(':'), line.split(' ').next_back())
        else {
            continue;
        };
        if handler == nic || handler.starts_with(&format!("{nic}-")) {
            found.insert(handler.to_owned(), format!("/proc/irq/{}/smp_affinity_list", irq.trim()));
        }
    }
    assert!(found.len() > 2, "{table}");
    found
}

/// Every byte that there is to restore.
fn everything(nic: &str) -> String {
    let script = "for option in -l -g -x -c -k; do ethtool $option $1; done 2>&1
        head -v -n -0 /sys/class/net/$1/queues/*x-*/?ps_* 2>&1";
    let mut all = output("sh", &["-c", script, "sh", nic]);
    for (handler, file) in interrupts(nic) {
        all += &format!("{handler} {}\n", read(&file));
    }
    all
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The lines that differ.
fn difference(expected: &str, now: &str) -> String {
    let only = |a: &str, b: &str, sign: char| {
        let other: Vec<&str> = b.lines().collect();
        let lines = a.lines().enumerate();
        lines
            .filter(|(place, line)| other.get(*place) != Some(line))
            .map(|(_, line)| format!("{sign} {line}\n"))
            .collect::<String>()
    };
    only(expected, now, '-') + &only(now, expected, '+')
}

/// A change, and how others than nearpath see that the host has it.
struct Wanted {
    target: String,
    before: String,
    after: String,
    seen: Box<dyn Fn() -> bool>,
}

fn file(path: String, after: &str) -> Wanted {
    let (before, wanted, seen) = (read(&path), after.to_owned(), path.clone());
    Wanted {
        target: path,
        before,
        after: wanted.clone(),
        seen: Box::new(move || read(&seen) == wanted),
    }
}

/// What ethtool sets: `words` are on a line of what it says, after `heading`.
fn ethtool(nic: &str, setting: &str, [before, after]: [&str; 2], says: [&str; 3]) -> Wanted {
    let ([option, heading, words], nic) = (says.map(str::to_owned), nic.to_owned());
    let target = format!("ethtool {nic} {setting}");
    let seen = Box::new(move || {
        let said = output("ethtool", &[&option, &nic]);
        let rest = said.split_once(&heading).map_or("", |(_, rest)| rest);
        rest.lines().any(|line| line.split_whitespace().eq(words.split(' ')))
    });
    Wanted { target, before: before.to_owned(), after: after.to_owned(), seen }
}

impl Scene {
    fn queue_file(&self, file: &str) -> String {
        format!("/sys/class/net/{}/queues/{file}", self.nic)
    }

    fn affinity(&self, queue: u32, after: &str) -> Wanted {
        let handler = format!("{}-rx-{queue}", self.nic);
        file(interrupts(&self.nic)[&handler].clone(), after)
    }

    fn channels(&self) -> Wanted {
        let says = ["-l", "Current", "Combined: 2"];
        ethtool(&self.nic, "channels", ["combined 4", "combined 2"], says)
    }

    fn rings(&self) -> Wanted {
        let says = ["-g", "Current", "RX: 128"];
        ethtool(&self.nic, "rings", ["rx 256 tx 256", "rx 128 tx 128"], says)
    }

    /// Channels, and then what they keep, what they reset, and what they have nothing to do with.
    fn plan(&self) -> Vec<Wanted> {
        let nic = &self.nic;
        vec![
            self.channels(),
            // The driver's own table for two queues.
            ethtool(
                nic,
                "rss",
                ["weight 1 1", "weight 3 1"],
                ["-x", "table", "96: 1 1 1 1 1 1 1 1"],
            ),
            self.affinity(0, "0"),
            self.rings(),
            self.affinity(1, "3"),
            file(self.queue_file("rx-0/rps_cpus"), "6"),
            file(self.queue_file("rx-1/rps_flow_cnt"), "1024"),
            file(self.queue_file("tx-0/xps_cpus"), "7"),
            ethtool(
                nic,
                "coalesce",
                ["rx-usecs 50", "rx-usecs 30"],
                ["-c", "Coalesce", "rx-usecs: 30"],
            ),
        ]
    }

    /// Rings first, and interrupts after them.
    fn plan_of_rings(&self) -> Vec<Wanted> {
        vec![self.rings(), self.affinity(0, "0"), self.affinity(3, "1")]
    }

    fn write_plan(&self, plan: &[Wanted]) -> PathBuf {
        let root = Root::live();
        let change = |wanted: &Wanted| {
            json!({
                "id": wanted.target, "kind": "test", "target": wanted.target, "before": wanted.before,
                "after": wanted.after, "why": "a test", "finding": null, "persist": [],
                "reboot": false, "optional": false,
            })
        };
        let shares = json!({"other_cpu": null, "other_llc": null, "other_node": null});
        let document = json!({
            "schema": 1, "goal": "latency",
            "boot": root.text("/proc/sys/kernel/random/boot_id").unwrap(),
            "netns": current_netns(&root).inode, "now": shares, "predicted": shares, "notes": [],
            "changes": plan.iter().map(change).collect::<Vec<_>>(),
        });
        let path = self.journal.path().join("plan.json");
        fs::write(&path, document.to_string()).unwrap();
        path
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("nearpath");
        command.env("NEARPATH_STATE_DIR", self.journal.path()).stdin(Stdio::null());
        command.arg("tune").args(args);
        command
    }

    fn apply(&self, plan: &[Wanted]) -> Command {
        self.command(&["apply", self.write_plan(plan).to_str().unwrap()])
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// State and reason, by target.
    fn status(&self, when: &str) -> BTreeMap<String, (String, String)> {
        let output = self.run(&["status", "--json"]);
        assert!(output.status.success(), "{when}: {}", said(&output));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entries = document["journal"].as_array().unwrap();
        let of = |entry: &Value| (text(&entry["state"]), text(&entry["reason"]));
        entries.iter().map(|entry| (text(&entry["target"]), of(entry))).collect()
    }

    /// Applies a plan completely; asserts that all of it is in effect and reported.
    fn applied(&self, plan: &[Wanted]) {
        let output = self.apply(plan).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let status = self.status("applied");
        for wanted in plan {
            assert!((wanted.seen)(), "{} is applied", wanted.target);
            assert_eq!(status[&wanted.target].0, "applied", "{status:?}");
        }
    }

    fn rollback_restores(&self, when: &str) {
        let output = self.run(&["rollback"]);
        assert!(output.status.success(), "{when}: {}", said(&output));
        let now = everything(&self.nic);
        assert!(now == self.before, "{when}: not restored:\n{}", difference(&self.before, &now));
        assert!(self.status(when).is_empty(), "{when}");
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_plan_is_applied_and_undone_to_the_byte() {
    with_nic(|scene| {
        let plan = scene.plan();
        scene.applied(&plan);
        scene.rollback_restores("whole");
    });
}

#[test]
fn interrupts_after_rings_are_no_drift_and_both_come_back() {
    with_nic(|scene| {
        let plan = scene.plan_of_rings();
        scene.applied(&plan);
        scene.rollback_restores("rings");
    });
}

#[test]
fn a_cpu_that_goes_and_comes_back_is_no_drift() {
    with_nic(|scene| {
        let plan = [scene.affinity(0, "3"), scene.channels(), scene.affinity(1, "3")];
        scene.applied(&plan);
        // The interrupts of the plan, and those that only its snapshot has.
        let online = "/sys/devices/system/cpu/cpu3/online";
        write(online, "0");
        write(online, "1");
        scene.rollback_restores("CPU 3 went and came back");
    });
}

/// At how many moments, spread over the time that it takes, applying and undoing are killed.
const KILLS: u32 = 5;

/// Kills a command after a part of the time that it takes as a whole; whether it still ran.
fn killed_after(mut command: Command, time: Duration) -> bool {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(time);
    let ran = child.try_wait().unwrap().is_none();
    let _ = child.kill();
    child.wait().unwrap();
    ran
}

#[test]
fn a_kill_while_applying_or_undoing_loses_nothing() {
    with_nic(|scene| {
        let plan = scene.plan();
        let start = Instant::now();
        scene.applied(&plan);
        let applying = start.elapsed();
        let start = Instant::now();
        scene.rollback_restores("whole");
        let undoing = start.elapsed();
        let mut cut_short = 0;
        for kill in 0..KILLS {
            let at = |whole: Duration| whole * (2 * kill + 1) / (2 * KILLS);
            cut_short += u32::from(killed_after(scene.apply(&plan), at(applying)));
            // What was begun is known, and no state is a guess.
            let status = scene.status("killed while applying");
            assert!(status.values().all(|(state, _)| !state.is_empty()), "{status:?}");
            scene.rollback_restores(&format!("applying was killed at {:?}", at(applying)));
            scene.applied(&plan);
            cut_short += u32::from(killed_after(scene.command(&["rollback"]), at(undoing)));
            scene.rollback_restores(&format!("undoing was killed at {:?}", at(undoing)));
        }
        // Machines are not equally fast each time; most kills must have met it at work.
        assert!(cut_short > KILLS, "{cut_short} of {} kills", 2 * KILLS);
    });
}
