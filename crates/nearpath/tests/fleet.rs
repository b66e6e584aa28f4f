//! `nearpath fleet`: answers of Prometheus and snapshots in, text out, as files in `fleet/`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fleet")
}

fn fleet(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    command.arg("fleet").args(arguments).current_dir(folder()).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that does not read it is done before.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// `NEARPATH_BLESS=1` rewrites the file.
fn golden(name: &str, printed: &str) {
    let path = folder().join(name);
    if std::env::var_os("NEARPATH_BLESS").is_some() {
        std::fs::write(&path, printed).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(printed == expected, "{name} differs; now it is\n{printed}");
}

#[test]
fn the_worst_host_is_first() {
    let printed = text(&fleet(&["rank", "after.json"], b""));
    golden("rank.txt", &printed);
    assert!(
        printed.starts_with("edge-2:9477 is worst: packets wait 33.2ms per second"),
        "{printed}"
    );
    assert!(!printed.contains('\u{1b}'));
    // The same from standard input, and as two answers that follow each other.
    let after = std::fs::read(folder().join("after.json")).unwrap();
    assert_eq!(text(&fleet(&["rank"], &after)), printed);
    let nothing = br#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
    assert_eq!(text(&fleet(&["rank", "-"], &[&nothing[..], &after].concat())), printed);
    let json: serde_json::Value =
        serde_json::from_slice(&fleet(&["rank", "after.json", "--json"], b"").stdout).unwrap();
    assert_eq!(json["hosts"][0]["name"], "edge-2:9477");
    assert_eq!(json["hosts"][0]["findings"][0]["check"], "irq_node");
}

#[test]
fn what_changed_is_shown_by_host() {
    golden("diff.txt", &text(&fleet(&["diff", "before.json", "after.json"], b"")));
    let same = text(&fleet(&["diff", "after.json", "after.json"], b""));
    assert_eq!(same, "no host has changed; 4 are the same\n");
}

#[test]
fn what_is_no_answer_is_refused_in_one_line() {
    let said = |input: &[u8]| {
        let output = fleet(&["rank"], input);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    assert!(said(b"").contains("no series of nearpath"));
    assert!(said(b"<html>504 Gateway Timeout").contains("not an answer of Prometheus"));
    assert!(said(br#"{"status":"error","error":"bad\u001b[2J"}"#).contains("bad\\u{1b}[2J"));
    assert!(
        said(br#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#)
            .contains("not a vector")
    );
    assert!(said(&b"[".repeat(100_000)).contains("not an answer"));
}

#[test]
fn the_query_selects_what_is_read() {
    let query = text(&fleet(&["query"], b""));
    assert!(query.starts_with("{__name__=~\"") && query.ends_with("\"}\n"), "{query}");
    for name in
        ["nearpath_finding_", "nearpath:late_seconds:rate", "nearpath:path_latency_seconds:p99"]
    {
        assert!(query.contains(name), "{name}");
    }
}

#[test]
fn equal_plans_are_grouped() {
    let parent = tempfile::tempdir().unwrap();
    let snapshot = |name: &str| {
        let file = parent.path().join(name).to_str().unwrap().to_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        let output = command.args(["snapshot", "-o", &file]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        file
    };
    let (one, two) = (snapshot("one.tar.zst"), snapshot("two.tar.zst"));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim();
    let printed = text(&fleet(&["plan", &one, &two], b""));
    assert!(printed.starts_with("1 plan for 2 hosts: "), "{printed}");
    assert!(printed.contains(&format!("2 hosts: {host}, {host}")), "{printed}");
    // A snapshot that is none does not stop the others.
    let broken = parent.path().join("broken.tar.zst");
    std::fs::write(&broken, b"nothing").unwrap();
    let output = fleet(&["plan", &one, broken.to_str().unwrap(), "--json"], b"");
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["groups"][0]["hosts"], serde_json::json!([host]));
    assert!(json["failed"][0]["snapshot"].as_str().unwrap().ends_with("broken.tar.zst"));
    assert_eq!(json["groups"].as_array().unwrap().len(), 1);
}
