//! The reader's state at each moment of a span, as phases derived from its switches and wake-ups.
//!
//! Two tracepoints report that a task blocks and is woken, and their callers do not wait for each other: a task
//! that is about to leave its CPU may be woken just before the switch is observed. So a task that runs again
//! without a wake-up since it left had been woken before.

use super::super::record::{Change, CpuEvents, ReaderEvent, Record, Waker, What};

/// A time in which the reader was in one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Phase {
    pub end: u64,
    pub state: State,
}

/// Its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Unknown.
    Unknown,
    /// It ran on a CPU.
    Runs(u32),
    /// It was runnable and queued on a CPU; or throttled, as its cgroup had used up its quota.
    Ready { cpu: u32, throttled: bool },
    /// It waited for something else, until it was woken.
    Blocked { on: Option<String>, woken_by: Option<Waker> },
}

/// The phases of a span without gaps, up to its end.
pub(super) fn phases(record: &Record) -> Vec<Phase> {
    let reader = &record.reader;
    let mut out = while_unknown(record);
    let mut state = before(reader.events.first());
    let known_from = reader.known_from.min(record.at_ns);
    if known_from > out.last().map_or(0, |last| last.end) {
        out.push(Phase { end: known_from, state: State::Unknown });
    }
    for (index, event) in reader.events.iter().enumerate() {
        if event.ns > record.at_ns {
            break;
        }
        let rest = reader.events.get(index + 1..).unwrap_or_default();
        if let Some(next) = next(&state, event, rest) {
            if event.ns > known_from {
                out.push(Phase { end: event.ns, state });
            }
            state = next;
        }
    }
    if out.last().is_none_or(|last| last.end < record.at_ns) {
        out.push(Phase { end: record.at_ns, state });
    }
    out.retain(|phase| phase.end > record.begin_ns());
    out
}

/// What a reader last blocked on before a moment, if known.
pub(super) fn last_blocked_on(record: &Record, before: u64) -> Option<&str> {
    record.reader.events.iter().rev().filter(|event| event.ns <= before).find_map(|event| {
        match &event.what {
            Change::Blocks(block) => block.on.as_deref(),
            _ => None,
        }
    })
}

/// Whether the task that took the packet differs from the one woken for it, if several read from a socket: it
/// was not woken as the packet's reader.
pub(super) fn took_another_s(record: &Record) -> bool {
    /// The reader's wake-up is recorded just before the packet's.
    const AT_ONCE_NS: u64 = 50_000;
    let begin = record.begin_ns();
    let woken = |event: &ReaderEvent| {
        matches!(event.what, Change::Woken { .. }) && event.ns.abs_diff(begin) <= AT_ONCE_NS
    };
    record.from.name == "sched_waking"
        && record.reader.known_from < begin
        && !record.reader.events.iter().any(woken)
}

/// Before its first event a reader is unknown, except for the times in which the scheduler reports that it was
/// queued.
fn while_unknown(record: &Record) -> Vec<Phase> {
    let reader = &record.reader;
    let first = reader.events.first().map_or(record.at_ns, |event| event.ns);
    let until = if matches!(reader.events.first().map(before_is_known), Some(true)) {
        reader.known_from
    } else {
        reader.known_from.max(first)
    };
    let cpus = record.others.iter().map(|(&cpu, events)| (cpu, events));
    let mut queued: Vec<(u64, u64, u32)> = cpus
        .chain([(record.to_cpu, &record.cpu)])
        .flat_map(|(cpu, events)| queued(events, record.task.pid).map(move |(a, b)| (a, b, cpu)))
        .filter(|&(_, end, _)| end <= until.min(record.at_ns))
        .collect();
    queued.sort_unstable();
    let phases = queued.into_iter().flat_map(|(since, end, cpu)| {
        let ready = State::Ready { cpu, throttled: false };
        [Phase { end: since, state: State::Unknown }, Phase { end, state: ready }]
    });
    phases.collect()
}

/// The times in which a task was queued before the CPU switched to it, as reported by events.
fn queued(events: &CpuEvents, pid: u32) -> impl Iterator<Item = (u64, u64)> {
    let events = &events.tasks.events;
    events.iter().zip(events.iter().skip(1)).filter_map(move |pair| {
        match (&pair.0.what, &pair.1.what) {
            (What::Queued(since), What::Task(task)) if task.pid == pid => Some((*since, pair.1.ns)),
            _ => None,
        }
    })
}

