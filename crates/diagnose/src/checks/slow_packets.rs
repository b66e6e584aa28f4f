//! What slow packets waited for, by name.
//!
//! Input: the budgets of the packets that were slow, summed by cause. Output: one finding for
//! each task, interrupt or softirq that took a large part of that time.
//!
//! Rule: everoute's analysis of latency tails (a tail has a cause on the CPU that should have run the packet).

mod words;

use crate::counters::total;
use crate::place::{allowed, spared};
use crate::severity::LATE_NS;
use crate::{Check, CheckOutcome, Context, readers, severity, text};
use nearpath_model::{
    CpuSet, Culprit, Direction, Finding, IrqNumber, Measurement, NicKind, Outlier, Proposal,
    ProposedChange, SettingFile, Severity, Share, ShareKind, Span, Subject, Whose,
};
use std::collections::BTreeSet;
use words::{
    ASLEEP_IN_POLL, ASLEEP_ON_PURPOSE, DEVICE_READER, OBSERVER, READER, blocked, name_of, queue,
    words,
};

pub(super) const CHECK: Check =
    Check::new("slow_packets", "what slow packets waited for: tasks, interrupts, softirqs", run)
        .explained_by(&["cpu_steal", "nfqueue"]);

/// Slow packets from which their causes say something.
pub(super) const ENOUGH: u64 = 20;
/// The same if they are late one with another: the overhead limit leaves few packets to look at where the CPUs are
/// busy.
const ENOUGH_LATE: u64 = 5;
/// Minimum share of the slow packets' time to report a cause.
const NOTABLE: f64 = 0.25;
/// The same where there are fewer than [`ENOUGH`].
const NOTABLE_OF_FEW: f64 = 0.5;
/// The same for packets ahead, which there are on any busy host.
const NOTABLE_AHEAD: f64 = 0.5;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measurement) = context.measurement else {
        outcome.not_checked("no measurement: how long packets wait is not known");
        return outcome;
    };
    let slow = measurement.slow;
    if slow.seen < ENOUGH {
        if slow.seen >= ENOUGH_LATE && slow.span_ns / slow.seen >= LATE_NS {
            outcome.findings = of_few(findings(context, measurement, NOTABLE_OF_FEW));
        }
        if slow.seen > 0 && outcome.findings.is_empty() {
            outcome.not_checked(format!(
                "{} {} slow and analysed: too few to name a cause",
                text::count(slow.seen, "packet"),
                if slow.seen == 1 { "was" } else { "were" },
            ));
        }
        return outcome;
    }
    outcome.findings = findings(context, measurement, NOTABLE);
    outcome
}

/// Few packets may all have met the same moment: they are no more than a warning, and nothing if they are rare.
fn of_few(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.retain(|finding| finding.severity > Severity::Info);
    for finding in &mut findings {
        finding.severity = Severity::Warning;
    }
    findings
}

/// The causes with at least such a share of the slow packets' time.
fn findings(context: &Context<'_>, measurement: &Measurement, notable: f64) -> Vec<Finding> {
    let slow = measurement.slow;
    let mut found = Vec::new();
    let causes = causes(measurement);
    let is_observer = |cause: &Share| cause.who.as_ref().is_some_and(|who| who.nearpath);
    // What nearpath had is gone when nobody measures: others are not the smaller for it.
    let own = total(causes.iter().filter(|cause| is_observer(cause)).map(|cause| cause.ns));
    let others = slow.span_ns.saturating_sub(own).max(1);
    let share_of = |ns: u64| (ns as f64 / others as f64).min(1.0);
    let own_share_of = |ns: u64| (ns as f64 / slow.span_ns.max(1) as f64).min(1.0);
    let is_notable = |cause: &Share| {
        let notable = match cause.share {
            ShareKind::NetRxAhead => NOTABLE_AHEAD,
            _ => notable,
        };
        match is_observer(cause) {
            true => own_share_of(cause.ns) >= notable,
            false => share_of(cause.ns) >= notable,
        }
    };
    let (notable, others): (Vec<&Share>, Vec<&Share>) =
        causes.iter().partition(|cause| is_notable(cause));
    for (number, cause) in notable.iter().enumerate() {
        // Several tasks of a program take turns: to move one of them helps the others. Readers wait for each other.
        let reads = |one: &&Share| {
            let pid = one.who.as_ref().and_then(|who| who.pid);
            context.host.owners.iter().any(|owner| Some(owner.pid) == pid)
        };
        let program: Vec<&Share> =
            causes.iter().filter(|other| is_same_program(cause, other) && !reads(other)).collect();
        if program.len() < 2 || reads(cause) {
            let share = match is_observer(cause) {
                true => own_share_of(cause.ns),
                false => share_of(cause.ns),
            };
            found.extend(finding(context, measurement, cause, &[], share));
        } else if !notable.iter().take(number).any(|earlier| is_same_program(cause, earlier)) {
            let ns = total(program.iter().map(|cause| cause.ns));
            let all = Share { share: cause.share, ns, who: None };
            found.extend(finding(context, measurement, &all, &program, share_of(ns)));
        }
    }
    // Many that each had a little, as of a busy host.
    for kind in CROWDS {
        let crowd: Vec<&Share> = others
            .iter()
            .copied()
            .filter(|cause| cause.share == kind && cause.who.is_some() && !is_observer(cause))
            .collect();
        let all = Share { share: kind, ns: total(crowd.iter().map(|cause| cause.ns)), who: None };
        if crowd.len() > 1 && is_notable(&all) {
            found.extend(finding(context, measurement, &all, &crowd, share_of(all.ns)));
        }
    }
    found
}

