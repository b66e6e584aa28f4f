//! The order of a trial. Input: a host that can be switched between two states and measured. Output: pairs of blocks, one
//! without the change and one with it, until they decide; or the harm that stopped it.
//!
//! Which block of a pair has the change is random, so that nothing periodic on the host can be in step with it. What the host
//! is like without the change is known before the change is made.

use crate::comparison::{HarmWatch, Sign};
use crate::sequential::{Decision, Sequential};
use nearpath_model::{Block, Harm};

/// Blocks before the change is made for the first time.
const BEFORE: usize = 2;

/// A host without and with a change.
pub trait Experiment {
    /// The error type.
    type Error;

    /// Switches the change on or off, and waits until the host has settled.
    ///
    /// # Errors
    /// It cannot be switched.
    fn set(&mut self, with: bool) -> Result<(), Self::Error>;

    /// Measures one block. `Err` in the result is harm seen meanwhile.
    ///
    /// # Errors
    /// It cannot be measured.
    fn block(&mut self) -> Result<Result<Seen, String>, Self::Error>;
}

/// One block.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// What shows harm.
    pub block: Block,
    /// The figures that are compared, in the order of [`Sequential::new`].
    pub figures: Vec<Option<f64>>,
}

/// A random seed, small enough for every reader of JSON.
pub fn seed() -> u64 {
    fastrand::u64(..1 << 32)
}

/// Runs pairs of blocks until they decide, or `continue_while`, which is called after each pair, is false. The change is off at the
/// end. Returns the harm that stopped it.
///
/// # Errors
/// The first error of the experiment; the change may then still be on.
pub fn run<E: Experiment>(
    experiment: &mut E,
    sequential: &mut Sequential,
    mut continue_while: impl FnMut(&Sequential) -> bool,
) -> Result<Option<Harm>, E::Error> {
    let mut watch = HarmWatch::default();
    experiment.set(false)?;
    for _ in 0..BEFORE {
        if let Ok(seen) = experiment.block()? {
            watch.look(&seen.block, false);
        }
    }
    while sequential.decision() == Decision::Open {
        let with_first = sequential.with_first();
        let mut found: [Vec<Option<f64>>; 2] = Default::default();
        let [without, with] = &mut found;
        let blocks = if with_first {
            [(true, with), (false, without)]
        } else {
            [(false, without), (true, with)]
        };
        for (is_with, side) in blocks {
            experiment.set(is_with)?;
            let harm = match experiment.block()? {
                Ok(Seen { block, figures }) => {
                    *side = figures;
                    let sign = watch.look(&block, is_with);
                    confirmed(experiment, &mut watch, sign)?
                }
                Err(what) => {
                    let blocks_with = watch.blocks_with() + usize::from(is_with);
                    Some(Harm { what, blocks_with })
                }
            };
            if harm.is_some() {
                experiment.set(false)?;
                return Ok(harm);
            }
        }
        let [without, with] = &found;
        sequential.add(without, with);
        if !continue_while(sequential) {
            break;
        }
    }
    experiment.set(false)?;
    Ok(None)
}

/// The harm that these signs are of. A suspicion is looked into: the change is undone, the host has a block to recover,
/// and if the next one is still harmful, the change is not the cause. Else it is made once more, and harmful again if
/// it is the cause. These blocks are in no pair.
fn confirmed<E: Experiment>(
    experiment: &mut E,
    watch: &mut HarmWatch,
    sign: Option<Sign>,
) -> Result<Option<Harm>, E::Error> {
    let blocks_with = watch.blocks_with();
    let what = match sign {
        None => return Ok(None),
        Some(Sign::Harm(what)) => return Ok(Some(Harm { what, blocks_with })),
        Some(Sign::Suspicion(what)) => what,
    };
    experiment.set(false)?;
    let (Ok(recovery), Ok(after)) = (experiment.block()?, experiment.block()?) else {
        // A link that is lost now, after the change.
        return Ok(Some(Harm { what, blocks_with }));
    };
    if !watch.is_relieved(&after.block) {
        for seen in [recovery, after] {
            watch.look(&seen.block, false);
        }
        return Ok(None);
    }
    experiment.set(true)?;
    let blocks_with = blocks_with + 1;
    let again = match experiment.block()? {
        Ok(again) => again.block,
        Err(what) => return Ok(Some(Harm { what, blocks_with })),
    };
    // What is lost in this block stops it as in any other.
    if let Some(Sign::Harm(what)) = watch.look(&again, true) {
        return Ok(Some(Harm { what, blocks_with }));
    }
    Ok((!watch.is_relieved(&again)).then_some(Harm { what, blocks_with }))
}

