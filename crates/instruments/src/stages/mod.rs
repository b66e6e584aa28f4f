//! The instrument `stages`: latency between adjacent stages of each packet's path, with the CPU
//! and node at both ends. The method is described in `docs/measuring.md`.

mod blocked;
mod budget;
mod collector;
mod drops;
mod events;
mod group;
#[cfg(test)]
mod interval_tests;
pub(crate) mod load;
mod options;
mod packet_path;
mod path;
mod pause;
mod reading;
mod record;
mod samples;
mod slowest;
mod table;
mod tasks;
mod under_way;
mod watch;
pub mod zoom;

pub use crate::stamps::{GivenClock, NIC_RX};
pub use options::Options;
pub use path::ABOVE_MAX;
pub use table::{PROBES, STAGES, Stage, detail_of};
pub use watch::SKB_TSTAMP;

use crate::drops::Names;
use crate::kernel::{Kernel, Mapped, Meter, clocks_now, clocks_since};
use crate::layout::Layout;
use crate::stamps::{Candidates, Stamps};
use crate::{Instrument, InstrumentError};
use collector::Collector;
use group::Whole;
use libbpf_rs::Object;
use libbpf_rs::skel::Skel;
use load::Loaded;
use nearpath_host::Root;
use nearpath_model::clock::ClockReading;
use nearpath_model::{
    Cost, Direction, Measurement, NotObservable, Slow, StageDrop, StageListing, Topology,
    Watch as Watched,
};
use path::PathTerms;
use pause::{InFlight, Observed};
use reading::Reading;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use table::SPANS_MAX;
use under_way::UnderWay;
use watch::Watch;

/// The instrument.
pub struct Stages {
    options: Options,
    layout: Layout,
    /// Read once the first packet was dropped.
    names: OnceLock<Names>,
    given_clocks: Vec<GivenClock>,
    /// Or why packets are not watched.
    watch: Option<Result<Watch, InstrumentError>>,
    /// Another measurement follows, with other stages; and whether this is that one.
    looks_again: bool,
    goes_on: bool,
    session: Option<Session>,
    /// The previous session, whose programs are still attached.
    ended: Option<Session>,
}

/// State between `start` and `stop`. The fields are dropped in this order.
struct Session {
    counters: Mapped,
    span_of: Mapped,
    histograms: Mapped,
    path_histograms: Mapped,
    places: Mapped,
    slow_spans: Mapped,
    /// How many slow packets of each span were allowed to be sent.
    granted: Vec<u64>,
    /// CPU time of this process for it, within an overhead limit.
    own: Duration,
    /// When that was last computed.
    followed: Option<Instant>,
    collector: Option<Collector>,
    meter: Meter,
    under_way: UnderWay,
    stamps: Option<Stamps>,
    loaded: Loaded,
    started: Instant,
    /// The clocks then, if slow packets are recorded.
    clocks: Option<ClockReading>,
    observed: Observed,
}

/// Summing up all spans takes milliseconds on a host with many CPUs: which packets are slow is computed no more often.
const BETWEEN_THRESHOLDS: Duration = Duration::from_millis(500);

/// Minimum observed time of an interval.
const SHORTEST_SLICE: Duration = Duration::from_millis(10);

impl Stages {
    /// Creates the instrument for a host; nothing is loaded yet.
    pub fn new(topology: &Topology, options: Options) -> Self {
        Self {
            options,
            layout: Layout::new(topology),
            names: OnceLock::new(),
            given_clocks: Vec::new(),
            watch: None,
            looks_again: false,
            goes_on: false,
            session: None,
            ended: None,
        }
    }

    /// Another measurement follows this one: packets are watched on when this one stops.
    pub fn look_first(&mut self) {
        self.looks_again = true;
    }

    /// Observes other stages from the next start on, while packets are watched as before.
    pub fn look_again(&mut self, options: Options) {
        (self.looks_again, self.goes_on) = (false, true);
        self.options = options;
        self.session = None;
        self.ended = None;
    }