/// The causes, largest first. A reader that is blocked in one place is one cause, whatever wakes it; what woke it most
/// of the time is kept.
fn causes(measurement: &Measurement) -> Vec<Share> {
    let mut causes: Vec<Share> = Vec::new();
    // The largest first, so that what most packets of a cause waited for describes it.
    let mut totals: Vec<&Share> = measurement.budget_totals.iter().collect();
    totals.sort_by_key(|cause| std::cmp::Reverse(cause.ns));
    for cause in totals {
        match causes.iter_mut().find(|other| is_same_cause(other, cause)) {
            Some(same) => same.ns = same.ns.saturating_add(cause.ns),
            None => causes.push(cause.clone()),
        }
    }
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.ns));
    causes
}

/// Whether two shares have the same cause, what woke a reader aside. A task that had the CPU is one, whether packets
/// waited for NET_RX meanwhile or for their reader.
fn is_same_cause(a: &Share, b: &Share) -> bool {
    let reader = |who: &Culprit| Culprit { woken_by: None, ..who.clone() };
    let is_task = |cause: &Share| {
        HAS_THE_CPU.contains(&cause.share)
            && cause.who.as_ref().is_some_and(|who| who.pid.is_some())
    };
    (a.share == b.share || is_task(a) && is_task(b))
        && a.who.as_ref().map(reader) == b.who.as_ref().map(reader)
}

/// What a task that has a CPU keeps from it.
const HAS_THE_CPU: [ShareKind; 3] = [ShareKind::Task, ShareKind::Disabled, ShareKind::Runqueue];

/// Whether two causes are tasks with the same name, or the same, that did the same.
fn is_same_program(a: &Share, b: &Share) -> bool {
    let comm = |cause: &Share| -> Option<String> {
        let who = cause.who.as_ref().filter(|who| who.pid.is_some() && !who.nearpath)?;
        who.comm.clone()
    };
    let is_task = |cause: &Share| HAS_THE_CPU.contains(&cause.share);
    is_task(a) && is_task(b) && comm(a).is_some() && comm(a) == comm(b)
}

/// What several tasks or interrupts may do one after the other.
const CROWDS: [ShareKind; 5] =
    [ShareKind::Runqueue, ShareKind::Task, ShareKind::Disabled, ShareKind::Irq, ShareKind::Softirq];
/// Outliers whose ports are noted.
const MOST_PORTS: usize = 64;
/// Those of a crowd that are named.
const NAMED: usize = 3;
/// From this share of the slow packets' time on, what nearpath took explains their other symptoms.
const MOST: f64 = 0.5;
/// Tasks of a program that are moved.
const MOST_MOVED: usize = 16;

/// Stages from which received packets may be taken into a queue that is not known.
const BEFORE_SOCKETS: [&str; 5] =
    ["netif_receive_skb", "ip_rcv", "ipv6_rcv", "udp_rcv", "udpv6_rcv"];

