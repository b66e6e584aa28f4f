//! Receives slow packets from the programs, explains each, and keeps the slowest and the sums.

use super::Options;
use super::blocked::Stacks;
use super::budget::{budget, remote_memory_bound};
use super::events::{BLOCK_BYTES, Logs};
use super::load::Maps;
use super::packet_path::{PACKET_PATH_BYTES, PacketPath};
use super::record::Record;
use super::slowest::Slowest;
use super::tasks::Tasks;
use super::watch::SKB_TSTAMP;
use crate::InstrumentError;
use crate::layout::Layout;
use crate::limited::own_time;
use libbpf_rs::{RingBuffer, RingBufferBuilder};
use nearpath_model::{Culprit, Outlier, Share, ShareKind, Slow};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of distinct causes; further ones count as unknown.
const CAUSES_MAX: usize = 4096;

/// Size in bytes of the ring buffer used by the programs (`outliers` in `bpf/packet_path.h`). It is memory of the process,
/// twice if all of it is in use, as it is mapped twice. Within a limit of overhead there is a slice's at most.
pub fn ring_bytes(options: &Options) -> u32 {
    if options.limit.is_some() { 4 << 20 } else { 8 << 20 }
}

/// How long the packets that were received together are explained at most. One that has waited for a quarter of a second, with
/// thousands of events meanwhile, takes about a millisecond (20 in a debug build), and there may be as many as fit.
const PATIENCE: Duration = Duration::from_secs(30);

/// CPU time that explaining a packet is expected to take, before any was explained.
const FIRST_COST: Duration = Duration::from_micros(200);

/// The slow packets of a measurement.
pub struct Collector {
    ring: RingBuffer<'static>,
    /// As many records as fit into the ring.
    at_once: usize,
    found: Arc<Mutex<Found>>,
}

/// The results so far.
#[derive(Debug)]
struct Found {
    farthest: Vec<u32>,
    tasks: Tasks,
    slow: Slow,
    slowest: Slowest,
    sums: BTreeMap<(ShareKind, Option<Culprit>), u64>,
    logs: Logs,
    stacks: Stacks,
    /// From when on a whole packet is late, and how many of these had a complete budget.
    late_ns: u64,
    explained: u64,
    /// Until when slow packets are explained.
    until: Option<Instant>,
    /// CPU time that explaining a packet has taken lately.
    cost: Duration,
}

impl Collector {
    /// Opens the ring buffer; keeps the slowest packets, as many as the options say.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn new(
        maps: &Maps<'_>,
        layout: &Layout,
        options: &Options,
    ) -> Result<Self, InstrumentError> {
        let found = Found {
            farthest: layout.farthest.clone(),
            tasks: Tasks::new(maps)?,
            slow: Slow::default(),
            slowest: Slowest::new(layout, options.outliers),
            sums: BTreeMap::new(),
            logs: Logs::new(layout.cpus.len()),
            stacks: Stacks::new(&maps.stacks)?,
            late_ns: options.late_ns(),
            explained: 0,
            until: None,
            cost: FIRST_COST,
        };
        let found = Arc::new(Mutex::new(found));
        let refused = |error: libbpf_rs::Error| InstrumentError::Refused {
            step: "listening to slow packets".to_owned(),
            reason: error.to_string(),
        };
        let mut builder = RingBufferBuilder::new();
        let sink = Arc::clone(&found);
        let take = move |bytes: &[u8]| {
            sink.lock().unwrap_or_else(PoisonError::into_inner).take(bytes);
            0
        };
        builder.add(&maps.outliers, take).map_err(refused)?;
        let at_once = ring_bytes(options) as usize / PACKET_PATH_BYTES;
        Ok(Self { ring: builder.build().map_err(refused)?, at_once, found })
    }

    /// Receives at most as much as was there at the start: the programs continue in the meantime, and may be
    /// faster than the explanation. What cannot be explained in [`PATIENCE`] is counted as lost. Errors come from the
    /// callback, which returns none.
    pub fn consume(&self) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.tasks.forget();
        found.until = Some(Instant::now() + PATIENCE);
        let (began, seen) = (own_time(), found.slow.seen);
        drop(found);
        let _ = self.ring.consume_raw_n(self.at_once);
        let took = own_time().saturating_sub(began);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let explained = found.slow.seen - seen;
        if explained > 0 {
            found.cost = (found.cost + took.div_f64(explained as f64)) / 2;
        }
    }

    /// CPU time that explaining a packet has taken lately.
    pub fn cost(&self) -> Duration {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).cost
    }

    /// Receives what the programs have sent, and resets the reassembly state: the programs restart.
    pub fn restart(&self) {
        self.consume();
        self.found.lock().unwrap_or_else(PoisonError::into_inner).logs.clear();
    }

    /// Receives what the programs have sent; returns the totals: the number, the slowest, and the sums by
    /// cause.
    pub fn collect(&self) -> (Slow, Vec<Outlier>, Vec<Share>) {
        self.consume();
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let total = |((share, who), &ns): (&(ShareKind, Option<Culprit>), &u64)| Share {
            share: *share,
            ns,
            who: who.clone(),
        };
        let mut totals: Vec<Share> = found.sums.iter().map(total).collect();
        totals.sort_by_key(|share| Reverse(share.ns));
        (found.slow, found.slowest.outliers(), totals)
    }

    /// How many late packets of the watch had a complete budget.
    pub fn explained(&self) -> u64 {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).explained
    }
}

impl Found {
    /// A record of any kind: events of a ring, the path of a packet that had a slow span, or such a span.
    fn take(&mut self, bytes: &[u8]) {
        if bytes.len() == PACKET_PATH_BYTES {
            if let Some(packet_path) = PacketPath::read(bytes) {
                self.slowest.follow(&packet_path);
            }
        } else if bytes.len() == BLOCK_BYTES {
            self.logs.take(bytes);
        } else if self.until.is_some_and(|until| Instant::now() >= until) {
            self.slow.lost += 1;
        } else if let Some(mut record) = Record::read(bytes, &self.logs) {
            self.stacks.name(&mut record.reader);
            self.add(&record);
        }
    }

    fn add(&mut self, record: &Record) {
        let mut budget = budget(record);
        for share in &mut budget.shares {
            if let Some(who) = &mut share.who {
                self.tasks.describe(who);
            }
        }
        let farthest = self.farthest.get(record.to_cpu as usize).copied().unwrap_or(0);
        budget.shares.extend(remote_memory_bound(record, farthest));
        self.slow.seen += 1;
        self.slow.span_ns += record.span_ns;
        self.slow.complete += u64::from(budget.complete);
        let is_late = record.from.name == SKB_TSTAMP && record.span_ns > self.late_ns;
        self.explained += u64::from(is_late && budget.complete);
        for share in &budget.shares {
            let key = (share.share, share.who.clone());
            let full = self.sums.len() >= CAUSES_MAX && !self.sums.contains_key(&key);
            let key = if full { (ShareKind::Unknown, None) } else { key };
            *self.sums.entry(key).or_default() += share.ns;
        }
        self.slowest.add(record, budget);
    }
}
