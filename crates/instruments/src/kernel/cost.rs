//! What observing costs, from the kernel's run-time statistics of BPF programs.
//!
//! The statistics cost something themselves, so they are switched on only for a short window in
//! each interval, and what they add to every run is measured on an empty program and taken off.

use crate::{Cost, EventCost};
use libbpf_rs::{Object, Program, ProgramInput, ProgramMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Runs of programs and the time that they took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Runs {
    /// How often programs ran.
    pub count: u64,
    /// Their run time in nanoseconds, accounting included.
    pub ns: u64,
    /// Runs that the kernel skipped because the program was running already.
    pub missed: u64,
}

/// The statistics, on as long as this lives (bpf(2), BPF_ENABLE_STATS; 5.8 and later).
#[derive(Debug)]
struct Statistics(#[allow(dead_code, reason = "closing it switches them off")] OwnedFd);

impl Statistics {
    /// Switches them on; `None` when the kernel refuses.
    fn enable() -> Option<Self> {
        // SAFETY: a system call without pointers; it returns a new descriptor or a negative error.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        // SAFETY: a descriptor that was just made and that nobody else owns.
        (fd >= 0).then(|| Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

/// The statistics of one program since it was loaded.
pub fn runs_of(program: &Program<'_>) -> Runs {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` is written within `length` bytes; all its pointers are null, so the kernel
    // copies no arrays out.
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

/// How often the empty program is run to learn what accounting adds. A machine under load
/// interrupts some of the batches; the fastest one was left alone.
const CALIBRATION_BATCHES: u32 = 20;
const CALIBRATION_RUNS: u32 = 100;

/// Nanoseconds that accounting adds to each run: the mean of an empty program.
pub fn accounting_ns(empty: &ProgramMut<'_>) -> Option<f64> {
    let _on = Statistics::enable()?;
    (0..CALIBRATION_BATCHES)
        .map(|_| batch_ns(empty))
        .try_fold(f64::INFINITY, |fastest, mean| Some(fastest.min(mean?)))
}

/// The mean of one batch, while the statistics are on.
fn batch_ns(empty: &ProgramMut<'_>) -> Option<f64> {
    let before = runs_of(empty);
    for _ in 0..CALIBRATION_RUNS {
        empty.test_run(ProgramInput::default()).ok()?;
    }
    let after = runs_of(empty);
    let runs = after.count.checked_sub(before.count).filter(|&n| n > 0)?;
    Some(after.ns.saturating_sub(before.ns) as f64 / runs as f64)
}

/// The program that does nothing.
fn empty_program(object: &Object) -> Option<ProgramMut<'_>> {
    object.progs_mut().find(|program| program.name() == "empty")
}

/// A shorter window says nothing: looking at the programs one by one takes about as long.
const SHORTEST_WINDOW: std::time::Duration = std::time::Duration::from_millis(5);

/// Gathers what observing costs over its windows.
#[derive(Debug)]
pub struct Meter {
    accounting_ns: Option<f64>,
    /// The window under way: what switches the statistics on; statistics, packets and time at its begin.
    window: Option<(Statistics, Runs, u64, std::time::Instant)>,
    runs: Runs,
    packets: u64,
    time: std::time::Duration,
}

impl Meter {
    /// Learns what accounting adds; before anything is attached.
    pub fn new(object: &Object) -> Self {
        Self {
            accounting_ns: empty_program(object).as_ref().and_then(accounting_ns),
            window: None,
            runs: Runs::default(),
            packets: 0,
            time: std::time::Duration::ZERO,
        }
    }

    /// The statistics of all attached programs together.
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

    /// A window begins, unless one is under way; the kernel's statistics are on until it ends.
    pub fn begin(&mut self, object: &Object, packets_started: u64) {
        if self.window.is_none()
            && let Some(on) = Statistics::enable()
        {
            let now = std::time::Instant::now();
            self.window = Some((on, self.runs(object), packets_started, now));
        }
    }

    /// The window ends, if one is under way.
    pub fn end(&mut self, object: &Object, packets_started: u64) {
        let Some((on, before, packets, since)) = self.window.take() else { return };
        let now = self.runs(object);
        let elapsed = since.elapsed();
        if elapsed < SHORTEST_WINDOW {
            return;
        }
        // The machine may be faster by now than it was at the begin.
        let fastest = empty_program(object).as_ref().and_then(batch_ns);
        drop(on);
        if let (Some(known), Some(fastest)) = (&mut self.accounting_ns, fastest) {
            *known = known.min(fastest);
        }
        self.runs.count += now.count.saturating_sub(before.count);
        self.runs.ns += now.ns.saturating_sub(before.ns);
        self.packets += packets_started.saturating_sub(packets);
        self.time += elapsed;
    }

    /// What observing cost in all windows; `None` when nothing could be learnt.
    pub fn cost(&self) -> Option<Cost> {
        let EventCost { ns_per_event, cpu_percent } = self.event_cost()?;
        let events_per_packet = self.runs.count as f64 / self.packets as f64;
        let ns_per_packet = ns_per_event * events_per_packet;
        (self.packets > 0).then_some(Cost { ns_per_packet, ns_per_event, cpu_percent })
    }

    /// The same of an instrument that follows no packets.
    pub fn event_cost(&self) -> Option<EventCost> {
        let accounting = self.accounting_ns?;
        if self.runs.count == 0 || self.time.is_zero() {
            return None;
        }
        let net = self.runs.ns as f64 - accounting * self.runs.count as f64;
        (net > 0.0).then(|| EventCost {
            ns_per_event: net / self.runs.count as f64,
            cpu_percent: 100.0 * net / self.time.as_nanos() as f64,
        })
    }
}