/// Whether a crowd is that of one program.
fn is_program(crowd: &[&Share]) -> bool {
    crowd.first().is_some_and(|first| crowd.iter().all(|other| is_same_program(first, other)))
}

/// A cause with its share of the slow packets' time; `crowd` are those that it is the sum of.
fn finding(
    context: &Context<'_>,
    measurement: &Measurement,
    cause: &Share,
    crowd: &[&Share],
    share: f64,
) -> Option<Finding> {
    let is_reader = is_reader_itself(measurement, cause);
    let is_nearpath = cause.who.as_ref().is_some_and(|who| who.nearpath);
    // What is sent to a tun or tap is read by a program.
    let is_sent = cause.share == ShareKind::Held
        && cause.who.is_some()
        && outliers_of(measurement, cause).any(|outlier| outlier.direction == Direction::Tx);
    if is_sent && !context.host.nics.iter().any(|nic| nic.kind == NicKind::Tap) {
        // Without such a device: some drivers free sent packets at the next transmit, in the sender's context.
        return None;
    }
    let (doing, hint) = match (is_reader, is_sent) {
        (true, _) => READER,
        (_, true) => DEVICE_READER,
        _ => words(cause)?,
    };
    let hint = if is_nearpath { OBSERVER } else { hint };
    let name = match (&cause.who, cause.share) {
        (_, ShareKind::TcpGap) => "missing TCP segments".to_owned(),
        (_, ShareKind::Nic) => "the NIC".to_owned(),
        (Some(who), ShareKind::Qdisc | ShareKind::DeviceQueue) => queue(who, cause.share),
        (Some(who), _) => name_of(who),
        (None, ShareKind::Stolen) => "the hypervisor".to_owned(),
        (None, ShareKind::Offline) => "a CPU".to_owned(),
        (None, ShareKind::Held) => "something".to_owned(),
        (None, _) if is_program(crowd) => {
            let comm = crowd.iter().find_map(|one| one.who.as_ref()?.comm.as_deref());
            let tasks = text::count(crowd.len() as u64, "task");
            format!("{tasks} of {}", text::clean(comm.unwrap_or_default()))
        }
        (None, kind) if !crowd.is_empty() => match kind {
            ShareKind::Irq => text::count(crowd.len() as u64, "interrupt"),
            ShareKind::Softirq => "several softirqs".to_owned(),
            _ => text::count(crowd.len() as u64, "task"),
        },
        (None, _) => "packets ahead of them".to_owned(),
    };
    let cpus: CpuSet = outliers_of(measurement, cause).map(|outlier| outlier.cpu).collect();
    // Where a reader was moved from it waited.
    let left = cause.who.as_ref().and_then(|who| who.cpu);
    let cpus = left.map_or(cpus, |cpu| CpuSet::from_iter([cpu]));
    let place = match cpus.is_empty() {
        true => String::new(),
        false => format!(" on {}", text::cpus_brief(&cpus)),
    };
    let slow = measurement.slow;
    let had = |cause: &&Share| cause.who.as_ref().is_some_and(|who| who.nearpath);
    let own = match is_nearpath {
        true => 0,
        false => total(measurement.budget_totals.iter().filter(had).map(|cause| cause.ns)),
    };
    let spans: BTreeSet<(&str, &str)> = outliers_of(measurement, cause)
        .map(|outlier| (outlier.from.as_str(), outlier.to.as_str()))
        .collect();
    let late = severity::late_packets(measurement, spans.iter().copied());
    // At the least those that were looked at, if they are late one with another.
    let looked_at = slow.seen.saturating_add(slow.lost);
    let late = if slow.span_ns / slow.seen >= LATE_NS { late.max(looked_at) } else { late };
    let observed_s = measurement.observed_time_s();
    let severity = severity::of_tail(late as f64 * share, measurement.packets.started, observed_s);
    // Where every packet is watched, nothing has to be inferred from those that were followed.
    let is_watched = || outliers_of(measurement, cause).any(|o| o.from == readers::STAMP);
    let severity = match severity::watched_tail(measurement) {
        Some(watch) if is_watched() => {
            let all = severity::of_tail(watch.late as f64 * share, watch.packets, watch.watched_s);
            if watch.is_whole() { all } else { severity.max(all) }
        }
        _ => severity,
    };
    // It is gone when nobody measures.
    let severity = if is_nearpath { Severity::Info } else { severity };
    let on = cause.who.as_ref().and_then(|who| who.on.as_deref()).map(text::clean);
    let title = match (cause.share, on.as_deref()) {
        _ if is_reader && !crowd.is_empty() => {
            let readers = text::count(crowd.len() as u64, "busy reader");
            format!("Slow packets wait for {readers}{place}")
        }
        _ if is_nearpath => format!("Slow packets wait for nearpath itself, {name}{place}"),
        _ if is_reader => format!("Slow packets wait for their reader {name}, busy{place}"),
        (ShareKind::Asleep, Some("stopped")) => {
            format!("Slow packets wait for {name}, stopped by a signal")
        }
        (ShareKind::Asleep, Some("frozen")) => {
            format!("Slow packets wait for {name}, frozen with its cgroup")
        }
        (ShareKind::Asleep, Some(on)) => format!("Slow packets wait for {name}, blocked in {on}"),
        (ShareKind::Throttled, _) => format!("Slow packets wait for {name}, out of CPU quota"),
        (ShareKind::Held, _) if is_sent => {
            format!("Slow packets wait for {name} to read its device")
        }
        (ShareKind::Held, _) => match &cause.who {
            Some(_) => format!("Slow packets are held by {name} before their socket"),
            None => "Slow packets are held in a queue before their socket".to_owned(),
        },
        _ => format!("Slow packets wait for {name}{place}"),
    };
    let watched_s = measurement.watch.as_ref().map_or(0.0, |watch| watch.recorded_s);
    let seconds = cause.ns as f64 / 1e9 / observed_s.max(watched_s).max(f64::MIN_POSITIVE);
    let mut finding = Finding::new(severity, title)
        .of(match is_nearpath && share >= MOST {
            true => Whose::Nearpath,
            false => whose(cause.share, is_reader),
        })
        .share(Some(share), "the time of slow packets")
        .evidence(format!(
            "{} of the {} that {} took{}: {} {doing}.",
            text::percent(share),
            text::time(slow.span_ns.saturating_sub(own)),
            text::count(slow.seen, "slow packet"),
            if own > 0 { " (without nearpath's own part)" } else { "" },
            name,
        ));
    if !crowd.is_empty() {
        let part = |one: &&Share| {
            let who = one.who.as_ref().map_or_else(String::new, name_of);
            format!("{who} {}", text::percent(one.ns as f64 / cause.ns.max(1) as f64))
        };
        let named: Vec<String> = crowd.iter().take(NAMED).map(part).collect();
        finding = finding.evidence(format!("Of that, most had: {}.", named.join(", ")));
    }
    if let Some(blocked) = cause.who.as_ref().and_then(blocked) {
        finding = finding.evidence(blocked);
    }
    let hint = match (cause.share, on.as_deref()) {
        (ShareKind::Asleep, Some("poll")) => ASLEEP_IN_POLL,
        (ShareKind::Asleep, Some("nanosleep")) => ASLEEP_ON_PURPOSE,
        _ => hint,
    };
    finding.cost.seconds_per_second = Some(seconds);
    finding.cost.max_ns = outliers_of(measurement, cause).map(|outlier| outlier.span_ns).max();
    if let Some(worst) = measurement.outliers.first() {
        finding = finding.evidence(format!(
            "The slowest took {} from {} to {}.",
            text::time(worst.span_ns),
            text::clean(&worst.from),
            text::clean(&worst.to)
        ));
    }
    finding = finding.evidence(hint);
    if let Some(watch) = severity::watched_tail(measurement) {
        finding = finding.evidence(format!(
            "{} of {} received packets were later than {}.",
            watch.late,
            watch.packets,
            text::time(watch.late_ns)
        ));
    }
    if slow.lost > 0 {
        let lost = slow.lost;
        finding = finding.evidence(format!("{lost} more arrived too fast to be analysed."));
    }
    let about = spans.into_iter().map(|(from, to)| Subject::Span(from.into(), to.into()));
    let ports = outliers_of(measurement, cause)
        .take(MOST_PORTS)
        .flat_map(|outlier| context.ports_read_of(outlier));
    finding = finding.about(about.chain(Subject::cpus(&cpus)).chain(ports.map(Subject::Port)));
    if cause.share == ShareKind::Stolen {
        finding = finding.about([Subject::Hypervisor]);
    }
    if cause.share == ShareKind::Held {
        let is_late = |span: &&Span| {
            BEFORE_SOCKETS.contains(&span.from.as_str())
                && span.p50_ns.is_some_and(|ns| ns >= LATE_NS)
        };
        let late = measurement.spans.iter().filter(is_late);
        finding = finding.about(late.map(|span| Subject::Span(span.from.clone(), span.to.clone())));
    }
    // A task that is kept from running should not be moved, nor a reader away from itself.
    if !is_reader
        && !is_nearpath
        && matches!(
            cause.share,
            ShareKind::Task
                | ShareKind::Disabled
                | ShareKind::Runqueue
                | ShareKind::Migration
                | ShareKind::Irq
        )
    {
        let moved = cause
            .who
            .iter()
            .chain(crowd.iter().filter(|_| is_program(crowd)).filter_map(|one| one.who.as_ref()));
        let changes = moved.filter_map(|who| change(context, who, &cpus));
        finding.changes.extend(changes.take(MOST_MOVED));
    }
    Some(finding)
}