    /// Adds a device that timestamps packets with this clock, to those reported by the kernel.
    #[must_use]
    pub fn with_nic_clock(mut self, clock: GivenClock) -> Self {
        self.given_clocks.push(clock);
        self
    }

    /// The devices that timestamp packets; none if not requested.
    fn stamping(&self) -> Candidates {
        match self.options.observes(NIC_RX) {
            true => Candidates::find(&self.given_clocks),
            false => Candidates::default(),
        }
    }

    /// All stages, with how each is observed on this kernel or why it cannot be.
    ///
    /// # Errors
    /// The kernel has no BTF.
    pub fn list(&self) -> Result<Vec<StageListing>, InstrumentError> {
        let kernel = Kernel::inspect(PROBES, self.options.btf_file.as_deref())?;
        let mode = kernel.best_mode();
        let stamping = Candidates::find(&self.given_clocks);
        let listing = |stage: &Stage| {
            if stage.name == SKB_TSTAMP {
                let (_, observed) = kernel.observes(PROBES.iter().filter(|p| p.watch), mode);
                return StageListing {
                    direction: stage.direction,
                    stage: stage.name,
                    detail: stage.detail,
                    function: "net_timestamp_check",
                    reason: observed.clone().err(),
                    attach: observed.ok().map(|_| "sk_buff.tstamp".to_owned()),
                };
            }
            if stage.name == NIC_RX {
                return StageListing {
                    direction: stage.direction,
                    stage: stage.name,
                    detail: stage.detail,
                    function: "skb_hwtstamps",
                    attach: stamping.names(),
                    reason: stamping.reason(),
                };
            }
            let probes = PROBES.iter().filter(|p| p.stages.contains(&stage.name));
            let (function, observed) = kernel.observes(probes, mode);
            StageListing {
                direction: stage.direction,
                stage: stage.name,
                detail: stage.detail,
                function,
                reason: observed.clone().err(),
                attach: observed.ok(),
            }
        };
        Ok(STAGES.iter().map(listing).collect())
    }
}

impl Session {
    fn object(&self) -> &Object {
        self.loaded.skeleton.object()
    }

    fn packets_started(&self) -> u64 {
        reading::packets(&self.counters).started
    }
}

impl Stages {
    /// Loads and attaches the programs. No packet starts before [`Self::begin`].
    pub(crate) fn attach(&mut self) -> Result<(), InstrumentError> {
        self.ended = None;
        let kernel = Kernel::to_load_into(PROBES, self.options.btf_file.as_deref())?;
        let goes_on = std::mem::take(&mut self.goes_on) && self.watch.is_some();
        if !goes_on {
            let watches =
                self.options.watch && self.options.filter.direction != Some(Direction::Tx);
            let watch = || Watch::attach(&kernel, &self.layout, &self.options);
            self.watch = watches.then(watch);
        }
        let stamping = self.stamping();
        let has_stamps = stamping.any_usable();
        let loaded = load::load(&kernel, &self.layout, &self.options, has_stamps)?;
        let maps = &loaded.skeleton.maps;
        let counters = Mapped::new(&maps.counters)?;
        let span_of = Mapped::new(&maps.span_of)?;
        let histograms = Mapped::new(&maps.histograms)?;
        let path_histograms = Mapped::new(&maps.path_histograms)?;
        let places = Mapped::new(&maps.cpu_pairs)?;
        let under_way = UnderWay::new(maps, &self.layout)?;
        reading::prepare(&span_of, &histograms, &path_histograms);
        let slow_spans = Mapped::new(&maps.slow_spans)?;
        // Without a threshold of the user's, none is sent until some were seen.
        let threshold = self
            .options
            .slow
            .map_or(u64::MAX, |slow| u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX));
        let left = if self.options.slow.is_some() { u64::MAX } else { 0 };
        for span in 0..SPANS_MAX {
            reading::set_slow(&slow_spans, span, threshold, left);
        }
        let collector = match self.options.budgets {
            true => Some(Collector::new(maps, &self.layout, &self.options)?),
            false => None,
        };
        let mut meter = Meter::new(loaded.skeleton.object());
        meter.count_dispatch(loaded.skeleton.object());
        if !loaded.attached.probes.iter().any(|p| reading::begins_a_path(p)) {
            let reason =
                loaded.attached.refused.first().map_or_else(String::new, |(_, why)| why.clone());
            return Err(InstrumentError::Unsupported(format!(
                "no stage at the start of a packet's path can be observed: {reason}"
            )));
        }
        let stamps =
            stamping.watch(&loaded.skeleton.maps.nics, &loaded.skeleton.maps.nic_clocks, &[])?;
        let started = Instant::now();
        self.session = Some(Session {
            counters,
            span_of,
            histograms,
            path_histograms,
            places,
            slow_spans,
            granted: Vec::new(),
            own: Duration::ZERO,
            followed: None,
            collector,
            meter,
            under_way,
            stamps,
            loaded,
            started,
            clocks: None,
            observed: Observed::default(),
        });
        Ok(())
    }

    /// Packets start from now on.
    pub(crate) fn begin(&mut self) {
        if let Some(Ok(watch)) = &mut self.watch {
            watch.begin(&self.layout);
        }
        if let Some(session) = &mut self.session {
            session.loaded.set_active(true);
            session.started = Instant::now();
            session.clocks = session.collector.as_ref().and_then(|_| clocks_now());
            session.observed.since = Some(session.started);
        }
    }

    /// The slots of the packets that are tracked.
    pub(crate) fn slots(&self) -> Option<BorrowedFd<'_>> {
        Some(self.session.as_ref()?.loaded.skeleton.maps.packets.as_fd())
    }
}

