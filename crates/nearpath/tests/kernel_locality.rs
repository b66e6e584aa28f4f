//! `nearpath measure locality`: the real binary on this kernel, with datagrams between two test namespaces. Text,
//! JSON and a picture.

use nearpath_model::locality::{LOCALITY_SCHEMA, Locality};
use nearpath_testing::veth::{Side, VethPair};
use serde_json::Value;
use std::io;
use std::net::UdpSocket;
use std::process::{Child, Command, Output, Stdio};

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");

fn start(args: &[&str]) -> Child {
    let mut command = Command::new(NEARPATH);
    command.args(["measure", "locality"]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs it to completion while datagrams are sent; returns its output and the port.
fn measured(pair: &VethPair, args: &[&str]) -> (Output, u16) {
    let bind = |side: Side| UdpSocket::bind((side.ipv4(), 0));
    let server = pair.run(Side::Server, bind).unwrap();
    let client = pair.run(Side::Client, bind).unwrap();
    let address = server.local_addr().unwrap();
    server.set_read_timeout(Some(nearpath_testing::PATIENCE)).unwrap();
    let port = address.port().to_string();
    let mut child = start(&[&["--proto", "udp", "--dport", &port], args].concat());
    while child.try_wait().unwrap().is_none() {
        client.send_to(b"datagram", address).unwrap();
        server.recv(&mut [0; 16]).unwrap();
    }
    (child.wait_with_output().unwrap(), address.port())
}

#[test]
fn measure_locality_has_the_documented_fields() {
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (output, port) = measured(&pair, &["--for", "500ms", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    for direction in ["rx", "tx"] {
        for field in
            ["packets", "same_cpu", "same_core", "same_llc", "same_node", "other_node", "unknown"]
        {
            assert!(json[direction][field].is_u64(), "{direction} {field}: {json}");
        }
    }
    assert!(["exact", "tracepoints"].contains(&json["method"].as_str().unwrap()));
    let m: Locality = serde_json::from_value(json).unwrap();
    assert_eq!(m.schema, LOCALITY_SCHEMA);
    assert_eq!(m.filter, format!("--proto udp --dport {port}"));
    // The sender is also the reader, and each datagram is both sent and received; but it may migrate.
    assert!(m.rx.packets > 10 && m.rx.packets.abs_diff(m.tx.packets) <= 2, "{m:?}");
    assert!(m.rx.local().unwrap() > 0.9 && m.tx.local().unwrap() > 0.9, "{m:?}");
    assert!(m.cost.unwrap().ns_per_packet > 0.0);
}

#[test]
fn a_line_is_printed_for_each_interval_and_a_picture_drawn() {
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("heat.svg");
    let picture = ["--svg", svg.to_str().unwrap()];
    let times = ["--for", "2s", "--interval", "500ms"];
    let (output, _) = measured(&pair, &[&times[..], &picture].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (lines, summary) = text.split_once("\n\n").unwrap();
    assert_eq!(lines.lines().count(), 4, "{text}");
    for line in lines.lines() {
        let words: Vec<&str> = line.split(['=', '%']).map(str::trim).collect();
        let ["rx", rx, _, tx, _] = words[..] else { panic!("{line}") };
        // On a busy machine an interval may pass without a packet.
        let is_share = |share: &&str| *share == "-" || share.parse::<u32>().unwrap() <= 100;
        assert!([rx, tx].iter().all(is_share), "{line}");
        assert!(line.contains("pps tx=") && line.ends_with("pps"), "{line}");
    }
    let (answer, details) = summary.split_once('\n').unwrap();
    assert!(
        answer.starts_with("freed on the CPU that ") && answer.contains("received"),
        "{answer}"
    );
    assert!(details.starts_with("measured packets that match --proto udp"), "{summary}");
    assert!(summary.contains("SAME-CPU") && summary.contains("received packets:"), "{summary}");
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("received: ") && svg.contains("<title>"), "{svg}");
}

#[test]
fn with_an_interval_each_line_is_a_document() {
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let args = ["--for", "400ms", "--interval", "100ms", "--json"];
    let (output, port) = measured(&pair, &args);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let whole: Locality = serde_json::from_value(lines.pop().unwrap()).unwrap();
    assert_eq!(lines.len(), 4, "{text}");
    // Each starts where the previous one ends, and together they have all packets.
    let mut end = 0.0;
    for line in &lines {
        assert_eq!(line["from_s"], end);
        end = line["to_s"].as_f64().unwrap();
        assert_eq!(line["filter"], format!("--proto udp --dport {port}"));
    }
    assert_eq!(end, whole.duration_s);
    let sum = |direction: &str, field: &str| {
        lines.iter().map(|line| line[direction][field].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(sum("rx", "packets"), whole.rx.packets);
    assert_eq!(sum("rx", "same_cpu"), whole.rx.same_cpu);
    assert_eq!(sum("tx", "packets"), whole.tx.packets);
    assert!(whole.rx.packets > 10 && lines.iter().all(|line| line["rx"]["packets"] != 0), "{text}");
}

#[test]
fn it_ends_when_the_pipe_is_closed() {
    if !nearpath_testing::require_bpf() {
        return;
    }
    for form in [&[][..], &["--json"]] {
        let mut child = start(&[&["--for", "10m", "--interval", "100ms"], form].concat());
        let mut out = io::BufReader::new(child.stdout.take().unwrap());
        io::BufRead::read_line(&mut out, &mut String::new()).unwrap();
        drop(out);
        let status = nearpath_testing::wait_for("its end", || child.try_wait().unwrap());
        assert!(status.success());
    }
}
