//! Pending changes: the process that makes them is killed, or they are not confirmed in time.

use crate::{CHANGES, SOMAXCONN, Scene, in_scene, settings, steps};
use nearpath_testing::wait_for;
use std::process::{Command, Output};

/// Longer than any test runs.
const LATER: [&str; 2] = ["--confirm-within", "1h"];

impl Scene {
    fn apply_within(&self, time: &[&str]) -> Command {
        let mut command = self.apply();
        command.args(time);
        command
    }

    /// Waits until everything is undone, by whom is not asked.
    fn wait_until_undone(&self, when: &str) {
        wait_for(when, || (settings() == self.before && self.status().is_empty()).then_some(()));
    }

    /// The processes that would undo changes recorded in this journal.
    fn guardians(&self) -> Vec<String> {
        let folder = self.journal.path().as_os_str().as_encoded_bytes();
        let is_guardian = |pid: &String| {
            let read =
                |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let has = |bytes: Vec<u8>, part: &[u8]| bytes.windows(part.len()).any(|w| w == part);
            has(read("cmdline"), b"\0tune\0guard") && has(read("environ"), folder)
        };
        let names = std::fs::read_dir("/proc").unwrap();
        let pids = names.map(|name| name.unwrap().file_name().into_string().unwrap());
        pids.filter(is_guardian).collect()
    }

    fn wait_for_no_guardian(&self) {
        wait_for("the guardian to end", || self.guardians().is_empty().then_some(()));
    }

    fn kill(&self, signal: &str) {
        let pids = self.guardians();
        assert_eq!(pids.len(), 1);
        assert!(Command::new("kill").args(["-s", signal]).args(pids).status().unwrap().success());
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_nobody_confirms_is_undone() {
    in_scene(|scene| {
        let applied = scene.apply_within(&["--confirm-within", "2s"]).output().unwrap();
        assert!(applied.status.success(), "{}", said(&applied));
        assert!(said(&applied).contains("unless 'nearpath tune confirm' is run"), "{applied:?}");
        // Its output was read to the end: nothing of it is kept open by the process that waits.
        let status = scene.status();
        assert_eq!(status.len(), CHANGES);
        assert!(status[SOMAXCONN]["pending"]["confirm_by"].is_u64(), "{status:?}");
        assert!(settings() != scene.before);
        scene.wait_until_undone("not confirmed");
        let late = scene.run(&["confirm"]);
        assert_eq!(late.status.code(), Some(1));
        assert!(said(&late).contains("no changes to confirm"), "{}", said(&late));
        scene.wait_for_no_guardian();
    });
}

#[test]
fn what_is_confirmed_stays_and_no_process_with_it() {
    in_scene(|scene| {
        assert!(scene.apply_within(&LATER).output().unwrap().status.success());
        // Further changes on top could not be undone in order.
        let refused = scene.apply().output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(said(&refused).contains("40 earlier changes are not confirmed yet"), "{refused:?}");
        let confirmed = scene.run(&["confirm"]);
        assert!(confirmed.status.success() && said(&confirmed).contains("40 changes confirmed"));
        scene.wait_for_no_guardian();
        let status = scene.status();
        assert_eq!(status.len(), CHANGES);
        assert!(status.values().all(|entry| entry["pending"].is_null()), "{status:?}");
        scene.status_is_right_and_rollback_restores("confirmed");

        // A rollback decides, too.
        assert!(scene.apply_within(&LATER).output().unwrap().status.success());
        scene.status_is_right_and_rollback_restores("not confirmed");
        scene.wait_for_no_guardian();
    });
}

#[test]
fn who_is_asked_to_end_undoes_first() {
    in_scene(|scene| {
        assert!(scene.apply_within(&LATER).output().unwrap().status.success());
        // The session of who asked is ended by its manager.
        scene.kill("TERM");
        scene.wait_until_undone("the guardian is asked to end");
        scene.wait_for_no_guardian();
    });
}

#[test]
fn whoever_is_killed_while_it_applies_leaves_nothing() {
    in_scene(|scene| {
        let lines = || {
            std::fs::read(scene.journal_file())
                .map_or(0, |text| text.iter().filter(|&&b| b == b'\n').count())
        };
        let mut killed = 0;
        // Two lines of each change. Kills by a debugger, at each system call, would have the guardian traced, too.
        for after in steps(2 * CHANGES) {
            scene.forget_journal();
            let mut applying = scene.apply_within(&LATER).spawn().unwrap();
            while lines() < after && applying.try_wait().unwrap().is_none() {}
            applying.kill().unwrap();
            let applied = applying.wait().unwrap().success();
            if applied || lines() >= 2 * CHANGES {
                // It was faster, and waits to be confirmed; or the guardian undoes it already.
                scene.run(&["rollback"]);
            } else {
                killed += 1;
            }
            scene.wait_until_undone(&format!("what was killed after line {after} is undone"));
            scene.wait_for_no_guardian();
        }
        assert!(killed > 0);
    });
}

#[test]
fn without_its_guardian_the_next_command_undoes_it() {
    in_scene(|scene| {
        assert!(scene.apply_within(&["--confirm-within", "1s"]).output().unwrap().status.success());
        scene.kill("KILL");
        wait_for("the time is over", || {
            let status = scene.status();
            let reason = status[SOMAXCONN]["reason"].as_str().unwrap();
            reason.contains("not confirmed in time").then_some(())
        });
        assert!(settings() != scene.before);
        // It undoes, and then applies its own.
        let applied = scene.apply().output().unwrap();
        assert!(applied.status.success(), "{applied:?}");
        assert!(said(&applied).contains("undone: change 40"), "{}", said(&applied));
        let status = scene.status();
        assert!(status.values().all(|entry| entry["pending"].is_null()), "{status:?}");
        scene.status_is_right_and_rollback_restores("applied again");
    });
}
