//! Readers that the scheduler moves between CPUs.
//!
//! Input: how often the threads of each process that holds a receiving socket were moved to another
//! CPU in the interval. Output: one finding when there are readers that are moved often and may
//! run on several nodes: each move leaves the caches behind, and between nodes the memory.
//!
//! Rules: everoute's analysis of latency tails (CPU binding; `sched_migration_cost_ns` where threads cannot be bound),
//! kernel/sched/fair.c (`task_hot`: a task that ran less than this ago is not moved).

use crate::spans::{Boundary, crossing};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{FileOf, Finding, ProposedChange, SettingFile, Severity, SocketOwner, Sysctl};

pub(super) const CHECK: Check =
    Check::new("reader_migrations", "readers that the scheduler moves from CPU to CPU", run);

/// Moves of a process in each second from which they are worth a note.
const SOME_PER_S: f64 = 10.0;
/// Processes that are named.
const NAMED: usize = 10;
const SYSCTL: Sysctl = Sysctl::SchedMigrationCostNs;
/// Document 000's value: ten times the kernel's.
const COST_NS: u64 = 5_000_000;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(earlier) = context.earlier.filter(|_| context.nodes_with_cpus() > 1) else {
        return outcome;
    };
    let owners = &context.host.owners;
    if !owners.is_empty() && owners.iter().all(|owner| owner.migrations.is_none()) {
        outcome.not_checked("the kernel does not report thread migrations (CONFIG_SCHED_DEBUG)");
        return outcome;
    }
    let mut moved: Vec<(u64, &SocketOwner)> = Vec::new();
    for owner in owners {
        let then =
            earlier.owners.iter().find(|then| then.pid == owner.pid && then.comm == owner.comm);
        let rise = owner.migrations.zip(then.and_then(|then| then.migrations));
        let rise = rise.map_or(0, |(now, then)| now.saturating_sub(then));
        let nodes =
            owner.affinity.as_ref().map_or(0, |cpus| context.host.topology.nodes_of(cpus).len());
        if context.per_second(rise) >= SOME_PER_S && nodes > 1 {
            moved.push((rise, owner));
        }
    }
    if moved.is_empty() {
        return outcome;
    }
    moved.sort_by_key(|(rise, owner)| (std::cmp::Reverse(*rise), owner.pid));
    let severity = severity_of(context, &moved);
    let title = format!(
        "The scheduler moves {} between CPUs of several nodes",
        text::count(moved.len() as u64, "reader")
    );
    let mut finding = Finding::new(severity, title);
    for (rise, owner) in moved.iter().take(NAMED) {
        let comm = text::clean(&owner.comm);
        finding = finding.evidence(format!(
            "The threads of {comm} ({}) were moved {} times a second.",
            owner.pid,
            text::digits(context.per_second(*rise))
        ));
    }
    outcome.findings.push(change_of_cost(finding, context));
    outcome
}

/// A thread that is woken often is moved often, mostly within a cache: it is a warning only where one thread is moved
/// often, and packets were measured to be read on another node than they were delivered on.
fn severity_of(context: &Context<'_>, moved: &[(u64, &SocketOwner)]) -> Severity {
    let by_thread = moved.iter().map(|(rise, owner)| rise / (owner.threads.len().max(1) as u64));
    let by_rate = severity::of_events(context, by_thread.max().unwrap_or(0));
    let measured = context.measurement.and_then(|m| {
        let crossed = crossing(&context.hand_overs(), m.observed_time_s())?;
        (crossed.boundary == Boundary::Node).then(|| severity::of_delay(crossed.delay()))
    });
    by_rate.min(measured.unwrap_or(severity::UNFELT))
}

/// Where the setting is: in debugfs since 5.13 (commit 8a99b6833c88).
fn setting(context: &Context<'_>) -> SettingFile {
    let release = context.host.kernel.release.as_deref().unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (5, 13) => {
            FileOf::MigrationCost.into()
        }
        _ => SYSCTL.into(),
    }
}

/// Adds that a task is kept where it ran for longer, where the kernel has such a setting.
fn change_of_cost(finding: Finding, context: &Context<'_>) -> Finding {
    let now =
        context.host.sysctls.get(SYSCTL.name()).and_then(|text| text.trim().parse::<u64>().ok());
    match now {
        Some(now) if now < COST_NS => finding.change(ProposedChange::new(
            setting(context),
            Some(now.to_string()),
            COST_NS.to_string(),
            "A task that ran less than this ago stays where its caches are.",
        )),
        _ => finding,
    }
}
