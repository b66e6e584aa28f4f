//! Whether the CPU that processes the packets of a connection, or its reader, is late.
//!
//! Input: `/proc/stat`, and how long threads waited for a CPU (`/proc/PID/task/TID/schedstat`). Output: the CPUs that had
//! no time for packets, and the threads that waited for a CPU. Nothing of this costs anything per packet.

use super::limit::{Lateness, ReaderLateness};
use nearpath_host::{Root, RunDelay, read_cpu_time, run_delay, run_delays, softirq_threads};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// From this share of its time in interrupts and softirqs, or with ksoftirqd waiting, packets wait for a CPU.
const LATE: f64 = 0.8;
/// From this share of its time waiting for a CPU, a thread is a late reader.
const READER_LATE: f64 = 0.5;
/// A late reader that runs for this share of the time in which it does not wait, hardly ever sleeps: it is saturated.
/// One that keeps up with 3 Gbit/s between five busy threads runs for a tenth of that time, one that falls behind for more
/// than two thirds (2 CPUs, Linux 6.18).
const SATURATED: f64 = 1.0 / 3.0;
/// The time over which that is judged, at least: a wait is counted when it ends.
const SATURATION_LOOK: Duration = Duration::from_millis(500);
/// Processes whose waiting is observed: each is a file per thread.
const READERS_MAX: usize = 64;

/// Shortest time over which a CPU or process is judged: `/proc/stat` counts in ticks of 10 ms.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// Time of a CPU, in ticks: all, and in interrupts and softirqs.
type Ticks = (u64, u64);

/// How long the threads of each process have waited.
type Delays = HashMap<u32, BTreeMap<u32, RunDelay>>;

/// Processes that read connections; of each, the threads that are known to.
pub(super) type Readers = HashMap<u32, HashSet<u32>>;

/// The threads of a process.
#[derive(Debug, Default)]
struct Threads {
    all: usize,
    /// Those that waited for a CPU.
    late: HashSet<u32>,
    /// Those that had hardly any time in which they neither ran nor waited.
    saturated: HashSet<u32>,
    /// How long the first one waited each time, in microseconds.
    wait_us: u32,
}

/// How late CPUs and readers are, since the last look.
#[derive(Default)]
pub(super) struct Pressure {
    looked: Option<Instant>,
    ticks: BTreeMap<u32, Ticks>,
    /// How long each thread has waited so far, by process.
    waits: Delays,
    /// The same of half a second to a second ago, and what becomes that.
    older_waits: [Option<(Instant, Delays)>; 2],
    ksoftirqd: Option<BTreeMap<u32, u32>>,
    late_cpus: HashMap<u32, Lateness>,
    processes: HashMap<u32, Threads>,
}

