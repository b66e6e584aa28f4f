//! The clocks that scheduled transmission goes by.
//!
//! Input: interfaces with ETF or taprio by CLOCK_TAI, the kernel's TAI offset and synchronisation, and the clocks of NICs
//! that schedule in hardware. Output: one finding per interface. Without an offset CLOCK_TAI equals the wall clock, 37 s
//! behind that of every host and NIC which has it right; an unsynchronised clock drifts away from them.
//!
//! Rules: adjtimex(2) (`tai`, `STA_UNSYNC`), clock_gettime(2), tc-etf(8), phc2sys(8).

use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Clocks, Finding, Nic, ScheduleClock, Scheduler, Severity, Subject};

pub(super) const CHECK: Check = Check::new(
    "txtime_clock",
    "clocks of scheduled transmission: TAI offset, synchronisation, NIC",
    run,
);

/// A NIC whose clock is this far from the kernel's, in nanoseconds, does not follow it.
const APART_NS: u64 = 10_000;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.nics() {
        let schedulers = || nic.qdiscs.iter().flatten().filter_map(|q| q.scheduler.as_ref());
        let Some(kind) = schedulers().find(|its| is_by_tai(its)).map(Scheduler::kind) else {
            continue;
        };
        let Some(clocks) = &context.host.clocks else {
            let why = context.why_unknown("host", "clocks");
            outcome.not_checked(format!("the clocks that {} sends by are unknown{why}", nic.name));
            continue;
        };
        let by_clock = |its: &&Scheduler| matches!(its, Scheduler::Etf(_) | Scheduler::Taprio(_));
        let offloaded = schedulers().filter(by_clock).any(Scheduler::is_offloaded);
        outcome.findings.extend(finding(nic, kind, clocks, offloaded));
    }
    outcome
}

fn is_by_tai(scheduler: &Scheduler) -> bool {
    match scheduler {
        Scheduler::Etf(its) => its.clock == ScheduleClock::Tai,
        // By the NIC's clock, which is TAI where it is kept.
        Scheduler::Taprio(its) => its.clock.is_none_or(|clock| clock == ScheduleClock::Tai),
        Scheduler::Mqprio(_) | Scheduler::Cbs(_) => false,
    }
}

fn finding(nic: &Nic, kind: &str, clocks: &Clocks, offloaded: bool) -> Option<Finding> {
    let name = &nic.name;
    let clock = clocks.nic_clocks.iter().find(|clock| clock.nic == *name);
    let ahead = clock.and_then(|clock| clock.ahead_of_tai_ns);
    let title = if clocks.tai_offset_s == 0 {
        format!("{name}: {kind} sends by CLOCK_TAI, which is not set (offset 0)")
    } else if let Some(ahead) = ahead.filter(|ahead| offloaded && ahead.unsigned_abs() > APART_NS) {
        let apart = text::time(ahead.unsigned_abs());
        let way = if ahead > 0 { "ahead of" } else { "behind" };
        format!("{name}: its clock, for {kind}, is {apart} {way} CLOCK_TAI")
    } else if offloaded && ahead.is_none() {
        format!("{name}: {kind} sends by the NIC's clock, which cannot be read")
    } else if !clocks.synchronised {
        format!("{name}: {kind} sends by a clock that is not synchronised")
    } else {
        return None;
    };
    let mut finding = Finding::new(Severity::Warning, title)
        .about([Subject::Nic(name.clone())])
        .evidence(format!("CLOCK_TAI is {} s ahead of the wall clock.", clocks.tai_offset_s))
        .evidence(if clocks.synchronised {
            let error = text::time(clocks.max_error_us.saturating_mul(1_000));
            format!("The wall clock is synchronised, to {error} at most.")
        } else {
            "The wall clock is not synchronised (STA_UNSYNC): no daemon keeps it.".to_owned()
        });
    if clocks.tai_offset_s == 0 {
        finding = finding.evidence(
            "chrony (leapsectz right/UTC) and ptp4l with phc2sys set the offset; applications on other hosts are off \
             by it.",
        );
    }
    // Without ptp4l, which knows it, the offset has to be given.
    if let (true, Some(clock), ahead @ 1..) = (offloaded, clock, clocks.tai_offset_s) {
        let command = format!("phc2sys -c /dev/ptp{} -s CLOCK_REALTIME -O {ahead}", clock.phc);
        finding = finding.manual(command);
    }
    Some(finding)
}
