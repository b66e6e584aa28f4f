//! Why packets were late within a guest: its own recording put beside the waits of its vCPUs in the host.
//!
//! Input: what the host has measured of a virtual machine, and what the guest has recorded. Output: the guest's late
//! spans in the host's time, each with what its vCPU waited for. The two kernels' clocks are joined by the time stamp
//! counter: both read it beside their own clock, and KVM reports what it adds to the guest's.

use nearpath_model::clock::Clocks;
use nearpath_model::vm::{GuestLate, GuestSpan, GuestWait, MeasuredVm, VcpuPause, VmMeasurement};
use nearpath_model::{Measurement, Outlier, ShareKind};
use std::collections::{BTreeMap, BTreeSet};

/// Why the recordings cannot be put side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuestMismatch {
    /// The host's has no clocks, or no waits.
    #[error("the host's measurement has no waits of vCPUs: measure with --slow, on x86-64")]
    NoHostClocks,
    /// The guest's has no clocks.
    #[error(
        "the guest's recording has no clocks: record slow packets in it ('nearpath measure stages \
         --slow TIME --json'), on x86-64"
    )]
    NoGuestClocks,
    /// How the guest's time stamp counter is made from the host's is unknown.
    #[error(
        "the offset of the guest's time stamp counter is unknown: KVM reports it in debugfs \
         (mount -t debugfs none /sys/kernel/debug)"
    )]
    NoOffset,
    /// They do not overlap.
    #[error(
        "the guest recorded at another time than the host measured, or it is another virtual machine"
    )]
    Apart,
}

/// The late spans of a guest with what its vCPUs waited for. The number of a CPU in the guest is that of its vCPU, as all
/// VMMs number them.
///
/// # Errors
/// The clocks cannot be joined, or the recordings are not of the same time.
pub fn explain_guest(
    host: &VmMeasurement,
    vm: &MeasuredVm,
    guest: &Measurement,
) -> Result<GuestLate, GuestMismatch> {
    let clocks = host.clocks.ok_or(GuestMismatch::NoHostClocks)?;
    let pauses = vm.pauses.as_ref().ok_or(GuestMismatch::NoHostClocks)?;
    let own = guest.clocks.ok_or(GuestMismatch::NoGuestClocks)?;
    let tsc = vm.tsc.ok_or(GuestMismatch::NoOffset)?;
    let in_host = |ns: u64| clocks.monotonic_at(tsc.host(own.tsc_at(ns)?)?);
    let recorded = in_host(own.begin.monotonic_ns).zip(in_host(own.end.monotonic_ns));
    let overlaps = |(begin, end): (u64, u64)| {
        begin < clocks.end.monotonic_ns && end > clocks.begin.monotonic_ns
    };
    if !recorded.is_some_and(overlaps) {
        return Err(GuestMismatch::Apart);
    }
    let mut late = GuestLate::default();
    let mut pieces = Vec::new();
    for outlier in &guest.outliers {
        match in_host(outlier.at_ns).filter(|at| is_within(&clocks, outlier, *at)) {
            Some(at) => {
                let delayed = delays(outlier, at, &pauses.kept);
                late.spans.push(span(outlier, at, &waits(&delayed, &pauses.kept)));
                pieces.extend(delayed);
            }
            None => late.outside += 1,
        }
    }
    late.waited = waits(&each_once(pieces), &pauses.kept);
    Ok(late)
}

/// A part of a wait: its number among all, and its begin and end.
type Piece = (usize, u64, u64);

