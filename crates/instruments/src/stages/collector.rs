//! Takes slow packets from the programs, explains each, and keeps the slowest and the sums.

use super::budget::budget;
use super::layout::Layout;
use super::record::Record;
use crate::{InstrumentError, Outlier, Share, ShareKind, Slow, Who};
use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use nearpath_host::{CpuId, NodeId};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Different causes that are kept apart; what else there is counts as unknown.
const CAUSES_MAX: usize = 4096;

/// The slow packets of a measurement.
pub struct Collector {
    ring: RingBuffer<'static>,
    found: Arc<Mutex<Found>>,
}

/// What was found so far.
#[derive(Debug, Default)]
struct Found {
    keep: usize,
    nodes: Vec<Option<NodeId>>,
    slow: Slow,
    slowest: Vec<Outlier>,
    sums: BTreeMap<(ShareKind, Option<Who>), u64>,
}

impl Collector {
    /// Listens to the programs; keeps the slowest `keep` packets.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn new(map: &dyn MapCore, layout: &Layout, keep: usize) -> Result<Self, InstrumentError> {
        let nodes =
            layout.cpus.iter().map(|row| (row.node != u32::MAX).then_some(NodeId(row.node)));
        let found = Found { keep, nodes: nodes.collect(), ..Found::default() };
        let found = Arc::new(Mutex::new(found));
        let refused = |error: libbpf_rs::Error| InstrumentError::Refused {
            step: "listening to slow packets".to_owned(),
            reason: error.to_string(),
        };
        let mut builder = RingBufferBuilder::new();
        let sink = Arc::clone(&found);
        let take = move |bytes: &[u8]| {
            if let Some(record) = Record::read(bytes) {
                sink.lock().unwrap_or_else(PoisonError::into_inner).add(&record);
            }
            0
        };
        builder.add(map, take).map_err(refused)?;
        Ok(Self { ring: builder.build().map_err(refused)?, found })
    }

    /// Takes what the programs have sent; then what was found in all: how many, the slowest, the
    /// sums by cause.
    pub fn collect(&self) -> (Slow, Vec<Outlier>, Vec<Share>) {
        // An error is one of the callback's, which has none.
        let _ = self.ring.consume();
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.trim();
        let total = |((share, who), &ns): (&(ShareKind, Option<Who>), &u64)| Share {
            share: *share,
            ns,
            who: who.clone(),
        };
        let mut totals: Vec<Share> = found.sums.iter().map(total).collect();
        totals.sort_by_key(|share| Reverse(share.ns));
        (found.slow, found.slowest.clone(), totals)
    }
}

impl Found {
    fn add(&mut self, record: &Record) {
        let budget = budget(record);
        self.slow.seen += 1;
        self.slow.span_ns += record.span_ns;
        self.slow.complete += u64::from(budget.complete);
        for share in &budget.shares {
            let key = (share.share, share.who.clone());
            let full = self.sums.len() >= CAUSES_MAX && !self.sums.contains_key(&key);
            let key = if full { (ShareKind::Unknown, None) } else { key };
            *self.sums.entry(key).or_default() += share.ns;
        }
        self.slowest.push(Outlier {
            direction: record.to.direction,
            from: record.from.name.to_owned(),
            to: record.to.name.to_owned(),
            span_ns: record.span_ns,
            from_cpu: CpuId(record.from_cpu),
            cpu: CpuId(record.to_cpu),
            node: self.nodes.get(record.to_cpu as usize).copied().flatten(),
            flow: record.flow.clone(),
            at_ns: record.at_ns,
            packets_meanwhile: budget.packets,
            complete: budget.complete,
            budget: budget.shares,
        });
        if self.slowest.len() >= 2 * self.keep.max(32) {
            self.trim();
        }
    }

    fn trim(&mut self) {
        self.slowest.sort_by_key(|outlier| Reverse(outlier.span_ns));
        self.slowest.truncate(self.keep);
    }
}
