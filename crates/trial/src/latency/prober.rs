//! The prober. Input: a plan and a callback that controls the duration. Output: a report.

use super::LatencyError;
use super::flow::{Event, Flow, Outgoing};
use super::loops::{When, nanoseconds, ping_pong, receive_all, send_all};
use super::plan::{LatencyPlan, Loop};
use super::report::{LatencyReport, Progress, Run};
use super::slots::Slots;
use super::tally::{Accounts, Splitting, Tally};
use super::txtime::Seen;
use crate::affinity;
use crate::clock::now_ns;
use crate::pacer::{Arrivals, Schedule};
use nearpath_model::CpuSet;
use rustix::net::Shutdown;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Shortest timeout of the reflector's first answer, and the interval of its retries.
const HELLO: Duration = Duration::from_secs(2);
const HELLO_AGAIN: Duration = Duration::from_millis(200);
/// How long to wait until the kernels of both sides timestamp received packets, and the interval of probes
/// until then. A kernel enables timestamps in a worker (`net_enable_timestamp` in net/core/dev.c), which may
/// be late on a busy machine; a kernel without timestamps is not waited for longer than this.
const STAMPS: Duration = Duration::from_secs(1);
const STAMPS_AGAIN: Duration = Duration::from_millis(1);
/// Delay from the start of the threads to the first probe.
const RUN_UP: Duration = Duration::from_millis(20);

/// A flow with the state shared by its threads.
struct Lane {
    flow: Flow,
    number: u32,
    slots: Arc<Slots>,
    tally: Mutex<Tally>,
}

/// Sends probes and collects answers. `should_continue` waits for the given time and returns whether to
/// continue; `each` receives the interval's answers.
///
/// # Errors
/// An invalid plan, a reflector that does not answer, a connection that failed.
pub fn measure_latency(
    plan: &LatencyPlan,
    interval: Option<Duration>,
    should_continue: &dyn Fn(Duration) -> bool,
    each: &mut dyn FnMut(&Progress),
) -> Result<LatencyReport, LatencyError> {
    let wait = |time| if should_continue(time) { Wake::GoOn } else { Wake::End };
    probe(plan, interval, &wait, each)
}

/// The probes of a benchmark that are about to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marked {
    /// The number of the run, which every probe has.
    pub session: u64,
    /// The number of the first probe that counts; those before it are the first contact.
    pub first: u64,
    /// The number after the last one.
    pub end: u64,
}

/// Like [`measure_latency`] of one flow at a constant rate without warm-up, for callers that observe the probes on their
/// way: `ready` is called before the first that counts is sent. Also returns how many were sent that do not count.
///
/// # Errors
/// As [`measure_latency`], and those of `ready`.
pub fn measure_marked<E: From<LatencyError>>(
    plan: &LatencyPlan,
    should_continue: &dyn Fn(Duration) -> bool,
    ready: &mut dyn FnMut(Marked) -> Result<(), E>,
) -> Result<(LatencyReport, u64), E> {
    let mode = Loop::Open(Arrivals::Constant);
    let plan = LatencyPlan { mode, connections: 1, warm_up: Duration::ZERO, ..plan.clone() };
    let wait = |time| if should_continue(time) { Wake::GoOn } else { Wake::End };
    let (session, lanes) = start(&plan)?;
    let first = lanes.first().map_or(0, |lane| lane.flow.outgoing.sequence());
    let schedule = Schedule::new(0, plan.rate_per_s.unwrap_or(1), (0, 1), Arrivals::Constant);
    let end = first + schedule.overdue(nanoseconds(plan.duration));
    ready(Marked { session, first, end })?;
    // One more is sent at the end, which does not count.
    Ok((probe_flows(&plan, lanes, None, &wait, &mut |_| {})?, first + 1))
}

/// What to do after a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    /// Go on.
    GoOn,
    /// Report an interval immediately, and continue.
    Look,
    /// End.
    End,
}

