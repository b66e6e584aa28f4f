//! Loads the programs of `bpf/tcp_samples.bpf.c`, which run for each packet (detail `full`), and reads what they saw.
//!
//! Input: the connections' filter. Output: by cookie, samples of the round-trip time, waits of data for its reader,
//! and closed windows. The programs are detached while the overhead limit pauses them.

use crate::InstrumentError;
use crate::kernel::{
    AttachMode, Attached, Kernel, Mapped, Meter, Probe, attach, choose, in_best_mode, load_only,
    open, pair_at, probe, refused, word_of, words_of,
};
use libbpf_rs::skel::{OpenSkel, Skel};
use nearpath_host::TcpFilter;
use nearpath_model::histogram::{BUCKETS, FINE_BUCKETS, cells, fine_cells};
use nearpath_model::tcp::{TcpSamples, TcpSampling, TcpTimes};
use nearpath_model::{CpuId, EventCost};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/tcp_samples.skel.rs"));
}

use skeleton::{TcpSamplesSkel, TcpSamplesSkelBuilder, types::sampled};

/// All probes.
const PROBES: &[Probe] = &[
    probe("segment", "tcp_probe", "tcp_rcv_established", &["rtt"]),
    probe("read", "tcp_rcv_space_adjust", "tcp_rcv_space_adjust", &["read"]),
];

/// The programs' value for no CPU.
const NO_CPU: u32 = u32::MAX;

/// The loaded programs; dropping it detaches and frees everything. The fields are dropped in this order.
pub(super) struct Samples {
    connections: Mapped,
    meter: Meter,
    attached: Attached,
    skeleton: TcpSamplesSkel<'static>,
    /// Since when packets are observed, if they are; and how long they were before.
    since: Option<Instant>,
    before: Duration,
}

impl Samples {
    /// Loads, attaches and starts.
    ///
    /// # Errors
    /// A missing privilege, or something that the kernel lacks or refused.
    pub fn start(
        filter: &TcpFilter,
        netns: Option<u64>,
        btf: Option<&Path>,
    ) -> Result<Self, InstrumentError> {
        let kernel = Kernel::to_load_into(PROBES, btf)?;
        let (mut samples, _) =
            in_best_mode(&kernel, |mode| Self::load(&kernel, mode, filter, netns))?;
        samples.set_active(true);
        samples.since = Some(Instant::now());
        Ok(samples)
    }

    fn load(
        kernel: &Kernel,
        mode: AttachMode,
        filter: &TcpFilter,
        netns: Option<u64>,
    ) -> Result<Self, InstrumentError> {
        let mut open = open::<TcpSamplesSkelBuilder>(kernel)?;
        let (chosen, skipped) = choose(kernel, mode, |_| true);
        if let Some((_, reason)) = skipped.into_iter().next() {
            return Err(InstrumentError::Unsupported(reason));
        }
        load_only(open.open_object_mut(), &chosen);
        if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
            constants.only_netns = netns.and_then(|inode| u32::try_from(inode).ok()).unwrap_or(0);
            set_ports!(constants, filter);
            constants.histogram_cells = cells();
            constants.histogram_fine_cells = fine_cells();
        }
        let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
        let connections = Mapped::new(&skeleton.maps.connections)?;
        let mut meter = Meter::new(skeleton.object());
        meter.count_dispatch(skeleton.object());
        let attached = attach(skeleton.object(), chosen)?;
        if let Some((_, reason)) = attached.refused.first() {
            return Err(InstrumentError::Unsupported(reason.clone()));
        }
        Ok(Self { connections, meter, attached, skeleton, since: None, before: Duration::ZERO })
    }

    fn set_active(&mut self, active: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = active.into();
        }
    }

    /// Runs of the programs so far.
    fn runs(&self) -> u64 {
        self.skeleton.maps.bss_data.as_deref().map_or(0, |variables| variables.runs)
    }

    /// Detaches the programs.
    pub fn pause(&mut self) {
        let runs = self.runs();
        self.meter.spent(runs);
        self.set_active(false);
        self.before += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.attached.detach_tracepoints(|_| false);
        self.meter.pause(Duration::ZERO);
    }

    /// Attaches them again. What was remembered of the connections does not continue.
    pub fn resume(&mut self) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.epoch = variables.epoch.wrapping_add(1);
        }
        self.attached.attach_tracepoints(self.skeleton.object());
        self.set_active(true);
        self.since = Some(Instant::now());
        let runs = self.runs();
        self.meter.resume(runs);
    }

    /// CPU time of the programs so far.
    pub fn spent(&mut self) -> Duration {
        let runs = self.runs();
        self.meter.spent(runs)
    }

    /// Begins a window in which the cost is measured.
    pub fn begin_cost_window(&mut self) {
        let runs = self.runs();
        self.meter.begin(self.skeleton.object(), runs);
    }

    /// Ends it.
    pub fn end_cost_window(&mut self) {
        let runs = self.runs();
        self.meter.end(self.skeleton.object(), runs);
    }

    /// Cost per run of a program, while packets were observed.
    pub fn cost(&self) -> Option<EventCost> {
        self.meter.event_cost()
    }

    /// How packets were observed.
    pub fn sampling(&self) -> TcpSampling {
        let now = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        let variables = self.skeleton.maps.bss_data.as_deref();
        TcpSampling {
            observed_s: (self.before + now).as_secs_f64(),
            observed: self.runs(),
            collided: variables.map_or(0, |v| v.collided),
            unmarked: variables.map_or(0, |v| v.unmarked),
        }
    }

    /// What the packets of each connection showed, by its cookie.
    pub fn read(&self) -> HashMap<u64, TcpSamples> {
        let slots = self.connections.len() / words_of::<sampled>();
        (0..slots).filter_map(|slot| self.slot(slot * words_of::<sampled>())).collect()
    }

    /// The slot that begins with this word, unless it is free.
    fn slot(&self, start: usize) -> Option<(u64, TcpSamples)> {
        let word = |at: usize| self.connections.get(start + at);
        let pair = |at: usize| {
            let [a, b, c, d, e, f, g, h] = word(at).to_ne_bytes();
            [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
        };
        let cookie = word(word_of!(sampled, cookie));
        if word(word_of!(sampled, sk)) == 0 || cookie == 0 {
            return None;
        }
        let counts =
            |at: usize, buckets: usize| (0..buckets / 2).flat_map(move |word| pair(at + word));
        let [_, read_on] = pair(pair_at!(sampled, processed_on, read_on));
        let samples = TcpSamples {
            rtt: TcpTimes::from_fine_counts(
                counts(word_of!(sampled, rtt), FINE_BUCKETS),
                word(word_of!(sampled, max_rtt_ns)),
            ),
            read_wait: TcpTimes::from_counts(
                counts(word_of!(sampled, wait), BUCKETS),
                word(word_of!(sampled, max_wait_ns)),
            ),
            read_on_cpu: Some(read_on).filter(|&cpu| cpu != NO_CPU).map(CpuId),
            reads: word(word_of!(sampled, reads)),
            reads_on_other_cpu: word(word_of!(sampled, reads_elsewhere)),
            peer_zero_windows: word(word_of!(sampled, peer_zero_windows)),
            own_zero_windows: word(word_of!(sampled, own_zero_windows)),
        };
        Some((cookie, samples))
    }
}