impl Instrument for Stages {
    type Measurement = Measurement;

    fn available(&self) -> Result<(), InstrumentError> {
        Kernel::to_load_into(PROBES, self.options.btf_file.as_deref()).map(drop)
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.attach()?;
        self.begin();
        Ok(())
    }

    fn slice(&self, interval: Duration) -> Duration {
        let part = |duty: NonZeroU32| (interval / duty.get()).max(SHORTEST_SLICE);
        self.options.duty.map_or(interval, part)
    }

    fn pause(
        &mut self,
        patience: Duration,
        longest: Duration,
        should_continue: &dyn Fn(Duration) -> bool,
    ) {
        self.follow_slowest();
        let Some(session) = &mut self.session else { return };
        // The cost so far is estimated from the packets so far.
        let started = session.packets_started();
        session.meter.spent(started);
        session.loaded.set_active(false);
        let observed = &mut session.observed;
        observed.before = observed.time();
        observed.since = None;
        observed.pauses += 1;
        let counters = &session.counters;
        let now = || reading::packets(counters);
        let object = session.loaded.skeleton.object();
        let drain = InFlight { started, patience, longest, now: &now };
        observed.wait_for(&drain, &mut session.meter, object, should_continue);
        session.loaded.attached.detach_tracepoints(|_| false);
    }

    fn resume(&mut self) {
        let Some(session) = &mut self.session else { return };
        session.under_way.forget(&self.layout);
        if let Some(collector) = &session.collector {
            collector.restart();
        }
        session.loaded.attached.attach_tracepoints(session.loaded.skeleton.object());
        session.loaded.set_active(true);
        session.observed.since = Some(Instant::now());
        let started = session.packets_started();
        session.meter.resume(started);
    }

    fn limit(&self) -> Option<f64> {
        self.options.limit.filter(|_| self.options.duty.is_none())
    }

    fn spent(&mut self) -> Duration {
        self.tend_watch();
        let watching = match &mut self.watch {
            Some(Ok(watch)) => watch.spent_of_busiest(),
            _ => Duration::ZERO,
        };
        let Some(session) = &mut self.session else { return watching };
        let started = session.packets_started();
        watching + session.meter.spent(started)
    }

    fn charge(&mut self, own: Duration) {
        if let Some(session) = &mut self.session {
            session.own = own;
        }
    }

