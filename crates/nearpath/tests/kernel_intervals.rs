//! `nearpath measure … --json --interval` on this kernel: one document per line for each interval, and the total
//! last; the intervals add up to the total. Meanwhile connections are made between two namespaces.

use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_bpf, require_netns, wait_for};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    command.arg("measure").args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The intervals printed while connections are made, and the total.
fn measured(pair: &VethPair, args: &[&str]) -> (Vec<Value>, Value) {
    let listen = |side: Side| TcpListener::bind((side.ipv4(), 0));
    let listeners = [(); 2].map(|()| pair.run(Side::Server, listen).unwrap());
    let netns = format!("/proc/{}/fd/{}", std::process::id(), pair.netns(Side::Server).as_raw_fd());
    let times = ["--json", "--for", "800ms", "--interval", "200ms", "--netns", &netns];
    let mut child = start(&[args, &times].concat());
    // Lines are read as they arrive: they may be more than a pipe holds.
    let out = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || out.lines().map(Result::unwrap).collect::<Vec<_>>());
    let ended = AtomicBool::new(false);
    let connect = |listener: &TcpListener| {
        let address = listener.local_addr().unwrap();
        while !ended.load(Ordering::Relaxed) {
            let client = TcpStream::connect(address).unwrap();
            drop((client, listener.accept().unwrap()));
        }
    };
    std::thread::scope(|scope| {
        // New threads inherit the namespace of their creator.
        scope.spawn(|| {
            let both = |_| {
                std::thread::scope(|scope| {
                    for listener in &listeners {
                        scope.spawn(|| connect(listener));
                    }
                });
                Ok(())
            };
            pair.run(Side::Client, both).unwrap();
        });
        child.wait().unwrap();
        ended.store(true, Ordering::Relaxed);
    });
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = reader.join().unwrap();
    let mut lines: Vec<Value> = lines.iter().map(|l| serde_json::from_str(l).unwrap()).collect();
    let whole = lines.pop().unwrap();
    assert!(whole.get("from_s").is_none() && lines.len() == 4, "{lines:?}");
    let mut end = 0.0;
    for line in &lines {
        assert_eq!(line["from_s"], end);
        end = line["to_s"].as_f64().unwrap();
        assert_eq!(line["schema"], whole["schema"]);
    }
    assert_eq!(whole["duration_s"], end);
    (lines, whole)
}

/// Asserts that a count, summed over the intervals, equals that of the total and is not zero.
fn add_up((lines, whole): &(Vec<Value>, Value), count: impl Fn(&Value) -> u64) {
    let sum: u64 = lines.iter().map(&count).sum();
    assert_eq!(sum, count(whole), "{whole}");
    assert!(sum > 0 && lines.iter().filter(|line| count(line) > 0).count() > 1, "{lines:?}");
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn numbers<'a>(values: &'a Value, field: &'a str) -> impl Iterator<Item = u64> + 'a {
    values.as_array().unwrap().iter().map(move |value| number(&value[field]))
}

#[test]
fn stages_print_one_document_per_line() {
    if !require_bpf() || !require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    // Without a limit: in slices some intervals would have no packet.
    let measured = measured(&pair, &["stages", "--proto", "tcp", "--max-overhead", "none"]);
    add_up(&measured, |m| number(&m["packets"]["started"]));
    add_up(&measured, |m| numbers(&m["spans"], "count").sum());
    let (lines, _) = &measured;
    for span in lines.iter().flat_map(|line| line["spans"].as_array().unwrap()) {
        let buckets: u64 =
            span["buckets"].as_array().unwrap().iter().map(|bucket| number(&bucket[1])).sum();
        assert_eq!(number(&span["count"]), buckets, "{span}");
    }
}

#[test]
fn accepts_print_one_document_per_line() {
    if !require_bpf() || !require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let measured = measured(&pair, &["accepts"]);
    add_up(&measured, |m| numbers(&m["listeners"], "accepts").sum());
    let workers = |m: &Value| {
        let listeners = m["listeners"].as_array().unwrap().iter();
        listeners.flat_map(|l| numbers(&l["workers"], "same_cpu")).sum()
    };
    add_up(&measured, workers);
}

#[test]
fn irqs_print_one_document_per_line() {
    if !require_bpf() || !require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let measured = measured(&pair, &["irqs"]);
    add_up(&measured, |m| m["softirqs"]["NET_RX"].as_array().unwrap().iter().map(number).sum());
    add_up(&measured, |m| numbers(&m["cpus"], "softirq_ns").sum());
    add_up(&measured, |m| numbers(&m["cpus"], "processed").sum());
}

#[test]
fn they_end_when_the_pipe_is_closed() {
    if !require_bpf() {
        return;
    }
    for instrument in ["stages", "accepts", "irqs"] {
        let mut child = start(&[instrument, "--json", "--for", "10m", "--interval", "100ms"]);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut String::new()).unwrap();
        drop(out);
        let status = wait_for("its end", || child.try_wait().unwrap());
        assert!(status.success(), "{instrument}");
    }
}
