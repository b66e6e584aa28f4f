//! `nearpath measure irqs` on this kernel: its document, its lines, and its output without privilege.

use nearpath_model::irqs::IrqMeasurement;
use nearpath_testing::PATIENCE;
use nearpath_testing::veth::{Side, VethPair};
use serde_json::Value;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");
/// User and group `nobody` by convention; it only matters that it is not root.
const NOBODY: u32 = 65534;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(NEARPATH);
    command.args(["measure", "irqs"]).args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Standard output of a successful command.
fn output(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn document(args: &[&str]) -> Value {
    let text = output(&command(args).output().unwrap());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn measure_irqs_has_the_documented_fields() {
    if !nearpath_testing::require_bpf() {
        return;
    }
    let m = document(&["--for", "500ms", "--json"]);
    assert_eq!(m["schema"], 1);
    let cpus = m["cpus"].as_array().unwrap();
    assert!(!cpus.is_empty());
    for queue in m["queues"].as_array().unwrap() {
        for field in ["nic", "queue", "irq", "per_cpu"] {
            assert!(queue.get(field).is_some(), "{field} is missing: {queue}");
        }
        let counts = queue["per_cpu"].as_array().unwrap();
        let sum: u64 = counts.iter().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(queue["interrupts"].as_u64(), Some(sum), "{queue}");
    }
    for vector in ["NET_RX", "NET_TX"] {
        let highest = cpus.iter().map(|cpu| cpu["cpu"].as_u64().unwrap()).max().unwrap();
        assert!(m["softirqs"][vector].as_array().unwrap().len() as u64 > highest, "{m}");
    }
    // With timer interrupts, some CPU has interrupt time in half a second.
    assert!(cpus.iter().any(|cpu| cpu["irq_ns"].as_u64() > Some(0)), "{m}");
    assert!(m["duration_s"].as_f64().unwrap() >= 0.5, "{m}");
    // It round-trips without loss.
    let read: IrqMeasurement = serde_json::from_value(m).unwrap();
    assert_eq!(read.unknown, []);
}

#[test]
fn an_interval_prints_lines_before_the_tables() {
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let netns = format!("/proc/{}/fd/{}", std::process::id(), pair.netns(Side::Server).as_raw_fd());
    let args = ["--for", "600ms", "--interval", "200ms", "--nic", "np1", "--netns", &netns];
    let text = output(&command(&args).output().unwrap());
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].trim_start().starts_with("TIME"), "{text}");
    let times = lines[1..4].iter().map(|line| line.split_whitespace().next().unwrap());
    let times: Vec<f64> = times.map(|time| time.parse().unwrap()).collect();
    assert!(times.windows(2).all(|two| two[0] < two[1]) && times[2] >= 0.6, "{text}");
    assert_eq!(lines[4], "", "{text}");
    assert!(lines[6].starts_with("measured interrupts for"), "{text}");
}

#[test]
fn an_unknown_interface_is_one_line() {
    let output = command(&["--nic", "nosuch0", "--for", "100ms"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("no interface \"nosuch0\""), "{said}");
}

#[test]
fn it_ends_when_the_pipe_is_closed() {
    if !nearpath_testing::require_bpf() {
        return;
    }
    let begin = Instant::now();
    let mut child = command(&["--for", "10m", "--interval", "100ms"]).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert!(begin.elapsed() < PATIENCE, "it kept running without a reader");
}

#[test]
fn without_privilege_kernel_counters_and_the_reason_are_reported() {
    if !nearpath_testing::require_root() {
        return;
    }
    // A directory that this user may enter.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("nearpath");
    std::fs::copy(NEARPATH, &program).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let mut command = Command::new(&program);
    command.args(["measure", "irqs", "--for", "300ms", "--json"]).uid(NOBODY).gid(NOBODY);
    let m: Value = serde_json::from_str(&output(&command.output().unwrap())).unwrap();
    let cpus = m["cpus"].as_array().unwrap();
    assert!(cpus.iter().all(|cpu| cpu["irq_ns"].is_null() && cpu["softirq_ns"].is_null()), "{m}");
    assert!(m["softirqs"]["NET_RX"].is_array() && cpus[0]["processed"].is_u64(), "{m}");
    let reasons: Vec<_> = m["unknown"].as_array().unwrap().iter().map(|u| &u["reason"]).collect();
    assert!(reasons.iter().any(|reason| reason.as_str().unwrap().contains("root")), "{reasons:?}");
}