/// Like [`measure_latency`], for callers that also report intervals at times of their choice.
pub(super) fn probe(
    plan: &LatencyPlan,
    interval: Option<Duration>,
    wait: &dyn Fn(Duration) -> Wake,
    each: &mut dyn FnMut(&Progress),
) -> Result<LatencyReport, LatencyError> {
    let (_, lanes) = start(plan)?;
    probe_flows(plan, lanes, interval, wait, each)
}

/// Opens all flows; the reflector has answered on each of them.
fn start(plan: &LatencyPlan) -> Result<(u64, Vec<Lane>), LatencyError> {
    plan.check()?;
    if let Some(cpus) = &plan.cpus {
        // Tried in a temporary thread, so that an error is reported before anything is sent.
        let tried = thread::scope(|scope| scope.spawn(|| affinity::pin(cpus)).join());
        tried
            .unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
            .map_err(LatencyError::of("--cpus"))?;
    }
    open(plan)
}

fn probe_flows(
    plan: &LatencyPlan,
    mut lanes: Vec<Lane>,
    interval: Option<Duration>,
    wait: &dyn Fn(Duration) -> Wake,
    each: &mut dyn FnMut(&Progress),
) -> Result<LatencyReport, LatencyError> {
    let no_stamps = lanes.iter_mut().find_map(|lane| lane.flow.no_stamps.take());
    let begin_ns = now_ns() + nanoseconds(RUN_UP + plan.lead.unwrap_or_default());
    let count_from_ns = begin_ns + nanoseconds(plan.warm_up);
    let (stop, waking) = (AtomicBool::new(false), AtomicBool::new(false));
    let when = When {
        begin_ns,
        count_from_ns,
        end_ns: count_from_ns + nanoseconds(plan.duration),
        stop: &stop,
        waking: &waking,
    };
    let device = match plan.lead {
        Some(_) => lanes.first().and_then(|lane| lane.flow.incoming.device()),
        None => None,
    };
    let run = Run { device, ..run(plan, lanes, &when, interval, wait, each)? };
    Ok(LatencyReport::of(plan, &run, no_stamps))
}

/// Opens all flows and waits until the reflector has answered on each of them.
fn open(plan: &LatencyPlan) -> Result<(u64, Vec<Lane>), LatencyError> {
    let target = plan.target;
    let mut session = [0; 8];
    rustix::rand::getrandom(&mut session[..], rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| LatencyError::of("random numbers")(errno.into()))?;
    let session = u64::from_ne_bytes(session);
    let mut lanes = Vec::new();
    for number in 0..plan.connections {
        let slots = Arc::new(Slots::new(plan.window()));
        let mut flow = Flow::open(plan, session, number, Arc::clone(&slots))
            .map_err(LatencyError::of(format!("connecting to {target}")))?;
        // Stamps are on for all flows of a host, or for none.
        let stamped = number == 0 && plan.split && flow.no_stamps.is_none();
        hello(&mut flow, stamped, plan.late_after).map_err(LatencyError::of(format!(
            "no reflector answers at {target} (is 'nearpath bench reflect' running there?)"
        )))?;
        lanes.push(Lane { flow, number, slots, tally: Mutex::new(Tally::new()) });
    }
    Ok((session, lanes))
}

/// Waits until the reflector answers, at least as long as an answer may take; and, with `stamped`, for a while until both kernels stamp what they
/// receive.
fn hello(flow: &mut Flow, stamped: bool, late_after: Duration) -> io::Result<()> {
    let Flow { outgoing, incoming, .. } = flow;
    let begin_ns = now_ns();
    let mut answered = false;
    incoming.wait_at_most(Some(HELLO_AGAIN))?;
    while now_ns() < begin_ns + nanoseconds(if answered { STAMPS } else { HELLO.max(late_after) }) {
        outgoing.send(None)?;
        outgoing.take_stamps();
        loop {
            match incoming.next()? {
                Event::Answer(answer) => {
                    answered = true;
                    if !stamped || (answer.stamp_ns.is_some() && answer.turn.stamped) {
                        return incoming.wait_at_most(None);
                    }
                    thread::sleep(STAMPS_AGAIN);
                    break;
                }
                Event::Closed => return Err(io::ErrorKind::ConnectionReset.into()),
                Event::Timeout => break,
                Event::Other => {}
            }
        }
    }
    if answered { incoming.wait_at_most(None) } else { Err(io::ErrorKind::TimedOut.into()) }
}

