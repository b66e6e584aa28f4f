//! Readers that run elsewhere than where softirqs deliver their packets.
//!
//! Input: the measured hand-overs from softirq to reader, and the affinities of the processes
//! that hold receiving sockets. Output: a finding for what was measured, or, by facts alone,
//! one for readers that are pinned off the nodes of all NICs.
//!
//! Rules: everoute's analysis of latency tails (bind the application to the NIC's node), Cloudflare's "Perfect
//! locality" (a packet is read on the CPU that received it).

use crate::context::irq_cpus;
use crate::place::allowed;
use crate::readers::PinnedReader;
use crate::spans::{Boundary, Crossing, crossing};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuSet, Finding, NodeId, Proposal, ProposedChange, Severity, Subject};
use std::collections::BTreeSet;

pub(super) const CHECK: Check = Check::new(
    "reader_placement",
    "readers on another node, cache or CPU than where packets are delivered",
    run,
)
.explained_by(&["rps_placement"]);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.topology.online.len() == 1 {
        return outcome;
    }
    let readers = context.pinned_readers();
    let measured = context.measurement.map(|m| (context.hand_overs(), m.observed_time_s()));
    match measured {
        Some((spans, _)) if spans.is_empty() => {
            outcome.not_checked("no hand-over from softirq to reader was measured");
            by_facts(context, &mut outcome, &readers);
        }
        Some((spans, duration_s)) => {
            if let Some(crossed) = crossing(&spans, duration_s) {
                outcome.findings.extend(from_measurement(context, &readers, &crossed));
            }
        }
        None => {
            outcome.not_checked("no measurement: on which CPUs readers run is not known");
            by_facts(context, &mut outcome, &readers);
        }
    }
    outcome
}

