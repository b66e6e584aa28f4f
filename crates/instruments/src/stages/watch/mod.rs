//! The watch: the receive latency of every packet, from the kernel's stamp to its reader (`bpf/watch.h`), and what the
//! late ones waited for.
//!
//! It has the programs of the stages loaded a second time, without stages: those of the watch, and those that record
//! what each CPU and each reader does. They stay attached while the overhead limit pauses the stages. If even these cost
//! more than the limit leaves, the recording stops for a while: late packets are counted then, but not explained.

mod seen;
mod stamping;

use super::collector::Collector;
use super::group::{self, Whole};
use super::load::types::{cpu, watched};
use super::load::{self, Loaded};
use super::options::Options;
use super::path::{self, PathTerms};
use super::reading::{self, Reading, slow_from};
use super::samples::Samples;
use super::under_way::UnderWay;
use crate::InstrumentError;
use crate::kernel::{Kernel, Mapped, Meter, word_of, words_of};
use crate::layout::Layout;
use libbpf_rs::skel::Skel;
use nearpath_model::{PathKind, Slow, Watch as Watched};
use seen::Seen;
use stamping::{real_from_monotonic_ns, real_from_tai_ns, stamping};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The name of the stage at which the kernel stamps a packet, in all output.
pub const SKB_TSTAMP: &str = "skb_tstamp";

/// Late packets that are sent to user space at once, and per second over time,
const SENT_AT_ONCE: f64 = 1000.0;
const SENT_PER_S: f64 = 200.0;
/// but no more than are explained in this share of a CPU's time, and at once in so many seconds of it. (One that was
/// late by milliseconds takes some 50 us; by a second, with all that happened meanwhile, 2 ms.)
const EXPLAINING: f64 = 0.05;
const EXPLAINING_AT_ONCE_S: f64 = 0.1;
/// How often it is tended; one of so many times it measures its cost until the next.
const BETWEEN: Duration = Duration::from_millis(100);
const WINDOW_IN: u32 = 10;
/// The watch and what it records may take this part of the limit; what is left is for the stages.
const PART_OF_LIMIT: f64 = 0.7;
/// So much of that may be saved up, or overdrawn before the recording stops for a while.
const SAVED: Duration = Duration::from_millis(500);

/// The watch of a measurement. The fields are dropped in this order.
pub struct Watch {
    totals: Mapped,
    histograms: Mapped,
    spans: Mapped,
    places: Mapped,
    counters: Mapped,
    span_of: Mapped,
    cpus: Mapped,
    under_way: UnderWay,
    collector: Option<Collector>,
    meter: Meter,
    loaded: Loaded,
    /// While it is open the kernel stamps packets.
    _stamping: OwnedFd,
    /// Start; `None` before that.
    began: Option<Instant>,
    /// How long it watched, once it has stopped.
    watched: Option<Duration>,
    /// How long the recording was on before, and since when it is.
    recorded: Duration,
    recording: Option<Instant>,
    /// CPU time that it may take before the recording stops, in seconds, and what it had taken by then.
    credit: f64,
    taken: f64,
    /// Whether packets may be sent.
    granted: bool,
    tended: Instant,
    tends: u32,
    late_ns: u64,
    keeps_softirqs: bool,
}

impl Watch {
    /// Loads and attaches the programs; no packet counts before [`Self::begin`].
    ///
    /// # Errors
    /// The kernel refused, or can observe no packet's end.
    pub fn attach(
        kernel: &Kernel,
        layout: &Layout,
        options: &Options,
    ) -> Result<Self, InstrumentError> {
        // First, as the kernel starts to stamp a little later.
        let stamping = stamping()?;
        let options = Options {
            stages: Some(Vec::new()),
            watch: true,
            budgets: options.causes,
            without: Vec::new(),
            limit: options.limit,
            into_guests: false,
            arrivals: false,
            duty: None,
            ..options.clone()
        };
        let loaded = load::load(kernel, layout, &options, false)?;
        if let Some((_, reason)) = loaded.attached.refused.iter().find(|(probe, _)| probe.watch)
            && !loaded.attached.probes.iter().any(|probe| probe.watch)
        {
            return Err(InstrumentError::Unsupported(reason.clone()));
        }
        let maps = &loaded.skeleton.maps;
        let (histograms, span_of) =
            (Mapped::new(&maps.path_histograms)?, Mapped::new(&maps.span_of)?);
        let spans = Mapped::new(&maps.histograms)?;
        reading::prepare(&span_of, &spans, &histograms);
        let collector = match options.budgets {
            true => Some(Collector::new(maps, layout, &options)?),
            false => None,
        };
        let mut meter = Meter::new(loaded.skeleton.object());
        meter.count_dispatch(loaded.skeleton.object());
        let under_way = UnderWay::new(maps, layout)?;
        let late_ns = options.late_ns();
        let recording = options.budgets.then(Instant::now);
        Ok(Self {
            totals: Mapped::new(&maps.watched)?,
            histograms,
            spans,
            places: Mapped::new(&maps.cpu_pairs)?,
            counters: Mapped::new(&maps.counters)?,
            span_of,
            cpus: Mapped::new(&maps.cpus)?,
            under_way,
            collector,
            meter,
            loaded,
            _stamping: stamping,
            began: None,
            watched: None,
            recorded: Duration::ZERO,
            recording,
            credit: 0.0,
            taken: 0.0,
            granted: false,
            tended: Instant::now(),
            tends: 0,
            late_ns,
            keeps_softirqs: kernel.softirq_words.is_none(),
        })
    }

