use super::*;
use crate::comparison::own;
use crate::latency::Summary;
use nearpath_model::{CpuId, Direction, PathLatency, Span};

fn span(from: &str, to: &str, buckets: &[(u64, u64)]) -> Span {
    let count = buckets.iter().map(|&(_, count)| count).sum();
    Span {
        direction: Direction::Rx,
        from: from.to_owned(),
        to: to.to_owned(),
        count,
        min_ns: None,
        p50_ns: None,
        p90_ns: None,
        p99_ns: None,
        p999_ns: None,
        max_ns: None,
        total_ns: buckets.iter().map(|&(upper, count)| upper * count).sum(),
        other_cpu: Some(0.5),
        other_llc: Some(0.5),
        other_node: None,
        buckets: buckets.to_vec(),
        places: Vec::new(),
    }
}

fn path(kind: PathKind, buckets: &[(u64, u64)]) -> PathLatency {
    PathLatency {
        kind,
        from: "a".to_owned(),
        count: buckets.iter().map(|&(_, count)| count).sum(),
        min_ns: None,
        p50_ns: None,
        p90_ns: None,
        p99_ns: None,
        p999_ns: None,
        max_ns: None,
        total_ns: buckets.iter().map(|&(upper, count)| upper * count).sum(),
        above: Vec::new(),
        other_cpu: None,
        other_llc: None,
        other_node: None,
        buckets: buckets.to_vec(),
    }
}

const MEAN: Metric = Metric::Path { kind: None, figure: Figure::Mean };

/// A block and its value of the metric.
#[derive(Debug)]
struct Found {
    metric: f64,
    block: Block,
}

/// The only block of a trial.
fn alone(metric: &Metric, begin: &Reading, end: &Reading) -> Result<(Found, Option<Hops>), String> {
    let (block, hops) = super::block(metric, begin, end, Needs::Some)?;
    Ok((Found { metric: own(&block.observed).unwrap(), block }, hops))
}

fn percentile(share: f64) -> Metric {
    Metric::of(Figure::Percentile(share))
}

fn cpu(number: u32, user: u64, idle: u64) -> CpuTime {
    CpuTime {
        cpu: CpuId(number),
        user,
        nice: 0,
        system: 0,
        idle,
        iowait: 0,
        irq: 0,
        softirq: 0,
        steal: None,
    }
}

fn reading(duration_s: f64, packets: u64, spans: Vec<Span>, cpu_time: Vec<CpuTime>) -> Reading {
    let mut measurement = Measurement { duration_s, spans, ..Measurement::default() };
    measurement.packets.started = packets;
    measurement.packets.completed = packets;
    Reading {
        time_s: duration_s,
        measurement: Some(measurement),
        interfaces: None,
        probes: None,
        cpu_time,
    }
}

/// 2,000 packets passed in two seconds: all through one span, half of them through another. Those that were
/// fast in the first are slow in the second, so all of them took 11µs, except for the half that took 2µs.
fn readings() -> (Reading, Reading) {
    let mut begin = reading(
        1.0,
        100,
        vec![span("a", "b", &[(1_000, 100)])],
        vec![cpu(0, 0, 0), cpu(1, 10, 10)],
    );
    let spans =
        vec![span("a", "b", &[(1_000, 1_100), (2_000, 1_000)]), span("b", "c", &[(10_000, 1_000)])];
    let mut end = reading(3.0, 2_100, spans, vec![cpu(0, 50, 150), cpu(1, 110, 10)]);
    let paths = |buckets: &[(u64, u64)]| vec![path(PathKind::Receive, buckets)];
    begin.measurement.as_mut().unwrap().paths = paths(&[(1_000, 100)]);
    end.measurement.as_mut().unwrap().paths =
        paths(&[(1_000, 100), (2_000, 1_000), (11_000, 1_000)]);
    (begin, end)
}

