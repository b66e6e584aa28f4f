//! `nearpath bench packets`, `bench scenarios` and `--load`: the real binary on this kernel, between two
//! namespaces or over loopback. The assertions are about counts, documented fields and errors, never speed.

#[path = "../kernel_latency/sides.rs"]
#[allow(dead_code, reason = "the latency tests use more of it")]
mod sides;

use nearpath_testing::veth::{Side, VethPair};
use serde_json::Value;
use sides::{Reflecting, probe, spawn};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs nearpath to completion in the namespace of a side.
fn run(pair: &VethPair, side: Side, args: &[&str]) -> Output {
    spawn(pair, side, args).wait_with_output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The one line on standard error of a command that failed.
fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

#[test]
fn packets_are_counted_between_namespaces_and_cost_cpu_time() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    for address in [Side::Server.ipv4(), Side::Server.ipv6()] {
        let reflecting = Reflecting::start(&pair, address, &[]);
        // At an unlimited rate: /proc/stat may count ticks, and with few packets none may fall on a tick.
        let args = ["bench", "packets", &reflecting.sink, "--for", "1s", "--flows", "2"];
        let report = json(&run(&pair, Side::Client, &[&args[..], &["--json"]].concat()));
        let result = &report["result"];
        let of =
            |field: &str| result[field].as_u64().unwrap_or_else(|| panic!("{field}: {report}"));
        assert_eq!(of("sent"), of("received") + of("lost"), "{report}");
        assert!(of("sent") > 1_000 && of("received") > 0 && of("duplicated") == 0, "{report}");
        assert_eq!(report["same_host"], true, "both namespaces are on this kernel");
        assert!(result["sender_threads_ns"].as_f64() > Some(0.0), "{report}");
        assert!(result["receiver_threads_ns"].as_f64() > Some(0.0), "{report}");
        let cpus = result["cpus"].as_array().unwrap();
        assert!(!cpus.is_empty() && cpus.iter().all(|cpu| cpu["side"] == "both"), "{report}");
        // The text says the same.
        let args = ["bench", "packets", &reflecting.sink, "--for", "200ms"];
        let text = run(&pair, Side::Client, &args);
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.contains("received: ") && text.contains("SOFTIRQ"), "{text}");
    }
}

#[test]
fn a_slow_receiver_loses_packets_and_a_search_finds_its_rate() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    // One packet passes per millisecond, whatever else the machine does.
    let shape = [
        "qdisc", "add", "dev", "np0", "root", "tbf", "rate", "480kbit", "burst", "1500", "limit",
        "3000",
    ];
    let shaped = pair.run(Side::Client, |_| Command::new("tc").args(shape).output()).unwrap();
    if !shaped.status.success() {
        nearpath_testing::skip("no tc with tbf");
        return;
    }
    let reflecting = Reflecting::start(&pair, Side::Server.ipv4(), &[]);
    let args = ["bench", "packets", &reflecting.sink, "--json", "--for", "1s"];
    let too_fast = json(&run(&pair, Side::Client, &[&args[..], &["--rate", "20000"]].concat()));
    assert!(too_fast["result"]["loss_percent"].as_f64() > Some(50.0), "{too_fast}");
    let found = json(&run(
        &pair,
        Side::Client,
        &[&args[..], &["--search", "--max-loss", "2", "--trial", "300ms"]].concat(),
    ));
    let rate = found["result"]["received_per_s"].as_f64().unwrap();
    // 480 kbit/s are 1,000 frames of 60 bytes.
    assert!((300.0..1_600.0).contains(&rate), "{found}");
    assert!(found["result"]["loss_percent"].as_f64() <= Some(2.0), "{found}");
    assert!(found["trials"].as_array().unwrap().len() > 3, "{found}");
}

