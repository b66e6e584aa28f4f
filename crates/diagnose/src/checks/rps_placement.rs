//! RPS that carries packets away from where they are read.
//!
//! Input: the `rps_cpus` of every receive queue, the interrupts' CPUs, the readers and, when
//! there is one, the measured crossing where RPS queues packets. Output: one finding for what
//! was measured, or else one for each NIC whose RPS points to a place where neither its
//! interrupts nor its readers are.
//!
//! Rules: Documentation/networking/scaling.rst (RPS: CPUs in the same memory domain as the
//! interrupting CPU), everoute's analysis of latency tails (netif_rx enqueues to a CPU of another node).

use crate::context::irq_cpus;
use crate::counters::total;
use crate::place::allowed;
use crate::readers::PinnedReader;
use crate::spans::{Boundary, Crossing, crossing, rx_spans};
use crate::steering::{Steered, nic_names, nics_below, rfs_changes, rps_change, steering_evidence};
use crate::{Check, CheckOutcome, Context, cpus_near_node, severity, text};
use nearpath_model::{
    CpuId, CpuSet, Direction, Finding, Measurement, Nic, NicKind, Proposal, ProposedChange,
    Severity, Span, Subject,
};

pub(super) const CHECK: Check = Check::new(
    "rps_placement",
    "RPS that moves packets to a CPU, cache or node where they are not read",
    run,
);

/// The stages after which RPS may move a packet, and those that may come next. RPS does it by
/// queueing a packet for another CPU (`enqueue_to_backlog`); where that is not observed, the stage
/// before it is the last on the old CPU.
const BEFORE: [&str; 3] = ["enqueue_to_backlog", "netif_rx", "napi_gro_receive"];
const AFTER: [&str; 5] =
    ["net_rx_raise", "net_rx_entry", "napi_poll", "process_backlog", "netif_receive_skb"];

/// Share of delivered packets read elsewhere from which the steering is wrong, and up to which
/// it is right whatever the readers' affinities say.
const MOSTLY: f64 = 0.5;
const HARDLY: f64 = 0.1;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.topology.online.len() == 1 {
        return outcome;
    }
    if let Some(nic) = context.nics().find(|n| n.rx_queues.iter().any(|q| q.rps_cpus.is_none())) {
        let why = context.why_unknown(&format!("nic {}", nic.name), "rps_cpus");
        outcome.not_checked(format!("rps_cpus of {} is unknown{why}", nic.name));
    }
    let steered = context.steered();
    let readers = context.pinned_readers();
    let crossed = context.measurement.and_then(|m| {
        // Each stage by itself: on its way through OVS a packet passes several of them.
        BEFORE.into_iter().filter_map(|stage| right_after(m, stage)).max_by(Crossing::by_cost)
    });
    let (measured_queues, others): (Vec<_>, Vec<_>) = steered
        .into_iter()
        .partition(|s| crossed.as_ref().is_some_and(|crossed| reaches(context, s, crossed)));
    if let Some(m) = context.measurement
        && !BEFORE.iter().any(|stage| m.observed(stage))
    {
        outcome.not_checked(
            "the stages before a CPU is chosen were not observed (--detail path does): how many \
             packets RPS moves is not known",
        );
    }
    if let Some(crossed) = crossed {
        measured(context, &mut outcome, &measured_queues, &readers, &crossed);
    } else if context.measurement.is_none() && !others.is_empty() {
        outcome.not_checked("no measurement: how many packets RPS moves is not known");
    }
    by_facts(context, &mut outcome, &others, &readers);
    outcome
}

/// The packets that cross something right after a stage.
fn right_after<'a>(m: &'a Measurement, stage: &str) -> Option<Crossing<'a>> {
    let crossed = crossing(&rx_spans(m, &[stage], &AFTER), m.observed_time_s())?;
    if stage != "enqueue_to_backlog" {
        return Some(crossed);
    }
    // Queued for their NIC, and again for the device above it, as an OVS port is.
    let count = |spans: Vec<&Span>| total(spans.iter().map(|span| span.count));
    let for_nics = count(rx_spans(m, &["napi_gro_receive"], &[stage]));
    let to_upper = m.spans.iter().filter(|s| s.direction == Direction::Rx && s.to == "netif_rx");
    Some(crossed.counting_once(for_nics.min(count(to_upper.collect()))))
}

