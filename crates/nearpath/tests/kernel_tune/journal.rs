//! What the journal says after a reboot and after a power loss.

use crate::{CHANGES, SOMAXCONN, Scene, in_scene, make_older, plan_of_forty, settings};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Output};

#[test]
fn what_a_reboot_has_undone_is_lost_and_not_written() {
    in_scene(|scene| {
        assert!(scene.apply().output().unwrap().status.success());
        // As if the machine had been booted since, and something had set the same values.
        make_older(&scene.journal_file());
        let now = settings();
        let status = scene.status();
        assert_eq!(status.len(), CHANGES);
        assert!(status.values().all(|entry| entry["state"] == "lost"), "{status:?}");
        assert_eq!(scene.run(&["verify"]).status.code(), Some(1));
        let output = scene.run(&["rollback"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("undone by reboot"), "{said}");
        assert!(settings() == now, "nothing is written");
        assert_eq!(scene.status(), BTreeMap::new());
    });
}

#[test]
fn a_damaged_journal_is_said_and_does_not_keep_the_rest_from_being_undone() {
    in_scene(|scene| {
        assert!(scene.apply().output().unwrap().status.success());
        let whole = std::fs::read_to_string(scene.journal_file()).unwrap();
        let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        // The last line, which says that the last change was made.
        let torn = whole.replace(whole.lines().last().unwrap(), "{\u{0}\u{0}");
        std::fs::write(scene.journal_file(), torn).unwrap();
        let verified = scene.run(&["verify"]);
        assert!(verified.status.success(), "{}", said(&verified));
        assert!(said(&verified).contains("damaged last line (80"), "{}", said(&verified));
        scene.status_is_right_and_rollback_restores("a damaged last line");

        // One before, of the change of the sysctl, which comes last.
        assert!(scene.apply().output().unwrap().status.success());
        let whole = std::fs::read_to_string(scene.journal_file()).unwrap();
        let begins = whole.lines().find(|line| line.contains("\"123\"")).unwrap();
        std::fs::write(scene.journal_file(), whole.replace("\"123\"", "\"124\"")).unwrap();
        assert!(begins.contains(SOMAXCONN));
        assert_eq!(scene.run(&["verify"]).status.code(), Some(1));
        let refused = scene.apply().output().unwrap();
        assert!(said(&refused).contains("damaged (wrong checksum)"), "{}", said(&refused));
        let back = scene.run(&["rollback"]);
        assert_eq!(back.status.code(), Some(1));
        assert!(said(&back).contains("then move the file away"), "{}", said(&back));
        let now = settings();
        let left: Vec<_> =
            now.iter().filter(|(path, text)| **text != scene.before[*path]).collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0].1, b"123\n", "only the change that is not known is left");
    });
}

#[test]
fn a_plan_is_made_again_at_the_next_boot() {
    in_scene(|scene| {
        // What an earlier boot made, and what is there now is not what it found.
        assert!(scene.apply().output().unwrap().status.success());
        let after = settings();
        let journal = std::fs::read(scene.journal_file()).unwrap();
        assert!(scene.run(&["rollback"]).status.success());
        std::fs::write(scene.journal_file(), journal).unwrap();
        make_older(&scene.journal_file());
        let mut plan = plan_of_forty();
        plan["boot"] = json!("an-older-boot");
        plan["netns"] = json!(1);
        plan["changes"][3]["before"] = json!("2");
        let mut gone = plan["changes"][0].clone();
        gone["id"] = json!("gone");
        gone["target"] = json!("/sys/class/net/not-yet/queues/rx-0/rps_cpus");
        let mut thread = gone.clone();
        thread["id"] = json!("thread");
        thread["target"] = json!("affinity pid 1 tid 1 start 1");
        plan["changes"].as_array_mut().unwrap().insert(0, gone);
        plan["changes"].as_array_mut().unwrap().insert(0, thread);
        scene.write_plan(&plan);
        let boot = || scene.run(&["apply", "--boot", scene.plan.to_str().unwrap()]);
        let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(scene.apply().output().unwrap().status.code(), Some(1));
        let output = boot();
        // An interface that does not exist yet does not stop the rest; the service retries.
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("not-yet/queues/rx-0/rps_cpus: not present"));
        assert!(
            said(&output).contains("thread: skipped: a thread's affinity ends with the thread")
        );
        assert!(settings() == after);
        plan["changes"].as_array_mut().unwrap().remove(1);
        scene.write_plan(&plan);
        let again = boot();
        assert!(again.status.success(), "{}", said(&again));
        // The journal is of this boot alone, and undoes to what this boot had.
        let status = scene.status();
        assert_eq!(status.len(), CHANGES);
        assert!(status.values().all(|entry| entry["state"] == "applied"), "{status:?}");
        assert!(scene.run(&["rollback"]).status.success());
        assert!(settings() == scene.before);
    });
}

