//! A plan on a NIC that is applied or undone while a write fails, a CPU goes and comes back, or the program is killed,
//! at steps spread over the whole. After each, `rollback` restores every byte.
//!
//! `NEARPATH_TUNE_STEPS` says at how many steps, or `NEARPATH_TUNE_SHARD`, as `OFFSET/STRIDE`, at which of all.

use super::killer::{End, Fate, failing_at, killed_at, require_failing, traced};
use super::{Scene, everything, with_nic, write};
use std::process::Command;

/// The CPU that goes: the only one of some interrupts.
const ONLINE: &str = "/sys/devices/system/cpu/cpu3/online";

/// The part of all steps to take: every `stride`th from `offset`.
fn shard() -> Option<(usize, usize)> {
    let text = std::env::var("NEARPATH_TUNE_SHARD").ok()?;
    let (offset, stride) = text.split_once('/').unwrap();
    Some((offset.parse().unwrap(), stride.parse().unwrap()))
}

/// Steps spread over a number of them, or those of the shard, counted from 1.
fn steps(count: usize) -> Vec<usize> {
    if let Some((offset, stride)) = shard() {
        return (1 + offset..=count).step_by(stride).collect();
    }
    let wanted = std::env::var("NEARPATH_TUNE_STEPS").map_or(2, |text| text.parse().unwrap());
    (0..wanted).map(move |step| 1 + (2 * step + 1) * count / (2 * wanted)).collect()
}

/// The same for writes that fail, each with whether all later ones fail, too: alternately, or both for a shard.
fn failing_steps(count: usize) -> Vec<(usize, bool)> {
    let both: &[bool] = &[false, true];
    let of = |(place, step): (usize, usize)| {
        let ends = if shard().is_some() { both } else { &both[place % 2..=place % 2] };
        ends.iter().map(move |for_good| (step, *for_good)).collect::<Vec<_>>()
    };
    steps(count).into_iter().enumerate().flat_map(of).collect()
}

/// Runs a command that succeeds; how many writes it makes, but for those to its output.
fn writes_of(command: Command) -> usize {
    let mut writes = 0;
    let end = traced(command, |_, fd| {
        writes += usize::from(fd > 2);
        Fate::Done
    });
    assert!(matches!(end.unwrap(), End::Ended { status: 0, .. }));
    writes
}

/// With the NIC, and how many writes applying and undoing the plan take.
fn with_counted(run: impl FnOnce(&Scene, usize, usize)) {
    with_nic(|scene| {
        if !require_failing() {
            return;
        }
        let plan = scene.plan();
        let applying = writes_of(scene.apply(&plan));
        let undoing = writes_of(scene.command(&["rollback"]));
        // Each change is in the journal, synced, made and in the journal as made, and undone.
        assert!(applying > 4 * plan.len() && undoing > 2 * plan.len(), "{applying} {undoing}");
        scene.rollback_restores("whole");
        run(scene, applying, undoing);
    });
}

#[test]
fn a_write_that_fails_loses_nothing() {
    with_counted(|scene, applying, undoing| {
        let plan = scene.plan();
        for (step, for_good) in failing_steps(applying) {
            let when = format!("write {step} of {applying} fails, for good: {for_good}");
            let end = failing_at(scene.apply(&plan), step, for_good).unwrap();
            assert!(matches!(end, End::Ended { status: 1, .. }), "{when}: {end:?}");
            assert!(for_good || everything(&scene.nic) == scene.before, "{when}: undone at once");
            scene.rollback_restores(&when);
        }
        for (step, for_good) in failing_steps(undoing) {
            let when = format!("write {step} of {undoing} of undoing fails, for good: {for_good}");
            scene.applied(&plan);
            let end = failing_at(scene.command(&["rollback"]), step, for_good).unwrap();
            let End::Ended { status, .. } = end else { panic!("{when}: {end:?}") };
            // A single failure is fixed by the next try; what is reported as undone is undone.
            assert!(status == 1 || !for_good && status == 0, "{when}: {status}");
            assert!(status == 1 || everything(&scene.nic) == scene.before, "{when}");
            scene.rollback_restores(&when);
        }
    });
}

#[test]
fn a_kill_at_a_step_loses_nothing() {
    with_counted(|scene, applying, undoing| {
        let plan = scene.plan();
        for step in steps(applying) {
            assert_eq!(killed_at(scene.apply(&plan), step).unwrap(), End::Killed);
            scene.rollback_restores(&format!("killed at write {step} of {applying}"));
        }
        for step in steps(undoing) {
            scene.applied(&plan);
            assert_eq!(killed_at(scene.command(&["rollback"]), step).unwrap(), End::Killed);
            scene.rollback_restores(&format!("killed at write {step} of {undoing} of undoing"));
        }
    });
}

/// Runs a command; before its nth write a CPU goes and comes back. Its status.
fn hotplugged_at(command: Command, nth: usize) -> i32 {
    let end = traced(command, |writes, _| {
        if writes == nth {
            write(ONLINE, "0");
            write(ONLINE, "1");
        }
        Fate::Done
    });
    let End::Ended { status, .. } = end.unwrap() else { panic!("it is not killed") };
    status
}

#[test]
fn a_cpu_that_goes_meanwhile_loses_nothing() {
    with_counted(|scene, applying, undoing| {
        let plan = scene.plan();
        // Before the journal has the first change, there is nothing that nearpath could restore.
        for step in steps(applying - 10) {
            let status = hotplugged_at(scene.apply(&plan), step + 10);
            let when = format!("a CPU went at write {step} of {applying}: {status}");
            assert!(status == 1 || status == 0, "{when}");
            scene.rollback_restores(&when);
        }
        // Nor after it is undone.
        for step in steps(undoing - 10) {
            scene.applied(&plan);
            let status = hotplugged_at(scene.command(&["rollback"]), step);
            let when = format!("a CPU went at write {step} of {undoing} of undoing: {status}");
            scene.rollback_restores(&when);
        }
    });
}