/// A crossing was measured, which the RPS of some queues makes: is it for the readers?
fn measured(
    context: &Context<'_>,
    outcome: &mut CheckOutcome,
    guilty: &[Steered<'_>],
    readers: &[PinnedReader<'_>],
    crossed: &Crossing<'_>,
) {
    let targets = if crossed.reached.is_empty() {
        guilty.iter().fold(CpuSet::new(), |all, s| all.union(&s.cpus))
    } else {
        crossed.reached.keys().copied().collect()
    };
    let readers_cpus = readers.iter().fold(CpuSet::new(), |all, r| all.union(&r.cpus));
    let read_beyond = context.read_beyond(&targets, crossed.boundary);
    let pinned_elsewhere =
        !readers_cpus.is_empty() && targets.intersection(&readers_cpus).is_empty();
    let misplaced = match read_beyond {
        Some(share) if share >= MOSTLY => true,
        Some(share) => pinned_elsewhere && share >= HARDLY,
        None if readers_cpus.is_empty() => {
            outcome.not_checked(
                "on which CPUs packets are read is not known, neither measured nor by affinity: \
                 RPS may move them to their readers",
            );
            false
        }
        None => pinned_elsewhere,
    };
    if !misplaced {
        return;
    }
    let measured_readers = context.measured_reader_cpus();
    let read_on = if readers_cpus.is_empty() { measured_readers } else { readers_cpus };
    // Steering over a set that holds the readers' CPUs spreads load; only its aim is poor.
    let spread = !guilty.is_empty()
        && guilty.iter().all(|s| s.cpus.len() > 1 && !s.cpus.intersection(&read_on).is_empty());
    let severity = match severity::of_delay(crossed.delay()) {
        Severity::Critical if spread && crossed.boundary == Boundary::Cpu => Severity::Warning,
        severity => severity,
    };
    let names = nic_names(guilty);
    let title = if guilty.is_empty() {
        format!("Packets are moved {}, away from their readers", crossed.boundary.to())
    } else {
        let targets = text::cpus_brief(&targets);
        match crossed.boundary {
            Boundary::Cpu => {
                format!("RPS of {names} moves packets to {targets}, away from their readers")
            }
            Boundary::Llc => {
                format!("RPS of {names} moves packets off their readers' LLC, to {targets}")
            }
            Boundary::Node => {
                format!("RPS of {names} moves packets off their readers' node, to {targets}")
            }
        }
    };
    let mut finding =
        Finding::new(severity, title).share(Some(crossed.share), text::packets(crossed.packets));
    finding.cost.seconds_per_second = crossed.seconds_per_second;
    finding.cost.per_packet_ns = crossed.per_packet_ns();
    finding.cost.max_ns = crossed.main.max_ns;
    let nics = guilty.iter().map(|s| Subject::Nic(s.nic.name.clone()));
    finding = finding.about(nics.chain(Subject::cpus(&targets)));
    finding.evidence = crossed.evidence();
    finding.evidence.extend(steering_evidence(guilty));
    finding.evidence.extend(reader_evidence(read_beyond, crossed.boundary, &targets, readers));
    finding.evidence.extend(net_rx_evidence(context, &targets));
    if guilty.is_empty() {
        finding.evidence.push(
            "No interface of the namespace that was read steers there: look at rps_cpus in the others.".to_owned(),
        );
    }
    let (ports, others): (Vec<_>, Vec<_>) =
        guilty.iter().cloned().partition(|s| !nics_below(context, s.nic).is_empty());
    if !ports.is_empty() {
        finding.evidence.push(format!(
            "RPS of {} steers only a part of its packets, wherever it is aimed: see ovs_port_rps.",
            nic_names(&ports)
        ));
    }
    let arrive = arrival_cpus(crossed);
    let arrives_there =
        arrive.is_empty() || !arrive.intersection(&read_on).is_empty() || read_on.is_empty();
    finding.changes = match (spread, arrives_there) {
        (true, _) if others.is_empty() => Vec::new(),
        (true, _) => rfs_changes(context, &others),
        (false, true) => without_rps(guilty),
        (false, false) => rps_to_readers(context, &others, &read_on),
    };
    if !guilty.is_empty() && !spread {
        finding.changes.extend(reader_changes(context, &targets, readers));
    }
    outcome.findings.push(finding);
}

/// Whether the queue's RPS leads to CPUs that packets were moved to.
fn reaches(context: &Context<'_>, steered: &Steered<'_>, crossed: &Crossing<'_>) -> bool {
    crossed.reached.is_empty()
        || steered.cpus.iter().any(|cpu| crossed.reached.contains_key(&context.place(cpu)))
}

/// The CPUs that at least a tenth of the moved packets came from.
fn arrival_cpus(crossed: &Crossing<'_>) -> CpuSet {
    let all = total(crossed.left.values().copied());
    crossed.left.iter().filter(|(_, n)| **n >= all.div_ceil(10)).map(|(cpu, _)| *cpu).collect()
}

/// `to CPU 1` when it is about CPUs, else what is crossed.
fn place_words(boundary: Boundary, targets: &CpuSet) -> String {
    match boundary {
        Boundary::Cpu => format!("to {}", text::cpus_brief(targets)),
        Boundary::Llc => format!("to another LLC ({})", text::cpus_brief(targets)),
        Boundary::Node => format!("to another node ({})", text::cpus_brief(targets)),
    }
}

fn reader_evidence(
    read_beyond: Option<f64>,
    boundary: Boundary,
    targets: &CpuSet,
    readers: &[PinnedReader<'_>],
) -> Vec<String> {
    let measured = read_beyond.map(|share| {
        format!(
            "{} of the packets delivered on {} were read {}.",
            text::percent(share),
            text::cpus(targets),
            boundary.at()
        )
    });
    let pinned = readers
        .iter()
        .filter(|reader| reader.cpus.intersection(targets).is_empty())
        .take(5)
        .map(|reader| format!("{} is pinned elsewhere.", reader.words()));
    measured.into_iter().chain(pinned).collect()
}

/// How much of NET_RX the targets do.
fn net_rx_evidence(context: &Context<'_>, targets: &CpuSet) -> Option<String> {
    let counts = context.softirqs("NET_RX")?;
    let all = total(counts.values().copied());
    let there = counts.iter().filter(|(cpu, _)| targets.contains(**cpu)).map(|(_, n)| *n);
    let share = crate::counters::ratio(total(there), all)?;
    let (targets, since) = (text::cpus(targets), context.since());
    Some(format!("{targets} ran {} of all NET_RX softirqs {since}.", text::percent(share)))
}

/// RPS off, as packets already arrive where they are read.
fn without_rps(guilty: &[Steered<'_>]) -> Vec<ProposedChange> {
    let why = "Without RPS packets stay on the CPU that they arrive on, which is the readers'.";
    guilty.iter().map(|s| rps_change(s.nic, s.queue, &CpuSet::new(), why)).collect()
}

/// RPS to where packets are read.
fn rps_to_readers(
    context: &Context<'_>,
    guilty: &[Steered<'_>],
    read_on: &CpuSet,
) -> Vec<ProposedChange> {
    let readers = read_on.intersection(&context.host.topology.online);
    let why = "RPS to the readers' CPUs brings packets where they are read.";
    guilty.iter().map(|s| rps_change(s.nic, s.queue, &readers, why)).collect()
}

/// Moving the readers to where packets are delivered, instead of the packets.
fn reader_changes(
    context: &Context<'_>,
    targets: &CpuSet,
    readers: &[PinnedReader<'_>],
) -> Vec<ProposedChange> {
    readers
        .iter()
        .filter(|reader| reader.cpus.intersection(targets).is_empty())
        // An idle one reads none of these packets.
        .filter(|reader| context.is_busy(reader.owner) != Some(false))
        .filter_map(|reader| {
            let why = "Moves the reader to where packets are delivered, instead of the packets.";
            let target = Proposal::Affinity { pid: reader.owner.pid, tid: None };
            let to = allowed(context.host, reader.owner, targets)?.to_string();
            Some(ProposedChange::new(target, Some(reader.cpus.to_string()), to, why).instead())
        })
        .collect()
}

/// Without a measured crossing: what the settings alone say, NIC by NIC.
fn by_facts(
    context: &Context<'_>,
    outcome: &mut CheckOutcome,
    steered: &[Steered<'_>],
    readers: &[PinnedReader<'_>],
) {
    let read_on = readers.iter().fold(CpuSet::new(), |all, reader| all.union(&reader.cpus));
    for queues in
        steered.chunk_by(|a, b| a.nic.ifindex == b.nic.ifindex && a.nic.name == b.nic.name)
    {
        let Some(nic) = queues.first().map(|s| s.nic) else { continue };
        // Packets of internal ports are handled by the check `ovs_port_rps`.
        if nic.kind == NicKind::OvsInternal {
            continue;
        }
        let wrong: Vec<(&Steered<'_>, Boundary, CpuSet)> = queues
            .iter()
            .filter_map(|s| {
                let origin = origin(context, s);
                let boundary = beyond(context, s, &origin, &read_on)?;
                Some((s, boundary, origin))
            })
            .collect();
        let Some(worst) = wrong.iter().map(|(_, boundary, _)| *boundary).max() else { continue };
        outcome.findings.push(fact_finding(context, nic, worst, &wrong, readers));
    }
}

/// Where a queue's packets arrive: the CPUs of its interrupt, else those near the NIC.
fn origin(context: &Context<'_>, s: &Steered<'_>) -> CpuSet {
    let irq = s.queue.irq.and_then(|irq| context.irq(irq)).and_then(irq_cpus);
    match (irq, s.nic.numa_node) {
        (Some(cpus), _) => cpus.clone(),
        (None, Some(node)) => cpus_near_node(&context.host.topology, Some(node)),
        (None, None) => CpuSet::new(),
    }
}

/// The worst boundary between where a queue's packets arrive and all CPUs that RPS gives them
/// to, unless readers are pinned there.
fn beyond(
    context: &Context<'_>,
    s: &Steered<'_>,
    origin: &CpuSet,
    read_on: &CpuSet,
) -> Option<Boundary> {
    let topology = &context.host.topology;
    let misplaced = s.cpus.difference(read_on);
    let (origin_nodes, reader_nodes) = (topology.nodes_of(origin), topology.nodes_of(read_on));
    let off_node = |cpu: CpuId| {
        topology
            .node_of(cpu)
            .is_some_and(|node| !origin_nodes.contains(&node) && !reader_nodes.contains(&node))
    };
    if !origin_nodes.is_empty() && misplaced.iter().any(off_node) {
        return Some(Boundary::Node);
    }
    let near = context.llc_cpus(&origin.union(read_on));
    // Caches matter only for an interrupt that is bound to some of them.
    let bound = !origin.is_empty() && origin.len() < topology.online.len();
    if bound && !near.is_empty() && s.cpus.intersection(&near).is_empty() {
        return Some(Boundary::Llc);
    }
    let readers_apart = !read_on.is_empty() && s.cpus.intersection(read_on).is_empty();
    // Spreading over several CPUs is what RPS is for; a single other CPU only adds a hop.
    (readers_apart && s.cpus.len() == 1 && s.cpus.intersection(origin).is_empty())
        .then_some(Boundary::Cpu)
}

fn fact_finding(
    context: &Context<'_>,
    nic: &Nic,
    worst: Boundary,
    wrong: &[(&Steered<'_>, Boundary, CpuSet)],
    readers: &[PinnedReader<'_>],
) -> Finding {
    let targets = wrong.iter().fold(CpuSet::new(), |all, (s, ..)| all.union(&s.cpus));
    let read_on = readers.iter().fold(CpuSet::new(), |all, reader| all.union(&reader.cpus));
    let received = context.statistic(nic, "rx_packets").and_then(|n| context.rate(n));
    let severity = match worst {
        Boundary::Llc => Severity::Info,
        Boundary::Cpu | Boundary::Node => severity::of_traffic(received),
    };
    let title = format!("RPS of {} steers {}", nic.name, place_words(worst, &targets));
    let share = crate::counters::ratio(wrong.len() as u64, nic.rx_queues.len() as u64);
    let mut finding = Finding::new(severity, title).share(share, "its queues");
    let queues: Vec<Steered<'_>> = wrong.iter().map(|(s, ..)| (*s).clone()).collect();
    finding = finding.about([Subject::Nic(nic.name.clone())]);
    finding.evidence = steering_evidence(&queues);
    let origin = wrong.iter().fold(CpuSet::new(), |all, (_, _, origin)| all.union(origin));
    if !origin.is_empty() {
        finding.evidence.push(format!("Its packets arrive on {}.", text::cpus(&origin)));
    }
    finding.evidence.extend(reader_evidence(None, worst, &targets, readers));
    finding.changes = wrong
        .iter()
        .map(|(s, boundary, origin)| {
            let (after, why) = fixed(context, s, *boundary, origin, &read_on);
            rps_change(s.nic, s.queue, &after, why)
        })
        .collect();
    finding
}

/// What `rps_cpus` should be by facts alone.
fn fixed(
    context: &Context<'_>,
    s: &Steered<'_>,
    boundary: Boundary,
    origin: &CpuSet,
    read_on: &CpuSet,
) -> (CpuSet, &'static str) {
    let topology = &context.host.topology;
    match boundary {
        Boundary::Cpu if origin.is_empty() || !origin.intersection(read_on).is_empty() => {
            (CpuSet::new(), "Without RPS packets stay on the CPU that they arrive on.")
        }
        Boundary::Cpu => (read_on.clone(), "Steers packets to where they are read."),
        Boundary::Llc => {
            let near = context.llc_cpus(origin).intersection(&crate::housekeeping(context.host));
            (near, "Keeps packets under the cache that the interrupt's CPU filled.")
        }
        Boundary::Node => {
            let nodes = topology.nodes_of(&origin.union(read_on));
            let near = |cpu: &CpuId| topology.node_of(*cpu).is_some_and(|n| nodes.contains(&n));
            let kept: CpuSet = s.cpus.iter().filter(near).collect();
            let local = || {
                let node = nodes.first().copied();
                crate::nearest_cpus(context.host, node).into_iter().collect()
            };
            let after = if kept.is_empty() { local() } else { kept };
            (after, "Keeps packets on the node whose memory they are in.")
        }
    }
}