    fn begin_cost_window(&mut self) {
        self.tend_watch();
        if let Some(session) = &mut self.session {
            let started = session.packets_started();
            session.meter.begin(session.loaded.skeleton.object(), started);
        }
    }

    fn end_cost_window(&mut self) {
        self.tend_watch();
        if let Some(session) = &mut self.session {
            let started = session.packets_started();
            session.meter.end(session.loaded.skeleton.object(), started);
        }
        // The first window ends early, others each second.
        self.follow_slowest();
    }

    fn read(&mut self) -> Result<Measurement, InstrumentError> {
        let session = self.session.as_ref().ok_or(InstrumentError::NotStarted)?;
        let measurement = self.measurement(session);
        Ok(self.with_watch(measurement))
    }

    fn stop(&mut self) -> Result<Measurement, InstrumentError> {
        self.end_cost_window();
        self.spent();
        let mut session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        session.loaded.set_active(false);
        let measurement = self.measurement(&session);
        let drops = self.drops(&session);
        self.ended = Some(session);
        let measurement = Measurement { drops, ..measurement };
        if let Some(Ok(watch)) = self.watch.as_mut().filter(|_| !self.looks_again) {
            watch.end();
        }
        Ok(self.with_watch(measurement))
    }
}

impl Stages {
    fn tend_watch(&mut self) {
        let limit = self.limit();
        if let Some(Ok(watch)) = &mut self.watch {
            watch.tend(limit, &self.layout);
        }
    }

    /// Adds what the watch has seen.
    fn with_watch(&mut self, measurement: Measurement) -> Measurement {
        match &mut self.watch {
            None => measurement,
            Some(Ok(watch)) => {
                watch.seen(&self.layout, &self.options).beside(measurement, self.options.outliers)
            }
            Some(Err(reason)) => {
                let not_watched = Some(reason.to_string());
                let watch = Some(Watched { not_watched, ..Watched::default() });
                Measurement { watch, ..measurement }
            }
        }
    }

    /// Dropped packets. Resolving their functions takes longer than an overhead limit allows while packets are
    /// observed (60ms here: 3 s of a limit of 2%), so it is done only afterwards.
    fn drops(&self, session: &Session) -> Vec<StageDrop> {
        let map = &session.loaded.skeleton.maps.stage_drops;
        drops::read(map, session.loaded.tells_reasons, || self.names())
    }

    fn names(&self) -> &Names {
        let btf_file = self.options.btf_file.as_deref();
        self.names.get_or_init(|| Names::read(&Root::live(), btf_file))
    }

    /// Which packets are slow from now on, by those so far; unless the user has said it.
    fn follow_slowest(&mut self) {
        let Some(session) = &mut self.session else { return };
        let is_recent = session.followed.is_some_and(|then| then.elapsed() < BETWEEN_THRESHOLDS);
        if self.options.slow.is_none() && self.options.budgets && !is_recent {
            session.followed = Some(Instant::now());
            let mut granted = std::mem::take(&mut session.granted);
            let observed = session.observed.time();
            let reading = reading_of(&self.layout, session);
            reading.follow_slowest(&session.slow_spans, observed, &mut granted);
            session.granted = granted;
        }
    }

