//! Measurement overhead, from the kernel's run-time statistics of BPF programs.
//!
//! The statistics have a cost of their own, so they are enabled only for a short window in each interval, and
//! what they add to every run is measured with an empty program and subtracted.

use super::dispatch::dispatch_ns;
use libbpf_rs::{Object, Program, ProgramInput, ProgramMut};
use nearpath_model::{Cost, EventCost};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Runs of programs and their total time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Runs {
    /// Number of runs.
    pub count: u64,
    /// Run time in nanoseconds, including the accounting.
    pub ns: u64,
    /// Runs that the kernel skipped because the program was running already.
    pub missed: u64,
}

/// The statistics, enabled as long as this lives (bpf(2), BPF_ENABLE_STATS; since 5.8).
#[derive(Debug)]
struct Statistics(#[allow(dead_code, reason = "closing it switches them off")] OwnedFd);

impl Statistics {
    /// Enables them; `None` if the kernel refuses.
    fn enable() -> Option<Self> {
        // SAFETY: a system call without pointers; it returns a new descriptor or a negative error.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        // SAFETY: a descriptor that was just created and has no other owner.
        (fd >= 0).then(|| Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

/// The statistics of one program since it was loaded.
pub fn runs_of(program: &Program<'_>) -> Runs {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` is written within `length` bytes; all its pointers are null, so the kernel copies no
    // arrays.
    let error = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(
            program.as_fd().as_raw_fd(),
            &raw mut info,
            &raw mut length,
        )
    };
    if error != 0 {
        return Runs::default();
    }
    Runs { count: info.run_cnt, ns: info.run_time_ns, missed: info.recursion_misses }
}

/// Runs of the empty program to measure the cost of accounting. A loaded machine interrupts some of the
/// batches; the fastest one is used.
const CALIBRATION_BATCHES: u32 = 20;
const CALIBRATION_RUNS: u32 = 100;

/// Nanoseconds that accounting adds to each run: the mean of the empty program.
pub fn accounting_ns(empty: &ProgramMut<'_>) -> Option<f64> {
    let _on = Statistics::enable()?;
    (0..CALIBRATION_BATCHES)
        .map(|_| batch_ns(empty))
        .try_fold(f64::INFINITY, |fastest, mean| Some(fastest.min(mean?)))
}

/// The mean of one batch, while the statistics are enabled.
fn batch_ns(empty: &ProgramMut<'_>) -> Option<f64> {
    let before = runs_of(empty);
    for _ in 0..CALIBRATION_RUNS {
        empty.test_run(ProgramInput::default()).ok()?;
    }
    let after = runs_of(empty);
    let runs = after.count.checked_sub(before.count).filter(|&n| n > 0)?;
    Some(after.ns.saturating_sub(before.ns) as f64 / runs as f64)
}

/// The empty program.
fn empty_program(object: &Object) -> Option<ProgramMut<'_>> {
    object.progs_mut().find(|program| program.name() == "empty")
}

/// Minimum window: reading the statistics of all programs takes about as long.
const SHORTEST_WINDOW: Duration = Duration::from_millis(5);

/// Overhead so far: exact in windows, and estimated between them from the cost per packet and per time without
/// packets in the last window.
#[derive(Debug, Default)]
struct Estimate {
    ns: f64,
    /// The part that was estimated in the current window.
    in_window_ns: f64,
    /// Time of the last update, and packets started by then; `None` while nothing is attached.
    at: Option<(Instant, u64)>,
    /// Cost per packet, if the last window had any.
    per_packet: Option<f64>,
    /// CPU time per time in the last window, and the minimum of those with hardly a packet.
    rate: f64,
    idle_rate: Option<f64>,
}

/// Minimum packets in a window to determine the cost per packet.
const PACKETS: u64 = 50;

impl Estimate {
    /// Updates the estimate.
    fn advance(&mut self, now: Instant, packets: u64) {
        if let Some((at, before)) = self.at {
            let passed = now.saturating_duration_since(at).as_nanos() as f64;
            let more = packets.saturating_sub(before) as f64;
            let ns = match self.per_packet {
                Some(ns) => ns * more + self.idle_rate.unwrap_or(0.0) * passed,
                None => self.rate * passed,
            };
            self.ns += ns;
            self.in_window_ns += ns;
        }
        self.at = Some((now, packets));
    }

    /// A window has ended whose total cost was `ns`, including the statistics; without them it would have been
    /// `net`.
    fn correct(&mut self, ns: f64, net: f64, passed: Duration, packets: u64) {
        self.ns += ns - self.in_window_ns;
        let passed = passed.as_nanos() as f64;
        self.rate = net / passed;
        if packets < PACKETS {
            self.idle_rate = Some(self.idle_rate.map_or(self.rate, |least| least.min(self.rate)));
            self.per_packet = None;
            return;
        }
        let idle = self.idle_rate.unwrap_or(0.0) * passed;
        self.per_packet = Some((net - idle).max(0.0) / packets as f64);
    }
}

/// A wait for packets in flight whose cost is counted.
#[derive(Debug)]
pub struct Drain {
    _on: Statistics,
    before: Runs,
}

/// Measures the overhead in its windows.
#[derive(Debug)]
pub struct Meter {
    accounting_ns: Option<f64>,
    /// Cost of calling a program, if it is to be included.
    dispatch_ns: Option<f64>,
    estimate: Estimate,
    /// The current window: the handle that enables the statistics; statistics, packets and time at its start.
    window: Option<(Statistics, Runs, u64, Instant)>,
    runs: Runs,
    packets: u64,
    time: Duration,
}

impl Meter {
    /// Measures the cost of accounting; before anything is attached.
    pub fn new(object: &Object) -> Self {
        Self {
            accounting_ns: empty_program(object).as_ref().and_then(accounting_ns),
            dispatch_ns: None,
            estimate: Estimate::default(),
            window: None,
            runs: Runs::default(),
            packets: 0,
            time: Duration::ZERO,
        }
    }

    /// Includes the cost of calling the programs from now on.
    pub fn count_dispatch(&mut self, object: &Object) {
        self.dispatch_ns = empty_program(object).as_ref().map(dispatch_ns);
    }

    /// CPU time spent so far.
    pub fn spent(&mut self, packets_started: u64) -> Duration {
        if self.estimate.at.is_some() {
            self.estimate.advance(Instant::now(), packets_started);
        }
        self.spent_before()
    }

    /// The same up to the last update.
    pub fn spent_before(&self) -> Duration {
        Duration::from_nanos(self.estimate.ns.max(0.0) as u64)
    }

    /// Nothing is attached from now on; during `drained` before that no packet started, but programs ran.
    pub fn pause(&mut self, drained: Duration) {
        self.estimate.ns += self.estimate.rate * drained.as_nanos() as f64;
        self.estimate.at = None;
    }

    /// From now on no packet starts, but programs run on: the kernel's statistics are enabled to count their time. `None` if
    /// they cannot be.
    pub fn begin_drain(&mut self, object: &Object) -> Option<Drain> {
        let on = Statistics::enable()?;
        Some(Drain { _on: on, before: self.runs(object) })
    }

    /// The end of that, after so long; without statistics, the cost is estimated as if packets had started.
    pub fn end_drain(&mut self, object: &Object, drain: Option<Drain>, passed: Duration) {
        self.estimate.ns += match drain {
            Some(drain) => {
                let now = self.runs(object);
                let count = now.count.saturating_sub(drain.before.count) as f64;
                let ns = now.ns.saturating_sub(drain.before.ns) as f64;
                ns + count * self.dispatch_ns.unwrap_or(0.0)
            }
            None => self.estimate.rate * passed.as_nanos() as f64,
        };
    }

    /// Programs are attached again.
    pub fn resume(&mut self, packets_started: u64) {
        self.estimate.at = Some((Instant::now(), packets_started));
    }

    /// The sum of the statistics of all attached programs.
    pub fn runs(&self, object: &Object) -> Runs {
        let programs = object.progs();
        programs.filter(|p| p.autoload() && p.name() != "empty").map(|p| runs_of(&p)).fold(
            Runs::default(),
            |sum, runs| Runs {
                count: sum.count + runs.count,
                ns: sum.ns + runs.ns,
                missed: sum.missed + runs.missed,
            },
        )
    }

    /// Starts a window, unless one is open; the kernel's statistics are enabled until it ends.
    pub fn begin(&mut self, object: &Object, packets_started: u64) {
        if self.window.is_none()
            && let Some(on) = Statistics::enable()
        {
            let now = Instant::now();
            if self.estimate.at.is_some() {
                self.estimate.advance(now, packets_started);
            } else {
                self.resume(packets_started);
            }
            self.estimate.in_window_ns = 0.0;
            self.window = Some((on, self.runs(object), packets_started, now));
        }
    }

    /// Ends the window, if one is open.
    pub fn end(&mut self, object: &Object, packets_started: u64) {
        let Some((on, before, packets, since)) = self.window.take() else { return };
        let now = self.runs(object);
        let elapsed = since.elapsed();
        self.estimate.advance(since + elapsed, packets_started);
        if elapsed < SHORTEST_WINDOW {
            return;
        }
        // The machine may be faster now than at the start.
        let fastest = empty_program(object).as_ref().and_then(batch_ns);
        drop(on);
        if let (Some(known), Some(fastest)) = (&mut self.accounting_ns, fastest) {
            *known = known.min(fastest);
        }
        let (count, ns) =
            (now.count.saturating_sub(before.count), now.ns.saturating_sub(before.ns));
        let called = count as f64 * self.dispatch_ns.unwrap_or(0.0);
        let accounting = count as f64 * self.accounting_ns.unwrap_or(0.0);
        let net = (ns as f64 - accounting).max(0.0) + called;
        let started = packets_started.saturating_sub(packets);
        self.estimate.correct(ns as f64 + called, net, elapsed, started);
        self.runs.count += count;
        self.runs.ns += ns;
        self.packets += packets_started.saturating_sub(packets);
        self.time += elapsed;
    }

    /// Overhead in all windows; `None` if it could not be measured.
    pub fn cost(&self) -> Option<Cost> {
        let EventCost { ns_per_event, cpu_percent } = self.event_cost()?;
        let events_per_packet = self.runs.count as f64 / self.packets as f64;
        let ns_per_packet = ns_per_event * events_per_packet;
        let dispatch_ns = self.dispatch_ns;
        (self.packets > 0).then_some(Cost { ns_per_packet, ns_per_event, dispatch_ns, cpu_percent })
    }

    /// The same for an instrument that does not track packets.
    pub fn event_cost(&self) -> Option<EventCost> {
        let accounting = self.accounting_ns?;
        if self.runs.count == 0 || self.time.is_zero() {
            return None;
        }
        let net = self.runs.ns as f64 - accounting * self.runs.count as f64;
        let called = self.dispatch_ns.unwrap_or(0.0) * self.runs.count as f64;
        (net > 0.0).then(|| EventCost {
            ns_per_event: net / self.runs.count as f64,
            cpu_percent: 100.0 * (net + called) / self.time.as_nanos() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// 200 ns per packet, at 10,000 per second, and so many nanoseconds per millisecond besides.
    fn after_a_window(beside: f64) -> (Estimate, Instant) {
        let began = Instant::now();
        let mut estimate = Estimate { at: Some((began, 0)), ..Estimate::default() };
        if beside > 0.0 {
            estimate.advance(began + 100 * MS, 0);
            estimate.correct(100.0 * beside, 100.0 * beside, 100 * MS, 0);
        }
        estimate.in_window_ns = 0.0;
        estimate.advance(began + 200 * MS, 1000);
        let ns = 1000.0 * 200.0 + 100.0 * beside;
        estimate.correct(ns, ns, 100 * MS, 1000);
        (estimate, began + 200 * MS)
    }

    #[test]
    fn a_steady_load_is_counted_once() {
        for beside in [0.0, 500.0] {
            let (mut estimate, now) = after_a_window(beside);
            let before = estimate.ns;
            estimate.advance(now + 1000 * MS, 11_000);
            let (more, expected) = (estimate.ns - before, 10_000.0 * 200.0 + 1000.0 * beside);
            assert!((more - expected).abs() < 1.0, "{more} instead of {expected}");
            // Without packets there is what runs besides.
            let before = estimate.ns;
            estimate.advance(now + 2000 * MS, 11_000);
            assert!((estimate.ns - before - 1000.0 * beside).abs() < 1.0);
        }
    }
}
