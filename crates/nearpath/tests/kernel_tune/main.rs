//! `nearpath tune` on real files of this kernel's, in a namespace of the test's own: a plan of forty
//! changes, ended at each of its steps by SIGKILL, by a write that fails, by a disk that takes no more,
//! and by a change that the kernel refuses. After each, `status` is right and `rollback` restores every byte.

mod configuration;
mod dry_run;
mod journal;
mod killer;
mod pending;
mod threads;
mod whole_kernel;

use killer::{End, failing_at, killed_at, require_failing, require_ptrace};
use nearpath_host::{Root, current_netns};
use nearpath_testing::require_netns;
use nearpath_testing::veth::{Side, VethPair};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// So many queues that three settings of each, and a sysctl, are forty changes.
const QUEUES: u32 = 13;
const CHANGES: usize = 40;
/// Every seventh step as a rule: no change has seven, so that each kind of step has its turn. All of
/// them in `make test-all`.
const STRIDE: usize = 7;
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";

/// The server's namespace, a journal, and what the host had.
struct Scene {
    journal: TempDir,
    before: BTreeMap<String, Vec<u8>>,
    plan: PathBuf,
}

/// Runs in the server's namespace of a pair.
fn in_scene(run: impl FnOnce(&mut Scene) + Send) {
    if !require_netns() {
        return;
    }
    let pair = VethPair::new(QUEUES).unwrap();
    pair.run(Side::Server, |_| {
        run(&mut Scene::new());
        io::Result::Ok(())
    })
    .unwrap();
}

impl Scene {
    fn new() -> Self {
        // Nothing is lost with the machine here, so the disk need not be waited for.
        let folder = Path::new("/dev/shm");
        let journal =
            if folder.is_dir() { tempfile::tempdir_in(folder) } else { tempfile::tempdir() };
        let journal = journal.unwrap();
        let plan = journal.path().join("plan.json");
        let scene = Self { journal, before: settings(), plan };
        scene.write_plan(&plan_of_forty());
        scene
    }

