//! Traffic classes of sent packets with a queue each, and a qdisc that schedules them.
//!
//! Input: pairs of a priority (SO_PRIORITY) and a rule, and the interface's transmit queues, qdiscs and speed. Output: one
//! change of its qdiscs: mqprio, or taprio where a class has gates, with ETF or CBS on the queues of the classes; all other
//! packets keep the other queues. The clocks are checked first: without a TAI offset CLOCK_TAI is no time.
//!
//! Rules: tc-mqprio(8), tc-etf(8), tc-taprio(8), tc-cbs(8).

use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use super::{Planner, Request};
use crate::TuneError;
use nearpath_model::{
    Cbs, Classes, Etf, Gates, Host, Mqprio, Nic, PRIORITIES, QdiscTree, Qdiscs, ScheduleClock,
    Scheduler, Taprio, Target,
};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const PLANNER: Planner = Planner {
    name: "schedule",
    plans: "qdiscs that schedule transmission: mqprio, ETF, taprio, CBS",
    run,
};

/// Major number of the root qdisc.
const MAJOR: u16 = 0x100;
/// Bytes that the longest frame takes on the wire, with a VLAN tag, preamble and gap: those of the example in tc-cbs(8).
const FRAME_BYTES: i64 = 1_542;
/// Speed of a link that does not say, in Mbit/s.
const SPEED_MBPS: u64 = 1_000;

/// How packets of a priority are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Their priority, 0 to 15.
    pub priority: u8,
    /// The rule.
    pub rule: ScheduleRule,
    /// Whether the NIC does it.
    pub offload: bool,
}

/// A rule for packets of a priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleRule {
    /// Each at its time (SO_TXTIME), taken from the queue this long before it.
    Etf {
        /// In nanoseconds.
        delta_ns: i32,
    },
    /// Only while their gate is open, which is closed for all others then.
    Gate {
        /// At the start of each cycle, in nanoseconds.
        open_ns: u32,
        /// Length of a cycle, in nanoseconds.
        cycle_ns: u32,
    },
    /// At most at this rate.
    Rate {
        /// In kbit/s.
        kbit_s: i32,
    },
}

impl ScheduleRule {
    fn is_by_clock(self) -> bool {
        !matches!(self, Self::Rate { .. })
    }
}

/// Checks the request, and the clock that it needs.
///
/// # Errors
/// It contradicts itself, names no interface, or CLOCK_TAI is not set.
pub(super) fn check(host: &Host, request: &Request) -> Result<(), TuneError> {
    let all = &request.schedules;
    let refused = |what: &str| Err(TuneError::Refused(what.to_owned()));
    if all.is_empty() {
        return Ok(());
    }
    if request.nics.is_empty() {
        return refused("--schedule needs --nic: it replaces the qdiscs of the interface");
    }
    let priorities: BTreeSet<u8> = all.iter().map(|its| its.priority).collect();
    if priorities.len() < all.len() {
        return refused("--schedule is given twice for the same priority");
    }
    if priorities.last().is_some_and(|&highest| usize::from(highest) >= PRIORITIES) {
        return refused("--schedule: priorities are 0 to 15");
    }
    if all.len() > 1 && all.iter().any(|its| matches!(its.rule, ScheduleRule::Gate { .. })) {
        return refused(
            "--schedule: a gate cannot be combined with other rules: the kernel stops taprio's timer when a qdisc is put \
             below it (taprio_reset, net/sched/sch_taprio.c), and all gates stay as they are",
        );
    }
    let by_clock = all.iter().any(|its| its.rule.is_by_clock());
    match &host.clocks {
        Some(clocks) if by_clock && clocks.tai_offset_s == 0 => refused(
            "CLOCK_TAI is not set (its offset is 0 s), and ETF and taprio send by it: let chrony (leapsectz right/UTC) or \
             ptp4l and phc2sys set it",
        ),
        _ => Ok(()),
    }
}

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let asked = &situation.request.schedules;
    if asked.is_empty() {
        return;
    }
    for nic in situation.nics() {
        if let Err(obstacle) = change(draft, nic, asked) {
            draft.note(format!("no schedule for {}: {obstacle}", nic.name));
        }
    }
    clocks(situation, draft, asked);
}

fn clocks(situation: &Situation<'_>, draft: &mut Draft, asked: &[Schedule]) {
    if !asked.iter().any(|its| its.rule.is_by_clock()) {
        return;
    }
    match &situation.host.clocks {
        None => draft.note("the clocks are unknown: ETF and taprio send by CLOCK_TAI"),
        Some(clocks) if !clocks.synchronised => {
            draft.note("the wall clock is not synchronised, and CLOCK_TAI follows it: let chrony or phc2sys keep it");
        }
        Some(_) => {}
    }
    if asked.iter().any(|its| its.offload && its.rule.is_by_clock()) {
        draft.note("the NIC sends by its own clock, which must follow CLOCK_TAI: run ptp4l and phc2sys, or phc2sys from CLOCK_REALTIME");
    }
    if asked.iter().any(|its| matches!(its.rule, ScheduleRule::Etf { .. })) {
        draft.note("ETF drops packets of its priority that have no time (SO_TXTIME)");
    }
}