/// The results of a flow's threads, and what remains to be done when all have ended.
type Ended<'a> = (Option<Outgoing>, Option<Accounts<'a>>, u64);

fn run(
    plan: &LatencyPlan,
    lanes: Vec<Lane>,
    when: &When<'_>,
    interval: Option<Duration>,
    wait: &dyn Fn(Duration) -> Wake,
    each: &mut dyn FnMut(&Progress),
) -> Result<Run, LatencyError> {
    let mut shared = Vec::new();
    let mut flows = Vec::new();
    let mut handles = Vec::new();
    for Lane { flow, number, slots, tally } in lanes {
        handles.push(flow.incoming.handle().map_err(LatencyError::of("the flow's socket"))?);
        shared.push((slots, tally));
        flows.push((flow, number));
    }
    let mut total = Tally::new();
    let failure = Mutex::new(None);
    let (mut not_sent, mut last_ns, mut failed, mut send_failure) = (0, 0, 0, None);
    let mut seen = Seen::new();
    thread::scope(|scope| -> io::Result<()> {
        let (sending, senders) = channel::<()>();
        let (receiving, receivers) = channel::<()>();
        let mut threads = Vec::new();
        for ((flow, number), (slots, tally)) in flows.into_iter().zip(&shared) {
            let late_after_ns = nanoseconds(plan.late_after);
            let splits = if plan.lead.is_some() { Splitting::Schedule } else { plan.split.into() };
            let accounts = Accounts::new(slots, tally, plan.window(), splits, late_after_ns);
            let Flow { mut outgoing, mut incoming, .. } = flow;
            let (sending, receiving, failure) = (sending.clone(), receiving.clone(), &failure);
            // The first failure of any thread is reported, and ends the others.
            let guard = move |result: io::Result<()>| {
                if let Err(reason) = result {
                    when.stop.store(true, Ordering::Relaxed);
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(reason);
                }
            };
            let name = |what: &str| thread::Builder::new().name(format!("{what}-{number}"));
            if plan.mode == Loop::Closed {
                threads.push(name("ping-pong").spawn_scoped(scope, move || -> Ended<'_> {
                    let mut accounts = accounts;
                    guard(pin(plan.cpus.as_ref()).and_then(|()| {
                        ping_pong(
                            plan,
                            number,
                            when,
                            slots,
                            &mut outgoing,
                            &mut incoming,
                            &mut accounts,
                        )
                    }));
                    drop((sending, receiving));
                    (Some(outgoing), Some(accounts), 0)
                })?);
                continue;
            }
            let arrivals =
                if let Loop::Open(arrivals) = plan.mode { arrivals } else { Arrivals::Constant };
            threads.push(name("sender").spawn_scoped(scope, move || -> Ended<'_> {
                let mut not_sent = 0;
                guard(pin(plan.cpus.as_ref()).and_then(|()| {
                    let flow = (number, plan.connections);
                    let rate = plan.rate_per_s.unwrap_or(1);
                    let schedule = Schedule::new(when.begin_ns, rate, flow, arrivals);
                    not_sent = send_all(schedule, plan.spin, when, slots, &mut outgoing)?;
                    Ok(())
                }));
                drop(sending);
                (Some(outgoing), None, not_sent)
            })?);
            threads.push(name("receiver").spawn_scoped(scope, move || -> Ended<'_> {
                let mut accounts = accounts;
                guard(
                    pin(plan.cpus.as_ref())
                        .and_then(|()| receive_all(when, &mut incoming, &mut accounts)),
                );
                drop(receiving);
                (None, Some(accounts), 0)
            })?);
        }
        drop((sending, receiving));
        let mut look = |passed: Duration| {
            let mut since = Tally::new();
            for (_, tally) in &shared {
                let fresh = Tally::new();
                let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                let taken = std::mem::replace(&mut *tally, fresh);
                drop(tally);
                since.add(&taken);
            }
            total.add(&since);
            let sent = shared.iter().map(|(slots, _)| slots.counted()).sum();
            each(&Progress::of(passed, sent, total.received, &since.latency));
        };
        watch(when, interval, wait, &senders, &mut look);
        // Answers to the last probes; a receiver that has all of them ends by itself.
        let _ = receivers.recv_timeout(plan.late_after + plan.lead.unwrap_or_default());
        when.waking.store(true, Ordering::Release);
        handles.iter().for_each(wake);
        let mut ended: Vec<Ended<'_>> =
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        for (outgoing, _, unsent) in &mut ended {
            not_sent += *unsent;
            if let Some(outgoing) = outgoing {
                while outgoing.take_stamps() {}
                if let Some(scheduled) = &outgoing.scheduled {
                    seen.add(&scheduled.seen);
                }
                last_ns = last_ns.max(outgoing.last_ns);
                failed += outgoing.failed;
                send_failure = send_failure.take().or(outgoing.failure.take());
            }
        }
        ended.into_iter().filter_map(|(_, accounts, _)| accounts).for_each(Accounts::finish);
        Ok(())
    })
    .map_err(LatencyError::of("starting a thread"))?;
    if let Some(reason) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(LatencyError::of(format!("probing {}", plan.target))(reason));
    }
    for (_, tally) in &shared {
        total.add(&tally.lock().unwrap_or_else(PoisonError::into_inner));
    }
    let sent = shared.iter().map(|(slots, _)| slots.counted()).sum();
    let until_ns =
        if when.stop.load(Ordering::Relaxed) { last_ns } else { last_ns.max(when.end_ns) };
    let seconds = until_ns.saturating_sub(when.count_from_ns) as f64 / 1e9;
    let seen = plan.lead.map(|_| seen);
    Ok(Run { tally: total, sent, not_sent, failed, send_failure, seconds, seen, device: None })
}

