//! Percentiles against Prometheus itself: promtool's rule tests are given the same buckets as native histograms, and
//! must find the same quantiles.
//!
//! Needs promtool 3.0 or later, which interpolates exponentially: that of the PATH, or the one that
//! NEARPATH_PROMTOOL names (`scripts/test` fetches one).

mod common;

use common::{acquainted_pair, can_run, ping_pong, possible_cpus};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::Protocol;
use nearpath_model::histogram::{
    BUCKETS, SCHEMA, ZERO_INDEX, bucket, by_number, index, interpolated_ns,
};
use nearpath_testing::veth::VethPair;
use std::fmt::Write;
use std::process::Command;

const QUANTILES: [f64; 6] = [0.1, 0.5, 0.9, 0.95, 0.99, 0.999];

/// A suitable promtool; else the test is skipped.
fn promtool() -> Option<String> {
    let named = std::env::var("NEARPATH_PROMTOOL").ok().filter(|name| !name.is_empty());
    if named.is_none() && !nearpath_testing::require_program("promtool") {
        return None;
    }
    let promtool = named.unwrap_or_else(|| "promtool".to_owned());
    let said = Command::new(&promtool).arg("--version").output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = said.split("version ").nth(1).and_then(|rest| rest.split('.').next());
    let major: u32 = version.and_then(|major| major.parse().ok()).unwrap_or(0);
    if major < 3 {
        nearpath_testing::skip("promtool is older than 3.0");
        return None;
    }
    Some(promtool)
}

/// A histogram, and what its quantiles are to be, in nanoseconds.
struct Case {
    /// `(bucket, count)`, ascending.
    buckets: Vec<(usize, u64)>,
    quantiles: Vec<(f64, f64)>,
}

impl Case {
    fn of(buckets: Vec<(usize, u64)>) -> Self {
        let quantile = |q| (q, interpolated_ns(&buckets, q).unwrap());
        Self { quantiles: QUANTILES.map(quantile).into(), buckets }
    }

    /// As promtool's rule tests write it.
    fn native(&self) -> String {
        let mut counts = [0; BUCKETS];
        self.buckets.iter().for_each(|&(bucket, n)| counts[bucket] += n);
        let positive: Vec<String> = counts[1..].iter().map(u64::to_string).collect();
        let width = f64::exp2(f64::from(ZERO_INDEX) / 16.0);
        format!(
            "{{{{schema:{SCHEMA} count:{} sum:1 z_bucket:{} z_bucket_w:{width:e} offset:{} buckets:[{}]}}}}",
            counts.iter().sum::<u64>(),
            counts[0],
            index(1),
            positive.join(" ")
        )
    }
}

/// Prometheus' result for each quantile of the cases, in nanoseconds. Rule tests print the result only if it differs
/// from the expected value, so the expected values are wrong on purpose.
fn ask(promtool: &str, cases: &[Case]) -> Vec<f64> {
    let mut rules = "tests:\n  - interval: 1m\n    input_series:\n".to_owned();
    for (number, case) in cases.iter().enumerate() {
        writeln!(rules, "      - series: case_{number}\n        values: '{}'", case.native())
            .unwrap();
    }
    rules += "    promql_expr_test:\n";
    for (number, case) in cases.iter().enumerate() {
        for (q, _) in &case.quantiles {
            writeln!(
                rules,
                "      - expr: histogram_quantile({q}, case_{number})\n        eval_time: 0m\n        \
                 exp_samples:\n          - value: -1"
            )
            .unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quantiles.yaml");
    std::fs::write(&file, rules).unwrap();
    let done = Command::new(promtool).args(["test", "rules"]).arg(&file).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap();
    let got = said.lines().filter_map(|line| line.trim().strip_prefix("got: {} "));
    let answers: Vec<f64> = got.map(|value| value.parse::<f64>().unwrap() * 1e9).collect();
    assert_eq!(
        answers.len(),
        cases.iter().map(|case| case.quantiles.len()).sum::<usize>(),
        "{said}"
    );
    answers
}

/// Queries Prometheus, and compares.
fn assert_same(promtool: &str, cases: &[Case]) {
    let ours = cases.iter().flat_map(|case| case.quantiles.iter().map(move |q| (case, q)));
    for ((case, (q, ns)), prometheus) in ours.zip(ask(promtool, cases)) {
        let error = (ns - prometheus).abs() / prometheus;
        assert!(error < 1e-12, "p{q}: {ns} and {prometheus}ns of {:?}", case.buckets);
    }
}

fn counted(samples: impl Iterator<Item = u64>) -> Vec<(usize, u64)> {
    let mut counts = vec![0; BUCKETS];
    samples.for_each(|ns| counts[bucket(ns)] += 1);
    counts.into_iter().enumerate().filter(|&(_, n)| n > 0).collect()
}

#[test]
fn prometheus_finds_the_same_percentiles() {
    let Some(promtool) = promtool() else { return };
    let mut state = 1u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 20
    };
    let mut cases = vec![
        Case::of(counted((1..=100_000).map(|i| i * 7))),
        Case::of(counted((1..=100_000).map(|i| 500 + 10_000_000 / (100_001 - i)))),
        Case::of(counted([1_000_000_000; 4000].into_iter())),
        Case::of(counted(0..10)),
        Case::of(counted([3, 16, 17, 90, 64_000_000_000].into_iter())),
        // Empty buckets between two halves, at the median.
        Case::of(vec![(100, 5), (200, 5)]),
    ];
    for number in 0..40 {
        let samples: Vec<u64> =
            (0..10 << (number % 10)).map(|_| random() >> (8 + random() % 28)).collect();
        cases.push(Case::of(counted(samples.into_iter())));
    }
    assert_same(&promtool, &cases);
}

/// Those of a measurement, as they are printed: to the nanosecond, and within the exact extremes.
#[test]
fn prometheus_finds_the_percentiles_of_a_measurement() {
    if !can_run() {
        return;
    }
    let Some(promtool) = promtool() else { return };
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let port = Some(sockets.1.local_addr().unwrap().port());
    let filter = Filter { protocol: Some(Protocol::Udp), port, ..Filter::default() };
    let mut stages = Stages::new(&possible_cpus(), Options { filter, ..Options::default() });
    stages.start().unwrap();
    ping_pong(&sockets, 3000);
    let m = stages.stop().unwrap();
    let mut cases = Vec::new();
    for span in m.spans.iter().filter(|span| span.count >= 1000) {
        let (min, max) = (span.min_ns.unwrap() as f64, span.max_ns.unwrap() as f64);
        let case = Case::of(by_number(&span.buckets));
        let printed =
            [(0.5, span.p50_ns), (0.9, span.p90_ns), (0.99, span.p99_ns), (0.999, span.p999_ns)];
        for (q, printed) in printed {
            let (_, right) = case.quantiles.iter().find(|(of, _)| *of == q).unwrap();
            let printed = printed.unwrap() as f64;
            assert!((printed - right.clamp(min, max)).abs() <= 0.5, "p{q} {right}: {span:?}");
        }
        cases.push(case);
    }
    assert!(cases.len() >= 4, "{:?}", m.spans);
    assert_same(&promtool, &cases);
}