/// The parts of waits that delayed the packet of a span that ended at this time of the host.
///
/// It waited whenever the vCPU did that should have processed it. The waits of a vCPU that should have handed it over count
/// as long as the former was idle, or the reader was still on the latter: if it had been handed over before, it would
/// have been processed.
fn delays(outlier: &Outlier, at_ns: u64, pauses: &[VcpuPause]) -> Vec<Piece> {
    let (begin, vcpu) = (at_ns.saturating_sub(outlier.span_ns), outlier.cpu.0);
    let mut pieces: Vec<Piece> = waits_within(pauses, vcpu, begin, at_ns).collect();
    let mut elsewhere = outlier.budget.iter().fold(0u64, |sum, share| match share.share {
        ShareKind::Ipi | ShareKind::Idle | ShareKind::Migration => sum.saturating_add(share.ns),
        _ => sum,
    });
    let of_shares = outlier.budget.iter().filter_map(|share| share.who.as_ref()?.cpu);
    let others: BTreeSet<u32> =
        of_shares.chain([outlier.from_cpu]).map(|cpu| cpu.0).filter(|cpu| *cpu != vcpu).collect();
    for other in others {
        let covered = covered(&pieces);
        for (pause, from, to) in waits_within(pauses, other, begin, at_ns) {
            for (from, to) in uncovered(from, to, &covered) {
                let ns = elsewhere.min(to - from);
                elsewhere -= ns;
                if ns > 0 {
                    pieces.push((pause, from, from + ns));
                }
            }
        }
    }
    pieces
}

/// The waits of a vCPU, or their parts, between two times.
fn waits_within(
    pauses: &[VcpuPause],
    vcpu: u32,
    begin: u64,
    end: u64,
) -> impl Iterator<Item = Piece> {
    let within = move |(number, pause): (usize, &VcpuPause)| {
        let (from, to) = (pause.start_ns.max(begin), pause.end_ns.min(end));
        (from < to).then_some((number, from, to))
    };
    pauses.iter().enumerate().filter(move |(_, pause)| pause.vcpu == vcpu).filter_map(within)
}

/// The times of pieces, those that overlap as one, in their order.
fn covered(pieces: &[Piece]) -> Vec<(u64, u64)> {
    let mut times: Vec<(u64, u64)> = pieces.iter().map(|&(_, from, to)| (from, to)).collect();
    times.sort_unstable();
    times.dedup_by(|next, before| {
        let overlap = next.0 <= before.1;
        if overlap {
            before.1 = before.1.max(next.1);
        }
        overlap
    });
    times
}

/// What of a time is in none of these, which are in order and do not overlap.
fn uncovered(mut from: u64, to: u64, covered: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let first = covered.partition_point(|&(_, end)| end <= from);
    let mut free = Vec::new();
    for &(begin, end) in covered.iter().skip(first).take_while(|(begin, _)| *begin < to) {
        if from < begin {
            free.push((from, begin));
        }
        from = end;
    }
    if from < to {
        free.push((from, to));
    }
    free
}

/// Pieces of several spans, which may be at the same time.
fn each_once(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort_unstable();
    pieces.dedup_by(|next, before| {
        let overlap = next.0 == before.0 && next.1 <= before.2;
        if overlap {
            before.2 = before.2.max(next.2);
        }
        overlap
    });
    pieces
}

/// Whether the host measured for the whole of a span that ended then.
fn is_within(clocks: &Clocks, outlier: &Outlier, at_ns: u64) -> bool {
    let begin = at_ns.checked_sub(outlier.span_ns);
    at_ns <= clocks.end.monotonic_ns && begin.is_some_and(|ns| ns >= clocks.begin.monotonic_ns)
}

fn span(outlier: &Outlier, host_at_ns: u64, waited: &[GuestWait]) -> GuestSpan {
    let stolen = outlier.budget.iter().filter(|share| share.share == ShareKind::Stolen);
    GuestSpan {
        direction: outlier.direction,
        from: outlier.from.clone(),
        to: outlier.to.clone(),
        flow: outlier.flow.clone(),
        packet: outlier.packet,
        span_ns: outlier.span_ns,
        host_at_ns,
        vcpu: outlier.cpu.0,
        stolen_ns: stolen.fold(0, |sum, share| sum.saturating_add(share.ns)),
        waited: waited.to_vec(),
    }
}

