//! When something that costs CPU time is due again, so that it keeps within its share: a pure function.

use std::time::Duration;

/// However little it may cost, it is done at least this often.
const LONGEST: Duration = Duration::from_secs(900);

/// Keeps the cost of something repeated within a share of a CPU.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    interval: Duration,
    limit: Option<f64>,
}

impl Pace {
    /// Done every `interval`, or less often if it costs more than `limit`, a share of a CPU.
    pub fn new(interval: Duration, limit: Option<f64>) -> Self {
        Self { interval, limit }
    }

    /// How long to wait from the start of one that cost so much CPU time.
    pub fn after(&self, cost: Duration) -> Duration {
        let Some(limit) = self.limit.filter(|limit| *limit > 0.0) else { return self.interval };
        let wait = Duration::try_from_secs_f64(cost.as_secs_f64() / limit).unwrap_or(LONGEST);
        self.interval.max(wait.min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_more_is_done_less_often() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let pace = Pace::new(s(10), Some(0.001));
        assert_eq!(pace.after(ms(1)), s(10));
        assert_eq!(pace.after(ms(30)), s(30));
        assert_eq!(pace.after(s(30)), LONGEST);
        assert_eq!(Pace::new(s(10), None).after(s(30)), s(10));
        assert_eq!(Pace::new(s(10), Some(0.0)).after(s(30)), s(10));
    }
}