impl Pressure {
    /// Looks at these CPUs and processes; what was seen last holds until enough time has passed.
    pub fn look(&mut self, root: &Root, cpus: &HashSet<u32>, readers: &Readers) {
        let now = Instant::now();
        let passed = self.looked.map(|last| now.saturating_duration_since(last));
        if passed.is_some_and(|passed| passed < SHORTEST_LOOK) {
            return;
        }
        self.looked = Some(now);
        let ksoftirqd = self.ksoftirqd.get_or_insert_with(|| {
            let kernel = rustix::system::uname();
            let waits = waits_for_ksoftirqd(
                &kernel.release().to_string_lossy(),
                &kernel.version().to_string_lossy(),
            );
            if waits { softirq_threads(root) } else { BTreeMap::new() }
        });
        let of_cpus = cpus.iter().filter_map(|cpu| ksoftirqd.get(cpu));
        let none = HashSet::new();
        let mut waits: Delays = of_cpus.map(|&pid| (pid, delays(root, pid, &none))).collect();
        let readers = readers.iter().take(READERS_MAX);
        waits.extend(readers.map(|(&pid, known)| (pid, delays(root, pid, known))));
        let passed_ns = passed.unwrap_or_default().as_nanos() as f64;
        let saturated = |pid: u32, (tid, delay): (&u32, &RunDelay)| {
            let since = |(then, waits): &(Instant, Delays)| {
                let old = waits.get(&pid)?.get(tid)?;
                Some(is_saturated(old, delay, now.saturating_duration_since(*then)))
            };
            self.older_waits.iter().flatten().find_map(since).unwrap_or(false).then_some(*tid)
        };
        let threads = |(&pid, now): (&u32, &BTreeMap<u32, RunDelay>)| {
            let old = self.waits.get(&pid);
            let since = |(tid, now): (&u32, &RunDelay)| {
                let old = old?.get(tid)?;
                Some((*tid, now.ns.saturating_sub(old.ns), now.runs.saturating_sub(old.runs)))
            };
            let is_late = |(tid, wait, _): (u32, u64, u64)| {
                (passed_ns > 0.0 && wait as f64 >= READER_LATE * passed_ns).then_some(tid)
            };
            let wait_us = now.iter().find_map(since).map_or(0, |(_, ns, runs)| {
                u32::try_from(ns / runs.max(1) / 1000).unwrap_or(u32::MAX)
            });
            let late = now.iter().filter_map(since).filter_map(is_late).collect();
            let saturated = now.iter().filter_map(|thread| saturated(pid, thread)).collect();
            (pid, Threads { all: now.len(), late, saturated, wait_us })
        };
        self.processes = waits.iter().map(threads).collect();
        self.late_cpus.clear();
        // Of all CPUs, so that one on which packets arrive later has a start.
        for time in read_cpu_time(root) {
            let softirqs = time.irq.saturating_add(time.softirq);
            let all = time.total();
            let old = self.ticks.insert(time.cpu.0, (all, softirqs));
            let is_busy = old.is_some_and(|(old_all, old_softirqs)| {
                let rise = softirqs.saturating_sub(old_softirqs) as f64;
                all > old_all && rise >= LATE * (all - old_all) as f64
            });
            let thread = ksoftirqd.get(&time.cpu.0).and_then(|pid| self.processes.get(pid));
            let waits = thread.filter(|threads| !threads.late.is_empty());
            let lateness = match waits {
                _ if is_busy => Some(Lateness::Busy),
                waits => waits.map(|threads| Lateness::Waits(threads.wait_us)),
            };
            if let Some(lateness) = lateness.filter(|_| cpus.contains(&time.cpu.0)) {
                self.late_cpus.insert(time.cpu.0, lateness);
            }
        }
        let is_due = |older: &Option<(Instant, _)>| {
            older
                .as_ref()
                .is_none_or(|(then, _)| now.saturating_duration_since(*then) >= SATURATION_LOOK)
        };
        if is_due(&self.older_waits[1]) {
            self.older_waits = [self.older_waits[1].take(), Some((now, waits.clone()))];
        }
        self.waits = waits;
    }

    /// Whether packets wait for this CPU.
    pub fn lateness(&self, cpu: Option<u32>) -> Option<Lateness> {
        self.late_cpus.get(&cpu?).copied()
    }

    /// How this thread of a process waits for a CPU. If it is not known which one reads: how all of them do.
    pub fn reader_lateness(&self, pid: Option<u32>, thread: Option<u32>) -> Option<ReaderLateness> {
        let threads = self.processes.get(&pid?)?;
        let known = thread.filter(|thread| threads.late.contains(thread));
        let all_wait = !threads.late.is_empty() && threads.late.len() == threads.all;
        let is_saturated = match known {
            Some(thread) => threads.saturated.contains(&thread),
            None => threads.late.is_subset(&threads.saturated),
        };
        (known.is_some() || all_wait).then_some(match is_saturated {
            true => ReaderLateness::Saturated,
            false => ReaderLateness::Waits,
        })
    }

    /// Whether some threads of a process wait for a CPU and others do not, so that it matters which one reads.
    pub fn is_divided(&self, pid: u32) -> bool {
        let threads = self.processes.get(&pid);
        threads.is_some_and(|threads| (1..threads.all).contains(&threads.late.len()))
    }
}

