use super::*;
use crate::latency::Summary;
use nearpath_host::CpuId;
use nearpath_instruments::Span;

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
        bytes: None,
        probes: None,
        cpu_time,
    }
}

/// 2,000 packets went by in two seconds: all through one span, half of them through another.
fn readings() -> (Reading, Reading) {
    let begin = reading(
        1.0,
        100,
        vec![span("a", "b", &[(1_000, 100)])],
        vec![cpu(0, 0, 0), cpu(1, 10, 10)],
    );
    let spans =
        vec![span("a", "b", &[(1_000, 1_100), (2_000, 1_000)]), span("b", "c", &[(10_000, 1_000)])];
    (begin, reading(3.0, 2_100, spans, vec![cpu(0, 50, 150), cpu(1, 110, 10)]))
}

#[test]
fn a_block_is_what_came_between_two_readings() {
    let (begin, end) = readings();
    let (mean, hops) = block(&Metric::Mean, &begin, &end).unwrap();
    let hops = hops.unwrap();
    // (1,000 × 1,000 + 1,000 × 2,000) / 2,000, and half of the packets 10,000 more.
    assert!((mean.metric - 6_500.0).abs() < 1e-6, "{mean:?}");
    assert!((mean.rate_per_s - 1_000.0).abs() < 1e-6 && mean.lost == 0.0);
    // One a quarter busy, the other all the time.
    assert!((mean.cpus_busy - 1.25).abs() < 1e-6, "{mean:?}");
    // Half of 2,000 and half of 1,000 hops, for 2,000 packets; distances to nodes are not known.
    assert!((hops.other_cpu - 0.75).abs() < 1e-6 && hops.other_node.is_none(), "{hops:?}");

    let (tail, _) = block(&Metric::Percentile(0.99), &begin, &end).unwrap();
    // Each close to the upper end of the bucket that holds it: 2,036 and half of 10,411.
    assert!((7_200.0..=7_300.0).contains(&tail.metric), "{tail:?}");
    let one = Metric::Span { from: "b".to_owned(), to: "c".to_owned() };
    let (one, _) = block(&one, &begin, &end).unwrap();
    assert!((10_300.0..=10_420.0).contains(&one.metric), "{one:?}");
    let (rate, _) = block(&Metric::Packets, &begin, &end).unwrap();
    assert!((rate.metric - 0.001).abs() < 1e-9, "{rate:?}");
}

#[test]
fn bits_are_those_of_the_interfaces() {
    let (mut begin, mut end) = readings();
    let none = block(&Metric::Bits, &begin, &end).unwrap_err();
    assert_eq!(none, "interfaces do not count bytes here");
    (begin.bytes, end.bytes) = (Some(1_000), Some(500_001_000));
    let (bits, _) = block(&Metric::Bits, &begin, &end).unwrap();
    // 4 Gbit in 2 s: half a second for each.
    assert!((bits.metric - 0.5).abs() < 1e-9, "{bits:?}");
    assert!((bits.rate_per_s - 1_000.0).abs() < 1e-6, "packets, where they are followed: {bits:?}");
    // Without packets, the guard on what comes through looks at the bytes.
    (begin.measurement, end.measurement) = (None, None);
    let (bits, hops) = block(&Metric::Bits, &begin, &end).unwrap();
    assert!(hops.is_none() && (bits.rate_per_s - 250e6).abs() < 1.0, "{bits:?}");
    let idle = block(&Metric::Bits, &end, &end).unwrap_err();
    assert!(idle.starts_with("no byte came or went"), "{idle}");
}

#[test]
fn probes_have_percentiles_of_their_own() {
    let (begin, mut end) = readings();
    let latency = Summary {
        count: 2_000,
        min_ns: Some(10),
        mean_ns: Some(50.0),
        stddev_ns: None,
        percentiles: [("50".to_owned(), 40), ("99".to_owned(), 90)].into(),
        max_ns: Some(100),
    };
    end.probes = Some(Probes { sent: 2_100, received: 2_000, latency });
    let (tail, hops) = block(&Metric::Percentile(0.99), &begin, &end).unwrap();
    assert!((tail.metric - 90.0).abs() < 1e-9 && hops.is_some(), "{tail:?}");
    assert!((tail.lost - 100.0 / 2_100.0).abs() < 1e-9, "probes that got no answer: {tail:?}");
    assert!((tail.rate_per_s - 1_000.0).abs() < 1e-6, "all traffic: {tail:?}");
    let (mean, _) = block(&Metric::Mean, &begin, &end).unwrap();
    assert!((mean.metric - 50.0).abs() < 1e-9);
    let deep = block(&Metric::Percentile(0.999), &begin, &end).unwrap_err();
    assert!(deep.contains("2000 probes in 2.0 s are too few for p99.9: it takes 10000"), "{deep}");
    // Where packets cannot be followed they are all there is.
    end.measurement = None;
    let (alone, hops) = block(&Metric::Percentile(0.5), &begin, &end).unwrap();
    assert!(hops.is_none() && (alone.rate_per_s - 1_000.0).abs() < 1e-6, "{alone:?}");
    let packets = block(&Metric::Packets, &begin, &end).unwrap_err();
    assert_eq!(packets, "packets cannot be followed here");
}

#[test]
fn what_a_block_lacks_is_told() {
    let (begin, end) = readings();
    let deep = block(&Metric::Percentile(0.999), &begin, &end).unwrap_err();
    assert!(deep.contains("too few for p99.9: it takes 10000"), "{deep}");
    let none = Metric::Span { from: "x".to_owned(), to: "y".to_owned() };
    assert!(block(&none, &begin, &end).unwrap_err().starts_with("no packet went from x to y"));
    assert!(block(&Metric::Mean, &end, &end).unwrap_err().starts_with("0 packets"));
}

#[test]
fn metrics_are_read_as_they_are_written() {
    for name in
        ["mean", "p50", "p90", "p99", "p99.9", "stage:netif_rx..net_rx_raise", "pps", "gbps"]
    {
        assert_eq!(name.parse::<Metric>().unwrap().to_string(), name);
    }
    assert!("p98".parse::<Metric>().is_err());
}
