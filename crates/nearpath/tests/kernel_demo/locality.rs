//! `nearpath demo locality`: the local shares of packets and connections after each step, and how it ends.

use super::NEARPATH;
use super::running::Running;
use nearpath_views::json::{LocalityStep, LocalitySteps};
use std::process::Command;

/// Share of packets and connections that may be elsewhere: those in flight during a step.
const ALL: f64 = 0.99;
/// The same before the last step, on a machine that is busy with other tests: a client that retransmits after a
/// timeout may choose another queue (sk_rethink_txhash).
const MOST: f64 = 0.95;

fn demonstrate(args: &[&str]) -> (LocalitySteps, String) {
    let args = [&["demo", "locality", "--json"], args].concat();
    let output = Command::new(NEARPATH).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

fn step<'a>(steps: &'a LocalitySteps, name: &str) -> &'a LocalityStep {
    let found = steps.steps.iter().find(|step| step.name == name);
    found.unwrap_or_else(|| panic!("no step {name:?}: {steps:?}"))
}

#[test]
fn packets_and_connections_end_up_local() {
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let (steps, said) = demonstrate(&["--for", "500ms"]);
    assert!(said.contains("0 connections failed; veth pair and namespaces removed"), "{said}");
    if steps.cpus.len() < 2 {
        assert_eq!((steps.steps.len(), steps.not_made.len()), (1, 5), "{steps:?}");
        nearpath_testing::skip("one CPU: everything is local");
        return;
    }
    let names: Vec<&str> = steps.steps.iter().map(|step| step.name.as_str()).collect();
    let all = ["as found", "workers pinned", "queues pinned", "steering", "RPS off", "XPS"];
    assert_eq!((names, &steps.not_made[..]), (all.to_vec(), &[][..]));
    for step in &steps.steps {
        assert!(step.rx.packets > 100 && step.tx.packets > 100, "{step:?}");
        assert!(step.accepts.accepts > 10, "{step:?}");
    }
    // Pinned workers and queues alone change nothing: the worker that gets a connection, and the queue that
    // receives its packets, are random.
    let pinned = step(&steps, "queues pinned");
    assert!(pinned.rx.local().unwrap() < 0.9, "{pinned:?}");
    assert!(pinned.accepts.local().unwrap() < 0.9, "{pinned:?}");
    // RPS moves all packets to half of the CPUs, away from their queue.
    let steered = step(&steps, "steering");
    assert!(steered.accepts.local().unwrap() >= MOST, "{steered:?}");
    assert!(steered.rx.local().unwrap() < 0.9, "{steered:?}");
    let without_rps = step(&steps, "RPS off");
    assert!(without_rps.rx.local().unwrap() >= MOST, "{without_rps:?}");
    assert!(without_rps.accepts.local().unwrap() >= MOST, "{without_rps:?}");
    assert!(without_rps.busiest_cpu.unwrap() < 0.9, "{without_rps:?}");
    let last = step(&steps, "XPS");
    for local in [last.rx.local(), last.tx.local(), last.accepts.local()] {
        assert!(local.unwrap() >= ALL, "{last:?}");
    }
    for step in steps.steps.iter().skip(1) {
        assert!(!step.changes.is_empty(), "{step:?}");
        assert!(step.changes.iter().all(|change| !change.why.is_empty()), "{step:?}");
    }
}

#[test]
fn an_early_end_shows_the_completed_steps() {
    if !nearpath_testing::require_lengthy()
        || !nearpath_testing::require_bpf()
        || !nearpath_testing::require_netns()
    {
        return;
    }
    let running = Running::start(&["demo", "locality", "--json", "--for", "60s"], "measuring for");
    running.signal(libc::SIGINT);
    let (status, stdout, said) = running.end();
    assert!(status.success(), "{status} {said}");
    assert!(said.contains("stopped early by a signal"), "{said}");
    assert!(said.contains("veth pair and namespaces removed"), "{said}");
    let steps: LocalitySteps = serde_json::from_slice(&stdout).unwrap();
    assert_eq!(steps.steps.len(), 1, "{steps:?}");
}

#[test]
fn a_killed_locality_demo_leaves_nothing_behind() {
    if !nearpath_testing::require_lengthy()
        || !nearpath_testing::require_bpf()
        || !nearpath_testing::require_netns()
    {
        return;
    }
    let running = Running::start(&["demo", "locality", "--json", "--for", "60s"], "measuring for");
    running.signal(libc::SIGKILL);
    let (status, stdout, _) = running.end();
    assert!(!status.success() && stdout.is_empty(), "{status}");
}
