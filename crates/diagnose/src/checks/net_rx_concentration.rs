//! One CPU that does most of the receive work.
//!
//! Input: the NET_RX runs by CPU (else the packets of softnet_stat), how busy that CPU is with
//! interrupts, and where the queues' interrupts go. Output: one finding, with changes when
//! several queue interrupts share that CPU.
//!
//! Rule: everoute's analysis of latency tails (check whether NET_RX is concentrated on specific CPUs).

use super::nic_irq_node::affinity_change;
use super::rps_off::more_queues;
use crate::context::irq_cpus;
use crate::counters::{busiest, total};
use crate::{Check, CheckOutcome, Context, nearest_cpus, severity, spread, text};
use nearpath_model::{CpuId, CpuSet, Finding, Irq, Nic, ProposedChange, Subject};
use std::collections::BTreeMap;

pub(super) const CHECK: Check =
    Check::new("net_rx_concentration", "one CPU that runs most of NET_RX", run)
        .explained_by(&["rps_placement", "rss_uneven"]);

/// Share of all NET_RX on one CPU from which it is concentrated.
const CONCENTRATED: f64 = 0.75;
/// Fewer runs than this are no load.
const LOAD: u64 = 1_000;
/// Share of its time in interrupts from which that CPU is a bottleneck.
const BUSY: f64 = 0.5;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.topology.online.len() == 1 {
        return outcome;
    }
    let softnet = || {
        let lines = context.softnet()?;
        Some(lines.into_iter().map(|line| (line.cpu, line.processed)).collect())
    };
    let (what, counts): (_, BTreeMap<CpuId, u64>) = match context.softirqs("NET_RX") {
        Some(counts) => ("NET_RX runs", counts),
        None => match softnet() {
            Some(counts) => ("received packets", counts),
            None => {
                outcome.not_checked(
                    "neither /proc/softirqs nor /proc/net/softnet_stat reports NET_RX",
                );
                return outcome;
            }
        },
    };
    if !spreads(context) {
        return outcome;
    }
    let all = total(counts.values().copied());
    if let Some((cpu, share)) = busiest(&counts)
        && share >= CONCENTRATED
        && all >= LOAD
    {
        outcome.findings.push(finding(context, what, cpu, share, all));
    }
    outcome
}

/// Whether there is anything to spread: a NIC with several receive queues whose interrupts came. Loopback and a NIC of
/// one queue do their work where they are configured to.
fn spreads(context: &Context<'_>) -> bool {
    context.hardware_nics().filter(|nic| nic.rx_queues.len() > 1).any(|nic| {
        let irqs = context.rx_irqs(nic);
        irqs.is_empty() || total(irqs.iter().map(|(_, irq)| context.irq_total(irq))) >= LOAD
    })
}

fn finding(context: &Context<'_>, what: &str, cpu: CpuId, share: f64, all: u64) -> Finding {
    let since = context.since();
    let busy = context.time_shares().get(&cpu).map(|time| time.interrupts);
    // Totals since boot are about the past: they are never more than a hint.
    let severity = severity::of_condition(
        context,
        busy.is_some_and(|busy| busy >= BUSY),
        context.rate(all),
        severity::TRAFFIC_PER_S,
    );
    let title = format!("CPU {cpu} does {} of the receive work", text::percent(share));
    let mut finding = Finding::new(severity, title)
        .evidence(format!("{} of {all} {what} {since} were on CPU {cpu}.", text::percent(share)))
        .share(Some(share), what)
        .about([Subject::Cpu(cpu)]);
    if let Some(busy) = busy {
        let busy = text::percent(busy);
        finding =
            finding.evidence(format!("CPU {cpu} spent {busy} of its time in interrupts {since}."));
    }
    let only = CpuSet::from_iter([cpu]);
    for s in context.steered().iter().filter(|s| s.cpus == only) {
        let (nic, queue) = (&s.nic.name, s.queue.queue);
        finding = finding.evidence(format!("RPS of {nic} rx-{queue} steers to CPU {cpu} only."));
    }
    for nic in context.hardware_nics() {
        let irqs = irqs_on(context, nic, &only);
        finding.changes.extend(spread_irqs(context, nic, &irqs, &only));
        if !irqs.is_empty() {
            finding
                .changes
                .extend(more_queues(nic, nearest_cpus(context.host, nic.numa_node).len()));
        }
    }
    finding
}

/// The interrupts that a NIC has on one CPU.
fn irqs_on<'a>(context: &Context<'a>, nic: &Nic, only: &CpuSet) -> Vec<&'a Irq> {
    let there = |irq: &&Irq| irq_cpus(irq) == Some(only) && context.irq_total(irq) > 0;
    context.queue_irqs(nic).into_iter().filter(there).collect()
}

/// Moves all but one of them to other near ones.
fn spread_irqs(
    context: &Context<'_>,
    nic: &Nic,
    irqs: &[&Irq],
    only: &CpuSet,
) -> Vec<ProposedChange> {
    let others: Vec<CpuId> = nearest_cpus(context.host, nic.numa_node)
        .into_iter()
        .filter(|cpu| !only.contains(*cpu))
        .collect();
    let to = spread(&others, irqs.len().saturating_sub(1));
    let change = |(irq, cpu): (&&Irq, CpuId)| {
        let why = format!("{} interrupts of {} share {}.", irqs.len(), nic.name, text::cpus(only));
        affinity_change(irq, &CpuSet::from_iter([cpu]), why)
    };
    irqs.iter().skip(1).zip(to).map(change).collect()
}