fn from_measurement(
    context: &Context<'_>,
    readers: &[PinnedReader<'_>],
    crossed: &Crossing<'_>,
) -> Option<Finding> {
    let same_cache = crossed.boundary == Boundary::Cpu;
    // Under one cache the scheduler may well run readers beside the softirq: worth a word only
    // where nearly all do.
    if same_cache && crossed.share < 0.5 {
        return None;
    }
    // With RPS on it is RPS that decides where packets are delivered, and its finding comes first.
    let steered = !context.steered().is_empty();
    let severity = match crossed.boundary {
        Boundary::Cpu => Severity::Info,
        Boundary::Llc | Boundary::Node if steered => Severity::Info,
        Boundary::Llc | Boundary::Node => severity::of_delay(crossed.delay()),
    };
    let title = format!(
        "{} of packets are read {} than they are delivered",
        text::percent(crossed.share),
        crossed.boundary.at()
    );
    let mut finding =
        Finding::new(severity, title).share(Some(crossed.share), text::packets(crossed.packets));
    // Between two CPUs under one cache most of the wait is the scheduler's, not the distance's.
    if severity > Severity::Info && !steered {
        finding.cost.seconds_per_second = crossed.seconds_per_second;
        finding.cost.per_packet_ns = crossed.per_packet_ns();
        finding.cost.max_ns = crossed.main.max_ns;
    }
    finding.evidence = crossed.evidence();
    finding.evidence.extend(readers.iter().take(5).map(|r| format!("{} reads.", r.words())));
    let delivered: CpuSet = crossed.left.keys().copied().collect();
    if !steered {
        let near = near_delivery(context, crossed.boundary, &delivered);
        finding.changes = move_readers(context, readers, &near);
        if let Some(named) = title_of_one(context, readers, crossed, &finding.changes) {
            finding.title = named;
        }
    } else {
        let why = "RPS is on and decides where packets are delivered: see rps_placement.";
        finding.evidence.push(why.to_owned());
    }
    Some(finding.about(Subject::cpus(&delivered)))
}

/// The title where one reader on another node is the cause: what it does, and the fix, in a line of a terminal.
fn title_of_one(
    context: &Context<'_>,
    readers: &[PinnedReader<'_>],
    crossed: &Crossing<'_>,
    changes: &[ProposedChange],
) -> Option<String> {
    let [change] = changes else { return None };
    let Proposal::Affinity { pid, .. } = &change.target else { return None };
    let reader = readers.iter().find(|reader| reader.owner.pid == *pid)?;
    let nodes = |cpus: &CpuSet| -> Option<String> {
        let nodes: Vec<NodeId> = context.host.topology.nodes_of(cpus).into_iter().collect();
        (!nodes.is_empty()).then(|| text::list(&nodes))
    };
    let reached: CpuSet = crossed.reached.keys().copied().collect();
    let reads_on = nodes(&reader.cpus.intersection(&reached))?;
    let delivered_on = nodes(&crossed.left.keys().copied().collect())?;
    let (comm, to) = (text::clean(&reader.owner.comm), &change.after);
    (crossed.boundary == Boundary::Node && reads_on != delivered_on).then(|| {
        format!(
            "{comm}[{pid}] on node {reads_on} reads packets of node {delivered_on}: pin it to CPUs {to}"
        )
    })
}

/// Where readers should run: on the nodes, under the caches, or on the CPUs that packets are
/// delivered on.
fn near_delivery(context: &Context<'_>, boundary: Boundary, delivered: &CpuSet) -> CpuSet {
    let topology = &context.host.topology;
    let near = match boundary {
        Boundary::Cpu => delivered.clone(),
        Boundary::Llc => context.llc_cpus(delivered),
        Boundary::Node => node_cpus(context, topology.nodes_of(delivered)),
    };
    near.intersection(&topology.online)
}

fn node_cpus(context: &Context<'_>, nodes: impl IntoIterator<Item = NodeId>) -> CpuSet {
    let nodes = nodes.into_iter().filter_map(|node| context.host.topology.node(node));
    nodes.fold(CpuSet::new(), |all, node| all.union(&node.cpus))
}

fn move_readers(
    context: &Context<'_>,
    readers: &[PinnedReader<'_>],
    near: &CpuSet,
) -> Vec<ProposedChange> {
    if near.is_empty() {
        return Vec::new();
    }
    readers
        .iter()
        .filter(|reader| reader.cpus.intersection(near).is_empty())
        // An idle one reads none of these packets.
        .filter(|reader| context.is_busy(reader.owner) != Some(false))
        .filter_map(|reader| {
            let to = allowed(context.host, reader.owner, near)?;
            Some(ProposedChange::new(
                Proposal::Affinity { pid: reader.owner.pid, tid: None },
                Some(reader.cpus.to_string()),
                to.to_string(),
                "Runs the reader where its packets are delivered.",
            ))
        })
        .collect()
}

/// Readers that are pinned off every node that a NIC or its interrupts are on.
fn by_facts(context: &Context<'_>, outcome: &mut CheckOutcome, readers: &[PinnedReader<'_>]) {
    if context.nodes_with_cpus() < 2 {
        return;
    }
    let nodes = nic_nodes(context);
    if nodes.is_empty() {
        outcome.not_checked("on which node packets arrive is unknown");
        return;
    }
    let near =
        node_cpus(context, nodes.iter().copied()).intersection(&context.host.topology.online);
    let far: Vec<PinnedReader<'_>> = readers
        .iter()
        .filter(|reader| !near.is_empty() && reader.cpus.intersection(&near).is_empty())
        .filter(|reader| context.is_busy(reader.owner) != Some(false))
        .cloned()
        .collect();
    if far.is_empty() {
        return;
    }
    let nodes: Vec<NodeId> = nodes.into_iter().collect();
    let title = format!(
        "{} pinned off the NICs' node {}",
        if far.len() == 1 {
            "A reader is".to_owned()
        } else {
            format!("{} readers are", far.len())
        },
        text::list(&nodes)
    );
    let is_busy = far.iter().any(|reader| context.is_busy(reader.owner) == Some(true));
    let severity =
        severity::of_condition(context, is_busy, context.received_per_s(), severity::TRAFFIC_PER_S);
    let mut finding = Finding::new(severity, title);
    finding.evidence = far.iter().take(10).map(|reader| format!("{}.", reader.words())).collect();
    finding.evidence.push(format!("Packets arrive on {}.", text::cpus(&near)));
    finding.changes = move_readers(context, &far, &near);
    outcome.findings.push(finding);
}

/// The nodes that packets arrive on: of the NICs' interrupts, else of the NICs.
fn nic_nodes(context: &Context<'_>) -> BTreeSet<NodeId> {
    let topology = &context.host.topology;
    let of_nic = |nic: &nearpath_model::Nic| {
        let places = context.queue_irqs(nic).into_iter().filter_map(irq_cpus);
        let cpus = places.fold(CpuSet::new(), |all, cpus| all.union(cpus));
        let by_irq = topology.nodes_of(&cpus);
        if by_irq.is_empty() { nic.numa_node.into_iter().collect() } else { by_irq }
    };
    context.hardware_nics().flat_map(of_nic).collect()
}
