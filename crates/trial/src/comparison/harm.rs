//! When a trial is stopped: the change does harm beyond all noise. Input: the blocks as they are measured. Output:
//! the harm.
//!
//! The limits are coarse on purpose. Some blocks without the change are known before the first with it; two blocks with it
//! that are both far worse than the worst of those are enough. Losses, errors and drops stop it in the first block.
//!
//! Metric and rate are also those of a host that has other work for some seconds. So they are a suspicion, until they are as
//! they were when the change has been undone ([`HarmWatch::is_relieved`]), and harmful again in a third block with it.

use super::pool::own;
use nearpath_model::Block;

/// The metric is harmful from this multiple of the worst block without the change.
const FAR_WORSE: f64 = 2.0;
/// The packet rate is harmful below this share of the lowest without it.
const FAR_FEWER: f64 = 0.5;
/// More of the messages lost, with errors, or dropped, than in the worst block without it, as a share,
const MANY: f64 = 0.01;
/// and so many times as many: a host that loses packets does not lose as many in each block.
const FAR_MORE: f64 = 2.0;
/// Successive blocks in which metric or rate must be harmful.
const IN_A_ROW: usize = 2;

/// What a block with the change looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sign {
    /// Harm, whatever else the host does.
    Harm(String),
    /// Harm, if it ends with the change.
    Suspicion(String),
}

/// What the blocks without the change were like.
#[derive(Debug, Default)]
pub struct HarmWatch {
    worst: Option<Worst>,
    in_a_row: [usize; 2],
    blocks_with: usize,
}

#[derive(Debug, Clone, Copy)]
struct Worst {
    metric: f64,
    lowest_rate: f64,
    shares: [f64; 3],
    least_lost: f64,
}

impl HarmWatch {
    /// Number of blocks with the change so far.
    pub fn blocks_with(&self) -> usize {
        self.blocks_with
    }

    /// Takes a block without the change, or returns the signs of harm in one with it.
    pub fn look(&mut self, block: &Block, with: bool) -> Option<Sign> {
        if with {
            self.blocks_with += 1;
            return self.harm(block);
        }
        let metric = own(&block.observed).unwrap_or(0.0);
        let shares = [block.lost, block.errors, block.drops];
        let first = Worst { metric, lowest_rate: block.rate_per_s, shares, least_lost: block.lost };
        let worst = self.worst.get_or_insert(first);
        worst.least_lost = worst.least_lost.min(block.lost);
        worst.metric = worst.metric.max(metric);
        worst.lowest_rate = worst.lowest_rate.min(block.rate_per_s);
        worst.shares.iter_mut().zip(shares).for_each(|(worst, share)| *worst = worst.max(share));
        None
    }

    /// Whether metric and rate of a block after the change was undone are those of before it.
    pub fn is_relieved(&self, block: &Block) -> bool {
        self.worst.is_none_or(|worst| worst.compare(block).1 == [false; 2])
    }

    fn harm(&mut self, block: &Block) -> Option<Sign> {
        let worst = self.worst?;
        let shares =
            [("lost", block.lost), ("with errors", block.errors), ("dropped", block.drops)];
        for ((what, share), before) in shares.into_iter().zip(worst.shares) {
            if share > FAR_MORE * before + MANY {
                let [before, now] = [before, share].map(|share| share * 100.0);
                return Some(Sign::Harm(format!(
                    "packets {what}: {now:.1}%, at most {before:.1}% without the plan"
                )));
            }
        }
        let ([times, fewer], harmful) = worst.compare(block);
        for (count, is_harmful) in self.in_a_row.iter_mut().zip(harmful) {
            *count = if is_harmful { *count + 1 } else { 0 };
        }
        let what = match self.in_a_row {
            [count, _] if count >= IN_A_ROW => format!(
                "the metric is {times:.1} times that of the worst block without the plan, in {count} blocks"
            ),
            [_, count] if count >= IN_A_ROW => format!(
                "packets: {:.0}% of the lowest rate without the plan, in {count} blocks",
                100.0 * fewer
            ),
            _ => return None,
        };
        // Each suspicion is looked into once.
        self.in_a_row = [0; 2];
        Some(Sign::Suspicion(what))
    }
}