/// Who can do something about a cause.
fn whose(share: ShareKind, is_reader: bool) -> Whose {
    match share {
        _ if is_reader => Whose::Application,
        ShareKind::Asleep | ShareKind::SocketLocked | ShareKind::Held => Whose::Application,
        ShareKind::Throttled => Whose::Quota,
        ShareKind::Qdisc => Whose::Shaper,
        ShareKind::TcpGap => Whose::Network,
        ShareKind::Stolen => Whose::Hypervisor,
        ShareKind::SocketFull => Whose::Peer,
        _ => Whose::Host,
    }
}

/// Whether the cause is the reader itself, busy with something else: of packets that have arrived in its socket, `task`
/// is no other (docs/measuring.md, "Budgets").
fn is_reader_itself(measurement: &Measurement, cause: &Share) -> bool {
    let mut of = outliers_of(measurement, cause).peekable();
    cause.share == ShareKind::Task
        && of.peek().is_some()
        && of.all(|outlier| readers::READ.contains(&outlier.to.as_str()))
}

/// The slow packets in whose budgets the cause is.
fn outliers_of<'a>(
    measurement: &'a Measurement,
    cause: &'a Share,
) -> impl Iterator<Item = &'a Outlier> {
    let is_it = |part: &Share| match cause.who {
        Some(_) => is_same_cause(part, cause),
        None => part.share == cause.share,
    };
    measurement.outliers.iter().filter(move |outlier| outlier.budget.iter().any(is_it))
}

