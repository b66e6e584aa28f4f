//! The order of a trial. Input: a host that can be switched between two states and measured. Output: cycles of
//! blocks A B B A or B A A B, or the harm that stopped it.
//!
//! Which of the two orders a cycle has is random, so that nothing periodic on the host can be in step with it. One
//! cycle in three is a placebo: the change is undone again where it would be made. The first cycle is one, too: what
//! the host is like without the change is known before the change is made.

use crate::comparison::{HarmWatch, PLACEBOS_MIN, Sign, needs_longer_blocks};
use nearpath_model::{Block, Cycle, Harm};

/// Placebo cycles: one for so many with the change.
const PLACEBO_EVERY: usize = 2;
/// How often blocks may be lengthened.
const LENGTHENED_MAX: u32 = 2;

/// A host without and with a change.
pub trait Experiment {
    /// The error type.
    type Error;

    /// Switches the change on or off, and waits until the host has settled.
    ///
    /// # Errors
    /// It cannot be switched.
    fn set(&mut self, with: bool) -> Result<(), Self::Error>;

    /// Makes and undoes the change, which is off, and waits as after a switch.
    ///
    /// # Errors
    /// It cannot be switched.
    fn placebo(&mut self) -> Result<(), Self::Error>;

    /// Measures one block. `Err` in the result is harm seen meanwhile.
    ///
    /// # Errors
    /// It cannot be measured.
    fn block(&mut self) -> Result<Result<Block, String>, Self::Error>;

    /// Doubles the duration of blocks from now on.
    fn lengthen(&mut self);
}

/// The order of one cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Whether the change is undone again instead of made.
    pub placebo: bool,
    /// B A A B instead of A B B A.
    pub with_first: bool,
}

impl Order {
    /// A random order of so many cycles with the change, and a third of all for the placebo.
    pub fn random(cycles: usize, seed: u64) -> Vec<Self> {
        let mut random = fastrand::Rng::with_seed(seed);
        let placebos = (cycles / PLACEBO_EVERY).max(PLACEBOS_MIN);
        let mut placebo: Vec<bool> = (1..placebos + cycles).map(|n| n < placebos).collect();
        random.shuffle(&mut placebo);
        placebo.insert(0, true);
        placebo.into_iter().map(|placebo| Self { placebo, with_first: random.bool() }).collect()
    }

    /// Whether each of its four blocks is with the change, or its placebo.
    pub fn blocks(self) -> [bool; 4] {
        let first = self.with_first;
        [first, !first, !first, first]
    }
}

/// A random seed, small enough for every reader of JSON.
pub fn seed() -> u64 {
    fastrand::u64(..1 << 32)
}

/// What a trial has measured.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// The complete cycles.
    pub cycles: Vec<Cycle>,
    /// The blocks of an incomplete cycle, and whether each is with the change.
    pub rest: Vec<(Block, bool)>,
    /// The harm that stopped it.
    pub stopped: Option<Harm>,
}

/// Runs these cycles and leaves the change off; `each` receives the number of completed blocks.
///
/// # Errors
/// The first error of the experiment; the change may then still be on.
pub fn run<E: Experiment>(
    experiment: &mut E,
    orders: &[Order],
    mut each: impl FnMut(usize),
) -> Result<Outcome, E::Error> {
    let (mut outcome, mut watch) = (Outcome::default(), HarmWatch::default());
    let (mut state, mut lengthened, mut checked_from) = (State::Without, 0, 0);
    experiment.set(false)?;
    for (number, order) in orders.iter().enumerate() {
        let mut blocks = Vec::new();
        for (index, is_with) in order.blocks().into_iter().enumerate() {
            let next = State::of(*order, is_with);
            if next != state {
                switch(experiment, state, next)?;
                state = next;
            }
            let with = state == State::With;
            let harm = match experiment.block()? {
                Ok(block) => {
                    let sign = watch.look(&block, with);
                    blocks.push((block, is_with));
                    confirmed(experiment, &mut watch, sign, &mut state)?
                }
                Err(what) => {
                    Some(Harm { what, blocks_with: watch.blocks_with() + usize::from(with) })
                }
            };
            each(4 * number + index + 1);
            if harm.is_some() {
                if state == State::With {
                    experiment.set(false)?;
                }
                outcome.stopped = harm;
                outcome.rest = if order.placebo { Vec::new() } else { blocks };
                return Ok(outcome);
            }
        }
        outcome.cycles.extend(cycle(blocks, *order));
        let same_length = outcome.cycles.get(checked_from..).unwrap_or_default();
        if lengthened < LENGTHENED_MAX && needs_longer_blocks(same_length) {
            experiment.lengthen();
            lengthened += 1;
            checked_from = outcome.cycles.len();
        }
    }
    experiment.set(false)?;
    Ok(outcome)
}

