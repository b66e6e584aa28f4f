//! The host under one trial: switched between its two states, given time to settle, and measured in blocks that end at
//! once if the plan does harm.

use super::figures::{Figures, merged};
use super::links::Counted;
use super::neighbours::Neighbours;
use super::{Bench, NothingMade};
use anyhow::{Context, bail};
use nearpath_model::{Block, Comparison, Hops, Moved, Step, Tail, Target, TrialFigure};
use nearpath_trial::comparison::{Buckets, tail};
use nearpath_trial::experiment::{Experiment, Seen};
use nearpath_trial::live::Needs;
use nearpath_trial::sequential::Effect;
use nearpath_trial::settling::{Settling, with_reserve};
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
    figures: Figures,
    neighbours: Neighbours,
    /// All blocks in order, each with whether it has the plan.
    blocks: Vec<(bool, MeasuredBlock)>,
}

/// A measured block.
pub(super) struct MeasuredBlock {
    pub(super) block: Block,
    /// Packets lost per second.
    pub(super) lost_per_s: f64,
    /// Received and sent, in 10⁹ bits per second.
    pub(super) gbps: f64,
    /// Hops of packets, if they are observed.
    pub(super) hops: Option<Hops>,
    /// The latencies that the metric is of, if it is of any.
    pub(super) latencies: Option<Buckets>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Switch {
    On,
    Off,
}

impl<'b, 'a> Switched<'b, 'a> {
    pub(super) fn new(bench: &'b mut Bench<'a>, steps: Vec<Step>, figures: Figures) -> Self {
        let base = bench.executor.last();
        let block = bench.config.block;
        let settling = bench.config.settling.unwrap_or(SETTLING_MIN);
        let owners = steps.iter().map(|step| step.change.target.owner());
        bench.meter.links().watch(bench.root, owners);
        let moved = steps.iter().filter_map(|step| moved(&step.change.target));
        let neighbours = Neighbours::new(moved);
        Self {
            neighbours,
            bench,
            steps,
            outer: base,
            base,
            with: false,
            block,
            settling,
            settled: Vec::new(),
            figures,
            blocks: Vec::new(),
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

    pub(super) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// What all blocks say of each figure.
    pub(super) fn report(&self, effects: &[Effect]) -> Vec<TrialFigure> {
        self.figures.report(&self.blocks, effects)
    }

    fn side(&self, with: bool) -> Vec<&MeasuredBlock> {
        self.blocks.iter().filter(|(side, _)| *side == with).map(|(_, block)| block).collect()
    }

    /// The figures of latencies or a metric, with so many blocks before a change and the others after it.
    pub(super) fn compared_once(&self, before: usize) -> Vec<Option<Comparison>> {
        let blocks: Vec<&MeasuredBlock> = self.blocks.iter().map(|(_, block)| block).collect();
        self.figures.compared_once(blocks.split_at(before.min(blocks.len())))
    }

    /// The tail of all blocks of a side.
    pub(super) fn tail(&self) -> Option<Tail> {
        tail(&[false, true].map(|with| merged(&self.side(with))))
    }

    /// The hops of packets, if they were observed.
    pub(super) fn moved(&self) -> Option<Moved> {
        let mean = |with| {
            let hops: Vec<Hops> = self.side(with).iter().filter_map(|block| block.hops).collect();
            super::mean(&hops)
        };
        Some(Moved { without: mean(false)?, with: mean(true)? })
    }

    /// Number of blocks with the plan.
    pub(super) fn count(&self) -> usize {
        self.side(true).len()
    }

    /// Before the first block.
    pub(super) fn prepare(&mut self) {
        let places_irqs = |step: &Step| step.change.target.kind() == "irq_affinity";
        let config = &self.bench.config;
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

/// The thread that a change moves, or its process if all of that follows.
fn moved(target: &Target) -> Option<u32> {
    match target {
        Target::Thread(thread) if thread.since_ticks.is_some() => Some(thread.pid),
        Target::Thread(thread) => Some(thread.tid),
        _ => None,
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

    fn block(&mut self) -> anyhow::Result<Result<Seen, String>> {
        self.neighbours.begin(self.bench.root);
        let (before, began) = (Counted::read(self.bench.root), Instant::now());
        self.bench.meter.begin(self.bench.root)?;
        if let Some(harm) = self.watch()? {
            return Ok(Err(harm));
        }
        let needs = if self.with { Needs::Anything } else { Needs::Some };
        let found = self.bench.meter.end(self.bench.root, needs)?;
        if let Some(harm) = self.neighbours.end(self.bench.root, self.with) {
            return Ok(Err(harm));
        }
        let (mut block, hops, latencies) = (found.block, found.hops, found.latencies);
        let counted = Counted::read(self.bench.root).since(before);
        let per_s = |count: u64| count as f64 / began.elapsed().as_secs_f64();
        // Of probes that nobody answers, this host may have lost none.
        let lost_per_s = per_s(counted.lost).max(block.lost * block.rate_per_s);
        if self.bench.meter.sees_all() {
            // A listener that drops a connection frees its packet as if it was received.
            let lost_here = per_s(counted.lost_here);
            block.lost = block.lost.max(lost_here / (lost_here + block.rate_per_s).max(1.0));
        }
        let gbps = per_s(counted.bytes) * 8e-9;
        let measured = MeasuredBlock { block, lost_per_s, gbps, hops, latencies };
        if self.blocks.is_empty() {
            let length = self.figures.long_enough(self.block, &measured);
            self.block = length.map_err(anyhow::Error::msg)?;
        }
        let seen =
            Seen { block: measured.block.clone(), figures: self.figures.block_values(&measured) };
        self.blocks.push((self.with, measured));
        Ok(Ok(seen))
    }
}
