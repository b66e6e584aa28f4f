//! What the prober's threads do: send in open loop, receive, or both in turns. In go a flow and when probes
//! are sent, out come answers in the accounts.

use super::Transport;
use super::flow::{Event, Incoming, Outgoing};
use super::plan::LatencyPlan;
use super::schedule::{Arrivals, Schedule};
use super::slots::Slots;
use super::tally::Accounts;
use crate::clock::{now_ns, sleep_until};
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest single sleep of a thread that can be told to stop.
const NAP: Duration = Duration::from_millis(50);

/// When probes are sent, and which of them count.
pub(super) struct When<'a> {
    pub(super) begin_ns: u64,
    pub(super) count_from_ns: u64,
    pub(super) end_ns: u64,
    pub(super) stop: &'a AtomicBool,
    /// The sockets are being shut: what wakes a reader is no answer.
    pub(super) waking: &'a AtomicBool,
}

/// Sends all that is due, however late it has become. Returns how many of them were not sent because
/// it was told to stop.
pub(super) fn send_all(
    mut schedule: Schedule,
    spin: bool,
    when: &When<'_>,
    slots: &Slots,
    outgoing: &mut Outgoing,
) -> io::Result<u64> {
    // A sleep ends at its time, not up to 50 µs later so that timers can be joined.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut counting = false;
    let mut stopped = false;
    while schedule.next_ns() < when.end_ns {
        let intended_ns = schedule.next_ns();
        stopped = !wait_until(intended_ns, spin, when.stop);
        if stopped {
            break;
        }
        if !counting && intended_ns >= when.count_from_ns {
            slots.begin(outgoing.sequence());
            counting = true;
        }
        outgoing.send(Some(intended_ns))?;
        schedule.advance();
        outgoing.take_stamps();
    }
    let not_sent = if stopped { schedule.overdue(now_ns()) } else { 0 };
    if !counting {
        slots.begin(outgoing.sequence());
    }
    slots.end(outgoing.sequence());
    // One that does not count: its answer tells the receiver to look whether all is there.
    outgoing.send(None)?;
    outgoing.take_stamps();
    Ok(not_sent)
}

/// `false` when it was told to stop.
fn wait_until(ns: u64, spin: bool, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let now = now_ns();
        if now >= ns {
            return true;
        }
        if spin {
            std::hint::spin_loop();
        } else {
            sleep_until(ns.min(now + nanoseconds(NAP)));
        }
    }
}

/// The same for who knows the time: it is not looked at again where nothing is to be waited for.
fn goes_on(ns: u64, now: u64, spin: bool, stop: &AtomicBool) -> bool {
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
            // The probe that it is about is lost, and counted as that.
            Err(reason) if is_about_a_probe(&reason) => {}
            Err(reason) => return Err(reason),
        }
    }
}

/// What ICMP tells of a datagram that was sent before.
fn is_about_a_probe(reason: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(reason.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the reflector has ended the connection")
}

/// One probe after the other, each when the one before was answered or given up.
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
    // Of each probe the clock is read twice, as it is sent and as its answer has been read.
    let mut now = now_ns();
    loop {
        let mut due_ns = when.begin_ns;
        if let Some(schedule) = &mut schedule {
            schedule.skip_to(now);
            due_ns = schedule.next_ns();
        }
        if now.max(due_ns) >= when.end_ns || !goes_on(due_ns, now, plan.spin, when.stop) {
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
                // A pause in place of the answer, so that a closed port is not flooded.
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