    /// Packets count from now on, unless they do already.
    pub fn begin(&mut self, layout: &Layout) {
        if self.began.is_some() {
            return;
        }
        self.began = Some(Instant::now());
        self.recording = self.recording.map(|_| Instant::now());
        let events = self.events();
        self.meter.begin(self.loaded.skeleton.object(), events);
        self.allow(1.0, layout);
        self.set_watching(true);
    }

    /// No packet counts any more.
    pub fn end(&mut self) {
        self.set_watching(false);
        self.watched = self.began.map(|began| began.elapsed());
        self.recorded = self.recorded();
        self.recording = None;
    }

    fn set_watching(&mut self, watching: bool) {
        self.set_clocks();
        if let Some(variables) = self.loaded.skeleton.maps.bss_data.as_deref_mut() {
            variables.watching = watching.into();
        }
    }

    /// The clock may have been set since.
    fn set_clocks(&mut self) {
        let (from_tai, from_monotonic) = (real_from_tai_ns(), real_from_monotonic_ns());
        if let Some(variables) = self.loaded.skeleton.maps.bss_data.as_deref_mut() {
            variables.real_from_tai_ns = from_tai;
            variables.real_from_monotonic_ns = from_monotonic;
        }
    }

    /// Which packets are sent to user space from now on, and how many: as many as can be explained.
    fn allow(&mut self, seconds: f64, layout: &Layout) {
        let samples = self.samples(layout).filled();
        let slowest = slow_from(&samples, self.time().as_secs_f64()).min(self.late_ns);
        let Some(variables) = self.loaded.skeleton.maps.bss_data.as_deref_mut() else { return };
        let slow = &mut variables.watch_slow;
        slow.ns = slowest;
        slow.left = match self.recording {
            Some(_) => {
                let cost = self.collector.as_ref().map_or(Duration::ZERO, Collector::cost);
                let each = cost.as_secs_f64();
                let most = SENT_AT_ONCE.min(EXPLAINING_AT_ONCE_S / each);
                let per_s = SENT_PER_S.min(EXPLAINING / each);
                // However long one takes, some are explained.
                let more = if self.granted { (per_s * seconds).max(1.0) } else { most };
                (slow.left.max(0) as f64 + more).min(most) as i64
            }
            None => 0,
        };
        variables.late_ns = self.late_ns;
        self.granted = true;
    }

    /// What is due from time to time: the cost, the packets that may be sent, the clock. `limit` is a share of a CPU.
    pub fn tend(&mut self, limit: Option<f64>, layout: &Layout) {
        let since = self.tended.elapsed();
        if since < BETWEEN || self.watched.is_some() || self.began.is_none() {
            return;
        }
        self.tended = Instant::now();
        self.set_clocks();
        self.allow(since.as_secs_f64(), layout);
        if let Some(collector) = &self.collector {
            collector.consume();
        }
        let events = self.events();
        let object = self.loaded.skeleton.object();
        self.tends += 1;
        match self.tends % WINDOW_IN {
            1 => self.meter.end(object, events),
            0 => self.meter.begin(object, events),
            _ => {}
        }
        let Some(limit) = limit.filter(|_| self.collector.is_some()) else { return };
        let taken = self.spent_of_busiest().as_secs_f64();
        let allowed = PART_OF_LIMIT * limit;
        let saved = allowed * SAVED.as_secs_f64();
        let more = allowed * since.as_secs_f64() - (taken - self.taken).max(0.0);
        (self.credit, self.taken) = ((self.credit + more).min(saved), taken);
        if self.recording.is_some() && self.credit < -saved {
            self.stop_recording();
        } else if self.recording.is_none() && self.credit > 0.0 {
            self.resume_recording(layout);
        }
    }

