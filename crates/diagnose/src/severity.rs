//! How bad a finding is: the one policy that every check follows.
//!
//! Severity comes from what was seen in the interval, in absolute terms: how many packets in each second, what share of
//! all packets, and what each of them paid. Any host has a slowest packet in ten thousand, so a share of the slow
//! packets alone never makes a finding serious.
//!
//! | severity | loss | extra latency | tail |
//! |---|---|---|---|
//! | critical | 0.1% of packets and 10/s | 10% of packets, 5,000/s, 5µs each | 0.1% of packets later than 1ms, 10/s |
//! | warning | 0.001% of packets and 1/s | 0.01 s of waiting per second, 2µs each | 0.02% of packets later than 1ms, 1/s |
//! | info | anything less, and totals since boot below 0.1% | anything less | anything less |
//!
//! Settings that nothing was seen to suffer from are `info` ([`UNFELT`]); with 1,000 packets or interrupts per second over
//! them they are `warning` ([`of_traffic`]), as are 100 delaying events per second ([`of_events`]), a hundredth of a CPU
//! spent ([`of_cpu_time`]), and a condition that holds at a minimum rate of what it delays ([`of_condition`]). Without
//! an earlier reading the last three are `info`.

use crate::Context;
use crate::counters::{ratio, total};
use nearpath_model::{Measurement, Severity, Span, Watch};

/// A packet that waits for longer than this is late on any host: ten times the wake-up from a deep idle state.
pub(crate) const LATE_NS: u64 = 1_000_000;

/// Packets or interrupts in each second from which a misplaced one is more than a matter of taste.
pub(crate) const TRAFFIC_PER_S: f64 = 1_000.0;

/// A setting that nothing was seen to suffer from.
pub(crate) const UNFELT: Severity = Severity::Info;

/// Seconds of waiting, or of CPU time, in each second from which they are felt.
const FELT_S: f64 = 0.01;

/// Events in each second from which [`of_events`] warns.
pub(crate) const EVENTS_PER_S: f64 = 100.0;

/// Counts of lost packets in the interval, or since boot.
///
/// `arrived` is how many came through, `None` when that is unknown.
pub(crate) fn of_loss(context: &Context<'_>, lost: u64, arrived: Option<u64>) -> Severity {
    let share = arrived.and_then(|arrived| ratio(lost, arrived.saturating_add(lost)));
    if context.earlier.is_none() {
        return if share.is_some_and(|share| share >= 1e-3) {
            Severity::Warning
        } else {
            Severity::Info
        };
    }
    of_loss_rate(share, context.per_second(lost))
}

/// Packets that were followed until they were dropped; `arrived` is how many of the others came through.
pub(crate) fn of_followed_loss(measurement: &Measurement, lost: u64, arrived: u64) -> Severity {
    let rate = lost as f64 / measurement.observed_time_s().max(f64::MIN_POSITIVE);
    of_loss_rate(ratio(lost, arrived.saturating_add(lost)), rate)
}

/// A share of packets lost, if it is known, and so many in each second.
pub(crate) fn of_loss_rate(share: Option<f64>, rate: f64) -> Severity {
    let exceeds = |least_share: f64, least_rate: f64| {
        share.is_none_or(|share| share >= least_share) && rate >= least_rate
    };
    if exceeds(1e-3, 10.0) {
        Severity::Critical
    } else if exceeds(1e-5, 1.0) {
        Severity::Warning
    } else {
        Severity::Info
    }
}

/// TCP segments sent again, with their share of all. Paths outside of the host lose packets, so it takes more of
/// them than of losses on the host: 5% and 100/s are critical, 1% and 10/s a warning.
pub(crate) fn of_retransmissions(context: &Context<'_>, again: u64, share: f64) -> Severity {
    let rate = context.per_second(again);
    if context.earlier.is_none() {
        Severity::Info
    } else if share >= 0.05 && rate >= 100.0 {
        Severity::Critical
    } else if share >= 0.01 && rate >= 10.0 {
        Severity::Warning
    } else {
        Severity::Info
    }
}

