//! Causes of slow packets on this kernel under continuous traffic: many packets wait behind one obstacle,
//! and only the first wakes the reader. Each slow packet must name the obstacle and, for a blocked reader,
//! what it was blocked on and what woke it.

#[path = "../common/mod.rs"]
mod common;
mod pages;
mod queues;
mod readers;
mod stream;
mod tcp;
#[path = "../kernel_faults/worker.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod worker;

use nearpath_model::{Measurement, Outlier, Share};
use std::sync::{Mutex, MutexGuard, PoisonError};
use stream::{Score, Windows};

/// Whether the machine can run these tests.
fn can_run() -> bool {
    common::can_run() && common::has_two_cpus()
}

/// One test at a time: they disturb each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plays a scene, whose slow packets must name what was in the way.
#[expect(clippy::print_stdout, reason = "how often it was named is what there is to see")]
fn play(
    name: &str,
    is_named: impl Fn(&Share) -> bool,
    scene: impl Fn() -> (Measurement, Windows),
) -> Measurement {
    let _alone = alone();
    let (m, windows) = scene();
    let score = Score::of(&m, &windows, &is_named);
    println!("{name}: {score:?}");
    let missed = m.outliers.iter().filter(|o| !o.budget.first().is_some_and(&is_named));
    let missed: Vec<_> = missed.take(12).map(summary).collect();
    assert!(score.is_good(), "{score:?}, {:?}; not named in\n{}", m.slow, missed.join("\n"));
    m
}

/// A slow packet as one line.
fn summary(outlier: &Outlier) -> String {
    let share = |share: &Share| {
        let who = share.who.clone().unwrap_or_default();
        let by = who.woken_by.and_then(|by| by.comm.or(by.vector)).unwrap_or_default();
        let name = who.comm.or(who.vector).or(who.qdisc).unwrap_or_default();
        let on = who.on.unwrap_or_default();
        format!("{} us {:?} {name} {on} {by}", share.ns / 1000, share.share)
    };
    let shares: Vec<_> = outlier.budget.iter().take(4).map(share).collect();
    format!(
        "{} -> {} {} us: {}",
        outlier.from,
        outlier.to,
        outlier.span_ns / 1000,
        shares.join(", ")
    )
}