/// Waits until all senders have ended, and reports each interval.
fn watch(
    when: &When<'_>,
    interval: Option<Duration>,
    wait: &dyn Fn(Duration) -> Wake,
    senders: &std::sync::mpsc::Receiver<()>,
    look: &mut dyn FnMut(Duration),
) {
    let mut looks = 1;
    loop {
        let now = now_ns();
        let next_look_ns = interval
            .map_or(u64::MAX, |interval| when.count_from_ns + looks * nanoseconds(interval));
        // After the end a sender may still be busy with late probes.
        let until_ns =
            if now < when.end_ns { next_look_ns.min(when.end_ns) } else { next_look_ns.min(now) };
        let time = Duration::from_nanos(until_ns.saturating_sub(now)).max(Duration::from_millis(1));
        let wake = wait(time);
        let ended = if wake == Wake::End {
            when.stop.store(true, Ordering::Relaxed);
            let _ = senders.recv();
            true
        } else {
            senders.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected)
        };
        if ended {
            return;
        }
        if wake == Wake::Look {
            look(Duration::from_nanos(now_ns().saturating_sub(when.count_from_ns)));
        }
        if now_ns() >= next_look_ns {
            looks += 1;
            look(Duration::from_nanos(now_ns().saturating_sub(when.count_from_ns)));
        }
    }
}

fn pin(cpus: Option<&CpuSet>) -> io::Result<()> {
    cpus.map_or(Ok(()), affinity::pin)
}

/// Ends a wait for answers; a UDP socket is woken too (`inet_shutdown` in net/ipv4/af_inet.c).
fn wake(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}