/// The harm that these signs are of. A suspicion is looked into: the change is undone, the host has a block to recover,
/// and if the next one is still harmful, the change is not the cause. Else it is made once more, and harmful again if
/// it is the cause. These blocks are no part of a cycle.
fn confirmed<E: Experiment>(
    experiment: &mut E,
    watch: &mut HarmWatch,
    sign: Option<Sign>,
    state: &mut State,
) -> Result<Option<Harm>, E::Error> {
    let blocks_with = watch.blocks_with();
    let what = match sign {
        None => return Ok(None),
        Some(Sign::Harm(what)) => return Ok(Some(Harm { what, blocks_with })),
        Some(Sign::Suspicion(what)) => what,
    };
    experiment.set(false)?;
    *state = State::Without;
    let (Ok(recovery), Ok(after)) = (experiment.block()?, experiment.block()?) else {
        // A link that is lost now, after the change.
        return Ok(Some(Harm { what, blocks_with }));
    };
    if !watch.is_relieved(&after) {
        for block in [recovery, after] {
            watch.look(&block, false);
        }
        return Ok(None);
    }
    experiment.set(true)?;
    *state = State::With;
    let blocks_with = blocks_with + 1;
    let again = match experiment.block()? {
        Ok(again) => again,
        Err(what) => return Ok(Some(Harm { what, blocks_with })),
    };
    // What is lost in this block stops it as in any other.
    if let Some(Sign::Harm(what)) = watch.look(&again, true) {
        return Ok(Some(Harm { what, blocks_with }));
    }
    Ok((!watch.is_relieved(&again)).then_some(Harm { what, blocks_with }))
}

/// What the host is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Without,
    With,
    /// Without it, after it was made and undone.
    Placebo,
}

impl State {
    fn of(order: Order, is_with: bool) -> Self {
        match (is_with, order.placebo) {
            (false, _) => Self::Without,
            (true, false) => Self::With,
            (true, true) => Self::Placebo,
        }
    }
}

/// A switch from or to the placebo makes the same writes as one from or to the change.
fn switch<E: Experiment>(experiment: &mut E, from: State, to: State) -> Result<(), E::Error> {
    match (from, to) {
        (_, State::With) => experiment.set(true),
        (State::With, _) => experiment.set(false),
        _ => experiment.placebo(),
    }
}

