//! What a CPU ran over time. Input: its events, oldest first. Output: stretches of time without gaps, up to the
//! end of the span.
//!
//! A virtual CPU may run for a while without any of its tracepoints being called (docs/measuring.md). Each
//! event has the thread that the CPU runs: if that differs from the last switch, what ran between this event
//! and the previous one is unknown.

use super::super::record::{CpuEvents, Event, LOCAL_TIMER, Record, Ring, Task, What};

/// A time in which a CPU did one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stretch {
    pub begin: u64,
    pub end: u64,
    pub runs: Runs,
    /// The state of the task that takes the packet, as seen by this CPU.
    pub reader: Reader,
    /// Nanoseconds of it that the hypervisor stole.
    pub stolen: u64,
}

/// What a CPU runs: a hard interrupt, else a softirq, else a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Runs {
    Unknown,
    /// Nothing: it is offline.
    Offline,
    Irq(u32),
    Softirq(u32),
    Task(Task),
}

/// State of the task that takes the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// It was not seen on this CPU.
    Unseen,
    /// It is running or runnable.
    Ready,
    /// It has left the CPU to sleep.
    Asleep,
}

/// The stretches of a CPU, and the packets it had received when the span started, if known.
pub(super) fn stretches(record: &Record, of: &CpuEvents) -> (Vec<Stretch>, Option<u16>) {
    // A CPU that continues while its rings are read replaces the oldest events by newer ones.
    let oldest = |ring: &Ring| {
        let oldest = || ring.events.iter().map(|event| event.ns).min();
        if ring.cut { oldest().unwrap_or(u64::MAX) } else { 0 }
    };
    let known_from = oldest(&of.tasks).max(oldest(&of.softirqs)).min(record.at_ns);
    let mut events: Vec<&Event> = of.tasks.events.iter().chain(&of.softirqs.events).collect();
    events.sort_by_key(|event| event.ns);

    let mut cpu = Cpu { task: None, reader: Reader::Unseen, irqs: Vec::new(), softirq: None };
    // There was no switch at all: the task at the end ran throughout.
    let switched = events.iter().any(|event| matches!(event.what, What::Task(_)));
    if !switched && !of.tasks.cut && std::ptr::eq(of, &raw const record.cpu) {
        cpu.task = Some(record.task.clone());
    }
    let mut out = Vec::new();
    let mut received = None;
    let mut now = 0;
    for event in events.into_iter().filter(|event| event.ns <= record.at_ns) {
        cpu.stretch(&mut out, now, event.ns, known_from);
        if cpu.missed_a_switch(event) {
            if let Some(last) = out.last_mut().filter(|last| last.end > now) {
                last.runs = Runs::Unknown;
            }
            cpu = Cpu { task: None, reader: Reader::Unseen, irqs: Vec::new(), softirq: None };
        }
        if cpu.task.is_none() {
            cpu.task = event.current.and_then(|pid| named(record, of, pid));
        }
        now = event.ns;
        if event.what == What::Online
            && let Some(last) = out.last_mut()
        {
            last.runs = Runs::Offline;
        }
        if let What::Stolen(ns) = event.what {
            steal(&mut out, ns.into());
        }
        if let (true, What::Softirq(_, n) | What::SoftirqEnd(n)) =
            (now <= record.begin_ns(), &event.what)
        {
            received = Some(*n);
        }
        cpu.apply(event, record.task.pid);
    }
    cpu.stretch(&mut out, now, record.at_ns, known_from);
    (out, received)
}

/// A thread whose name is in the record.
fn named(record: &Record, of: &CpuEvents, pid: u32) -> Option<Task> {
    let switches = of.tasks.events.iter().rev().filter_map(|event| match &event.what {
        What::Task(task) => Some(task),
        _ => None,
    });
    switches.chain([&record.task]).find(|task| task.pid == pid).cloned()
}

/// The hypervisor stole this much time since the previous timer interrupt: in a period without events, so it is
/// assigned to the longest stretch since then.
fn steal(stretches: &mut [Stretch], ns: u64) {
    // The last stretch is in the timer interrupt that reported it.
    let reported_in = stretches.len().saturating_sub(1);
    let is_timer = |s: &Stretch| matches!(s.runs, Runs::Irq(irq) if irq == LOCAL_TIMER);
    let (before, _) = stretches.split_at_mut(reported_in);
    let since = before.iter().rposition(is_timer).unwrap_or(0);
    let longest = before.iter_mut().skip(since).max_by_key(|s| s.end - s.begin - s.stolen);
    if let Some(stretch) = longest {
        stretch.stolen = (stretch.stolen + ns).min(stretch.end - stretch.begin);
    }
}

/// What a CPU runs at a moment.
struct Cpu {
    /// `None`: unknown.
    task: Option<Task>,
    reader: Reader,
    irqs: Vec<u32>,
    softirq: Option<u32>,
}

impl Cpu {
    /// Whether the CPU has switched to another task, and possibly back, since the previous event.
    fn missed_a_switch(&self, event: &Event) -> bool {
        let Some(task) = &self.task else { return false };
        match &event.what {
            // A switch is never from a thread to itself.
            What::Task(next) => next.pid == task.pid,
            _ => event.current.is_some_and(|pid| pid != task.pid),
        }
    }