#[test]
fn iperf3_load_runs_beside_the_probes_and_is_reported() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !nearpath_testing::require_netns() || !nearpath_testing::require_program("iperf3") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    // Without an iperf3 server there is no load, and no result that looks like one. This client retries for some
    // seconds while the others run.
    let lonely = Reflecting::start(&pair, Side::Server.ipv4(), &[]);
    let args = ["bench", "latency", &lonely.target, "--for", "200ms", "--load", "tcp"];
    let refused = spawn(&pair, Side::Client, &[&args[..], &["--load-port", "7201"]].concat());

    let reflecting = Reflecting::start(&pair, Side::Server.ipv4(), &["--load"]);
    let args = ["--for", "1s", "--warm-up", "200ms", "--late-after", "20s", "--load", "tcp"];
    let more = ["--load", "udp", "--load-rate", "20M", "--load-streams", "2"];
    let begin = Instant::now();
    let report = probe(&pair, &reflecting.target, &[&args[..], &more].concat());
    assert!(begin.elapsed() < Duration::from_secs(40), "{report}");
    assert_eq!(report["received"], report["sent"], "{report}");
    let loads = report["load"].as_array().unwrap();
    assert_eq!(
        (loads.len(), &loads[0]["protocol"], &loads[1]["protocol"]),
        (2, &"tcp".into(), &"udp".into())
    );
    for load in loads {
        assert_eq!(load["failure"], Value::Null, "{report}");
        let carried = &load["carried"];
        assert!(carried["seconds"].as_f64() >= Some(1.0), "{report}");
        let received = carried["received_bits_per_s"].as_f64().unwrap();
        // Both of the two streams at 20 Mbit/s, and not more.
        assert!((1e6..60e6).contains(&received), "{report}");
    }
    let refused = refused.wait_with_output().unwrap();
    assert!(failure(&refused).contains("bench reflect --load"), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
}

#[test]
fn without_iperf3_the_error_names_it() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let reflecting = Reflecting::start(&pair, Side::Server.ipv4(), &[]);
    let output = pair.run(Side::Client, |_| {
        Command::new(env!("CARGO_BIN_EXE_nearpath"))
            .args(["bench", "latency", &reflecting.target, "--load", "tcp"])
            .env("PATH", "/nowhere")
            .output()
    });
    assert!(failure(&output.unwrap()).contains("iperf3, which is not installed"));
}

#[test]
fn scenarios_alternate_and_leave_nothing_behind() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let state = tempfile::tempdir().unwrap();
    let from = format!("/proc/{}/fd/{}", std::process::id(), {
        use std::os::fd::AsRawFd;
        pair.netns(Side::Client).as_raw_fd()
    });
    let address = Side::Server.ipv4().to_string();
    let started = Instant::now();
    let output = pair.run(Side::Server, |_| {
        Command::new(env!("CARGO_BIN_EXE_nearpath"))
            .args(["bench", "scenarios", "--address", &address, "--from", &from, "--cpus", "0"])
            .args(["--block", "100ms", "--warm-up", "100ms", "--cycles", "6", "--json"])
            .env("NEARPATH_STATE_DIR", state.path())
            .output()
    });
    let report = json(&output.unwrap());
    assert!(started.elapsed() < Duration::from_secs(120));
    assert_eq!((&report["nic"], &report["cpus"]), (&"np1".into(), &"0".into()), "{report}");
    let scenarios = report["scenarios"].as_array().unwrap();
    let names: Vec<&str> = scenarios.iter().map(|row| row["scenario"].as_str().unwrap()).collect();
    assert_eq!(names, ["no_binding", "cpu_binding", "cpu_and_memory_binding", "full_optimisation"]);
    for row in scenarios {
        // 12 blocks of 100ms at 1,000 per second.
        let answers = row["count"].as_u64().unwrap() + row["lost"].as_u64().unwrap();
        assert!((1_050..=1_350).contains(&answers), "{report}");
        assert!(row["percentiles"]["99"].as_u64() > row["percentiles"]["50"].as_u64(), "{report}");
        let is_baseline = row["scenario"] == "no_binding";
        assert_eq!(row["against_no_binding"].is_null(), is_baseline, "{report}");
    }
    // The reflectors have exited.
    let again = pair.run(Side::Server, |_| std::net::TcpListener::bind((address.as_str(), 6327)));
    assert!(again.is_ok());
}