/// Retransmission timeouts, with their share of the segments sent. One that expires stops a connection for 200 ms or
/// more, so it takes a tenth of what retransmissions take: 0.5% and 10/s are critical, 0.1% and 2/s a warning. A
/// connection whose peer is gone has fewer than one in two seconds, as they double (RFC 6298).
pub(crate) fn of_timeouts(context: &Context<'_>, timeouts: u64, share: f64) -> Severity {
    let rate = context.per_second(timeouts);
    if context.earlier.is_none() {
        Severity::Info
    } else if share >= 0.005 && rate >= 10.0 {
        Severity::Critical
    } else if share >= 0.001 && rate >= 2.0 {
        Severity::Warning
    } else {
        Severity::Info
    }
}

/// Connection-seconds in each second from which [`of_limit`] warns: a transfer that is held back for half of the time.
pub(crate) const LIMITED_S: f64 = 0.5;

/// Connections that transfer data, and are held back by a setting: `seconds_per_second` in each second, summed over
/// them. A limit of the peer is `info`, as is one that no setting of this host changes.
pub(crate) fn of_limit(seconds_per_second: f64, is_set_here: bool) -> Severity {
    if is_set_here && seconds_per_second >= LIMITED_S { Severity::Warning } else { Severity::Info }
}

/// What packets pay that take a detour.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delay {
    /// Packets that pay, in each second.
    pub per_second: f64,
    /// The share of all packets, from 0 to 1.
    pub share: f64,
    /// What one of them pays at the median; `None` when it is unknown.
    pub each_ns: Option<u64>,
    /// Seconds of waiting in each second, summed over packets; `None` when it is unknown.
    pub seconds_per_second: Option<f64>,
}

/// Extra latency of many packets.
pub(crate) fn of_delay(delay: Delay) -> Severity {
    let each = |least_ns| delay.each_ns.is_none_or(|ns| ns >= least_ns);
    let waits = |least| delay.seconds_per_second.is_some_and(|seconds| seconds >= least);
    if waits(FELT_S) && delay.share >= 0.1 && delay.per_second >= 5_000.0 && each(5_000) {
        Severity::Critical
    } else if waits(FELT_S) && each(2_000) {
        Severity::Warning
    } else {
        Severity::Info
    }
}

/// A tail: the number of packets later than [`LATE_NS`].
pub fn of_tail(late: f64, packets: u64, observed_s: f64) -> Severity {
    if packets == 0 || observed_s.is_nan() || observed_s <= 0.0 {
        return Severity::Info;
    }
    let (share, rate) = (late / packets as f64, late / observed_s);
    if share >= 1e-3 && rate >= 10.0 {
        Severity::Critical
    } else if share >= 2e-4 && rate >= 1.0 {
        Severity::Warning
    } else {
        Severity::Info
    }
}

/// A setting that is wrong for the traffic that passes over it, in packets or interrupts per second.
pub(crate) fn of_traffic(per_second: Option<f64>) -> Severity {
    match per_second {
        Some(rate) if rate >= TRAFFIC_PER_S => Severity::Warning,
        _ => Severity::Info,
    }
}

/// Events that each delay whoever they hit by some tens of µs and more: migrations, page faults, stalls.
pub(crate) fn of_events(context: &Context<'_>, events: u64) -> Severity {
    match context.earlier {
        Some(_) if context.per_second(events) >= EVENTS_PER_S => Severity::Warning,
        _ => Severity::Info,
    }
}

/// A condition that delays packets while it holds: a warning where it held in the interval, and at least so many of what
/// it delays (packets, runs, periods) came in each second, or the condition took so much of the time. `None` is a rate that
/// is not known.
pub(crate) fn of_condition(
    context: &Context<'_>,
    holds: bool,
    per_second: Option<f64>,
    least: f64,
) -> Severity {
    let felt = per_second.is_some_and(|rate| rate >= least);
    if holds && felt && context.earlier.is_some() { Severity::Warning } else { Severity::Info }
}

/// Work that CPUs do in vain, in seconds of CPU time per second.
pub(crate) fn of_cpu_time(context: &Context<'_>, seconds_per_second: f64) -> Severity {
    match context.earlier {
        Some(_) if seconds_per_second >= FELT_S => Severity::Warning,
        _ => Severity::Info,
    }
}

/// How many packets took longer than [`LATE_NS`] on any of these spans.
pub(crate) fn late_packets<'a>(
    measurement: &Measurement,
    spans: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> u64 {
    let late = |(from, to): (&str, &str)| {
        let spans = measurement.spans.iter().filter(move |s| s.from == from && s.to == to);
        spans.map(late_of).fold(0, u64::saturating_add)
    };
    spans.into_iter().map(late).fold(0, u64::saturating_add)
}