    fn write_plan(&self, plan: &Value) {
        std::fs::write(&self.plan, plan.to_string()).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        command.env("NEARPATH_STATE_DIR", self.journal.path()).stdin(Stdio::null());
        command.arg("tune").args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn apply(&self) -> Command {
        self.command(&["apply", self.plan.to_str().unwrap()])
    }

    fn journal_file(&self) -> PathBuf {
        self.journal.path().join("journal.jsonl")
    }

    /// Begins a new journal, once all is undone.
    fn forget_journal(&self) {
        match std::fs::remove_file(self.journal_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
            _ => {}
        }
    }

    /// A journal so long that it is shortened in the middle of the next plan.
    fn journal_to_be_shortened(&self) -> Vec<u8> {
        // SHORT of the journal.
        const SHORT: u64 = 64 << 10;
        let length = || std::fs::metadata(self.journal_file()).map_or(0, |file| file.len());
        let applied = |args: &[&str]| {
            let plan = self.plan.to_str().unwrap();
            let output = self.run(&[&["apply", plan], args].concat());
            assert!(output.status.success(), "{output:?}");
        };
        self.forget_journal();
        applied(&[]);
        let of_plan = length();
        assert!(self.run(&["rollback"]).status.success() && length() + of_plan < SHORT);
        // In small steps to where half of the plan is too much.
        let id = plan_of_forty()["changes"][0]["id"].as_str().unwrap().to_owned();
        while length() + of_plan / 2 <= SHORT {
            applied(&["--only", &id]);
            assert!(self.run(&["rollback"]).status.success());
        }
        std::fs::read(self.journal_file()).unwrap()
    }

    /// The journal, by target.
    fn status(&self) -> BTreeMap<String, Value> {
        let output = self.run(&["status", "--json"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let entries = document["journal"].as_array().unwrap().clone();
        entries.into_iter().map(|e| (e["target"].as_str().unwrap().to_owned(), e)).collect()
    }

    /// Fails unless the status is what the files are, and then undoes everything.
    fn status_is_right_and_rollback_restores(&self, when: &str) {
        let (now, status) = (settings(), self.status());
        for (path, text) in &now {
            let state = status.get(path).map(|entry| entry["state"].as_str().unwrap());
            if *text == self.before[path] {
                assert!(
                    matches!(state, None | Some("undone" | "lost")),
                    "{when}: {path} {state:?}"
                );
            } else {
                assert_eq!(state, Some("applied"), "{when}: {path}");
            }
        }
        let output = self.run(&["rollback"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{when}: {said}");
        assert!(settings() == self.before, "{when}: not restored");
        assert_eq!(self.status(), BTreeMap::new(), "{when}");
    }
}

/// Gives a journal's records to an older boot, and to an older nearpath, which wrote no checksums.
fn make_older(journal: &Path) {
    let boot = Root::live().text("/proc/sys/kernel/random/boot_id").unwrap();
    let text = std::fs::read_to_string(journal).unwrap().replace(&boot, "an-older-boot");
    let lines =
        text.lines().map(|line| format!("{}}}\n", line.split(",\"crc32\":").next().unwrap()));
    std::fs::write(journal, lines.collect::<String>()).unwrap();
}

/// The steps to stop at, out of `count`.
fn steps(count: usize) -> impl Iterator<Item = usize> {
    (1..=count).step_by(if nearpath_testing::lengthy() { 1 } else { STRIDE })
}

/// Every byte of the settings that are changed, and of their neighbours.
fn settings() -> BTreeMap<String, Vec<u8>> {
    let root = Root::live();
    let queues = "/sys/class/net/np1/queues";
    let mut files = vec![SOMAXCONN.to_owned()];
    for queue in root.list(queues).unwrap() {
        let folder = format!("{queues}/{}", queue.name);
        let names: &[&str] = match queue.name.starts_with("rx") {
            true => &["rps_cpus", "rps_flow_cnt"],
            false => &["xps_cpus", "xps_rxqs"],
        };
        files.extend(names.iter().map(|name| format!("{folder}/{name}")));
    }
    files.into_iter().map(|path| (path.clone(), root.read(&path).unwrap())).collect()
}

/// Three settings of each queue and a sysctl.
fn plan_of_forty() -> Value {
    let root = Root::live();
    let mut changes = Vec::new();
    let mut add = |target: String, after: &str| {
        let before = root.text(&target).unwrap();
        changes.push(json!({
            "id": format!("change-{}", changes.len()), "kind": "test", "target": target,
            "before": before, "after": after, "why": "a test", "finding": null,
            "persist": [], "reboot": false, "optional": false,
        }));
    };
    for queue in 0..QUEUES {
        let folder = "/sys/class/net/np1/queues";
        add(format!("{folder}/rx-{queue}/rps_cpus"), "00000001");
        add(format!("{folder}/rx-{queue}/rps_flow_cnt"), "64");
        add(format!("{folder}/tx-{queue}/xps_cpus"), "00000001");
    }
    add(SOMAXCONN.to_owned(), "123");
    assert_eq!(changes.len(), CHANGES);
    let shares = json!({"other_cpu": null, "other_llc": null, "other_node": null});
    json!({
        "schema": 1, "goal": "latency", "boot": root.text("/proc/sys/kernel/random/boot_id").unwrap(),
        "netns": current_netns(&root).inode, "changes": changes, "now": shares,
        "predicted": shares, "notes": [],
    })
}

#[test]
fn a_kill_at_any_step_of_applying_is_survived() {
    in_scene(|scene| {
        if !require_ptrace() {
            return;
        }
        let End::Ended { writes, status: 0 } = killed_at(scene.apply(), usize::MAX).unwrap() else {
            panic!("a plan is applied")
        };
        // Each change is written into the journal, synced, made, and written and synced as made.
        assert!(writes >= CHANGES * 5, "{writes}");
        assert_eq!(scene.status().len(), CHANGES);
        scene.status_is_right_and_rollback_restores("whole");
        for step in steps(writes) {
            assert_eq!(killed_at(scene.apply(), step).unwrap(), End::Killed);
            scene.status_is_right_and_rollback_restores(&format!("killed at step {step}"));
        }
    });
}

#[test]
fn a_kill_at_any_step_of_undoing_is_survived() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    in_scene(|scene| {
        if !require_ptrace() {
            return;
        }
        assert!(scene.apply().output().unwrap().status.success());
        let rollback = || scene.command(&["rollback"]);
        let End::Ended { writes, status: 0 } = killed_at(rollback(), usize::MAX).unwrap() else {
            panic!("a plan is undone")
        };
        assert!(writes >= CHANGES * 3, "{writes}");
        for step in steps(writes) {
            assert!(scene.apply().output().unwrap().status.success());
            assert_eq!(killed_at(rollback(), step).unwrap(), End::Killed);
            scene.status_is_right_and_rollback_restores(&format!("killed at step {step}"));
        }
    });
}

#[test]
fn a_kill_at_any_step_of_making_again_is_survived() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    in_scene(|scene| {
        if !require_ptrace() {
            return;
        }
        let watch = || scene.command(&["watch", "--once"]);
        let lose = || {
            assert!(scene.apply().output().unwrap().status.success());
            set_up_anew();
            assert!(settings() != scene.before, "the sysctl is there still");
        };
        lose();
        let End::Ended { writes, status: 0 } = killed_at(watch(), usize::MAX).unwrap() else {
            panic!("lost changes are re-applied")
        };
        assert!(writes >= (CHANGES - 1) * 5, "{writes}");
        let status = scene.status();
        assert!(status.values().all(|entry| entry["state"] == "applied"), "{status:?}");
        scene.status_is_right_and_rollback_restores("re-applied");
        for step in steps(writes) {
            lose();
            assert_eq!(killed_at(watch(), step).unwrap(), End::Killed);
            // The next one makes the rest.
            if step % 2 == 0 {
                assert!(watch().output().unwrap().status.success());
                let status = scene.status();
                assert!(status.values().all(|entry| entry["state"] == "applied"), "{status:?}");
                assert_eq!(status.len(), CHANGES);
            }
            scene.status_is_right_and_rollback_restores(&format!("killed at step {step}"));
        }
    });
}

/// Removes the device and makes one like it.
fn set_up_anew() {
    let ip = |words: &str| {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
    };
    let queues = format!("numrxqueues {QUEUES} numtxqueues {QUEUES}");
    ip("link del np1");
    ip(&format!("link add np1 {queues} type veth peer name np0 {queues}"));
}

#[test]
fn a_write_that_fails_at_any_step_is_survived() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    in_scene(|scene| {
        if !require_failing() {
            return;
        }
        // Settings, the journal and the disk alike; once and from then on, alternately.
        for step in steps(CHANGES * 5) {
            let for_good = step % 2 == 0;
            let when = format!("write {step} fails, for good: {for_good}");
            // A long journal is replaced by a shorter one, which need not succeed: the next test.
            scene.forget_journal();
            let end = failing_at(scene.apply(), step, for_good).unwrap();
            assert!(matches!(end, End::Ended { status: 1, .. }), "{when}: {end:?}");
            if !for_good {
                assert!(settings() == scene.before, "{when}: undone at once");
            }
            scene.status_is_right_and_rollback_restores(&when);
        }
        let mut retried = 0;
        for step in steps(CHANGES * 3) {
            let for_good = step % 2 == 0;
            assert!(scene.apply().output().unwrap().status.success());
            let when = format!("write {step} of undoing fails, for good: {for_good}");
            let end = failing_at(scene.command(&["rollback"]), step, for_good).unwrap();
            let End::Ended { status, .. } = end else { panic!("{when}: {end:?}") };
            assert!(status == 1 || !for_good && status == 0, "{when}: {status}");
            if status == 0 {
                assert!(settings() == scene.before, "{when}: restored by the next try");
                retried += 1;
            }
            scene.status_is_right_and_rollback_restores(&when);
        }
        assert!(retried > 0);
    });
}

#[test]
fn a_write_that_fails_while_the_journal_is_shortened_is_survived() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    in_scene(|scene| {
        if !require_failing() {
            return;
        }
        let long = scene.journal_to_be_shortened();
        let restore = |journal: &[u8]| std::fs::write(scene.journal_file(), journal).unwrap();
        let End::Ended { status: 0, .. } = failing_at(scene.apply(), usize::MAX, false).unwrap()
        else {
            panic!("a plan is applied")
        };
        let length = std::fs::metadata(scene.journal_file()).unwrap().len();
        assert!(length < long.len() as u64, "it was shortened in between: {length}");
        scene.status_is_right_and_rollback_restores("whole");
        let mut passed_over = Vec::new();
        for step in 1..=CHANGES * 5 {
            restore(&long);
            let End::Ended { status, .. } = failing_at(scene.apply(), step, false).unwrap() else {
                panic!("write {step}: killed")
            };
            let when = format!("write {step} fails while the journal is shortened: {status}");
            if status == 0 {
                // The longer one has all; the next change shortens it.
                assert_eq!(scene.status().len(), CHANGES, "{when}");
                passed_over.push(step);
            } else {
                assert!(status == 1 && settings() == scene.before, "{when}: undone at once");
            }
            scene.status_is_right_and_rollback_restores(&when);
        }
        // What a crash has left is removed, the new file is written, synced, and given the name.
        assert_eq!(passed_over.len(), 4, "{passed_over:?}");
        assert!(passed_over.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{passed_over:?}");
    });
}

#[test]
fn a_disk_that_takes_no_more_at_any_step_is_survived() {
    in_scene(|scene| {
        assert!(scene.apply().output().unwrap().status.success());
        let journal = std::fs::read(scene.journal_file()).unwrap();
        let ends =
            journal.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(i, _)| i + 1);
        scene.status_is_right_and_rollback_restores("whole");
        scene.forget_journal();
        // At the end of each record, and in the middle of the next.
        let all = u64::try_from(journal.len()).unwrap();
        let limits = std::iter::once(0).chain(ends).flat_map(|end| [end as u64, end as u64 + 40]);
        let limits: Vec<u64> = limits.filter(|&limit| limit < all).collect();
        for limit in steps(limits.len()).filter_map(|step| limits.get(step - 1).copied()) {
            let output = with_file_limit(scene.apply(), limit);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{limit}: {said}");
            assert!(said.contains("journal"), "{said}");
            assert!(settings() == scene.before, "{limit}: undone at once");
            scene.status_is_right_and_rollback_restores(&format!("no more than {limit} bytes"));
            scene.forget_journal();
        }
    });
}

/// Runs a command that cannot make any file longer than this (RLIMIT_FSIZE).
fn with_file_limit(mut command: Command, bytes: u64) -> Output {
    // SAFETY: both are plain system calls, and async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    command.output().unwrap()
}

#[test]
fn a_refusal_at_any_change_undoes_those_before() {
    in_scene(|scene| {
        // CPU 60000, which no machine has, and what is no number.
        let beyond = format!("1{}", "0".repeat(15_000));
        for refused in steps(CHANGES).map(|step| step - 1) {
            let mut plan = plan_of_forty();
            let change = &mut plan["changes"][refused];
            let masked = change["target"].as_str().unwrap().ends_with("ps_cpus");
            change["after"] = json!(if masked { beyond.as_str() } else { "many" });
            let target = change["target"].as_str().unwrap().to_owned();
            scene.write_plan(&plan);
            let output = scene.apply().output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
            assert!(said.contains(&target), "{said}");
            assert!(settings() == scene.before, "{refused}");
            assert_eq!(scene.status(), BTreeMap::new(), "{refused}");
        }
    });
}

#[test]
fn what_is_asked_for_is_done_and_told() {
    in_scene(|scene| {
        let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let plan = scene.plan.to_str().unwrap();
        let dry = scene.run(&["apply", plan, "--dry-run"]);
        assert!(dry.status.success() && settings() == scene.before, "{}", said(&dry));
        assert!(!scene.journal.path().join("journal.jsonl").exists());

        let some =
            scene.run(&["apply", plan, "--only", "change-1", "--only", "change-39", "--json"]);
        let document: Value = serde_json::from_slice(&some.stdout).unwrap();
        assert_eq!(document["changes"].as_array().unwrap().len(), 2);
        // The rest of the plan; what is there already is left out.
        let rest = scene.run(&["apply", plan, "--json"]);
        let document: Value = serde_json::from_slice(&rest.stdout).unwrap();
        assert_eq!(document["changes"].as_array().unwrap().len(), CHANGES - 2);
        assert_eq!(document["skipped"].as_array().unwrap().len(), 2);
        assert!(scene.run(&["verify"]).status.success());

        // One is changed externally.
        let other = "echo 9 >/proc/sys/net/core/somaxconn";
        assert!(Command::new("sh").args(["-c", other]).status().unwrap().success());
        let verified = scene.run(&["verify"]);
        assert_eq!(verified.status.code(), Some(1));
        assert!(
            said(&verified).contains("1 of 40 changes are no longer in effect"),
            "{}",
            said(&verified)
        );
        assert_eq!(scene.status()[SOMAXCONN]["state"], "drifted");

        // All but the first two go.
        let back = scene.run(&["rollback", "--to", "2"]);
        assert!(back.status.success(), "{}", said(&back));
        assert_eq!(scene.status().len(), 2);
        let kept = scene.run(&["rollback"]);
        assert_eq!(kept.status.code(), Some(1));
        assert!(said(&kept).contains("1 of 2 changes were not undone"), "{}", said(&kept));
        assert_eq!(settings()[SOMAXCONN], b"9\n", "skipped");
        assert!(scene.run(&["rollback", "--force"]).status.success());
        assert!(settings() == scene.before);
        assert!(scene.run(&["rollback"]).status.success(), "nothing to do is success");
    });
}

#[test]
fn a_dry_run_ends_as_the_plan_would() {
    in_scene(|scene| {
        let plan = scene.plan.to_str().unwrap().to_owned();
        let dry = || scene.command(&["apply", &plan, "--dry-run"]);
        if require_failing() {
            // Each write but those to its output would fail.
            let end = failing_at(dry(), 1, true).unwrap();
            assert!(matches!(end, End::Ended { status: 0, .. }), "nothing is written: {end:?}");
        }
        let gone = "/sys/class/net/np1/queues/rx-99/rps_cpus";
        for (what, field, value, optional) in [
            ("a value of the wrong form", "after", json!("many"), true),
            ("drift", "before", json!("00000003"), true),
            ("a queue that is gone", "target", json!(gone), true),
        ] {
            let mut edited = plan_of_forty();
            // The last but one, so that those before it are made and undone again.
            edited["changes"][CHANGES - 4][field] = value;
            edited["changes"][CHANGES - 4]["optional"] = json!(optional);
            scene.write_plan(&edited);
            let tried = dry().output().unwrap();
            assert!(!scene.journal_file().exists() && settings() == scene.before, "{what}");
            let made = scene.apply().output().unwrap();
            assert_eq!(made.status.code(), Some(1), "{what}");
            let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!((tried.status, said(&tried)), (made.status, said(&made)), "{what}");
            scene.forget_journal();
        }
        // Values already in place are skipped, and external changes overwritten with --force.
        let mut edited = plan_of_forty();
        edited["changes"][0]["after"] = edited["changes"][0]["before"].clone();
        edited["changes"][1]["before"] = json!("7");
        scene.write_plan(&edited);
        let document = |output: Output| -> Value {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice(&output.stdout).unwrap()
        };
        let mut tried = document(scene.run(&["apply", &plan, "--dry-run", "--force", "--json"]));
        let made = document(scene.run(&["apply", &plan, "--force", "--json"]));
        assert_eq!(tried["applied"].take(), false);
        tried["applied"] = true.into();
        assert_eq!(tried, made);
        assert_eq!(made["skipped"].as_array().unwrap().len(), 1);
        // A journal that apply would refuse.
        std::fs::write(scene.journal_file(), "no journal\n{}\n").unwrap();
        assert_eq!(dry().output().unwrap().status.code(), Some(1));
    });
}

#[test]
fn a_plan_of_elsewhere_is_refused() {
    in_scene(|scene| {
        let mut plan = plan_of_forty();
        for (field, value, says) in [
            ("boot", json!("another"), "before the machine was booted"),
            ("boot", Value::Null, "another host's facts"),
            ("schema", json!(99), "newer nearpath"),
            ("netns", json!(1), "another network namespace"),
        ] {
            let kept = plan[field].take();
            plan[field] = value;
            scene.write_plan(&plan);
            let output = scene.apply().output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(1) && said.contains(says), "{said}");
            plan[field] = kept;
        }
        std::fs::write(&scene.plan, "{}").unwrap();
        let said = String::from_utf8_lossy(&scene.apply().output().unwrap().stderr).into_owned();
        assert!(said.contains("is not a plan of 'nearpath tune plan --json'"), "{said}");
        assert!(settings() == scene.before);
    });
}