fn change(draft: &mut Draft, nic: &Nic, asked: &[Schedule]) -> Result<(), String> {
    let qdiscs = nic.qdiscs.as_ref().ok_or("its qdiscs are unknown")?;
    let before = QdiscTree::of(qdiscs).map_err(|other| {
        format!("it has {other}, which nearpath could not restore; remove it first")
    })?;
    let after = tree(nic, asked)?;
    if before == after {
        return Ok(());
    }
    let all: Vec<String> = asked.iter().map(|its| format!("priority {}", its.priority)).collect();
    draft.add(DraftChange {
        id: format!("{}/qdiscs", nic.name),
        target: Target::from(Qdiscs::new(&nic.name)),
        before: before.to_string().into(),
        after: after.to_string().into(),
        why: format!(
            "packets of {} get a transmit queue of {} each and are scheduled as requested; all others use the \
             other queues",
            all.join(", "),
            nic.name
        ),
        finding: None,
    });
    Ok(())
}

/// The qdiscs for the rules: a queue for each, in their order, and the rest for all other packets.
fn tree(nic: &Nic, asked: &[Schedule]) -> Result<QdiscTree, String> {
    let queues = u16::try_from(nic.tx_queues.len()).unwrap_or(u16::MAX);
    let count = u16::try_from(asked.len()).unwrap_or(u16::MAX);
    let rest = queues.checked_sub(count).filter(|&rest| rest > 0).ok_or_else(|| {
        format!("it has {queues} transmit queues, and each priority and all other packets need one")
    })?;
    let others = u8::try_from(count).map_err(|_| "too many priorities")?;
    let mut map = [others; PRIORITIES];
    for (class, its) in (0u8..).zip(asked) {
        if let Some(at) = map.get_mut(usize::from(its.priority)) {
            *at = class;
        }
    }
    let own = (0..count).map(|queue| (1, queue));
    let classes = Classes { map, queues: own.chain([(rest, count)]).collect() };
    let root = match (0u32..).zip(asked).find_map(|(class, its)| gates(class, others, its)) {
        Some((gates, cycle_ns, offload)) => Scheduler::Taprio(Taprio {
            classes,
            clock: (!offload).then_some(ScheduleClock::Tai),
            base_time_ns: 0,
            cycle_ns,
            gates,
            flags: if offload { Taprio::FULL_OFFLOAD } else { 0 },
            txtime_delay_ns: 0,
        }),
        None => Scheduler::Mqprio(Mqprio { classes, offload: false }),
    };
    let mut leaves = BTreeMap::new();
    for (queue, its) in (0u16..).zip(asked) {
        // The class of a queue is its number plus one (`mqprio_find`, `taprio_find`).
        leaves.extend(leaf(nic, its).map(|leaf| (queue + 1, leaf)));
    }
    Ok(QdiscTree::Scheduled { major: MAJOR, root, classes: leaves })
}

/// The gate list of a class with a gate, the length of its cycle, and whether the NIC does it.
fn gates(class: u32, others: u8, its: &Schedule) -> Option<(Vec<Gates>, i64, bool)> {
    let ScheduleRule::Gate { open_ns, cycle_ns } = its.rule else { return None };
    let mask = 1u32.checked_shl(class)?;
    // All classes up to the last, which is that of other packets.
    let all = (2u32 << others).wrapping_sub(1);
    let entry = |open, interval_ns| Gates { open, interval_ns };
    let list = vec![entry(mask, open_ns), entry(all & !mask, cycle_ns.saturating_sub(open_ns))];
    Some((list, i64::from(cycle_ns), its.offload))
}

fn leaf(nic: &Nic, its: &Schedule) -> Option<Scheduler> {
    match its.rule {
        ScheduleRule::Gate { .. } => None,
        ScheduleRule::Etf { delta_ns } => Some(Scheduler::Etf(Etf {
            clock: ScheduleClock::Tai,
            delta_ns,
            deadline: false,
            offload: its.offload,
            skip_sock_check: false,
        })),
        ScheduleRule::Rate { kbit_s } => {
            let mbps = nic.speed_mbps.filter(|&speed| speed > 0).unwrap_or(SPEED_MBPS);
            let port = i64::try_from(mbps.saturating_mul(1_000)).unwrap_or(i64::MAX / FRAME_BYTES);
            let idle = i64::from(kbit_s).min(port);
            let send = idle - port;
            // tc-cbs(8): the credits that a frame of another class, and one of this class, are worth.
            let hi =
                (FRAME_BYTES * idle).div_euclid(port) + i64::from((FRAME_BYTES * idle) % port != 0);
            let number = |value: i64| i32::try_from(value).unwrap_or(i32::MIN);
            Some(Scheduler::Cbs(Cbs {
                idle_slope: number(idle),
                send_slope: number(send),
                hi_credit: number(hi),
                lo_credit: number(FRAME_BYTES * send / port),
                offload: its.offload,
            }))
        }
    }
}