impl Worst {
    /// Metric and rate of a block as multiples of these, and which of them are harmful.
    fn compare(self, block: &Block) -> ([f64; 2], [bool; 2]) {
        // Without a value of the metric there were no packets, which the rate shows.
        let times = own(&block.observed).map_or(1.0, |value| value / self.metric);
        let fewer = block.rate_per_s / self.lowest_rate;
        // What was lost before may come now, and wait.
        let loses_less = self.least_lost > MANY && block.lost < self.least_lost / FAR_MORE;
        let is_slower = self.metric > 0.0 && times > FAR_WORSE && !loses_less;
        ([times, fewer], [is_slower, fewer < FAR_FEWER])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Observed;

    /// What was said of harm that needs no more, and of a suspicion.
    fn harm(sign: Option<Sign>) -> String {
        match sign {
            Some(Sign::Harm(said)) => said,
            other => panic!("{other:?}"),
        }
    }

    fn suspicion(sign: Option<Sign>) -> String {
        match sign {
            Some(Sign::Suspicion(said)) => said,
            other => panic!("{other:?}"),
        }
    }

    fn block(metric: f64) -> Block {
        let observed = Observed::Ratio { sum: metric, count: 1.0 };
        let (errors, drops, cpus_busy, rate_per_s) = (0.0, 0.0, 1.0, 1_000.0);
        Block { observed, lost: 0.0, errors, drops, cpus_busy, rate_per_s }
    }

    #[test]
    fn two_blocks_far_worse_than_the_worst_are_enough() {
        let mut watch = HarmWatch::default();
        assert_eq!(watch.look(&block(900.0), true), None, "nothing to compare it with");
        for metric in [100.0, 150.0, 90.0] {
            assert_eq!(watch.look(&block(metric), false), None);
        }
        assert_eq!(watch.look(&block(310.0), true), None, "a single one may be chance");
        assert_eq!(watch.look(&block(290.0), true), None, "less than twice the worst");
        assert_eq!(watch.look(&block(301.0), true), None);
        let said = suspicion(watch.look(&block(450.0), true));
        assert!(said.starts_with("the metric is 3.0 times"), "{said}");
        assert_eq!(watch.blocks_with(), 5);
        assert!(watch.is_relieved(&block(300.0)) && !watch.is_relieved(&block(301.0)));
        assert!(!watch.is_relieved(&Block { rate_per_s: 499.0, ..block(100.0) }));
        assert_eq!(watch.look(&block(450.0), true), None, "it begins to count again");
    }

    #[test]
    fn packets_that_are_no_longer_lost_may_wait() {
        let mut watch = HarmWatch::default();
        for lost in [0.6, 0.7] {
            watch.look(&Block { lost, ..block(100.0) }, false);
        }
        for _ in 0..4 {
            assert_eq!(watch.look(&Block { lost: 0.01, ..block(500.0) }, true), None);
        }
        assert_eq!(watch.look(&Block { lost: 0.5, ..block(500.0) }, true), None);
        suspicion(watch.look(&Block { lost: 0.5, ..block(500.0) }, true));
    }

    #[test]
    fn losses_errors_and_drops_stop_at_once_and_a_fallen_rate_after_two() {
        let mut watch = HarmWatch::default();
        watch.look(&Block { lost: 0.02, ..block(100.0) }, false);
        assert_eq!(watch.look(&Block { lost: 0.049, ..block(1.0) }, true), None);
        let said = harm(watch.look(&Block { lost: 0.06, ..block(1.0) }, true));
        assert_eq!(said, "packets lost: 6.0%, at most 2.0% without the plan");
        let errors = harm(watch.look(&Block { errors: 0.02, ..block(1.0) }, true));
        assert!(errors.starts_with("packets with errors"), "{errors}");
        let drops = harm(watch.look(&Block { drops: 0.02, ..block(1.0) }, true));
        assert!(drops.starts_with("packets dropped"), "{drops}");
        // A path that no packet completes has no value of the metric.
        let none = Observed::Ratio { sum: 0.0, count: 0.0 };
        let silent = Block { observed: none, rate_per_s: 0.0, ..block(1.0) };
        assert_eq!(watch.look(&silent, true), None);
        let said = suspicion(watch.look(&silent, true));
        assert_eq!(said, "packets: 0% of the lowest rate without the plan, in 2 blocks");
    }
}
