//! Files of configuration, in an `/etc` of the test's own: a drop-in, a fragment of the kernel command
//! line, and irqbalance's arguments are written and taken away, ended at every step by SIGKILL. After
//! each, `status` is right, and `rollback` leaves every file and folder as it was, also after a reboot.

use crate::killer::{End, killed_at, require_ptrace};
use crate::make_older;
use nearpath_host::{Root, current_netns};
use nearpath_testing::{require_root, skip};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const DROP_IN: &str = "/etc/systemd/system/nginx.service.d/50-nearpath.conf";
const FRAGMENT: &str = "/etc/default/grub.d/50-nearpath.cfg";
const ARGS: &str = "/etc/default/irqbalance IRQBALANCE_ARGS";
const OLD_ARGS: &str = "IRQBALANCE_ARGS=\"--policyscript=/usr/local/bin/policy\"";

/// An `/etc`, a journal, and what `/etc` had.
struct Scene {
    journal: TempDir,
    before: BTreeMap<PathBuf, String>,
}

/// Runs where `/etc` is an empty one of the calling thread's and of what it starts, but for what these
/// changes need.
fn in_scene(run: impl FnOnce(&Scene) + Send + 'static) {
    if !require_root() {
        return;
    }
    let thread = std::thread::spawn(move || {
        let journal = tempfile::tempdir().unwrap();
        if let Err(error) = own_etc() {
            return skip(&format!("no mount namespace of one's own ({error})"));
        }
        fs::create_dir_all("/etc/systemd/system").unwrap();
        fs::create_dir_all("/etc/default").unwrap();
        fs::write("/etc/default/irqbalance", format!("# Theirs.\n{OLD_ARGS}\nX=1")).unwrap();
        run(&Scene { journal, before: tree() });
    });
    thread.join().unwrap();
}

fn own_etc() -> io::Result<()> {
    // The dynamic linker's, so that programs start as they do elsewhere.
    let libraries = fs::read("/etc/ld.so.cache").unwrap_or_default();
    let check = |result: i32| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: plain system calls; the strings are constant and end with a zero.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        let none = std::ptr::null();
        let private = libc::MS_REC | libc::MS_PRIVATE;
        check(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
        let tmpfs = c"tmpfs".as_ptr();
        check(libc::mount(tmpfs, c"/etc".as_ptr(), tmpfs, 0, none.cast()))?;
    }
    fs::write("/etc/ld.so.cache", libraries)
}

/// Every file and folder of `/etc`, with its mode and text.
fn tree() -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![PathBuf::from("/etc")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                folders.push(path.clone());
            }
            let text = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            all.insert(path, format!("{:o} {}", meta.mode(), String::from_utf8_lossy(&text)));
        }
    }
    all
}

impl Scene {
    fn plan(&self) -> PathBuf {
        let root = Root::live();
        let drop_in =
            "# Ours.\n[Service]\nCPUAffinity=\nCPUAffinity=2-3\nNUMAPolicy=bind\nNUMAMask=1\n";
        let fragment = "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT nohz_full=2-3\"\n";
        let args = "IRQBALANCE_ARGS=\"--policyscript=/usr/local/bin/policy --banirq=24\"";
        let change = |target: &str, before: &str, after: &str| {
            json!({
                "id": target, "kind": "test", "target": target, "before": before, "after": after,
                "why": "a test", "finding": null, "persist": ["file"], "reboot": false,
                "optional": false,
            })
        };
        let shares = json!({"other_cpu": null, "other_llc": null, "other_node": null});
        let plan = json!({
            "schema": 1, "goal": "isolation",
            "boot": root.text("/proc/sys/kernel/random/boot_id").unwrap(),
            "netns": current_netns(&root).inode, "now": shares, "predicted": shares, "notes": [],
            "changes": [
                change(DROP_IN, "", drop_in), change(FRAGMENT, "", fragment),
                change(ARGS, OLD_ARGS, args),
            ],
        });
        let path = self.journal.path().join("plan.json");
        fs::write(&path, plan.to_string()).unwrap();
        path
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        command.env("NEARPATH_STATE_DIR", self.journal.path()).stdin(Stdio::null());
        command.arg("tune").args(args);
        command
    }

    fn apply(&self) -> Command {
        self.command(&["apply", self.plan().to_str().unwrap()])
    }

