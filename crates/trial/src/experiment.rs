//! The order of a trial. Input: a host that can be switched between two states and measured. Output: cycles of
//! blocks A B B A.

use nearpath_model::{Block, Cycle};

/// A host without and with a change.
pub trait Experiment {
    /// The error type.
    type Error;

    /// Switches the change on or off, and waits until the host has settled.
    ///
    /// # Errors
    /// It cannot be switched.
    fn set(&mut self, with: bool) -> Result<(), Self::Error>;

    /// Measures one block.
    ///
    /// # Errors
    /// It cannot be measured.
    fn block(&mut self) -> Result<Block, Self::Error>;
}

/// Runs this many cycles and leaves the change off; `each` receives the number of completed blocks.
///
/// # Errors
/// The first error of the experiment; the change may then still be on.
pub fn run<E: Experiment>(
    experiment: &mut E,
    cycles: usize,
    mut each: impl FnMut(usize),
) -> Result<Vec<Cycle>, E::Error> {
    let mut done = 0;
    let mut measure = |experiment: &mut E| {
        let block = experiment.block()?;
        done += 1;
        each(done);
        Ok(block)
    };
    experiment.set(false)?;
    let mut measured = Vec::with_capacity(cycles);
    for _ in 0..cycles {
        let first = measure(experiment)?;
        experiment.set(true)?;
        let with = [measure(experiment)?, measure(experiment)?];
        experiment.set(false)?;
        measured.push(Cycle { without: [first, measure(experiment)?], with });
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records its calls; each block's metric is its number.
    #[derive(Default)]
    struct Written {
        log: String,
        with: bool,
        blocks: u32,
        broken_at: Option<u32>,
    }

    impl Experiment for Written {
        type Error = u32;

        fn set(&mut self, with: bool) -> Result<(), u32> {
            self.with = with;
            self.log.push(if with { '+' } else { '-' });
            Ok(())
        }

        fn block(&mut self) -> Result<Block, u32> {
            self.blocks += 1;
            if self.broken_at == Some(self.blocks) {
                return Err(self.blocks);
            }
            self.log.push(if self.with { 'B' } else { 'A' });
            Ok(Block { metric: f64::from(self.blocks), lost: 0.0, cpus_busy: 0.0, rate_per_s: 0.0 })
        }
    }

    #[test]
    fn blocks_alternate_and_the_change_is_off_at_the_end() {
        let (mut host, mut seen) = (Written::default(), Vec::new());
        let cycles = run(&mut host, 2, |done| seen.push(done)).unwrap();
        assert_eq!(host.log, "-A+BB-AA+BB-A");
        assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7, 8]);
        let numbers = |blocks: [Block; 2]| blocks.map(|block| block.metric);
        assert_eq!(numbers(cycles[1].without), [5.0, 8.0]);
        assert_eq!(numbers(cycles[1].with), [6.0, 7.0]);
    }

    #[test]
    fn an_error_ends_the_trial() {
        let mut host = Written { broken_at: Some(3), ..Written::default() };
        assert_eq!(run(&mut host, 2, |_| ()), Err(3));
    }
}
