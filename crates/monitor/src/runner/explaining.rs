//! When packets into virtual machines are explained: that costs a program for each switch of tasks, so only from an
//! interval on in which they are a warning for a virtual machine, until none has been for a while.

use super::observe::Next;
use crate::collect::vms::late_packets;
use nearpath_instruments::vm::LATE_INTO_VM;
use nearpath_model::Severity;
use nearpath_model::vm::VmMeasurement;
use std::time::Duration;

/// How long few are late before they are no longer explained.
const QUIET: Duration = Duration::from_secs(300);

/// Whether late packets are explained.
#[derive(Debug)]
pub struct Explaining {
    /// Whether it is requested.
    allowed: bool,
    on: bool,
    /// When many were late last.
    many_at: Duration,
}

impl Explaining {
    /// Not yet; never, if it is not `allowed`.
    pub fn new(allowed: bool) -> Self {
        Self { allowed, on: false, many_at: Duration::ZERO }
    }

    /// The limit from which packets are late, as long as they are explained.
    pub fn limit(&self) -> Option<Duration> {
        self.on.then_some(LATE_INTO_VM)
    }

    /// Takes a reading of this time, with the one before it of the same start; whether the instrument is to start again
    /// for it.
    pub fn take(
        &mut self,
        time: Duration,
        now: &VmMeasurement,
        before: Option<&VmMeasurement>,
    ) -> Next {
        let nothing = VmMeasurement::default();
        let before = before.unwrap_or(&nothing);
        let seconds = now.duration_s - before.duration_s;
        let is_warning = |(late, all): (u64, u64)| {
            nearpath_diagnose::severity_of_tail(late as f64, all, seconds) > Severity::Info
        };
        let are_many = late_packets(now, before, LATE_INTO_VM).into_iter().any(is_warning);
        if are_many {
            self.many_at = time;
        }
        let is_quiet = time.saturating_sub(self.many_at) >= QUIET;
        let is_due = if self.on { !is_quiet } else { are_many && self.allowed };
        if is_due == self.on {
            return Next::Go;
        }
        self.on = is_due;
        Next::Renew
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::histogram::bucket;
    use nearpath_model::vm::{MeasuredVm, VmQueue, VmSpan, VmSpanKind};

    /// A reading after `seconds` with so many packets of 20 µs, and others of 5 ms.
    fn reading(seconds: f64, quick: u64, late: u64) -> VmMeasurement {
        let vms = vec![vm("web", quick, late)];
        VmMeasurement { duration_s: seconds, vms, ..VmMeasurement::default() }
    }

    fn vm(name: &str, quick: u64, late: u64) -> MeasuredVm {
        let filled = [(bucket(20_000), quick), (bucket(5_000_000), late)];
        let filled: Vec<_> = filled.into_iter().filter(|(_, n)| *n > 0).collect();
        let spans = VmSpan::new(VmSpanKind::Whole, &filled, 5_000_000).into_iter().collect();
        let queue = VmQueue { tap: name.to_owned(), spans, ..VmQueue::default() };
        MeasuredVm { name: Some(name.to_owned()), queues: vec![queue], ..MeasuredVm::default() }
    }

    #[test]
    fn a_busy_neighbour_does_not_hide_late_packets() {
        let mut both = reading(10.0, 1_000_000, 0);
        both.vms.push(vm("db", 900, 100));
        assert_eq!(Explaining::new(true).take(at(10), &both, None), Next::Renew);
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn they_are_explained_while_many_are_late() {
        let mut explaining = Explaining::new(true);
        // Five in 100,000, and one in 10 s, are no warning.
        let readings = [reading(10.0, 100_000, 5), reading(20.0, 100_500, 6)];
        assert_eq!(explaining.take(at(10), &readings[0], None), Next::Go);
        assert_eq!(explaining.take(at(20), &readings[1], Some(&readings[0])), Next::Go);
        assert_eq!(explaining.limit(), None);
        let many = reading(30.0, 110_500, 56);
        assert_eq!(explaining.take(at(30), &many, Some(&readings[1])), Next::Renew);
        assert_eq!(explaining.limit(), Some(LATE_INTO_VM));
        // The next start begins at 0, and is observed in slices. Nothing is late any more.
        for minute in 1..=5 {
            let next = explaining.take(at(30 + 60 * minute), &reading(10.0, 1_000, 0), None);
            assert_eq!(next == Next::Renew, minute == 5, "{minute}");
        }
        assert_eq!(explaining.limit(), None);
    }

    #[test]
    fn without_permission_they_never_are() {
        let mut explaining = Explaining::new(false);
        assert_eq!(explaining.take(at(10), &reading(10.0, 0, 1_000), None), Next::Go);
        assert_eq!(explaining.limit(), None);
    }
}
