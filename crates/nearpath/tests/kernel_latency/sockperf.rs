//! The same path measured alternately by nearpath and by sockperf within one run.
//!
//! Ignored by default: the two run at different times, and a busy machine disturbs a p99 by more than the
//! difference. On a quiet machine run `make bench-latency`, which takes four minutes.

use super::sides::{Reflecting, probe};
use nearpath_testing::veth::{Side, VethPair};
use std::process::{Child, Command, Stdio};

/// Number of cycles: sockperf, nearpath, nearpath, sockperf, and once with the split.
const CYCLES: usize = 24;

/// sockperf's server, which ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn start(pair: &VethPair) -> Self {
        let address = Side::Server.ipv4().to_string();
        let child = pair.run(Side::Server, |_| {
            Command::new("sockperf")
                .args(["server", "-i", &address])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
        });
        Self(child.unwrap())
    }
}

/// Median and p99 of full round-trip times, in µs.
type Percentiles = (f64, f64);

/// `None` if the server does not listen yet.
fn sockperf(pair: &VethPair) -> Option<Percentiles> {
    let address = Side::Server.ipv4().to_string();
    let output = pair.run(Side::Client, |_| {
        Command::new("sockperf")
            .args(["ping-pong", "-i", &address, "-m", "64", "-t", "1", "--full-rtt"])
            .output()
    });
    let text = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    let percentile = |name: &str| {
        let line = text.lines().find(|line| line.contains(name))?;
        line.split('=').nth(1)?.trim().parse().ok()
    };
    Some((percentile("percentile 50.000")?, percentile("percentile 99.000")?))
}

fn nearpath(pair: &VethPair, target: &str, args: &[&str]) -> Percentiles {
    let common = ["--ping-pong", "--for", "1s", "--warm-up", "400ms", "--size", "64"];
    let report = probe(pair, target, &[&common[..], args].concat());
    let us = |name: &str| report["percentiles"][name].as_f64().unwrap() / 1e3;
    (us("50"), us("99"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[allow(clippy::print_stdout, reason = "the figures are the purpose of this test")]
#[ignore = "needs a quiet machine"]
fn ping_pong_agrees_with_sockperf() {
    if !nearpath_testing::require_netns() || !nearpath_testing::require_program("sockperf") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let _server = Server::start(&pair);
    let reflecting = Reflecting::start(&pair, Side::Server.ipv4(), &[]);
    nearpath_testing::wait_for("sockperf's server", || sockperf(&pair));
    let (mut theirs, mut ours, mut split) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CYCLES {
        theirs.push(sockperf(&pair).expect("sockperf answers"));
        ours.push(nearpath(&pair, &reflecting.target, &["--no-split"]));
        ours.push(nearpath(&pair, &reflecting.target, &["--no-split"]));
        theirs.push(sockperf(&pair).expect("sockperf answers"));
        split.push(nearpath(&pair, &reflecting.target, &[]));
    }
    let of = |all: &[Percentiles]| {
        (median(all.iter().map(|p| p.0).collect()), median(all.iter().map(|p| p.1).collect()))
    };
    // Cycle by cycle: a disturbance of both is not a difference between them.
    let apart = |percentile: fn(&Percentiles) -> f64| {
        let ratio = |(ours, theirs): (&[Percentiles], &[Percentiles])| {
            let sum = |blocks: &[Percentiles]| blocks.iter().map(percentile).sum::<f64>();
            sum(ours) / sum(theirs) - 1.0
        };
        median(ours.chunks(2).zip(theirs.chunks(2)).map(ratio).collect())
    };
    let (p50, p99) = (apart(|p| p.0), apart(|p| p.1));
    println!(
        "medians of blocks, µs (p50, p99): sockperf {:?}, nearpath {:?}, with the split {:?}; nearpath \
         relative to sockperf in the median cycle: p50 {:+.1}%, p99 {:+.1}%",
        of(&theirs),
        of(&ours),
        of(&split),
        p50 * 100.0,
        p99 * 100.0
    );
    assert!(p50.abs() < 0.03, "p50 {p50:+.3}");
    assert!(p99.abs() < 0.10, "p99 {p99:+.3}");
}