#[test]
fn a_block_is_the_difference_of_two_readings() {
    let (begin, end) = readings();
    let (mean, hops) = alone(&MEAN, &begin, &end).unwrap();
    let hops = hops.unwrap();
    // (1,000 × 2,000 + 1,000 × 11,000) / 2,000.
    assert!((mean.metric - 6_500.0).abs() < 1e-6, "{mean:?}");
    assert!((mean.block.rate_per_s - 1_000.0).abs() < 1e-6 && mean.block.lost == 0.0);
    // One a quarter busy, the other completely.
    assert!((mean.block.cpus_busy - 1.25).abs() < 1e-6, "{mean:?}");
    // Half of 2,000 and half of 1,000 hops, for 2,000 packets; hops between nodes are unknown.
    assert!((hops.other_cpu - 0.75).abs() < 1e-6 && hops.other_node.is_none(), "{hops:?}");

    let (tail, _) = alone(&percentile(0.99), &begin, &end).unwrap();
    // Close to the upper end of the bucket that holds 11,000.
    assert!((10_600.0..=11_400.0).contains(&tail.metric), "{tail:?}");
    let one = Metric::Span { from: "b".to_owned(), to: "c".to_owned() };
    let (one, _) = alone(&one, &begin, &end).unwrap();
    assert!((10_300.0..=10_420.0).contains(&one.metric), "{one:?}");
    let (rate, _) = alone(&Metric::Packets, &begin, &end).unwrap();
    assert!((rate.metric - 0.001).abs() < 1e-9, "{rate:?}");
}

#[test]
fn bits_are_those_of_the_interfaces() {
    let (mut begin, mut end) = readings();
    let none = alone(&Metric::Bits, &begin, &end).unwrap_err();
    assert_eq!(none, "the interfaces have no byte counters");
    let counted = |bytes| {
        Some(Interfaces { bytes, packets: bytes / 1_000, errors: 7, drops: bytes / 100_000 })
    };
    (begin.interfaces, end.interfaces) = (counted(1_000), counted(500_001_000));
    let (bits, _) = alone(&Metric::Bits, &begin, &end).unwrap();
    // 4 Gbit in 2 s: half a second per Gbit.
    assert!((bits.metric - 0.5).abs() < 1e-9, "{bits:?}");
    assert!(
        (bits.block.rate_per_s - 1_000.0).abs() < 1e-6,
        "packets, if they are tracked: {bits:?}"
    );
    // Without packets, the throughput guard uses bytes.
    (begin.measurement, end.measurement) = (None, None);
    let (bits, hops) = alone(&Metric::Bits, &begin, &end).unwrap();
    assert!(hops.is_none() && (bits.block.rate_per_s - 250e6).abs() < 1.0, "{bits:?}");
    // 5,000 of 505,000 packets were dropped, and no error is new.
    assert!((bits.block.drops - 5_000.0 / 505_000.0).abs() < 1e-9 && bits.block.errors == 0.0);
    let idle = alone(&Metric::Bits, &end, &end).unwrap_err();
    assert!(idle.starts_with("no bytes were received or sent"), "{idle}");
}

#[test]
fn probes_have_their_own_percentiles() {
    let (begin, mut end) = readings();
    let latency = Summary {
        count: 2_000,
        min_ns: Some(10),
        mean_ns: Some(50.0),
        stddev_ns: None,
        percentiles: [("50".to_owned(), 40), ("99".to_owned(), 90)].into(),
        max_ns: Some(100),
    };
    let histogram = vec![(40, 1_900), (90, 80), (100, 20)];
    end.probes = Some(Probes { sent: 2_100, received: 2_000, latency, histogram });
    let (tail, hops) = alone(&percentile(0.99), &begin, &end).unwrap();
    assert!((86.0..=94.0).contains(&tail.metric) && hops.is_some(), "{tail:?}");
    assert!((tail.block.lost - 100.0 / 2_100.0).abs() < 1e-9, "probes without an answer: {tail:?}");
    assert!((tail.block.rate_per_s - 1_000.0).abs() < 1e-6, "all traffic: {tail:?}");
    let (mean, _) = alone(&MEAN, &begin, &end).unwrap();
    assert!((mean.metric - 50.0).abs() < 1e-9);
    // If packets cannot be tracked, only probes are used.
    end.measurement = None;
    let (probed, hops) = alone(&percentile(0.5), &begin, &end).unwrap();
    assert!(hops.is_none() && (probed.block.rate_per_s - 1_000.0).abs() < 1e-6, "{probed:?}");
    let packets = alone(&Metric::Packets, &begin, &end).unwrap_err();
    assert_eq!(packets, "packets cannot be tracked on this host");
}

