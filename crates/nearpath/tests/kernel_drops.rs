//! `nearpath measure drops` on this kernel: its document, its intervals, and its text.

use nearpath_model::drops::DropMeasurement;
use nearpath_testing::veth::{Side, VethPair};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");
/// Datagrams to a port without a reader.
const MANY: u64 = 200;

/// Its output while datagrams are sent to a port without a reader.
fn output(pair: &VethPair, args: &[&str]) -> (String, u16) {
    let netns = format!("/proc/{}/fd/{}", std::process::id(), pair.netns(Side::Server).as_raw_fd());
    let mut child = Command::new(NEARPATH)
        .args(["measure", "drops", "--for", "1s", "--netns", &netns])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("Ctrl-C stops early"), "{said}");
    // A port that was bound just before.
    let bind = |side: Side| pair.run(side, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    let (sender, to) = (bind(Side::Client), bind(Side::Server).local_addr().unwrap());
    for _ in 0..MANY {
        sender.send_to(&[0; 100], to).unwrap();
    }
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    (text, to.port())
}

fn can_run() -> bool {
    nearpath_testing::require_bpf() && nearpath_testing::require_netns()
}

#[test]
fn a_document_has_where_and_why() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (text, port) = output(&pair, &["--json", "--proto", "udp", "--per", "reason"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["schema"], 1);
    // (A CPU may run for a moment without any of its tracepoints being called; see the instrument's tests.)
    let packets = document["packets"].as_u64().unwrap();
    assert!(packets > MANY / 2 && packets <= MANY, "{text}");
    let drop = &document["drops"][0];
    assert_eq!((&drop["reason"], &drop["device"]), (&"NO_SOCKET".into(), &"np1".into()));
    assert_eq!(document["main"]["port"], port);
    assert_eq!(document["groups"][0]["name"], "NO_SOCKET");
    let counter = &document["counters"].as_array().unwrap()[0];
    assert_eq!(counter["counter"], "Udp.NoPorts");
    assert_eq!(counter["most"], MANY);
    let read: DropMeasurement = serde_json::from_value(document).unwrap();
    assert_eq!(read.unknown, []);
}

#[test]
fn intervals_add_up_to_the_whole() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (text, _) = output(&pair, &["--json", "--interval", "200ms"]);
    let documents: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (whole, intervals) = documents.split_last().unwrap();
    assert!(intervals.len() >= 3, "{text}");
    let sum: u64 = intervals.iter().map(|interval| interval["packets"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), whole["packets"].as_u64(), "{text}");
    assert!(intervals.iter().all(|interval| interval["from_s"].is_number()));
    assert!(whole.get("from_s").is_none());
}

#[test]
fn text_begins_with_the_answer() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (text, port) = output(&pair, &["--proto", "udp", "--top", "3"]);
    let first = text.lines().next().unwrap();
    assert!(first.contains(" packets dropped in "), "{text}");
    assert!(first.ends_with(&format!("100% no socket (UDP to port {port}, np1)")), "{text}");
    assert!(text.contains("NO_SOCKET: no socket: no listener on the port"), "{text}");
    let counter = text.lines().find(|line| line.starts_with("Udp.NoPorts")).unwrap();
    assert!(counter.contains(&format!("+{MANY}")), "{text}");
}