    fn apply(&mut self, event: &Event, reader: u32) {
        match &event.what {
            What::Task(task) => {
                if task.pid == reader {
                    self.reader = Reader::Ready;
                } else if self.task.as_ref().is_some_and(|before| before.pid == reader) {
                    self.reader = if task.ready_before { Reader::Ready } else { Reader::Asleep };
                }
                self.task = Some(task.clone());
            }
            What::Irq(irq) => self.irqs.push(*irq),
            What::IrqEnd => drop(self.irqs.pop()),
            What::Softirq(vector, _) => self.softirq = Some(*vector),
            What::SoftirqEnd(_) => self.softirq = None,
            What::Stolen(_) | What::Online | What::Queued(_) => {}
        }
    }

    /// Adds what ran from one moment to another.
    fn stretch(&self, out: &mut Vec<Stretch>, begin: u64, end: u64, known_from: u64) {
        let stretch =
            |begin, end, runs| Stretch { begin, end, runs, reader: self.reader, stolen: 0 };
        if begin < known_from.min(end) {
            out.push(stretch(begin, known_from.min(end), Runs::Unknown));
        }
        if begin.max(known_from) < end {
            out.push(stretch(begin.max(known_from), end, self.runs()));
        }
    }

    fn runs(&self) -> Runs {
        if let Some(&irq) = self.irqs.last() {
            Runs::Irq(irq)
        } else if let Some(vector) = self.softirq {
            Runs::Softirq(vector)
        } else {
            self.task.clone().map_or(Runs::Unknown, Runs::Task)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, at_thread, record, task};
    use super::*;

    #[test]
    fn stretches_follow_one_another_up_to_the_end() {
        let r = record(
            "sched_waking",
            "sched_switch",
            vec![
                at(500, What::Task(task(9, "hog"))),
                at(1200, What::Irq(33)),
                at(1300, What::IrqEnd),
                at(2500, What::Task(task(7, "reader"))),
            ],
            vec![at(1300, What::Softirq(1, 5))],
        );
        let (stretches, received) = stretches(&r, &r.cpu);
        assert_eq!(received, None);
        let times: Vec<_> = stretches.iter().map(|s| (s.begin, s.end)).collect();
        assert_eq!(times, [(0, 500), (500, 1200), (1200, 1300), (1300, 2000)]);
        assert_eq!(stretches[0].runs, Runs::Unknown);
        assert_eq!(stretches[3].runs, Runs::Softirq(1));
    }

    #[test]
    fn what_ran_in_a_gap_is_unknown() {
        let r = record(
            "sched_waking",
            "sched_switch",
            vec![
                at(100, What::Task(task(9, "hog"))),
                at(300, What::Task(task(5, "agent"))),
                // By then it ran the hog, and at the end a thread whose name is not recorded.
                at_thread(1200, 9, What::Irq(33)),
                at_thread(1300, 9, What::IrqEnd),
                at_thread(1700, 6, What::Irq(33)),
                at_thread(1800, 6, What::IrqEnd),
            ],
            vec![],
        );
        let seen: Vec<_> = stretches(&r, &r.cpu).0.into_iter().map(|s| (s.begin, s.runs)).collect();
        let expected = [
            (0, Runs::Unknown),
            (100, Runs::Task(task(9, "hog"))),
            (300, Runs::Unknown),
            (1200, Runs::Irq(33)),
            (1300, Runs::Unknown),
            (1700, Runs::Irq(33)),
            (1800, Runs::Unknown),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_switch_to_the_running_task_reveals_a_gap() {
        let r = record(
            "sched_waking",
            "sched_switch",
            vec![at(100, What::Task(task(5, "agent"))), at(1500, What::Task(task(5, "agent")))],
            vec![],
        );
        let seen: Vec<_> = stretches(&r, &r.cpu).0.into_iter().map(|s| (s.begin, s.runs)).collect();
        let expected =
            [(0, Runs::Unknown), (100, Runs::Unknown), (1500, Runs::Task(task(5, "agent")))];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_preempted_task_is_ready_and_one_that_left_is_asleep() {
        let preempted = Task { ready_before: true, ..task(9, "hog") };
        let r = record(
            "sk_data_ready",
            "sock_recv",
            vec![
                at(100, What::Task(task(7, "reader"))),
                at(200, What::Task(preempted)),
                at(300, What::Task(task(7, "reader"))),
                at(400, What::Task(task(0, "swapper/1"))),
            ],
            vec![],
        );
        let seen: Vec<_> = stretches(&r, &r.cpu).0.iter().map(|s| s.reader).collect();
        assert_eq!(
            seen,
            [Reader::Unseen, Reader::Ready, Reader::Ready, Reader::Ready, Reader::Asleep]
        );
    }

    #[test]
    fn stolen_time_is_in_the_longest_stretch_since_the_timer() {
        let r = record(
            "sched_waking",
            "sched_switch",
            vec![
                at(100, What::Task(task(9, "hog"))),
                at(900, What::Irq(LOCAL_TIMER)),
                at(910, What::IrqEnd),
                at(950, What::Irq(33)),
                at(960, What::IrqEnd),
                at(1900, What::Irq(LOCAL_TIMER)),
                at(1905, What::Stolen(600)),
                at(1910, What::IrqEnd),
            ],
            vec![],
        );
        let (stretches, _) = stretches(&r, &r.cpu);
        let stolen: Vec<_> = stretches.iter().filter(|s| s.stolen > 0).collect();
        assert_eq!(stolen.len(), 1);
        assert_eq!((stolen[0].begin, stolen[0].end, stolen[0].stolen), (960, 1900, 600));
    }
}