fn cycle(blocks: Vec<(Block, bool)>, order: Order) -> Option<Cycle> {
    let (with, without): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|(_, with)| *with);
    let pair = |blocks: Vec<(Block, bool)>| -> Option<[Block; 2]> {
        let blocks: Vec<Block> = blocks.into_iter().map(|(block, _)| block).collect();
        blocks.try_into().ok()
    };
    let Order { placebo, with_first } = order;
    Some(Cycle { without: pair(without)?, with: pair(with)?, placebo, with_first })
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
                Ok(block) => {
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
    use nearpath_model::Observed;
    use std::ops::Range;

    /// Records its calls; each block's metric is its number, or ten times that with the change.
    #[derive(Default)]
    struct Written {
        log: String,
        with: bool,
        blocks: u32,
        broken_at: Option<u32>,
        link_lost_at: Option<u32>,
        lossy_at: Option<u32>,
        worse: bool,
        phases: bool,
        /// The host has other work in these blocks.
        busy: Range<u32>,
    }

    impl Experiment for Written {
        type Error = u32;

        fn set(&mut self, with: bool) -> Result<(), u32> {
            self.with = with;
            self.log.push(if with { '+' } else { '-' });
            Ok(())
        }

        fn placebo(&mut self) -> Result<(), u32> {
            assert!(!self.with);
            self.log.push('=');
            Ok(())
        }

        fn block(&mut self) -> Result<Result<Block, String>, u32> {
            self.blocks += 1;
            if self.broken_at == Some(self.blocks) {
                return Err(self.blocks);
            }
            if self.link_lost_at == Some(self.blocks) {
                return Ok(Err("link lost".to_owned()));
            }
            self.log.push(if self.with { 'B' } else { 'A' });
            let slow = self.worse && self.with || self.busy.contains(&self.blocks);
            let metric = if slow { 1_000.0 } else { 100.0 };
            let phase = if self.phases && (self.blocks / 8).is_multiple_of(2) { 2.0 } else { 1.0 };
            let sum = metric * phase + f64::from(self.blocks % 3);
            let observed = Observed::Ratio { sum, count: 1.0 };
            let lost = if self.lossy_at == Some(self.blocks) { 0.5 } else { 0.0 };
            let (errors, drops, cpus_busy, rate_per_s) = (0.0, 0.0, 0.0, 1.0);
            Ok(Ok(Block { observed, lost, errors, drops, cpus_busy, rate_per_s }))
        }

        fn lengthen(&mut self) {
            self.log.push('L');
        }
    }

    const ABBA: Order = Order { placebo: false, with_first: false };
    const BAAB: Order = Order { placebo: false, with_first: true };
    const PLACEBO: Order = Order { placebo: true, with_first: false };

    #[test]
    fn blocks_alternate_and_the_change_is_off_at_the_end() {
        let (mut host, mut seen) = (Written::default(), Vec::new());
        let outcome = run(&mut host, &[PLACEBO, ABBA, BAAB], |done| seen.push(done)).unwrap();
        assert_eq!(host.log, "-A=AA=AA+BB-A+B-AA+B-");
        assert_eq!(seen, (1..=12).collect::<Vec<_>>());
        assert_eq!(outcome.cycles.len(), 3);
        let orders: Vec<(bool, bool)> =
            outcome.cycles.iter().map(|cycle| (cycle.placebo, cycle.with_first)).collect();
        assert_eq!(orders, [(true, false), (false, false), (false, true)]);
        assert!(outcome.stopped.is_none() && outcome.rest.is_empty());
    }

    #[test]
    fn the_order_is_random_begins_with_a_placebo_and_has_all_cycles() {
        for cycles in [4, 12, 40] {
            let order = Order::random(cycles, 3);
            assert_eq!(order, Order::random(cycles, 3), "reproducible");
            assert_eq!(order.iter().filter(|order| !order.placebo).count(), cycles);
            assert_eq!(order.iter().filter(|order| order.placebo).count(), (cycles / 2).max(4));
            assert!(order[0].placebo);
        }
        let firsts: usize = Order::random(1_000, 7).iter().map(|o| usize::from(o.with_first)).sum();
        assert!((650..850).contains(&firsts), "{firsts} of 1,500");
        assert_ne!(Order::random(12, 1), Order::random(12, 2));
    }

    #[test]
    fn a_harmful_change_is_stopped_in_its_second_block() {
        let mut host = Written { worse: true, ..Written::default() };
        let outcome = run(&mut host, &[PLACEBO, ABBA, ABBA], |_| ()).unwrap();
        // It is undone at once; that the host recovers then, and is as slow with it again, is the proof.
        assert_eq!(host.log, "-A=AA=AA+BB-AA+B-");
        let stopped = outcome.stopped.unwrap();
        assert_eq!(stopped.blocks_with, 3);
        assert_eq!(
            outcome.rest.iter().map(|(_, with)| *with).collect::<Vec<_>>(),
            [false, true, true]
        );
        // A link that is lost stops it within the block.
        let mut host = Written { link_lost_at: Some(6), ..Written::default() };
        let outcome = run(&mut host, &[PLACEBO, ABBA], |_| ()).unwrap();
        assert_eq!(
            (host.log.as_str(), outcome.stopped.unwrap().what.as_str()),
            ("-A=AA=AA+-", "link lost")
        );
        let mut host = Written { worse: true, ..Written::default() };
        let Once { before, after, stopped } = run_once(&mut host, 4, |_| ()).unwrap();
        assert_eq!((host.log.as_str(), before.len(), after.len()), ("-AAAA+BB-", 4, 2));
        assert_eq!(stopped.unwrap().blocks_with, 2);
    }

    #[test]
    fn a_host_that_is_as_slow_without_the_change_is_no_harm() {
        // From the first block with the change, to the second after it was undone.
        let mut host = Written { busy: 6..10, ..Written::default() };
        let outcome = run(&mut host, &[PLACEBO, ABBA, ABBA], |_| ()).unwrap();
        assert_eq!(host.log, "-A=AA=AA+BB-AAAA+BB-A-");
        assert!(outcome.stopped.is_none());
        assert_eq!(outcome.cycles.len(), 3, "the two further blocks are in none of them");
        // A burst that ends just when the change is undone.
        let mut host = Written { busy: 6..8, ..Written::default() };
        let outcome = run(&mut host, &[PLACEBO, ABBA], |_| ()).unwrap();
        assert_eq!(host.log, "-A=AA=AA+BB-AA+B-A-");
        assert!(outcome.stopped.is_none());
        // What is lost with the change then is its harm.
        let mut host = Written { busy: 6..8, lossy_at: Some(10), ..Written::default() };
        let outcome = run(&mut host, &[PLACEBO, ABBA], |_| ()).unwrap();
        assert_eq!(host.log, "-A=AA=AA+BB-AA+B-");
        let stopped = outcome.stopped.unwrap();
        assert!(stopped.what.starts_with("packets lost: 50.0%"), "{stopped:?}");
        assert_eq!(stopped.blocks_with, 3);
        // A change that is harmful is found when the other work has ended.
        let mut host = Written { busy: 6..10, worse: true, ..Written::default() };
        let outcome = run(&mut host, &[PLACEBO, ABBA, ABBA, ABBA], |_| ()).unwrap();
        assert!(outcome.stopped.is_none(), "{}", host.log);
        let with = |cycle: &Cycle| cycle.with.iter().all(|block| own_ratio(block) > 900.0);
        assert!(outcome.cycles[1..].iter().all(with));
        // A link that is lost when the change is undone.
        let mut host = Written { worse: true, link_lost_at: Some(8), ..Written::default() };
        let outcome = run(&mut host, &[PLACEBO, ABBA], |_| ()).unwrap();
        assert_eq!((host.log.as_str(), outcome.stopped.unwrap().blocks_with), ("-A=AA=AA+BB-A", 2));
    }

    fn own_ratio(block: &Block) -> f64 {
        let Observed::Ratio { sum, count } = &block.observed else { panic!("{block:?}") };
        sum / count
    }

    #[test]
    fn correlated_blocks_are_lengthened_twice_at_most() {
        let mut host = Written { phases: true, ..Written::default() };
        run(&mut host, &[ABBA; 12], |_| ()).unwrap();
        let lengthened = host.log.matches('L').count();
        assert!((1..=2).contains(&lengthened), "{}", host.log);
        let mut calm = Written::default();
        run(&mut calm, &[ABBA; 12], |_| ()).unwrap();
        assert!(!calm.log.contains('L'), "{}", calm.log);
    }

    #[test]
    fn an_error_ends_the_trial() {
        let mut host = Written { broken_at: Some(3), ..Written::default() };
        assert_eq!(run(&mut host, &[ABBA, ABBA], |_| ()), Err(3));
    }
}