/// Off the CPUs where it kept packets waiting, if others are left and it can be moved.
fn change(context: &Context<'_>, who: &Culprit, cpus: &CpuSet) -> Option<ProposedChange> {
    // The kernel keeps it where it is.
    if cpus.is_empty() || (who.irq.is_none() && who.bound == Some(true)) {
        return None;
    }
    let others = others(context, who, cpus)?;
    let target = match (who.pid, who.irq) {
        (Some(pid), _) => Proposal::Affinity { pid, tid: None },
        (_, Some(irq)) => SettingFile::irq_affinity(IrqNumber(irq)).into(),
        _ => return None,
    };
    Some(ProposedChange {
        target,
        before: None,
        after: others.to_string().into(),
        why: format!("Packets wait for it on {}.", text::cpus(cpus)),
        alternative: false,
        netns: None,
    })
}

/// The CPUs that it may be moved to: on the same nodes if some are left there, where its memory is.
fn others(context: &Context<'_>, who: &Culprit, cpus: &CpuSet) -> Option<CpuSet> {
    let topology = &context.host.topology;
    let others = topology.online.difference(cpus);
    let owner = |pid| context.host.owners.iter().find(move |owner| owner.pid == pid);
    let others = match who.pid.and_then(owner) {
        Some(owner) => allowed(context.host, owner, &others)?,
        None => others.difference(&spared(context.host)),
    };
    let nodes = topology.nodes_of(cpus);
    let near: CpuSet = others
        .iter()
        .filter(|cpu| topology.node_of(*cpu).is_some_and(|node| nodes.contains(&node)))
        .collect();
    let chosen = if near.is_empty() { others } else { near };
    (!chosen.is_empty()).then_some(chosen)
}