/// What a trial of a change that is made once has measured.
#[derive(Debug, PartialEq)]
pub struct Once {
    /// The blocks before it.
    pub before: Vec<Block>,
    /// The blocks after it.
    pub after: Vec<Block>,
    /// The harm that stopped it.
    pub stopped: Option<Harm>,
}

/// Blocks before a change and after it, for changes that interrupt traffic: it is made once. It is left on.
///
/// # Errors
/// The first error of the experiment.
pub fn run_once<E: Experiment>(
    experiment: &mut E,
    blocks: usize,
    mut each: impl FnMut(usize),
) -> Result<Once, E::Error> {
    let (mut sides, mut watch) = ([Vec::new(), Vec::new()], HarmWatch::default());
    for with in [false, true] {
        experiment.set(with)?;
        for _ in 0..blocks {
            let harm = match experiment.block()? {
                Ok(Seen { block, .. }) => {
                    let sign = watch.look(&block, with);
                    sides[usize::from(with)].push(block);
                    // It is not applied again to find out more.
                    sign.map(|(Sign::Harm(what) | Sign::Suspicion(what))| {
                        (what, watch.blocks_with())
                    })
                }
                Err(what) => Some((what, watch.blocks_with() + usize::from(with))),
            };
            each(sides.iter().map(Vec::len).sum());
            if let Some((what, blocks_with)) = harm {
                experiment.set(false)?;
                let [before, after] = sides;
                let stopped = Some(Harm { what, blocks_with });
                return Ok(Once { before, after, stopped });
            }
        }
    }
    let [before, after] = sides;
    Ok(Once { before, after, stopped: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequential::{Figure, Scale};
    use nearpath_model::Observed;
    use std::ops::Range;

    /// Records its calls; each block's metric is near 100, or a multiple of that with the change.
    struct Written {
        log: String,
        with: bool,
        blocks: u32,
        broken_at: Option<u32>,
        link_lost_at: Option<u32>,
        lossy_at: Option<u32>,
        effect: f64,
        /// The host has other work in these blocks.
        busy: Range<u32>,
    }

    impl Written {
        fn new(effect: f64) -> Self {
            Self {
                log: String::new(),
                with: false,
                blocks: 0,
                broken_at: None,
                link_lost_at: None,
                lossy_at: None,
                effect,
                busy: 0..0,
            }
        }

        /// The trial, of so many pairs at most, which ends with the harm that stopped it.
        fn run(&mut self, pairs: usize) -> Result<(Decision, Option<Harm>), u32> {
            let figure =
                Figure { scale: Scale::Ratio, decides: true, minimum_effect: 0.05, harmless: 0.0 };
            let mut sequential = Sequential::new(&[figure], SEED, 1);
            let harm = run(self, &mut sequential, |so_far| so_far.pairs() < pairs)?;
            Ok((sequential.decision(), harm))
        }
    }

    /// The first pairs in this order: with, without; with, without; without, with.
    const SEED: u64 = 7;

    impl Experiment for Written {
        type Error = u32;

        fn set(&mut self, with: bool) -> Result<(), u32> {
            if self.with != with {
                self.log.push(if with { '+' } else { '-' });
            }
            self.with = with;
            Ok(())
        }

        fn block(&mut self) -> Result<Result<Seen, String>, u32> {
            self.blocks += 1;
            if self.broken_at == Some(self.blocks) {
                return Err(self.blocks);
            }
            if self.link_lost_at == Some(self.blocks) {
                return Ok(Err("link lost".to_owned()));
            }
            self.log.push(if self.with { 'B' } else { 'A' });
            let effect = if self.with { self.effect } else { 1.0 };
            let busy = if self.busy.contains(&self.blocks) { 10.0 } else { 1.0 };
            let metric = (100.0 + f64::from(self.blocks % 3)) * effect * busy;
            let lost = if self.lossy_at == Some(self.blocks) { 0.5 } else { 0.0 };
            let (errors, drops, cpus_busy, rate_per_s) = (0.0, 0.0, 0.0, 1.0);
            let observed = Observed::Ratio { sum: metric, count: 1.0 };
            let block = Block { observed, lost, errors, drops, cpus_busy, rate_per_s };
            Ok(Ok(Seen { block, figures: vec![Some(metric)] }))
        }
    }

    #[test]
    fn pairs_are_in_random_order_until_they_decide_and_the_change_is_off_at_the_end() {
        let mut host = Written::new(0.5);
        let (decision, harm) = host.run(100).unwrap();
        assert_eq!((decision, harm), (Decision::Better, None));
        let pairs = host.log.strip_prefix("AA").unwrap();
        assert!(pairs.contains("B-A") && pairs.contains("A+B") && !host.with, "{}", host.log);
        assert!((5..=12).contains(&(pairs.matches('A').count())), "{}", host.log);
        assert_eq!(pairs.matches('A').count(), pairs.matches('B').count());
        // As long as it may.
        let mut host = Written::new(1.0);
        assert_eq!(host.run(4).unwrap(), (Decision::Open, None));
        assert_eq!(host.log.matches('B').count(), 4, "{}", host.log);
        assert!(!host.with);
    }

    #[test]
    fn a_harmful_change_is_stopped_in_its_second_block() {
        let mut host = Written::new(10.0);
        let (_, harm) = host.run(100).unwrap();
        // It is undone at once; that the host recovers then, and is as slow with it again, is the proof.
        assert!(host.log.ends_with("B-AA+B-"), "{}", host.log);
        assert_eq!((harm.unwrap().blocks_with, host.log.matches('B').count()), (3, 3));
        // A link that is lost stops it within the block.
        let mut host = Written { link_lost_at: Some(4), ..Written::new(1.0) };
        let (_, harm) = host.run(100).unwrap();
        assert_eq!(harm.unwrap().what, "link lost");
        assert!(!host.with);
        let mut host = Written::new(10.0);
        let Once { before, after, stopped } = run_once(&mut host, 4, |_| ()).unwrap();
        assert_eq!((host.log.as_str(), before.len(), after.len()), ("AAAA+BB-", 4, 2));
        assert_eq!(stopped.unwrap().blocks_with, 2);
    }

    #[test]
    fn a_host_that_is_as_slow_without_the_change_is_no_harm() {
        // From before the first block with the change, until long after it was undone.
        let mut host = Written { busy: 3..12, ..Written::new(1.0) };
        let (_, harm) = host.run(12).unwrap();
        assert!(harm.is_none() && host.log.contains("-AA"), "{}", host.log);
        // What is lost with the change is its harm.
        let mut host = Written { lossy_at: Some(4), ..Written::new(1.0) };
        host.run(12).unwrap();
        let is_with = host.log.ends_with("B-");
        let mut again = Written { lossy_at: Some(4), ..Written::new(1.0) };
        let (_, harm) = again.run(12).unwrap();
        assert_eq!(harm.is_some(), is_with, "{}", again.log);
        // A change that is harmful is found when the other work has ended.
        let mut host = Written { busy: 3..12, ..Written::new(10.0) };
        let (decision, harm) = host.run(100).unwrap();
        assert!(harm.is_some() || decision == Decision::Worse, "{}", host.log);
    }

    #[test]
    fn an_error_ends_the_trial() {
        let mut host = Written { broken_at: Some(3), ..Written::new(1.0) };
        assert_eq!(host.run(100), Err(3));
    }
}