/// What the watch has counted, if what it calls late is late on any host.
pub(crate) fn watched_tail(measurement: &Measurement) -> Option<&Watch> {
    measurement.watch.as_ref().filter(|watch| watch.late > 0 && watch.late_ns >= LATE_NS)
}

/// Packets of a span that took longer: those in the buckets that lie wholly above [`LATE_NS`] (a bucket's width is less
/// than an eighth of its upper end), and at least as many as its percentiles show.
pub(crate) fn late_of(span: &Span) -> u64 {
    let above = span.buckets.iter().filter(|(upper, _)| upper - upper / 8 >= LATE_NS);
    let counted = total(above.map(|(_, count)| *count));
    let is_late = |ns: Option<u64>| ns.is_some_and(|ns| ns >= LATE_NS);
    let percentiles =
        [(span.p50_ns, 2), (span.p90_ns, 10), (span.p99_ns, 100), (span.p999_ns, 1000)];
    let from_percentiles =
        percentiles.into_iter().find(|(ns, _)| is_late(*ns)).map(|(_, one_in)| span.count / one_in);
    counted.max(from_percentiles.unwrap_or(0)).min(span.count)
}

impl Context<'_> {
    /// The length of the interval in seconds, or the time since boot without an earlier reading: how much time CPUs had
    /// in it (`/proc/stat`), else the measurement's length; `None` when neither is known.
    pub(crate) fn interval_s(&self) -> Option<f64> {
        let ticks = |time: &nearpath_model::CpuTime| {
            let rest = [time.user, time.nice, time.system, time.idle, time.iowait, time.irq];
            total(rest.into_iter().chain([time.softirq, time.steal.unwrap_or(0)]))
        };
        let rise = |now: &nearpath_model::CpuTime| {
            let Some(earlier) = self.earlier else { return Some(ticks(now)) };
            let then = earlier.cpu_time.iter().find(|then| then.cpu == now.cpu)?;
            Some(ticks(now).saturating_sub(ticks(then)))
        };
        // USER_HZ is 100 on every architecture but Alpha (include/asm-generic/param.h).
        let longest = self.host.cpu_time.iter().filter_map(rise).max().filter(|&ticks| ticks > 0);
        let measured = || self.earlier.and(self.measurement).map(|m| m.duration_s);
        let seconds = longest.map(|ticks| ticks as f64 / 100.0).or_else(measured);
        seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0)
    }

    /// A rise of a counter as a rate. If the length of the interval is unknown, it is taken as ten seconds, the default
    /// of `diagnose`.
    pub(crate) fn per_second(&self, rise: u64) -> f64 {
        rise as f64 / self.interval_s().unwrap_or(10.0)
    }

    /// Packets that the hardware NICs received in each second; `None` if that is unknown.
    pub(crate) fn received_per_s(&self) -> Option<f64> {
        let counts = self.hardware_nics().filter_map(|nic| self.statistic(nic, "rx_packets"));
        counts.reduce(u64::saturating_add).and_then(|count| self.rate(count))
    }

    /// Runs of NET_RX on these CPUs in each second; `None` if that is unknown.
    pub(crate) fn net_rx_per_s(&self, cpus: &nearpath_model::CpuSet) -> Option<f64> {
        let counts = self.softirqs("NET_RX")?;
        let there = counts.iter().filter(|(cpu, _)| cpus.contains(**cpu)).map(|(_, count)| *count);
        self.rate(total(there))
    }

    /// A counter as a rate, over the interval or since boot; `None` since boot when it is unknown how long that is.
    pub(crate) fn rate(&self, count: u64) -> Option<f64> {
        match self.earlier {
            Some(_) => Some(self.per_second(count)),
            None => self.interval_s().map(|seconds| count as f64 / seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{CpuId, CpuTime, Host};

    fn host(idle: u64) -> Host {
        let time = CpuTime {
            cpu: CpuId(0),
            user: 0,
            nice: 0,
            system: 0,
            idle,
            iowait: 0,
            irq: 0,
            softirq: 0,
            steal: None,
        };
        Host { cpu_time: vec![time], ..Host::default() }
    }

    #[test]
    fn loss_is_judged_by_rate_and_share() {
        let (then, now) = (host(0), host(1_000));
        let context = Context::new(&now, Some(&then), None);
        assert_eq!(context.interval_s(), Some(10.0));
        for (lost, arrived, severity) in [
            (1, Some(1_000), Severity::Info),
            (1, Some(10), Severity::Info),
            (11, Some(1_000_000), Severity::Warning),
            (100, Some(1_000_000), Severity::Warning),
            (1_000, Some(1_000_000), Severity::Warning),
            (1_002, Some(1_000_000), Severity::Critical),
            (100, Some(10_000), Severity::Critical),
            (99, Some(1_000), Severity::Warning),
            (100, None, Severity::Critical),
        ] {
            assert_eq!(of_loss(&context, lost, arrived), severity, "{lost} of {arrived:?}");
        }
        let since_boot = Context::new(&now, None, None);
        assert_eq!(of_loss(&since_boot, 1_000_000, Some(1)), Severity::Warning, "never critical");
        assert_eq!(of_loss(&since_boot, 1, Some(1_000_000)), Severity::Info);
    }

    #[test]
    fn timeouts_and_limits_need_a_rate() {
        let (then, now) = (host(0), host(1_000));
        let context = Context::new(&now, Some(&then), None);
        for (timeouts, share, severity) in [
            (19, 0.5, Severity::Info),
            (20, 0.5, Severity::Warning),
            (20, 0.0009, Severity::Info),
            (100, 0.004, Severity::Warning),
            (100, 0.005, Severity::Critical),
        ] {
            assert_eq!(of_timeouts(&context, timeouts, share), severity, "{timeouts} {share}");
        }
        let since_boot = Context::new(&now, None, None);
        assert_eq!(of_timeouts(&since_boot, u64::MAX, 1.0), Severity::Info);
        assert_eq!(of_limit(0.5, true), Severity::Warning);
        assert_eq!(of_limit(0.49, true), Severity::Info, "a transfer held back for less");
        assert_eq!(of_limit(99.0, false), Severity::Info, "nothing to change here");
        assert_eq!(of_limit(f64::NAN, true), Severity::Info);
    }

    #[test]
    fn a_detour_of_few_packets_is_not_critical() {
        let delay = Delay {
            per_second: 12_000.0,
            share: 0.32,
            each_ns: Some(16_400),
            seconds_per_second: Some(0.19),
        };
        assert_eq!(of_delay(delay), Severity::Critical);
        let few = Delay { per_second: 1_000.0, seconds_per_second: Some(0.016), ..delay };
        assert_eq!(of_delay(few), Severity::Warning);
        let cheap = Delay { each_ns: Some(400), ..delay };
        assert_eq!(of_delay(cheap), Severity::Info);
        assert_eq!(of_delay(Delay { seconds_per_second: None, ..delay }), Severity::Info);
    }

    #[test]
    fn conditions_need_an_interval_and_a_rate() {
        let (then, now) = (host(0), host(1_000));
        let context = Context::new(&now, Some(&then), None);
        assert_eq!(of_condition(&context, true, Some(10.0), 10.0), Severity::Warning);
        assert_eq!(of_condition(&context, true, Some(9.0), 10.0), Severity::Info);
        assert_eq!(of_condition(&context, true, None, 10.0), Severity::Info);
        assert_eq!(of_condition(&context, false, Some(10.0), 10.0), Severity::Info);
        assert_eq!(of_cpu_time(&context, 0.01), Severity::Warning);
        assert_eq!(of_cpu_time(&context, 0.009), Severity::Info);
        let since_boot = Context::new(&now, None, None);
        assert_eq!(of_condition(&since_boot, true, Some(10.0), 10.0), Severity::Info);
        assert_eq!(of_cpu_time(&since_boot, 1.0), Severity::Info);
    }

    #[test]
    fn a_tail_needs_packets_that_are_late_in_absolute_terms() {
        assert_eq!(of_tail(1_000.0, 1_000_000, 10.0), Severity::Critical);
        assert_eq!(of_tail(1_000.0, 1_000_000, 1_000.0), Severity::Warning, "one a second");
        assert_eq!(of_tail(100.0, 1_000_000, 10.0), Severity::Info, "one in 10,000");
        assert_eq!(of_tail(5.0, 50, 10.0), Severity::Info, "of an idle host");
        assert_eq!(of_tail(1.0, 0, 0.0), Severity::Info);
    }
}