/// Whether softirqs wait for ksoftirqd once it was woken up: with PREEMPT_RT, and before Linux 6.5 (commit d15121be7485,
/// `Revert "softirq: Let ksoftirqd do its job"`). Else interrupts continue to run them.
fn waits_for_ksoftirqd(release: &str, version: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let release: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    release < (6, 5) || version.contains("PREEMPT_RT")
}

/// Whether a thread hardly slept between two readings. A wait is counted when it ends, so that what was counted may have
/// begun before the first reading: one wait less counts.
fn is_saturated(before: &RunDelay, now: &RunDelay, passed: Duration) -> bool {
    let run = now.run_ns.saturating_sub(before.run_ns) as f64;
    let waited = now.ns.saturating_sub(before.ns) as f64;
    let a_wait = waited / now.runs.saturating_sub(before.runs).max(1) as f64;
    run > 0.0 && run >= SATURATED * (passed.as_nanos() as f64 - waited + a_wait)
}

/// Of the threads of a process, and of those that are known to read, should there be too many for the first.
fn delays(root: &Root, pid: u32, known: &HashSet<u32>) -> BTreeMap<u32, RunDelay> {
    let mut delays = run_delays(root, pid);
    for &thread in known {
        if !delays.contains_key(&thread) {
            delays.extend(run_delay(root, pid, thread).map(|delay| (thread, delay)));
        }
    }
    delays
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirqs_of_recent_kernels_do_not_wait_for_ksoftirqd() {
        let debian = "#1 SMP PREEMPT_DYNAMIC Debian 6.12.48-1 (2025-09-20)";
        for (release, version, waits) in [
            ("5.10.0-35-amd64", "#1 SMP Debian 5.10.237-1", true),
            ("6.1.0-40-amd64", debian, true),
            ("6.5.0", debian, false),
            ("6.12.48+deb13-amd64", debian, false),
            ("6.12.48+deb13-rt-amd64", "#1 SMP PREEMPT_RT Debian 6.12.48-1", true),
            ("7.2-rc1", debian, false),
        ] {
            assert_eq!(waits_for_ksoftirqd(release, version), waits, "{release}");
        }
    }

    #[test]
    fn a_reader_that_hardly_sleeps_is_saturated() {
        let is = |run_ms: u64, wait_ms: u64, runs: u64| {
            let now = RunDelay { run_ns: run_ms * 1_000_000, ns: wait_ms * 1_000_000, runs };
            is_saturated(&RunDelay::default(), &now, Duration::from_secs(1))
        };
        // Bulk data beside 5 and 20 busy threads, as measured; then what the path lets through.
        assert!(is(150, 800, 3121) && is(50, 930, 107) && is(170, 830, 191));
        assert!(!is(60, 290, 2020) && !is(30, 390, 842));
        // Woken eight times: the first wait began before the first reading.
        assert!(!is(7, 1020, 8));
    }

    #[test]
    fn a_sibling_that_waits_makes_no_late_reader() {
        let process = |all, late: &[u32]| Threads {
            all,
            late: late.iter().copied().collect(),
            ..Threads::default()
        };
        let pressure = Pressure {
            processes: HashMap::from([
                (1, process(1, &[1])),
                (2, process(2, &[20])),
                (3, process(3, &[])),
                (4, process(2, &[4, 40])),
            ]),
            ..Pressure::default()
        };
        let is_late = |pid, thread| pressure.reader_lateness(Some(pid), thread).is_some();
        assert_eq!([is_late(1, None), is_late(2, None), is_late(3, None)], [true, false, false]);
        assert_eq!([is_late(2, Some(2)), is_late(2, Some(20))], [false, true]);
        assert!(
            is_late(4, None)
                && !is_late(5, None)
                && pressure.reader_lateness(None, Some(20)).is_none()
        );
        assert_eq!(
            [1, 2, 3, 4, 5].map(|pid| pressure.is_divided(pid)),
            [false, true, false, false, false]
        );
    }
}