/// A disk of a scene's own for its journal, which ends with the test.
fn mount_journal(scene: &Scene) {
    // SAFETY: this thread alone gets a mount namespace of its own, and it ends with the scene.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    mount(scene, &["--make-rprivate", "/"]);
    mount(scene, &["-t", "tmpfs", "-o", "size=1m", "journal"]);
    scene.write_plan(&plan_of_forty());
}

/// Runs mount(8); `journal` is the journal's folder.
fn mount(scene: &Scene, args: &[&str]) {
    let mut command = Command::new("mount");
    match args.split_last() {
        Some((&"journal", options)) => {
            command.args(options).arg("journal").arg(scene.journal.path())
        }
        _ => command.args(args),
    };
    assert!(command.status().unwrap().success(), "{args:?}");
}

#[test]
fn without_a_journal_that_can_be_written_the_host_is_restored_all_the_same() {
    if !nearpath_testing::require_program("mount") {
        return;
    }
    in_scene(|scene| {
        mount_journal(scene);
        let filler = scene.journal.path().join("filler");
        for is_full in [false, true] {
            assert!(scene.apply().output().unwrap().status.success());
            if is_full {
                let mut file = std::fs::File::create(&filler).unwrap();
                while file.write_all(&[0; 512]).is_ok() {}
            } else {
                mount(scene, &["-o", "remount,ro", "journal"]);
            }
            // Undone again, it is the same.
            for _ in 0..2 {
                let back = scene.run(&["rollback"]);
                let said = String::from_utf8_lossy(&back.stdout).into_owned();
                assert_eq!(back.status.code(), Some(1), "{back:?}");
                assert!(settings() == scene.before, "not restored: {back:?}");
                let kept = scene.status();
                // The last page of a file may have room for some records.
                assert!(if is_full { !kept.is_empty() } else { kept.len() == CHANGES });
                let first = format!(
                    "{} changes are undone, but this cannot be recorded: journal {}: ",
                    kept.len(),
                    scene.journal_file().display()
                );
                assert!(said.starts_with(&first), "{said}");
                assert!(!said.contains("kept:"), "{said}");
                let error = String::from_utf8_lossy(&back.stderr).into_owned();
                assert!(error.contains("repeat 'nearpath tune rollback'"), "{error}");
            }
            let json = scene.run(&["rollback", "--json"]);
            let document: Value = serde_json::from_slice(&json.stdout).unwrap();
            assert!(document["not_recorded"].as_str().unwrap().contains("journal.jsonl"));
            assert!(document["changes"][0]["undone"].as_bool().unwrap(), "{document}");
            // Nothing is changed without a record.
            assert_eq!(scene.apply().output().unwrap().status.code(), Some(1));
            assert!(settings() == scene.before, "applied without a record");
            if is_full {
                std::fs::remove_file(&filler).unwrap();
            } else {
                mount(scene, &["-o", "remount,rw", "journal"]);
            }
            scene.status_is_right_and_rollback_restores("the journal can be written again");
        }
    });
}
