//! `nearpath bench latency` and `nearpath bench reflect`: the real binary on this kernel, between two namespaces.
//! The documented JSON fields, a stall that open loop sees and ping-pong hides, and (run manually) a comparison
//! with sockperf.

mod sides;
mod sockperf;

use nearpath_testing::veth::{Side, VethPair};
use serde_json::Value;
use sides::{Reflecting, probe, spawn};
use std::process::Command;
use std::time::{Duration, Instant};

/// Fields in addition to those common to all latency benchmarks.
const CONTRACT: [&str; 7] =
    ["sent", "received", "lost", "late", "reordered", "duplicated", "rate_per_s"];

#[test]
fn bench_latency_has_the_documented_fields() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    for address in [Side::Server.ipv4(), Side::Server.ipv6()] {
        let reflecting = Reflecting::start(&pair, address, &[]);
        for protocol in [&["--poisson"][..], &["--tcp"], &["--tcp", "--ping-pong"]] {
            let args =
                ["--for", "400ms", "--warm-up", "100ms", "--rate", "2000", "--late-after", "20s"];
            let json = probe(&pair, &reflecting.target, &[&args[..], protocol].concat());
            for field in CONTRACT {
                assert!(json[field].is_number(), "{field}: {json}");
            }
            let of = |field: &str| json[field].as_u64().unwrap();
            assert!(of("sent") > 0 && of("sent") == of("received"), "{json}");
            assert_eq!((of("lost"), of("duplicated"), of("reordered")), (0, 0, 0), "{json}");
            // There is no 99th below a thousand samples, which ping-pong may yield on a busy machine.
            let percentile = |name: &str| json["percentiles"][name].as_u64();
            assert!(percentile("50").is_some_and(|p50| of("min_ns") <= p50), "{json}");
            assert!(percentile("99").is_none_or(|p99| p99 <= of("max_ns")), "{json}");
            assert!(json["mean_ns"].is_f64() && json["stddev_ns"].is_f64(), "{json}");
            // veth timestamps both directions: nearly every answer has a split.
            let split = &json["split"];
            assert!(split["wire"]["count"].as_u64() > Some(of("received") / 2), "{json}");
            assert!(split["receive"]["percentiles"]["50"].as_u64() > Some(0), "{json}");
        }
        let answered = reflecting.end();
        assert!(
            answered["udp_answered"].as_u64() > Some(0)
                && answered["tcp_answered"].as_u64() > Some(0)
        );
        assert_eq!(answered["ignored"], 0, "{answered}");
    }
}

/// Number of stalls of the reflector, and the requested length of each.
const STALLS: usize = 5;
const STALL: Duration = Duration::from_millis(20);
const RATE: u64 = 2_000;
/// A probe with at least this latency was delayed by a stall.
const DELAYED_NS: u64 = 8_000_000;

/// Stops the reflector a few times while a prober runs; returns the report and the lengths of the stalls.
fn stalled(pair: &VethPair, args: &[&str]) -> (Value, Duration) {
    let reflecting = Reflecting::start(pair, Side::Server.ipv4(), &[]);
    let rate = RATE.to_string();
    let common =
        ["--rate", &rate, "--warm-up", "300ms", "--for", "3s", "--late-after", "20s", "--json"];
    let mut child = spawn(
        pair,
        Side::Client,
        &[&["bench", "latency", &reflecting.target], &common[..], args].concat(),
    );
    // The stalls must fall in the measured time.
    std::thread::sleep(Duration::from_millis(800));
    let mut stopped = Duration::ZERO;
    for _ in 0..STALLS {
        let begin = Instant::now();
        reflecting.signal("STOP");
        std::thread::sleep(STALL);
        reflecting.signal("CONT");
        stopped += begin.elapsed();
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(child.try_wait().unwrap().is_none(), "the stalls were too late");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    (serde_json::from_slice(&output.stdout).unwrap(), stopped)
}

fn delayed(report: &Value) -> u64 {
    let buckets = report["histogram"].as_array().unwrap();
    let of = |bucket: &Value| (bucket[0].as_u64().unwrap(), bucket[1].as_u64().unwrap());
    buckets.iter().map(of).filter(|(ns, _)| *ns >= DELAYED_NS).map(|(_, count)| count).sum()
}

#[test]
fn a_stall_is_seen_in_every_probe_that_was_due_and_hidden_by_ping_pong() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (open, _) = stalled(&pair, &[]);
    let (ping_pong, _) = stalled(&pair, &["--ping-pong"]);
    // Each stall is at least 20ms long (signals arrive in order): probes due in its first 12ms are delayed by 8ms
    // or more, and a loaded machine can only increase that.
    let at_least = STALLS as u64 * (STALL.as_millis() as u64 - 8) * RATE / 1000;
    let (seen, hidden) = (delayed(&open), delayed(&ping_pong));
    assert!(seen >= at_least * 9 / 10, "{seen} of {at_least} delayed probes: {open}");
    assert_eq!(open["received"], open["sent"], "{open}");
    assert_eq!(open["sent"].as_u64(), Some(3 * RATE), "nothing is skipped: {open}");
    // One per stall, and delays by the machine itself.
    assert!(hidden * 4 < seen, "{hidden} beside {seen}: {ping_pong}");
    assert!(ping_pong["sent"].as_u64() < open["sent"].as_u64(), "{ping_pong}");
}

#[test]
fn the_reflector_listens_on_loopback_by_default() {
    let reflecting = spawn_here(&["bench", "reflect", "--port", "0", "--for", "300ms"]);
    assert!(reflecting.lines().count() >= 2, "{reflecting}");
    for line in reflecting.lines().filter(|line| line.starts_with("answering")) {
        let address = line.split_whitespace().last().unwrap();
        let address: std::net::SocketAddr = address.parse().unwrap();
        assert!(address.ip().is_loopback(), "{line}");
    }
}

fn spawn_here(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_nearpath")).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
