//! The loops of the prober's threads: send in an open loop, receive, or both alternately. Input: a flow and the
//! send times. Output: answers, recorded in the tally.

use super::Transport;
use super::flow::{Event, Incoming, Outgoing};
use super::plan::LatencyPlan;
use super::slots::Slots;
use super::tally::Accounts;
use crate::clock::now_ns;
use crate::pacer::{Arrivals, Schedule, wait_until};
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pause after a probe that the peer refused.
const NAP: Duration = Duration::from_millis(50);

/// When probes are sent, and which of them count.
pub(super) struct When<'a> {
    pub(super) begin_ns: u64,
    pub(super) count_from_ns: u64,
    pub(super) end_ns: u64,
    pub(super) stop: &'a AtomicBool,
    /// The sockets are being shut down: what wakes a reader is not an answer.
    pub(super) waking: &'a AtomicBool,
}

/// Sends everything that is due, however late. Returns how many probes were not sent because it was stopped.
pub(super) fn send_all(
    mut schedule: Schedule,
    spin: bool,
    when: &When<'_>,
    slots: &Slots,
    outgoing: &mut Outgoing,
) -> io::Result<u64> {
    // A sleep ends on time, not up to 50µs later to coalesce timers.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let lead_ns = outgoing.scheduled.as_ref().map_or(0, |scheduled| scheduled.lead_ns);
    let mut counting = false;
    let mut stopped = false;
    while schedule.next_ns() < when.end_ns {
        let intended_ns = schedule.next_ns();
        stopped = !wait_until(intended_ns.saturating_sub(lead_ns), spin, when.stop);
        if stopped {
            break;
        }
        if !counting && intended_ns >= when.count_from_ns {
            slots.begin(outgoing.sequence());
            outgoing.scheduled.iter_mut().for_each(|its| its.begin(intended_ns));
            counting = true;
        }
        outgoing.send(Some(intended_ns))?;
        schedule.advance();
        outgoing.take_stamps();
    }
    let schedule_end_ns = schedule.next_ns();
    let not_sent = if stopped { schedule.overdue(now_ns()) } else { 0 };
    if !counting {
        slots.begin(outgoing.sequence());
    }
    slots.end(outgoing.sequence());
    outgoing.scheduled.iter_mut().for_each(|its| its.end(schedule_end_ns));
    // A probe that does not count: its answer makes the receiver check whether it is finished.
    outgoing.send(None)?;
    outgoing.take_stamps();
    Ok(not_sent)
}

/// [`wait_until`] for callers that know the time: the clock is not read again if there is nothing to wait for.
fn should_continue(ns: u64, now: u64, spin: bool, stop: &AtomicBool) -> bool {
    if now < ns { wait_until(ns, spin, stop) } else { !stop.load(Ordering::Relaxed) }
}

/// Receives until every probe that counts is answered, or the wait is ended.
pub(super) fn receive_all(
    when: &When<'_>,
    incoming: &mut Incoming,
    accounts: &mut Accounts<'_>,
) -> io::Result<()> {
    loop {
        let event = incoming.next();
        if when.waking.load(Ordering::Acquire) && !matches!(event, Ok(Event::Answer(_))) {
            return Ok(());
        }
        match event {
            Ok(Event::Answer(answer)) => {
                accounts.answer(answer);
                if accounts.complete() {
                    return Ok(());
                }
            }
            Ok(Event::Other) => accounts.ignore(),
            Ok(Event::Timeout) => {}
            Ok(Event::Closed) => return Err(closed()),
            // The probe that caused the error is lost, and counted as such.
            Err(reason) if is_about_a_probe(&reason) => {}
            Err(reason) => return Err(reason),
        }
    }
}

/// Whether the error is an ICMP report about a datagram sent before.
fn is_about_a_probe(reason: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(reason.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the reflector has closed the connection")
}

/// One probe after the other, each after the previous one was answered or timed out.
pub(super) fn ping_pong(
    plan: &LatencyPlan,
    number: u32,
    when: &When<'_>,
    slots: &Slots,
    outgoing: &mut Outgoing,
    incoming: &mut Incoming,
    accounts: &mut Accounts<'_>,
) -> io::Result<()> {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    incoming.wait_at_most(Some(plan.late_after))?;
    let mut schedule = plan.rate_per_s.map(|rate| {
        Schedule::new(when.begin_ns, rate, (number, plan.connections), Arrivals::Constant)
    });
    let mut counting = false;
    // The clock is read twice per probe, when it is sent and when its answer has been read.
    let mut now = now_ns();
    loop {
        let mut due_ns = when.begin_ns;
        if let Some(schedule) = &mut schedule {
            schedule.skip_to(now);
            due_ns = schedule.next_ns();
        }
        if now.max(due_ns) >= when.end_ns || !should_continue(due_ns, now, plan.spin, when.stop) {
            break;
        }
        if !counting && now.max(due_ns) >= when.count_from_ns {
            slots.begin(outgoing.sequence());
            counting = true;
        }
        let sequence = outgoing.sequence();
        outgoing.send(None)?;
        outgoing.take_stamps();
        let give_up_ns = outgoing.last_ns + nanoseconds(plan.late_after);
        loop {
            match incoming.next() {
                Ok(Event::Answer(answer)) => {
                    now = answer.read_ns;
                    accounts.answer(answer);
                    if answer.sequence == sequence {
                        break;
                    }
                }
                Ok(Event::Other) => accounts.ignore(),
                Ok(Event::Timeout) => {}
                Ok(Event::Closed) => return Err(closed()),
                // A pause instead of the answer, so that a closed port is not flooded.
                Err(reason) if plan.transport == Transport::Udp && is_about_a_probe(&reason) => {
                    wait_until(give_up_ns.min(now_ns() + nanoseconds(NAP)), false, when.stop);
                    now = now_ns();
                    break;
                }
                Err(reason) => return Err(reason),
            }
            now = now_ns();
            if now >= give_up_ns {
                break;
            }
        }
    }
    if !counting {
        slots.begin(outgoing.sequence());
    }
    slots.end(outgoing.sequence());
    Ok(())
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}