/// Whether an event shows the state of a reader before it.
fn before_is_known(event: &ReaderEvent) -> bool {
    before(Some(event)) != State::Unknown
}

/// The state of a reader between becoming known and its first event: no task had woken it since.
fn before(first: Option<&ReaderEvent>) -> State {
    let Some(event) = first else { return State::Unknown };
    match event.what {
        Change::Runs | Change::Moves(_) => State::Ready { cpu: event.cpu, throttled: false },
        Change::Ready { .. } | Change::Blocks(_) => State::Runs(event.cpu),
        // What it was blocked on is unknown; or it was not known at all.
        Change::Woken { .. } | Change::Found => State::Unknown,
    }
}

/// Its state from an event on; `None` if unchanged.
fn next(state: &State, event: &ReaderEvent, rest: &[ReaderEvent]) -> Option<State> {
    let ready = |cpu, throttled| Some(State::Ready { cpu, throttled });
    match (&event.what, state) {
        (Change::Runs | Change::Found, _) => Some(State::Runs(event.cpu)),
        (Change::Ready { throttled }, _) => ready(event.cpu, *throttled),
        (Change::Blocks(block), _) => {
            let then =
                rest.iter().find(|later| matches!(later.what, Change::Runs | Change::Woken { .. }));
            match then.map(|later| &later.what) {
                Some(Change::Runs) => ready(event.cpu, false),
                Some(Change::Woken { by, .. }) => {
                    Some(State::Blocked { on: block.on.clone(), woken_by: Some(by.clone()) })
                }
                _ => Some(State::Blocked { on: block.on.clone(), woken_by: None }),
            }
        }
        (Change::Moves(to), State::Ready { .. }) => ready(*to, false),
        // Not before the switch during which it was woken.
        (Change::Woken { throttled, .. }, State::Blocked { .. } | State::Unknown) => {
            ready(event.cpu, *throttled)
        }
        (Change::Moves(_) | Change::Woken { .. }, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::record::{Block, ReaderEvents};
    use super::super::tests::record;
    use super::*;

    fn blocks(on: &str) -> Change {
        Change::Blocks(Block { on: Some(on.to_owned()), ..Block::default() })
    }

    fn woken() -> Change {
        Change::Woken { by: by(), on: None, throttled: false }
    }

    fn by() -> Waker {
        Waker::Task(11, "other".to_owned())
    }

    /// The phases of a span from 1,000 to 2,000ns: the reader's state, and until when.
    fn of(known_from: u64, events: Vec<(u64, u32, Change)>) -> Vec<(u64, State)> {
        let events = events.into_iter().map(|(ns, cpu, what)| ReaderEvent { ns, cpu, what });
        let mut r = record("sk_data_ready", "sock_recv", vec![], vec![]);
        r.reader = ReaderEvents { events: events.collect(), known_from };
        phases(&r).into_iter().map(|phase| (phase.end, phase.state)).collect()
    }

    fn ready(cpu: u32) -> State {
        State::Ready { cpu, throttled: false }
    }

    fn blocked(on: &str, woken_by: Option<Waker>) -> State {
        State::Blocked { on: Some(on.to_owned()), woken_by }
    }

    #[test]
    fn a_reader_that_another_packet_has_woken_waits_for_its_cpu() {
        let events = vec![
            (100, 1, Change::Runs),
            (200, 1, blocks("socket")),
            (900, 1, woken()),
            (1900, 1, Change::Runs),
        ];
        assert_eq!(of(0, events), [(1900, ready(1)), (2000, State::Runs(1))]);
    }

    #[test]
    fn a_reader_that_runs_without_a_wake_up_was_runnable_before() {
        let moved = vec![(1300, 1, Change::Moves(3)), (1500, 3, Change::Runs)];
        for (events, expected) in [
            (vec![(1500, 1, Change::Runs)], vec![(1500, ready(1)), (2000, State::Runs(1))]),
            (moved, vec![(1300, ready(1)), (1500, ready(3)), (2000, State::Runs(3))]),
            (
                vec![(1500, 1, blocks("futex"))],
                vec![(1500, State::Runs(1)), (2000, blocked("futex", None))],
            ),
            (vec![(1500, 1, woken())], vec![(1500, State::Unknown), (2000, ready(1))]),
        ] {
            assert_eq!(of(0, events.clone()), expected, "{events:?}");
        }
    }

    #[test]
    fn a_reader_is_blocked_until_it_is_woken() {
        let events = vec![
            (100, 1, Change::Runs),
            (1200, 1, blocks("futex")),
            (1700, 1, woken()),
            (1710, 1, Change::Moves(3)),
            (1800, 3, Change::Runs),
        ];
        let expected = [
            (1200, State::Runs(1)),
            (1700, blocked("futex", Some(by()))),
            (1710, ready(1)),
            (1800, ready(3)),
            (2000, State::Runs(3)),
        ];
        assert_eq!(of(0, events), expected);
    }

    #[test]
    fn a_task_that_runs_again_without_a_wake_up_was_woken_as_it_left() {
        let events = vec![
            (100, 1, Change::Runs),
            (1190, 1, woken()),
            (1200, 1, blocks("futex")),
            (1900, 1, Change::Runs),
        ];
        let expected = [(1200, State::Runs(1)), (1900, ready(1)), (2000, State::Runs(1))];
        assert_eq!(of(0, events), expected);
        // A wake-up of a running task does not affect the time when it blocks later.
        let events = vec![
            (100, 1, Change::Runs),
            (1190, 1, woken()),
            (1300, 1, blocks("futex")),
            (1800, 1, woken()),
        ];
        let expected =
            [(1300, State::Runs(1)), (1800, blocked("futex", Some(by()))), (2000, ready(1))];
        assert_eq!(of(0, events), expected);
    }

    #[test]
    fn a_packet_may_be_taken_by_another_task_than_the_woken_one() {
        let with = |from, ns| {
            let mut r = record(from, "sock_recv", vec![], vec![]);
            let events = vec![ReaderEvent { ns, cpu: 1, what: woken() }];
            r.reader = ReaderEvents { events, known_from: 0 };
            took_another_s(&r)
        };
        let later = 1000 + 60_000;
        assert!(!with("sched_waking", 999) && with("sched_waking", later));
        assert!(!with("sk_data_ready", later));
    }

    #[test]
    fn the_scheduler_reports_since_when_an_unknown_task_was_queued() {
        use super::super::super::record::What;
        use super::super::tests::{at, task};
        let switches = vec![
            at(1100, What::Queued(900)),
            at(1100, What::Task(task(7, "reader"))),
            at(1200, What::Task(task(9, "hog"))),
            // Of another task.
            at(1400, What::Queued(1250)),
            at(1400, What::Task(task(5, "agent"))),
            at(1800, What::Queued(1300)),
            at(1800, What::Task(task(7, "reader"))),
        ];
        let mut r = record("sk_data_ready", "sock_recv", switches, vec![]);
        let found = ReaderEvent { ns: 1810, cpu: 3, what: Change::Found };
        r.reader = ReaderEvents { events: vec![found], known_from: 0 };
        let phases: Vec<_> = phases(&r).into_iter().map(|p| (p.end, p.state)).collect();
        let expected = [
            (1100, ready(r.to_cpu)),
            (1300, State::Unknown),
            (1800, ready(r.to_cpu)),
            (1810, State::Unknown),
            (2000, State::Runs(3)),
        ];
        assert_eq!(phases, expected);
    }

    #[test]
    fn the_time_before_the_oldest_event_is_unknown() {
        let events = vec![(1500, 1, Change::Ready { throttled: true })];
        let throttled = State::Ready { cpu: 1, throttled: true };
        assert_eq!(of(1500, events), [(1500, State::Unknown), (2000, throttled)]);
        assert_eq!(of(u64::MAX, vec![]), [(2000, State::Unknown)]);
        // Nor is the state of a task that became a reader during the span.
        let events = vec![(1500, 1, Change::Found)];
        assert_eq!(of(0, events), [(1500, State::Unknown), (2000, State::Runs(1))]);
    }
}
