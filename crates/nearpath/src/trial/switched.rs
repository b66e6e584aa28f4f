//! The host under one trial: switched between its two states, given time to settle, and measured in blocks that end at
//! once if the plan does harm.

use super::{Bench, NothingMade};
use anyhow::{Context, bail};
use nearpath_model::{Block, Hops, Step, Tail};
use nearpath_trial::comparison::{Buckets, tail};
use nearpath_trial::experiment::Experiment;
use nearpath_trial::live::Needs;
use nearpath_trial::settling::{Settling, with_reserve};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often links and counters are looked at during a block.
const LOOK: Duration = Duration::from_millis(100);
/// Window of the settling time's measurement.
const WINDOW: Duration = Duration::from_millis(100);
/// A host that has not settled by then is not waited for.
const SETTLING_MAX: Duration = Duration::from_secs(5);
/// The shortest time to settle.
const SETTLING_MIN: Duration = Duration::from_millis(100);
/// The interval of irqbalance (`SLEEP_INTERVAL` in irqbalance.h): it places interrupts once in so long.
const IRQBALANCE: Duration = Duration::from_secs(10);
/// A link that comes back within this time after a switch is not lost: drivers restart the interface.
const LINK_RESTART: Duration = Duration::from_secs(10);

/// The host under one trial.
pub(super) struct Switched<'b, 'a> {
    bench: &'b mut Bench<'a>,
    steps: Vec<Step>,
    /// The last change in the journal before the trial.
    outer: u64,
    /// The last one before what is switched: what stays in an undo is applied before.
    base: u64,
    with: bool,
    block: Duration,
    settling: Duration,
    /// The switches after which the time to settle was measured.
    settled: Vec<Switch>,
    /// Number of blocks whose packets are pooled.
    pooled: usize,
    /// Hops in the blocks without the plan and with it, if packets are observed.
    hops: [Vec<Hops>; 2],
    /// The latencies of each block, in order.
    latencies: Vec<Option<Buckets>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Switch {
    On,
    Off,
    Placebo,
}

impl<'b, 'a> Switched<'b, 'a> {
    pub(super) fn new(bench: &'b mut Bench<'a>, steps: Vec<Step>) -> Self {
        let base = bench.executor.last();
        let block = bench.config.block;
        let settling = bench.config.settling.unwrap_or(SETTLING_MIN);
        let owners = steps.iter().map(|step| step.change.target.owner());
        bench.meter.links().watch(bench.root, owners);
        let (hops, latencies) = ([Vec::new(), Vec::new()], Vec::new());
        Self {
            bench,
            steps,
            outer: base,
            base,
            with: false,
            block,
            settling,
            settled: Vec::new(),
            pooled: 1,
            hops,
            latencies,
        }
    }

    pub(super) fn bench(&self) -> &Bench<'a> {
        self.bench
    }

    /// The duration of the last blocks.
    pub(super) fn block_time(&self) -> Duration {
        self.block
    }

    /// The time to settle after a switch.
    pub(super) fn settling(&self) -> Duration {
        self.settling
    }

    /// Hops in the blocks without the plan and with it.
    pub(super) fn hops(&self) -> &[Vec<Hops>; 2] {
        &self.hops
    }

    /// The latencies of the last block.
    pub(super) fn last_latencies(&self) -> Option<Buckets> {
        self.latencies.last().cloned().flatten()
    }

    /// The tail of the blocks, whose side `sides` gives in order; `None` for those of neither.
    pub(super) fn tail(&self, sides: impl Iterator<Item = Option<bool>>) -> Option<Tail> {
        let mut pools = [BTreeMap::new(), BTreeMap::new()];
        for (side, latencies) in sides.zip(&self.latencies) {
            let Some(side) = side else { continue };
            // Blocks without a packet have none.
            for &(bucket, count) in latencies.iter().flatten() {
                *pools[usize::from(side)].entry(bucket).or_insert(0) += count;
            }
        }
        tail(&pools.map(|pool| pool.into_iter().collect()))
    }

    /// Before the first block: `pooled` blocks of a side are one distribution.
    pub(super) fn prepare(&mut self, pooled: usize) {
        self.pooled = pooled;
        let places_irqs = |step: &Step| step.change.target.kind() == "irq_affinity";
        let config = self.bench.config;
        if config.settling.is_none() && config.irqbalance && self.steps.iter().any(places_irqs) {
            self.settling = IRQBALANCE;
        }
    }

    /// How long after now the metric no longer changes, and links that the switch has interrupted are back.
    fn settled_after(&mut self) -> anyhow::Result<Duration> {
        let (mut settling, mut back_after) = (Settling::default(), Duration::ZERO);
        let began = Instant::now();
        self.bench.meter.begin(self.bench.root)?;
        while began.elapsed() < SETTLING_MAX {
            self.wait(WINDOW)?;
            settling.push(self.bench.meter.window(self.bench.root)?);
            if self.bench.meter.links().lost(self.bench.root).is_some() {
                (settling, back_after) = (Settling::default(), began.elapsed());
            } else if let Some(windows) = settling.settled() {
                return Ok(back_after + WINDOW * u32::try_from(windows).unwrap_or(u32::MAX));
            }
        }
        Ok(SETTLING_MAX)
    }