    fn measurement(&self, session: &Session) -> Measurement {
        let elapsed = session.started.elapsed().as_secs_f64();
        let sliced = self.options.duty.is_some() || session.observed.pauses > 0;
        let observed = sliced.then(|| session.observed.time().as_secs_f64());
        let part = observed.map_or(1.0, |observed| observed / elapsed);
        let cost = session.meter.cost();
        let reading = reading_of(&self.layout, session);
        let collected = session.collector.as_ref().map(Collector::collect).unwrap_or_default();
        let (slow, outliers, budget_totals) = collected;
        // Before the whole: groups are part of it.
        let parts = self.options.groups.map(|by| (by, session.loaded.groups(by.per)));
        let runs = session.meter.runs(session.object());
        let packets = reading::packets(&session.counters);
        let (of_spans, spans): (Vec<_>, Vec<_>) = reading.spans().into_iter().unzip();
        let of_paths = reading.paths();
        let probes = &session.loaded.attached.probes;
        let terms = PathTerms::new(&self.options.above, |stage| {
            probes.iter().any(|probe| probe.stages.contains(&stage.name))
        });
        let latency =
            |(kind, samples): &(_, _)| path::latency(*kind, samples, &terms, &self.layout);
        let paths = of_paths.iter().filter_map(latency).collect();
        let whole = Whole { packets: packets.started, spans: of_spans, paths: of_paths, terms };
        let groups = parts.map(|(by, parts)| group::shown(parts, by, &whole, &self.layout));
        Measurement {
            schema: nearpath_model::MEASUREMENT_SCHEMA,
            duration_s: elapsed,
            observed_s: observed,
            limit_percent: self.limit().map(|limit| 100.0 * limit),
            filter: self.options.filter.to_string(),
            detail: self.options.stages.is_none().then_some(self.options.detail),
            stages: observed_stages(session),
            packets,
            events_lost: runs.missed + reading.unexpected() + session.loaded.tasks_collided(),
            fallback: session.loaded.fallback.clone(),
            cost: cost.map(|cost| Cost {
                cpu_percent: match self.limit() {
                    // Slices have different loads, and their windows different lengths.
                    Some(_) => {
                        let spent = session.meter.spent_before() + session.own;
                        100.0 * spent.as_secs_f64() / elapsed
                    }
                    None => part * cost.cpu_percent,
                },
                ..cost
            }),
            bucket_schema: nearpath_model::histogram::SCHEMA,
            paths,
            nic_stamps: session
                .stamps
                .as_ref()
                .map(|stamps| stamps.result(&reading::stamps(&session.counters))),
            spans,
            not_observable: not_observable(&session.loaded),
            slow: Slow {
                lost: slow.lost.saturating_add(reading.outliers_lost()),
                paths_lost: reading.packet_paths_lost(),
                ..slow
            },
            outliers,
            budget_totals,
            drops: Vec::new(),
            groups: groups.unwrap_or_default(),
            not_grouped: session.loaded.not_grouped(),
            into_guests: None,
            clocks: clocks_since(session.clocks),
            watch: None,
        }
    }
}

/// Names of the stages with an attached probe.
fn observed_stages(session: &Session) -> Vec<String> {
    let probes = &session.loaded.attached.probes;
    let has_stamps = session.stamps.as_ref().is_some_and(Stamps::is_on);
    let seen = |name: &str| {
        probes.iter().any(|p| p.stages.contains(&name)) && (name != NIC_RX || has_stamps)
    };
    let mut names: Vec<String> = Vec::new();
    for stage in STAGES.iter().filter(|stage| seen(stage.name)) {
        if !names.iter().any(|name| name == stage.name) {
            names.push(stage.name.to_owned());
        }
    }
    names
}

/// Stages without an attached probe, with the reason of the first one.
fn not_observable(loaded: &Loaded) -> Vec<NotObservable> {
    let reason = |stage: &Stage| {
        let seen = loaded.attached.probes.iter().any(|p| p.stages.contains(&stage.name));
        let refused = loaded.attached.refused.iter().find(|(p, _)| p.stages.contains(&stage.name));
        refused.filter(|_| !seen).map(|(_, reason)| reason.clone())
    };
    STAGES
        .iter()
        // Usually no NIC timestamps; what those that do leave out is reported with them.
        .filter(|stage| stage.name != NIC_RX)
        .filter_map(|stage| {
            Some(NotObservable {
                direction: Some(stage.direction),
                stage: stage.name.to_owned(),
                reason: reason(stage)?,
            })
        })
        .collect()
}

fn reading_of<'a>(layout: &'a Layout, session: &'a Session) -> Reading<'a> {
    Reading {
        layout,
        counters: &session.counters,
        span_of: &session.span_of,
        histograms: &session.histograms,
        path_histograms: &session.path_histograms,
        places: &session.places,
    }
}