/// Waits of a vCPU for the same as one, most first.
fn waits(pieces: &[Piece], pauses: &[VcpuPause]) -> Vec<GuestWait> {
    let mut sums: BTreeMap<(u32, bool, Option<&str>), u64> = BTreeMap::new();
    for &(number, from, to) in pieces {
        let Some(pause) = pauses.get(number) else { continue };
        let behind = pause.behind.as_deref().filter(|_| !pause.throttled);
        let sum = sums.entry((pause.vcpu, pause.throttled, behind)).or_default();
        *sum = sum.saturating_add(to - from);
    }
    let wait = |((vcpu, throttled, behind), ns): ((u32, bool, Option<&str>), u64)| GuestWait {
        vcpu,
        ns,
        throttled,
        behind: behind.map(str::to_owned),
    };
    let mut all: Vec<GuestWait> = sums.into_iter().map(wait).collect();
    all.sort_by_key(|wait| std::cmp::Reverse(wait.ns));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::clock::{ClockReading, GuestTsc};
    use nearpath_model::vm::VcpuPauses;
    use nearpath_model::{CpuId, Culprit, Direction, Share};
    use proptest::prelude::*;

    /// The host's clocks: 2 counts a nanosecond, from 10 s after its start.
    const HOST: Clocks = Clocks {
        begin: ClockReading { monotonic_ns: 10_000_000_000, tsc: 20_000_000_000 },
        end: ClockReading { monotonic_ns: 20_000_000_000, tsc: 40_000_000_000 },
    };
    /// The guest started when the host's counter was at 12e9, that is 6 s after the host; it measured from its second
    /// 5 to 13, that is the host's 11 to 19.
    const GUEST: Clocks = Clocks {
        begin: ClockReading { monotonic_ns: 5_000_000_000, tsc: 10_000_000_000 },
        end: ClockReading { monotonic_ns: 13_000_000_000, tsc: 26_000_000_000 },
    };
    const TSC: GuestTsc = GuestTsc { offset: -12_000_000_000, ratio: 1, fraction_bits: 0 };

    fn pause(vcpu: u32, start_ms: u64, end_ms: u64, behind: Option<&str>) -> VcpuPause {
        VcpuPause {
            vcpu,
            start_ns: start_ms * 1_000_000,
            end_ns: end_ms * 1_000_000,
            throttled: behind.is_none(),
            behind: behind.map(str::to_owned),
        }
    }

    fn vm(kept: Vec<VcpuPause>) -> (VmMeasurement, MeasuredVm) {
        let pauses = Some(VcpuPauses { shortest_ns: 100_000, kept });
        let vm = MeasuredVm { pid: Some(4), pauses, tsc: Some(TSC), ..MeasuredVm::default() };
        (VmMeasurement { clocks: Some(HOST), ..VmMeasurement::default() }, vm)
    }

    /// A span that ended at this time of the guest, in ms.
    fn outlier(at_ms: u64, took_ms: u64, cpu: u32, stolen_ms: u64) -> Outlier {
        let share = |share, ms| Share { share, ns: ms * 1_000_000, who: None };
        Outlier {
            direction: Direction::Rx,
            from: "netif_rx".into(),
            to: "sock_recv".into(),
            span_ns: took_ms * 1_000_000,
            from_cpu: CpuId(cpu),
            cpu: CpuId(cpu),
            node: None,
            flow: None,
            at_ns: at_ms * 1_000_000,
            packets_meanwhile: 0,
            complete: true,
            budget: vec![
                share(ShareKind::Stolen, stolen_ms),
                share(ShareKind::Own, took_ms - stolen_ms),
            ],
            packet: at_ms,
            path: Vec::new(),
        }
    }

    fn guest(outliers: Vec<Outlier>) -> Measurement {
        Measurement { clocks: Some(GUEST), outliers, ..Measurement::default() }
    }

    #[test]
    fn a_span_has_the_waits_of_its_vcpu_in_its_time() {
        // In the guest from 7.000 to 7.300 s: in the host from 13.000 to 13.300 s.
        let kept = vec![
            pause(0, 12_900, 13_100, Some("hog")),
            pause(0, 13_150, 13_160, None),
            pause(1, 13_000, 13_300, Some("other")),
            pause(0, 13_250, 13_400, Some("hog")),
            pause(0, 13_300, 13_500, Some("later")),
        ];
        let (host, vm) = vm(kept);
        let late = explain_guest(&host, &vm, &guest(vec![outlier(7300, 300, 0, 170)])).unwrap();
        let [span] = late.spans.as_slice() else { panic!("{late:?}") };
        assert_eq!(span.host_at_ns, 13_300_000_000);
        assert_eq!((span.vcpu, span.stolen_ns), (0, 170_000_000));
        let waited: Vec<_> = span
            .waited
            .iter()
            .map(|w| (w.ns / 1_000_000, w.throttled, w.behind.as_deref()))
            .collect();
        assert_eq!(waited, [(150, false, Some("hog")), (10, true, None)]);
        assert!(span.is_by_host() && late.by_host() == 1);
        assert_eq!(late.waited, span.waited);
    }

    #[test]
    fn a_wait_that_delays_several_packets_counts_once() {
        // From 13.000 s, 13.050 s and 13.200 s in the host, to 13.300, 13.310 and 13.400 s; one on another vCPU.
        let (host, vm) = vm(vec![
            pause(0, 13_100, 13_250, Some("hog")),
            pause(0, 13_290, 13_500, Some("hog")),
            pause(1, 13_100, 13_120, Some("hog")),
        ]);
        let spans = vec![
            outlier(7310, 260, 0, 0),
            outlier(7300, 300, 0, 0),
            outlier(7400, 200, 0, 0),
            outlier(7300, 300, 1, 0),
        ];
        let late = explain_guest(&host, &vm, &guest(spans)).unwrap();
        let waited: Vec<u64> = late.waited.iter().map(|wait| wait.ns / 1_000_000).collect();
        assert_eq!(waited, [150 + 110, 20], "vCPU 0, vCPU 1");
    }

    #[test]
    fn a_span_is_the_guests_own_if_its_vcpu_ran() {
        let (host, vm) = vm(vec![pause(0, 13_000, 13_100, Some("hog"))]);
        let late = explain_guest(&host, &vm, &guest(vec![outlier(7300, 300, 0, 0)])).unwrap();
        assert_eq!((late.by_host(), late.spans[0].waited_ns()), (0, 100_000_000));
    }

    /// Of RPS, or of a reader that was woken: the vCPU that should have woken the other was without a CPU.
    #[test]
    fn a_vcpu_that_has_not_handed_the_packet_over_counts_while_the_other_is_idle() {
        // In the host from 13.000 to 13.300 s.
        let kept = vec![
            pause(0, 12_900, 13_120, Some("hog")),
            pause(1, 13_100, 13_160, Some("other")),
            pause(0, 13_150, 13_280, None),
            pause(2, 13_000, 13_300, Some("another")),
        ];
        let (host, vm) = vm(kept);
        let handed = |share, ms: u64| {
            let share = Share { share, ns: ms * 1_000_000, who: None };
            Outlier { from_cpu: CpuId(0), budget: vec![share], ..outlier(7300, 300, 1, 0) }
        };
        let waited = |outlier: Outlier| {
            let late = explain_guest(&host, &vm, &guest(vec![outlier])).unwrap();
            let of =
                |w: &GuestWait| (w.vcpu, w.ns / 1_000_000, w.behind.clone().unwrap_or_default());
            late.spans[0].waited.iter().map(of).collect::<Vec<_>>()
        };
        let of = |vcpu, ms, behind: &str| (vcpu, ms, behind.to_owned());
        assert_eq!(
            waited(handed(ShareKind::Ipi, 260)),
            [of(0, 120, ""), of(0, 100, "hog"), of(1, 60, "other")]
        );
        assert_eq!(
            waited(handed(ShareKind::Idle, 110)),
            [of(0, 100, "hog"), of(1, 60, "other"), of(0, 10, "")]
        );
        // It had something else to do.
        assert_eq!(waited(handed(ShareKind::Task, 300)), [of(1, 60, "other")]);
        // The reader waited on the vCPU from which it was migrated.
        let mut migrated = handed(ShareKind::Migration, 300);
        migrated.from_cpu = CpuId(1);
        migrated.budget[0].who = Some(Culprit { cpu: Some(CpuId(2)), ..Culprit::default() });
        assert_eq!(waited(migrated), [of(2, 240, "another"), of(1, 60, "other")]);
    }

    #[test]
    fn a_span_that_the_host_did_not_measure_whole_is_outside() {
        let (mut host, vm) = vm(vec![pause(0, 13_000, 13_100, Some("hog"))]);
        host.clocks = Some(Clocks {
            begin: ClockReading { monotonic_ns: 13_100_000_000, tsc: 26_200_000_000 },
            ..HOST
        });
        let spans = vec![outlier(7300, 300, 0, 0), outlier(7500, 300, 0, 0)];
        let late = explain_guest(&host, &vm, &guest(spans)).unwrap();
        assert_eq!((late.spans.len(), late.outside), (1, 1));
    }

    #[test]
    fn recordings_that_do_not_fit_are_refused() {
        let (host, vm) = vm(Vec::new());
        let refused = |host: &VmMeasurement, vm: &MeasuredVm, guest: &Measurement| {
            explain_guest(host, vm, guest).unwrap_err()
        };
        let late = guest(Vec::new());
        assert_eq!(explain_guest(&host, &vm, &late), Ok(GuestLate::default()));
        let none = VmMeasurement::default();
        assert_eq!(refused(&none, &vm, &late), GuestMismatch::NoHostClocks);
        let without = MeasuredVm { pauses: None, ..vm.clone() };
        assert_eq!(refused(&host, &without, &late), GuestMismatch::NoHostClocks);
        assert_eq!(refused(&host, &vm, &Measurement::default()), GuestMismatch::NoGuestClocks);
        let without = MeasuredVm { tsc: None, ..vm.clone() };
        assert_eq!(refused(&host, &without, &late), GuestMismatch::NoOffset);
        // Another virtual machine, which was started an hour before this one.
        let other = GuestTsc { offset: TSC.offset + 7200 * 1_000_000_000, ..TSC };
        let other = MeasuredVm { tsc: Some(other), ..vm };
        assert_eq!(refused(&host, &other, &late), GuestMismatch::Apart);
    }

    proptest! {
        /// Whatever the files say.
        #[test]
        fn no_recording_panics(
            (monotonic, tsc, offset, ratio) in any::<(u64, u64, i64, u64)>(),
            (at_ns, span_ns, idle_ns) in any::<(u64, u64, u64)>(),
            waits: Vec<(u64, u64, bool)>,
        ) {
            let waits = waits.into_iter().map(|(start_ns, end_ns, other)| VcpuPause {
                start_ns,
                end_ns,
                ..pause(other.into(), 0, 0, Some("hog"))
            });
            let (host, vm) = vm(waits.collect());
            let end = ClockReading { monotonic_ns: monotonic, tsc };
            let budget = vec![Share { share: ShareKind::Idle, ns: idle_ns, who: None }];
            let late = Outlier { at_ns, span_ns, budget, from_cpu: CpuId(1), ..outlier(7, 3, 0, 0) };
            let mut recorded = guest(vec![late]);
            let _ = explain_guest(&host, &vm, &recorded);
            recorded.clocks = Some(Clocks { end, ..GUEST });
            let tsc = Some(GuestTsc { offset, ratio, fraction_bits: 32 });
            let _ = explain_guest(&host, &MeasuredVm { tsc, ..vm }, &recorded);
        }
    }
}