    /// Late packets are counted only from now on. (The programs of stages that record are those of tracepoints.)
    fn stop_recording(&mut self) {
        self.recorded = self.recorded();
        self.recording = None;
        if let Some(variables) = self.loaded.skeleton.maps.bss_data.as_deref_mut() {
            variables.watch_slow.left = 0;
        }
        let keeps_softirqs = self.keeps_softirqs;
        self.loaded.attached.detach_tracepoints(|probe| {
            probe.watch || (keeps_softirqs && load::SOFTIRQS.contains(&probe.program))
        });
    }

    fn resume_recording(&mut self, layout: &Layout) {
        self.under_way.forget(layout);
        if let Some(collector) = &self.collector {
            collector.restart();
        }
        self.loaded.attached.attach_tracepoints(self.loaded.skeleton.object());
        self.recording = Some(Instant::now());
    }

    /// CPU time of its programs so far, of the CPU that had most of it.
    pub fn spent_of_busiest(&mut self) -> Duration {
        let events = self.events();
        self.meter.spent(events).mul_f64(self.busiest())
    }

    /// How long it has watched.
    fn time(&self) -> Duration {
        let so_far = || self.began.map_or(Duration::ZERO, |began| began.elapsed());
        self.watched.unwrap_or_else(so_far)
    }

    /// How long what CPUs and readers do was recorded.
    fn recorded(&self) -> Duration {
        self.recorded + self.recording.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn total(&self, field: usize) -> u64 {
        let each = words_of::<watched>();
        (0..self.totals.len() / each).map(|shard| self.totals.get(shard * each + field)).sum()
    }

    /// What each CPU recorded.
    fn events_by_cpu(&self) -> impl Iterator<Item = u64> {
        let each = words_of::<cpu>();
        (0..self.cpus.len() / each).map(move |number| {
            let word = |field| self.cpus.get(number * each + field);
            word(word_of!(cpu, task_events)).saturating_add(word(word_of!(cpu, softirq_events)))
        })
    }

    /// Runs of its programs, more or less.
    fn events(&self) -> u64 {
        self.events_by_cpu().sum::<u64>() + self.total(word_of!(watched, seen))
    }

    /// The share of its cost that the busiest CPU has, by what each recorded.
    fn busiest(&self) -> f64 {
        let (most, all) = self
            .events_by_cpu()
            .fold((0, 0u64), |(most, all), events| (events.max(most), all.saturating_add(events)));
        if all == 0 { 1.0 } else { most as f64 / all as f64 }
    }

    /// The samples of its path.
    fn samples(&self, layout: &Layout) -> Samples {
        let paths = self.reading(layout).paths();
        let found = paths.into_iter().find(|(kind, _)| *kind == PathKind::Watch);
        found.map(|(_, samples)| samples).unwrap_or_default()
    }

    fn reading<'a>(&'a self, layout: &'a Layout) -> Reading<'a> {
        Reading {
            layout,
            counters: &self.counters,
            span_of: &self.span_of,
            histograms: &self.spans,
            path_histograms: &self.histograms,
            places: &self.places,
        }
    }

    /// What it has seen so far.
    pub fn seen(&mut self, layout: &Layout, options: &Options) -> Seen {
        // Groups are part of the whole, so they are read before it.
        let parts = options.groups.map(|by| (by, self.loaded.groups(by.per)));
        let samples = self.samples(layout);
        let terms = PathTerms::new(&options.above, |_| false);
        let packets = samples.count();
        let path = path::latency(PathKind::Watch, &samples, &terms, layout);
        let paths = if packets > 0 { vec![(PathKind::Watch, samples)] } else { Vec::new() };
        let whole = Whole { packets, spans: Vec::new(), paths, terms };
        let groups = parts.map(|(by, parts)| group::shown(parts, by, &whole, layout));
        let collected = self.collector.as_ref().map(Collector::collect).unwrap_or_default();
        let (slow, outliers, budget_totals) = collected;
        let explained = self.collector.as_ref().map_or(0, Collector::explained);
        let events = self.events();
        Seen {
            watch: Watched {
                watched_s: self.time().as_secs_f64(),
                recorded_s: self.recorded().as_secs_f64(),
                packets,
                unstamped: self.total(word_of!(watched, unstamped)),
                late_ns: self.late_ns,
                late: self.total(word_of!(watched, late)),
                explained,
                not_watched: None,
            },
            path,
            slow: Slow {
                lost: slow.lost.saturating_add(self.reading(layout).outliers_lost()),
                ..slow
            },
            outliers,
            budget_totals,
            groups: groups.unwrap_or_default(),
            spent: self.meter.spent(events),
        }
    }
}