    fn succeeds(&self, args: &[&str]) -> Output {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// State by target.
    fn status(&self) -> BTreeMap<String, String> {
        let output = self.succeeds(&["status", "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let entries = document["journal"].as_array().unwrap();
        entries.iter().map(|entry| (text(&entry["target"]), text(&entry["state"]))).collect()
    }

    fn status_is_right_and_rollback_restores(&self, when: &str) {
        let status = self.status();
        for target in [DROP_IN, FRAGMENT, ARGS] {
            let path = Path::new(target.split(' ').next().unwrap());
            let now = tree();
            let state = status.get(target).map(String::as_str);
            if now.get(path) == self.before.get(path) {
                assert!(
                    matches!(state, None | Some("undone" | "lost")),
                    "{when}: {target} {state:?}"
                );
            } else {
                assert_eq!(state, Some("applied"), "{when}: {target}");
            }
        }
        self.succeeds(&["rollback"]);
        assert_eq!(tree(), self.before, "{when}");
        assert_eq!(self.status(), BTreeMap::new(), "{when}");
    }
}

#[test]
fn a_kill_at_any_step_is_survived() {
    in_scene(|scene| {
        if !require_ptrace() {
            return;
        }
        let End::Ended { writes, status: 0 } = killed_at(scene.apply(), usize::MAX).unwrap() else {
            panic!("a plan is applied")
        };
        assert_eq!(scene.status().len(), 3);
        assert!(fs::read_to_string("/etc/default/irqbalance").unwrap().ends_with("\nX=1"));
        let End::Ended { writes: undoing, status: 0 } =
            killed_at(scene.command(&["rollback"]), usize::MAX).unwrap()
        else {
            panic!("a plan is undone")
        };
        assert_eq!(tree(), scene.before);
        // Each file is written, synced, given its name, and synced with its folder.
        assert!(writes >= 3 * 9 && undoing >= 3 * 4, "{writes} {undoing}");
        for step in 1..=writes {
            assert_eq!(killed_at(scene.apply(), step).unwrap(), End::Killed);
            scene.status_is_right_and_rollback_restores(&format!("applying, step {step}"));
        }
        for step in 1..=undoing {
            assert!(scene.apply().output().unwrap().status.success());
            assert_eq!(killed_at(scene.command(&["rollback"]), step).unwrap(), End::Killed);
            scene.status_is_right_and_rollback_restores(&format!("undoing, step {step}"));
        }
    });
}

#[test]
fn a_file_that_was_edited_by_hand_is_replaced_by_force_alone_and_comes_back() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    in_scene(|_| {
        // A manual edit of a file from an earlier plan.
        let edited =
            "# Theirs, too.\nGRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT quiet\"\n";
        fs::create_dir_all("/etc/default/grub.d").unwrap();
        fs::write(FRAGMENT, edited).unwrap();
        fs::set_permissions(FRAGMENT, fs::Permissions::from_mode(0o640)).unwrap();
        let scene = Scene { journal: tempfile::tempdir().unwrap(), before: tree() };
        let plan = scene.plan();
        let mut document: Value = serde_json::from_slice(&fs::read(&plan).unwrap()).unwrap();
        document["changes"][1]["before"] = json!(edited);
        fs::write(&plan, document.to_string()).unwrap();
        let apply = |more: &[&str]| {
            let words = [&["apply", plan.to_str().unwrap()], more].concat();
            scene.command(&words)
        };
        for more in [&[][..], &["--dry-run"]] {
            let output = apply(more).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("edited by hand") && said.contains("--force"), "{said}");
            assert_eq!(tree(), scene.before);
        }
        assert!(apply(&["--force"]).output().unwrap().status.success());
        assert!(fs::read_to_string(FRAGMENT).unwrap().contains("nohz_full=2-3"));
        scene.status_is_right_and_rollback_restores("by force");
        if !require_ptrace() {
            return;
        }
        let End::Ended { writes, status: 0 } = killed_at(apply(&["--force"]), usize::MAX).unwrap()
        else {
            panic!("a plan is applied")
        };
        scene.succeeds(&["rollback"]);
        for step in 1..=writes {
            assert_eq!(killed_at(apply(&["--force"]), step).unwrap(), End::Killed);
            scene.status_is_right_and_rollback_restores(&format!("by force, step {step}"));
        }
        assert!(apply(&["--force"]).output().unwrap().status.success());
        let End::Ended { writes, status: 0 } =
            killed_at(scene.command(&["rollback"]), usize::MAX).unwrap()
        else {
            panic!("a plan is undone")
        };
        for step in 1..=writes {
            assert!(apply(&["--force"]).output().unwrap().status.success());
            assert_eq!(killed_at(scene.command(&["rollback"]), step).unwrap(), End::Killed);
            scene.status_is_right_and_rollback_restores(&format!("undoing by force, step {step}"));
        }
    });
}

#[test]
fn files_outlast_a_reboot_and_are_undone_after_it() {
    in_scene(|scene| {
        assert!(scene.apply().output().unwrap().status.success());
        make_older(&scene.journal.path().join("journal.jsonl"));
        assert!(scene.status().values().all(|state| state == "applied"), "{:?}", scene.status());
        scene.succeeds(&["verify"]);
        // An external edit elsewhere in the same file is no drift, and stays.
        let theirs = fs::read_to_string("/etc/default/irqbalance").unwrap() + "\nY=2\n";
        fs::write("/etc/default/irqbalance", &theirs).unwrap();
        let output = scene.succeeds(&["rollback"]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("undone: change 1"));
        let now = fs::read_to_string("/etc/default/irqbalance").unwrap();
        assert_eq!(now, format!("# Theirs.\n{OLD_ARGS}\nX=1\nY=2\n"));
        fs::write("/etc/default/irqbalance", now.trim_end_matches("\nY=2\n")).unwrap();
        assert_eq!(tree(), scene.before);
    });
}

#[test]
fn a_text_that_is_not_nearpaths_is_refused() {
    in_scene(|scene| {
        let plan = scene.plan();
        let text = fs::read_to_string(&plan).unwrap();
        for (ours, theirs) in [
            ("CPUAffinity=2-3", "ExecStartPre=/bin/true"),
            ("nohz_full=2-3", "init=/bin/sh"),
            ("--banirq=24", "--pid=/etc/x"),
        ] {
            fs::write(&plan, text.replace(ours, theirs)).unwrap();
            let output = scene.command(&["apply", plan.to_str().unwrap()]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
            assert!(said.contains("the text must not"), "{said}");
            assert_eq!(tree(), scene.before);
            assert_eq!(scene.status(), BTreeMap::new());
        }
    });
}