    /// Applies what stays in an undo, before anything is switched: both kinds of blocks have it, and if the plan is
    /// kept, it is in the journal with all else.
    pub(super) fn apply_one_way(&mut self) -> anyhow::Result<()> {
        let stays = |step: &mut Step| step.change.target.one_way().is_some();
        let one_way: Vec<Step> = self.steps.extract_if(.., stays).collect();
        self.bench.executor.apply_steps(one_way)?;
        self.base = self.bench.executor.last();
        Ok(())
    }

    /// Applies the plan.
    pub(super) fn apply(&mut self) -> anyhow::Result<()> {
        if self.with {
            return Ok(());
        }
        let outcome = self.bench.executor.apply_steps(self.steps.clone())?;
        if outcome.made.is_empty() {
            let why = outcome.skipped.first().map(|skipped| skipped.reason.to_string());
            return Err(NothingMade(why.unwrap_or_else(|| "it is empty".to_owned())).into());
        }
        self.with = true;
        Ok(())
    }

    /// Undoes what is switched.
    fn undo(&mut self) -> anyhow::Result<()> {
        self.undo_until(self.base)
    }

    /// Undoes all that the trial has applied.
    pub(super) fn undo_all(&mut self) -> anyhow::Result<()> {
        self.undo_until(self.outer)
    }

    fn undo_until(&mut self, base: u64) -> anyhow::Result<()> {
        self.with = false;
        for (entry, undone) in self.bench.executor.rollback(Some(base), &self.bench.boot) {
            undone.with_context(|| format!("change {} could not be undone", entry.id))?;
        }
        Ok(())
    }

    fn wait(&self, time: Duration) -> anyhow::Result<()> {
        if self.bench.interrupt.wait(time) {
            bail!("stopped early by a signal");
        }
        if self.bench.asker.is_gone() {
            bail!("stopped early: the process that started it has ended");
        }
        Ok(())
    }

    /// Waits until the host has settled after a switch and links that it has interrupted are back, for a while. The first
    /// switch of each kind shows how long that takes, unless it is given.
    fn settle(&mut self, switch: Switch) -> anyhow::Result<()> {
        let began = Instant::now();
        if self.bench.config.settling.is_none() && !self.settled.contains(&switch) {
            self.settled.push(switch);
            let measured = with_reserve(self.settled_after()?, SETTLING_MIN);
            self.settling = self.settling.max(measured);
        }
        loop {
            let left = self.settling.saturating_sub(began.elapsed());
            let is_lost = self.bench.meter.links().lost(self.bench.root).is_some();
            if left.is_zero() && (!is_lost || began.elapsed() >= LINK_RESTART) {
                return Ok(());
            }
            self.wait(if left.is_zero() { LOOK } else { left })?;
        }
    }

    /// Waits for the end of a block, or for harm.
    fn watch(&mut self) -> anyhow::Result<Option<String>> {
        let root = self.bench.root;
        self.bench.meter.links().begin(root);
        let began = Instant::now();
        loop {
            let left = self.block.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            self.wait(left.min(LOOK))?;
            let links = self.bench.meter.links();
            if self.with {
                if let Some(harm) = links.harm(root) {
                    return Ok(Some(harm));
                }
            } else if let Some(name) = links.lost(root) {
                bail!("{name}: link lost while the plan was not applied");
            }
        }
        if !self.with {
            self.bench.meter.links().end_without(root);
        }
        Ok(None)
    }
}

impl Experiment for Switched<'_, '_> {
    type Error = anyhow::Error;

    fn set(&mut self, with: bool) -> anyhow::Result<()> {
        if with == self.with {
            return Ok(());
        }
        if with {
            self.apply()?;
            return self.settle(Switch::On);
        }
        self.undo()?;
        self.settle(Switch::Off)
    }

    fn placebo(&mut self) -> anyhow::Result<()> {
        self.apply()?;
        self.undo()?;
        self.settle(Switch::Placebo)
    }

    fn block(&mut self) -> anyhow::Result<Result<Block, String>> {
        self.bench.meter.begin(self.bench.root)?;
        if let Some(harm) = self.watch()? {
            return Ok(Err(harm));
        }
        let needs = if self.with { Needs::Anything } else { Needs::PartOf(self.pooled) };
        let found = self.bench.meter.end(self.bench.root, needs)?;
        self.hops[usize::from(self.with)].extend(found.hops);
        self.latencies.push(found.latencies);
        Ok(Ok(found.block))
    }

    fn lengthen(&mut self) {
        self.block *= 2;
    }
}
