//! Budgets on this kernel: faults that the tests themselves inject, one at a time and at random
//! times, while packets flow over a veth pair. The cause that a slow packet's budget names first
//! must be the fault. `make faults` does the same with more rounds, and prints how often it was.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod quota;
mod scene;
mod worker;

use faults::{BeforeThread, Behind, Moved, Queued, Timers};
use nearpath_model::{Measurement, Outlier, Share, ShareKind};
use quota::Quota;
use scene::{Fault, Scene, ms};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use worker::Policy;

/// Required precision and recall of budgets.
const GOAL: f64 = 0.95;
/// Slow packets that must have been hit.
const ENOUGH: usize = 10;
/// Above other work of the machine, but below a real-time fault.
const READER: Policy = Policy::Fifo(40);
/// Below this a slow packet is the machine's own noise.
const SLOW_MS: u64 = 1;

/// Whether the machine can run these tests: a fault and its victim share a CPU, everything else another.
fn can_run() -> bool {
    common::can_run() && common::has_two_cpus()
}

/// A slow packet in a line.
fn summary(outlier: &Outlier) -> String {
    let share = |share: &Share| {
        let percent = share.ns * 100 / outlier.span_ns.max(1);
        let who = share.who.clone().unwrap_or_default();
        let name = who.comm.or(who.vector).unwrap_or_default();
        format!("{percent}% {:?} {name}", share.share)
    };
    let shares: Vec<_> = outlier.budget.iter().take(4).map(share).collect();
    let (from, to, us) = (&outlier.from, &outlier.to, outlier.span_ns / 1000);
    format!("{from} -> {to} {us} us: {}", shares.join(", "))
}

/// Plays a scene of which only both ends of each packet are watched, and requires that the fault is named.
fn play_watched<F: Fault>(name: &str, reader: Policy, fault: impl Fn(&Scene) -> F) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let scene = Scene::watched(reader);
    judge(&format!("watched, {name}"), &mut fault(&scene), scene);
}

/// One after the other: they disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

/// Plays a scene and requires that the fault is named.
fn play<F: Fault>(name: &str, reader: Policy, fault: impl Fn(&Scene) -> F) -> Measurement {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let scene = Scene::new(reader);
    judge(name, &mut fault(&scene), scene)
}

#[expect(clippy::print_stdout, reason = "the figures are what `make faults` is for")]
fn judge(name: &str, fault: &mut dyn Fault, scene: Scene) -> Measurement {
    let (score, m) = scene.play(fault, ms(SLOW_MS));
    println!(
        "{name}: precision {:.1}%, recall {:.1}%, {} slow packets, {} hit, {} of them below, {} complete",
        100.0 * score.precision(),
        100.0 * score.recall(),
        score.slow,
        score.hit,
        score.beneath,
        score.complete,
    );
    let missed = m.outliers.iter().filter(|o| !fault.is_named(&o.budget[0])).take(20);
    let missed: Vec<_> = missed.map(summary).collect();
    let enough = score.hit >= ENOUGH && score.beneath <= score.hit / 2;
    let good = enough && score.precision() >= GOAL && score.recall() >= GOAL;
    assert!(good, "{name}: {score:?}; not named in\n{}", missed.join("\n"));
    m
}

#[test]
fn a_real_time_task_before_the_reader() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    let fault = |_: &Scene| Behind::new(Policy::Fifo(50), ShareKind::Runqueue);
    let m = play("real-time task before the reader", READER, fault);
    let who = m.budget_totals[0].who.as_ref().unwrap();
    assert_eq!((who.policy.as_deref(), who.prio), (Some("SCHED_FIFO"), Some(50)));
}

#[test]
fn a_task_beside_the_reader() {
    if !can_run() {
        return;
    }
    let fault = |_: &Scene| Behind::new(Policy::Nice(-20), ShareKind::Runqueue);
    play("task beside the reader", Policy::Batch(19), fault);
}

#[test]
fn a_real_time_task_before_the_thread_that_receives() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() || !threads_receive() {
        return;
    }
    // The reader may run instead.
    let fault = |scene: &Scene| BeforeThread::new(scene, Policy::Fifo(30));
    play("real-time task on the CPU that RPS steers to", READER, fault);
}

#[test]
fn a_task_beside_the_thread_that_receives() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() || !threads_receive() {
        return;
    }
    let fault = |scene: &Scene| BeforeThread::new(scene, Policy::Nice(-20));
    play("task beside the thread that receives", READER, fault);
}

/// Whether each CPU has a thread that takes packets from its backlog (6.10 and later, with
/// `thread_backlog_napi` on the kernel's command line or PREEMPT_RT). Without it the kernel goes on
/// with softirqs at the next interrupt, whatever task has the CPU.
fn threads_receive() -> bool {
    let comm = |process: &Path| std::fs::read_to_string(process.join("comm")).unwrap_or_default();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let they_do = processes.into_iter().any(|p| comm(&p.path()).starts_with("backlog_napi/"));
    if !they_do {
        nearpath_testing::skip("this kernel has no threads that take packets from the backlogs");
    }
    they_do
}

#[test]
fn many_timers_at_once() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    play("timer interrupts", READER, |_| Timers::new());
}

#[test]
fn packets_ahead() {
    if !can_run() {
        return;
    }
    play("burst of packets ahead", READER, Queued::same_device);
}

#[test]
fn softirqs_of_another_device() {
    if !can_run() {
        return;
    }
    play("softirqs of another device", READER, |_| Queued::other_device());
}

#[test]
fn a_reader_that_is_moved() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    play("reader moved to another CPU", READER, |_| Moved::new());
}

#[test]
fn a_quota_that_is_used_up() {
    if !can_run() || !quota::can_be_set() {
        return;
    }
    play("CPU quota of the reader's cgroup", Policy::Nice(0), Quota::new);
}

#[test]
fn watched_a_real_time_task_before_the_reader() {
    if !can_run() {
        return;
    }
    let fault = |_: &Scene| Behind::new(Policy::Fifo(50), ShareKind::Runqueue);
    play_watched("real-time task before the reader", READER, fault);
}

#[test]
fn watched_a_task_beside_the_reader() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    let fault = |_: &Scene| Behind::new(Policy::Nice(-20), ShareKind::Runqueue);
    play_watched("task beside the reader", Policy::Batch(19), fault);
}

#[test]
fn watched_many_timers_at_once() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    play_watched("timer interrupts", READER, |_| Timers::new());
}

#[test]
fn watched_packets_ahead() {
    if !can_run() {
        return;
    }
    play_watched("burst of packets ahead", READER, Queued::same_device);
}

#[test]
fn watched_softirqs_of_another_device() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    play_watched("softirqs of another device", READER, |_| Queued::other_device());
}

#[test]
fn watched_a_reader_that_is_moved() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    play_watched("reader moved to another CPU", READER, |_| Moved::new());
}

#[test]
fn watched_a_quota_that_is_used_up() {
    if !can_run() || !quota::can_be_set() {
        return;
    }
    play_watched("CPU quota of the reader's cgroup", Policy::Nice(0), Quota::new);
}