#[test]
fn missing_data_of_a_block_is_reported() {
    let (begin, end) = readings();
    let none = Metric::Span { from: "x".to_owned(), to: "y".to_owned() };
    assert!(alone(&none, &begin, &end).unwrap_err().starts_with("no packet passed from x to y"));
    let idle = alone(&MEAN, &end, &end).unwrap_err();
    assert!(idle.starts_with("no packet completed a receive path; try a longer --block"), "{idle}");
    // With the change, that is a result: no packet, and no value.
    let (silent, _) = super::block(&MEAN, &end, &end, Needs::Anything).unwrap();
    assert_eq!(own(&silent.observed), None);
}

#[test]
fn percentiles_are_of_whole_packets_not_sums_over_spans() {
    // One packet in a hundred is late in each of four spans, each time a different one.
    let late = [(1_000, 9_900), (1_000_000, 100)];
    let spans = ["ab", "bc", "cd", "de"].map(|ends| span(&ends[..1], &ends[1..], &late));
    let mut end = reading(2.0, 10_000, spans.to_vec(), Vec::new());
    end.measurement.as_mut().unwrap().paths =
        vec![path(PathKind::Receive, &[(4_000, 9_600), (1_003_000, 400)])];
    let begin = reading(0.0, 0, Vec::new(), Vec::new());
    let (tail, _) = alone(&percentile(0.99), &begin, &end).unwrap();
    // The spans' percentiles add up to 4µs or to 4ms, which no packet took.
    assert!((960_000.0..=1_060_000.0).contains(&tail.metric), "{tail:?}");
}

#[test]
fn another_kind_of_path_is_compared_by_its_name() {
    let (begin, mut end) = readings();
    let forwarded = path(PathKind::Forward, &[(500, 3_000)]);
    let measurement = end.measurement.as_mut().unwrap();
    measurement.paths.push(forwarded);
    let metric: Metric = "forward:mean".parse().unwrap();
    let (mean, _) = alone(&metric, &begin, &end).unwrap();
    assert!((mean.metric - 500.0).abs() < 1e-9, "{mean:?}");
    // A host that only forwards receives nothing; the error lists what is available.
    end.measurement.as_mut().unwrap().paths.remove(0);
    let none = alone(&percentile(0.99), &begin, &end).unwrap_err();
    assert_eq!(none, "no packet completed a receive path; available: forward:p99 (3000 packets)");
}

#[test]
fn a_share_needs_no_deep_percentile() {
    let (begin, end) = readings();
    assert!(super::block(&percentile(0.999), &begin, &end, Needs::Some).is_ok(), "2,000");
    let above: Metric = "above:5us".parse().unwrap();
    let (share, _) = alone(&above, &begin, &end).unwrap();
    assert!((share.metric - 1_000.5 / 2_001.0).abs() < 1e-9, "half took 11µs: {share:?}");
    let none: Metric = "receive:above:1s".parse().unwrap();
    let (share, _) = alone(&none, &begin, &end).unwrap();
    assert!(share.metric > 0.0 && share.metric < 0.001, "{share:?}");
    assert_eq!(latencies(&above, &begin, &end).unwrap().iter().map(|b| b.1).sum::<u64>(), 2_000);
    assert_eq!(latencies(&Metric::Packets, &begin, &end), None);
}

#[test]
fn metrics_round_trip() {
    for name in [
        "mean",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "stage:netif_rx..net_rx_raise",
        "pps",
        "gbps",
        "kernel_transmit:p90",
        "receive:mean",
        "above:250us",
        "forward:above:3ms",
        "above:1s",
        "above:1234ns",
    ] {
        assert_eq!(name.parse::<Metric>().unwrap().to_string(), name);
    }
    for name in [
        "p98",
        "sideways:p99",
        "forward:",
        "forward:p98",
        "forward:pps",
        "above:",
        "above:5",
        "above:0us",
        "above:99s",
        "above:1us:",
    ] {
        assert!(name.parse::<Metric>().unwrap_err().contains("forward"), "{name}");
    }
    // With probes a percentile is theirs, unless a path is named.
    let of = |name: &str, probes| name.parse::<Metric>().unwrap().path(probes);
    assert_eq!((of("p99", true), of("p99", false)), (None, Some(PathKind::Receive)));
    assert_eq!((of("receive:p99", true), of("pps", false)), (Some(PathKind::Receive), None));
}