#[test]
fn paths_are_compared_in_random_order_with_and_without_load() {
    if !nearpath_testing::require_lengthy() || !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let reflecting = Reflecting::start(&pair, Side::Server.ipv4(), &[]);
    // An echo service, which returns what it gets.
    let address = Side::Server.ipv4();
    let socket = pair.run(Side::Server, |_| std::net::UdpSocket::bind((address, 0))).unwrap();
    let echo = socket.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut datagram = [0; 2_000];
        while let Ok((bytes, from)) = socket.recv_from(&mut datagram) {
            let _ = socket.send_to(&datagram[..bytes], from);
        }
    });
    let targets = [format!("near={}", reflecting.target), format!("echo={echo}")];
    let args = ["bench", "paths", &targets[0], &targets[1], "--for", "400ms", "--rounds", "2"];
    let more = ["--rate", "100", "--load-rate", "1M", "--late-after", "10s"];
    let probed = |last: &[&str]| run(&pair, Side::Client, &[&args[..], &more[..], last].concat());
    let report = json(&probed(&["--seed", "3", "--json"]));
    let rows = report["paths"].as_array().unwrap();
    let named: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (row["path"].as_str().unwrap(), row["load"].as_str().unwrap()))
        .collect();
    assert_eq!(named, [("near", "none"), ("near", "udp"), ("echo", "none"), ("echo", "udp")]);
    for row in rows {
        assert_eq!((&row["sent"], &row["lost"]), (&80.into(), &0.into()), "{report}");
        assert!(row["percentiles"]["50"].as_u64() <= row["max_ns"].as_u64(), "{report}");
        // No virtual machine is here, or this kernel does not show it: never a split, always a reason.
        assert_eq!(row["vm"], Value::Null, "{report}");
        let is_loaded = row["load"] == "udp";
        let own = row["own_load"]["answered"].as_u64();
        assert_eq!(own.is_some_and(|answered| answered > 0), is_loaded, "{report}");
    }
    let noted = report["notes"].as_array().unwrap().iter().filter_map(Value::as_str);
    let noted: Vec<&str> = noted.collect();
    assert!(noted.iter().any(|note| note.contains("nearpath's own datagrams")), "{noted:?}");
    let without_stages = noted.iter().any(|note| note.contains("not split into stages"));
    assert!(without_stages || rows.iter().all(|row| row["not_split"].is_string()), "{report}");
    // The same seed, the same order; each path and load once a round.
    let order = report["order"].as_array().unwrap();
    assert_eq!(order.len(), 8, "{report}");
    for round in order.chunks(4) {
        let mut round: Vec<String> = round.iter().map(Value::to_string).collect();
        round.sort();
        round.dedup();
        assert_eq!(round.len(), 4, "{report}");
    }
    assert_eq!(json(&probed(&["--seed", "3", "--json"]))["order"], report["order"]);
    let text = probed(&["--load", "none"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("median round trip without load: "), "{text}");
    assert!(text.contains("(--seed ") && text.contains("|..."), "{text}");
}

#[test]
fn an_application_is_probed_with_its_own_requests() {
    if !nearpath_testing::require_root() || !nearpath_testing::require_program("nginx") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let config = format!(
        "daemon off; pid {path}/pid; error_log stderr; events {{}} http {{ access_log off; \
         server {{ listen 127.0.0.1:6390; location / {{ return 200 ok; }} }} }}"
    );
    let file = folder.path().join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let file = file.display().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_nearpath"))
        .args(["bench", "scenarios", "--port", "6390", "--scenarios", "none,cpu", "--cycles", "1"])
        .args(["--block", "300ms", "--cpus", "0", "--rate", "500", "--json"])
        .args(["--request", "GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n", "--", "nginx", "-c", &file])
        .output();
    let report = json(&output.unwrap());
    assert!(report["application"].as_str().unwrap().starts_with("nginx"), "{report}");
    for row in report["scenarios"].as_array().unwrap() {
        assert!(row["count"].as_u64() >= Some(200), "{report}");
        assert_eq!(row["against_no_binding"], Value::Null, "one cycle is not compared");
    }
    assert!(
        std::net::TcpListener::bind("127.0.0.1:6390").is_ok(),
        "nginx and its workers have exited"
    );
}

#[test]
fn a_failing_application_is_reported_with_its_output() {
    if !nearpath_testing::require_root() {
        return;
    }
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_nearpath"))
            .args(["bench", "scenarios", "--port", "6391", "--scenarios", "none", "--cycles", "1"])
            .args(["--request", "x", "--"])
            .args(words)
            .output();
        failure(&output.unwrap())
    };
    assert!(run(&["nearpath-has-no-such-program"]).contains("cannot start"));
    let ended = run(&["sh", "-c", "echo out of order >&2; exit 3"]);
    assert!(ended.contains("exited") && ended.contains("out of order"), "{ended}");
}
