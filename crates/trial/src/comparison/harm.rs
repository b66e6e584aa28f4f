//! When a trial is stopped: the change does harm beyond all noise. Input: the blocks as they are measured. Output:
//! the harm.
//!
//! The limits are coarse on purpose. A trial begins with a placebo cycle, so at least four blocks without the change
//! are known before the first with it; two blocks with it that are both far worse than the worst of those are
//! enough. Losses, errors and drops stop it in the first block.

use super::pool::own;
use nearpath_model::Block;

/// The metric is harmful from this multiple of the worst block without the change.
const FAR_WORSE: f64 = 2.0;
/// The packet rate is harmful below this share of the lowest without it.
const FAR_FEWER: f64 = 0.5;
/// More of the messages lost, with errors, or dropped, than in the worst block without it, as a share.
const MANY: f64 = 0.01;
/// Successive blocks in which metric or rate must be harmful.
const IN_A_ROW: usize = 2;

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
}

impl HarmWatch {
    /// Number of blocks with the change so far.
    pub fn blocks_with(&self) -> usize {
        self.blocks_with
    }

    /// Takes a block without the change, or returns the harm of one with it.
    pub fn look(&mut self, block: &Block, with: bool) -> Option<String> {
        if with {
            self.blocks_with += 1;
            return self.harm(block);
        }
        let metric = own(&block.observed).unwrap_or(0.0);
        let shares = [block.lost, block.errors, block.drops];
        let worst =
            self.worst.get_or_insert(Worst { metric, lowest_rate: block.rate_per_s, shares });
        worst.metric = worst.metric.max(metric);
        worst.lowest_rate = worst.lowest_rate.min(block.rate_per_s);
        worst.shares.iter_mut().zip(shares).for_each(|(worst, share)| *worst = worst.max(share));
        None
    }

    fn harm(&mut self, block: &Block) -> Option<String> {
        let worst = self.worst?;
        let shares =
            [("lost", block.lost), ("with errors", block.errors), ("dropped", block.drops)];
        for ((what, share), before) in shares.into_iter().zip(worst.shares) {
            if share > before + MANY {
                let [before, now] = [before, share].map(|share| share * 100.0);
                return Some(format!(
                    "packets {what}: {now:.1}%, at most {before:.1}% without the plan"
                ));
            }
        }
        // Without a value of the metric there were no packets, which the rate shows.
        let times = own(&block.observed).map_or(1.0, |value| value / worst.metric);
        let fewer = block.rate_per_s / worst.lowest_rate;
        let harmful = [worst.metric > 0.0 && times > FAR_WORSE, fewer < FAR_FEWER];
        for (count, is_harmful) in self.in_a_row.iter_mut().zip(harmful) {
            *count = if is_harmful { *count + 1 } else { 0 };
        }
        match self.in_a_row {
            [count, _] if count >= IN_A_ROW => Some(format!(
                "the metric is {times:.1} times that of the worst block without the plan, in {count} blocks"
            )),
            [_, count] if count >= IN_A_ROW => Some(format!(
                "packets: {:.0}% of the lowest rate without the plan, in {count} blocks",
                100.0 * fewer
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Observed;

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
        let said = watch.look(&block(450.0), true).unwrap();
        assert!(said.starts_with("the metric is 3.0 times"), "{said}");
        assert_eq!(watch.blocks_with(), 5);
    }

    #[test]
    fn losses_errors_and_drops_stop_at_once_and_a_fallen_rate_after_two() {
        let mut watch = HarmWatch::default();
        watch.look(&Block { lost: 0.02, ..block(100.0) }, false);
        assert_eq!(watch.look(&Block { lost: 0.029, ..block(1.0) }, true), None);
        let said = watch.look(&Block { lost: 0.04, ..block(1.0) }, true).unwrap();
        assert_eq!(said, "packets lost: 4.0%, at most 2.0% without the plan");
        let errors = watch.look(&Block { errors: 0.02, ..block(1.0) }, true).unwrap();
        assert!(errors.starts_with("packets with errors"), "{errors}");
        let drops = watch.look(&Block { drops: 0.02, ..block(1.0) }, true).unwrap();
        assert!(drops.starts_with("packets dropped"), "{drops}");
        // A path that no packet completes has no value of the metric.
        let none = Observed::Ratio { sum: 0.0, count: 0.0 };
        let silent = Block { observed: none, rate_per_s: 0.0, ..block(1.0) };
        assert_eq!(watch.look(&silent, true), None);
        let said = watch.look(&silent, true).unwrap();
        assert_eq!(said, "packets: 0% of the lowest rate without the plan, in 2 blocks");
    }
}
