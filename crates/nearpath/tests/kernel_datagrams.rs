//! `nearpath measure accepts --udp`: the real binary on this kernel. Its document, its tables and the line of each
//! datagram, while this process sends to itself.

use nearpath_model::accepts::AcceptMeasurement;
use nearpath_testing::require_bpf;
use serde_json::Value;
use std::net::UdpSocket;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Runs it to completion while datagrams are sent and read; returns its output and the port.
fn measured(args: &[&str]) -> (Output, u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let port = address.port().to_string();
    let child = Command::new(env!("CARGO_BIN_EXE_nearpath"))
        .args(["measure", "accepts", "--udp", "--for", "300ms", "--port", &port])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Its output is read meanwhile: a full pipe would block it.
    let output = std::thread::spawn(|| child.wait_with_output().unwrap());
    while !output.is_finished() {
        socket.send_to(b"datagram", address).unwrap();
        socket.recv(&mut [0; 16]).unwrap();
        // At a rate that allows one line for each.
        std::thread::sleep(Duration::from_micros(100));
    }
    (output.join().unwrap(), address.port())
}

fn text(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_document_has_the_documented_fields() {
    if !require_bpf() {
        return;
    }
    let (output, port) = measured(&["--json"]);
    let json: Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!((&json["protocol"], &json["schema"]), (&"udp".into(), &1.into()));
    let listener = &json["listeners"][0];
    assert_eq!(listener["local"], format!("127.0.0.1:{port}"));
    for counts in [listener, &listener["workers"][0]] {
        let fields = ["same_cpu", "same_llc", "same_node", "other_node", "unknown"];
        let sum: u64 = fields.iter().map(|field| counts[*field].as_u64().unwrap()).sum();
        assert_eq!(counts["accepts"].as_u64(), Some(sum), "{json}");
        assert!(sum > 100, "{json}");
    }
    assert_eq!(listener["workers"][0]["pid"], std::process::id());
    // It round-trips without loss.
    let m: AcceptMeasurement = serde_json::from_value(json).unwrap();
    assert!(m.cost.unwrap().ns_per_event > 0.0);
}

#[test]
fn each_datagram_is_a_line_before_the_table() {
    if !require_bpf() {
        return;
    }
    let (output, port) = measured(&["--each"]);
    let text = text(&output);
    let said = format!("pid={} recv(127.0.0.1:{port}) -> length=8 rxcpu=", std::process::id());
    let lines: Vec<&str> = text.lines().take_while(|line| line.starts_with("cpu=#")).collect();
    assert!(lines.iter().all(|line| line.contains(&said)), "{lines:#?}");
    // Datagrams sent before it started may have been read after.
    assert!(lines.iter().skip(1).all(|line| line.contains(" rxcpu=#")), "{lines:#?}");
    let accepts = lines.len();
    let table: Vec<&str> = text.lines().skip(accepts).collect();
    assert!(table[0].starts_with(&format!("{accepts} datagrams read: ")), "{}", table[0]);
    let all = table.last().unwrap().split_whitespace().nth(2).unwrap();
    assert_eq!(all.parse(), Ok(accepts), "{table:#?}");
    assert!(accepts > 100, "{accepts}");
}

#[test]
fn no_traffic_is_reported() {
    if !require_bpf() {
        return;
    }
    // No other process can use the port of a bound socket.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_nearpath"))
        .args(["measure", "accepts", "--udp", "--for", "100ms", "--port", &port])
        .output()
        .unwrap();
    assert!(text(&output).starts_with("no datagram was read\n"), "{output:?}");
}
