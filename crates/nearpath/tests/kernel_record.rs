//! `nearpath record` on this kernel: what is there after kill -9 at any moment, and what other programs read.
//!
//! The judge of counts is the sender of the packets; that of files are pyarrow and DuckDB, with the queries of
//! docs/recordings.md. Their Python is `NEARPATH_PYTHON`, or `python3`
//! (`scripts/lab readers` installs one that has them).

use nearpath_monitor::recording::{Recorded, Recording, TABLES, Table};
use nearpath_testing::{Running, begin, require_bpf, skip};
use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const INTERVAL: Duration = Duration::from_millis(500);
/// Time that this machine, under load, may take to read and write an interval.
const SLACK: Duration = Duration::from_millis(700);

fn now_us() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

fn record(folder: &Path, sources: &str) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    command
        .args(["record", "--interval", "500ms", "--findings-interval", "1s", "--segment", "1500ms"])
        .args(["--max-overhead", "none", "--source", sources, "-o"])
        .arg(folder)
        .env("NEARPATH_STATE_DIR", folder.parent().unwrap())
        .stdin(Stdio::null());
    Running(begin(&mut command, "recording to"))
}

/// Sends datagrams to a port that nobody has, so many every 2 ms, until `stop`; returns the time of each.
fn send(stop: &AtomicBool, burst: usize) -> Vec<i64> {
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..burst {
            socket.send_to(b"x", closed).unwrap();
            times.push(now_us());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    times
}

/// Stops the sender, also if the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn rows(folder: &Path, table: Table) -> Vec<Recorded> {
    let Ok(recording) = Recording::open(folder) else { return Vec::new() };
    let rows = recording.rows(table, i64::MIN, i64::MAX);
    assert!(rows.notes.is_empty(), "{:?}", rows.notes);
    rows.rows
}

/// End of each interval of the instrument `drops`, and its length.
fn intervals(folder: &Path) -> Vec<(i64, i64)> {
    let is_drops = |row: &&Recorded| row.row[0].text() == Some("drops");
    let cost = rows(folder, Table::Cost);
    let of = |row: &Recorded| (row.time_us, (row.interval_s * 1e6) as i64);
    cost.iter().filter(is_drops).map(of).collect()
}

#[test]
fn a_killed_recorder_loses_an_interval_at_most() {
    if !require_bpf() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("rec");
    let stop = AtomicBool::new(false);
    let mut kills = Vec::new();
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&stop, 1));
        let stops = Stops(&stop);
        // At different moments of an interval and of a segment.
        for round in 0..if nearpath_testing::lengthy() { 6u32 } else { 2 } {
            let began = now_us();
            let mut child = record(&folder, "drops,facts");
            let first = nearpath_testing::wait_for("the first interval", || {
                intervals(&folder).into_iter().find(|(time, _)| *time > began)
            });
            std::thread::sleep(INTERVAL * 2 + Duration::from_millis(230) * round);
            let killed = now_us();
            child.0.kill().unwrap();
            assert_eq!(child.0.wait().unwrap().signal(), Some(9));
            kills.push((first.0 - first.1, killed));
        }
        drop(stops);
        sender.join().unwrap()
    });
    // What the last one has left open is read from its log; what all others left was sealed by the next.
    let logs = || {
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|e| e == "log")).count()
    };
    assert!(logs() <= 1);
    let all = intervals(&folder);
    let mut unique = all.clone();
    unique.dedup();
    assert_eq!(all, unique, "a row is there twice");
    let drops = rows(&folder, Table::Drops);
    for &(began, killed) in &kills {
        let of_round: Vec<_> =
            all.iter().filter(|(time, _)| (began..=killed).contains(time)).collect();
        let (last, _) = **of_round.last().expect("an interval");
        let lost = Duration::from_micros((killed - last).try_into().unwrap());
        // On a machine under load intervals take longer, as their own rows say.
        let longest = of_round.iter().map(|(_, length)| *length).max().unwrap_or(0);
        let interval = INTERVAL.max(Duration::from_micros(longest.try_into().unwrap()));
        assert!(lost < interval + SLACK, "{lost:?} are lost of intervals of {interval:?}");
        // Every interval but the lost one is there: their lengths add up to the time that they cover.
        let covered: i64 = of_round.iter().map(|(_, length)| length).sum();
        assert!((last - began - covered).abs() < 150_000, "{covered} of {} µs", last - began);
        let is_ours = |row: &&Recorded| {
            (began..=killed).contains(&row.time_us)
                && row.row[0].text() == Some("NO_SOCKET")
                && row.row[3].text() == Some("UDP")
        };
        let recorded: i64 = drops.iter().filter(is_ours).filter_map(|row| row.row[4].count()).sum();
        let sent = sent.iter().filter(|time| (began..=last).contains(time)).count() as i64;
        assert!((recorded - sent).abs() <= 20 + sent / 20, "{recorded} recorded, {sent} sent");
    }
    // A recorder that ends by itself seals all.
    record(&folder, "facts").end();
    assert_eq!(logs(), 0);
    assert_eq!(intervals(&folder), all);
}

fn python() -> Option<String> {
    let python = std::env::var("NEARPATH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut command = Command::new(&python);
    let has = command.args(["-c", "import duckdb, pyarrow"]).stderr(Stdio::null()).status();
    if has.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    skip("no Python with duckdb and pyarrow (NEARPATH_PYTHON)");
    None
}

#[test]
fn other_programs_read_the_same() {
    if !require_bpf() {
        return;
    }
    let Some(python) = python() else { return };
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("rec");
    let stop = AtomicBool::new(false);
    let child = std::thread::scope(|scope| {
        // Enough that 1 in 10,000 is late soon.
        scope.spawn(|| send(&stop, 50));
        let _stops = Stops(&stop);
        let child = record(
            &folder,
            "stages,budgets,locality,accepts,drops,facts,tcp,workers,steering,findings",
        );
        // The tables that the queries read; late packets take longest.
        let wanted = ["path_buckets", "locality", "findings", "cost", "softnet", "causes"];
        let ends = Instant::now() + Duration::from_secs(90);
        while let Some(missing) = wanted.iter().find(|table| !has_file(&folder.join(table))) {
            assert!(Instant::now() < ends, "no {missing}");
            std::thread::sleep(INTERVAL);
        }
        child
    });
    child.end();

    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/read_recording.py");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recordings.md");
    let output =
        Command::new(python).arg(tests).arg(docs).current_dir(parent.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let read: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for spec in TABLES {
        let rows = rows(&folder, spec.table);
        let theirs = &read["tables"][spec.name];
        assert_eq!(theirs["rows"].as_u64().unwrap_or(0), rows.len() as u64, "{}", spec.name);
        for (at, column) in spec.columns.iter().enumerate() {
            let sum: i64 =
                rows.iter().filter_map(|row| row.row[at].count()).fold(0, i64::wrapping_add);
            let sum = u64::from_ne_bytes(sum.to_ne_bytes()).to_string();
            let nulls =
                rows.iter().filter(|row| row.row[at] == nearpath_monitor::recording::Cell::Null);
            if !rows.is_empty() {
                assert_eq!(theirs["sums"][column.name], sum, "{}.{}", spec.name, column.name);
                assert_eq!(theirs["nulls"][column.name], nulls.count(), "{}", column.name);
            }
        }
    }
    assert_eq!(read["queries"].as_u64(), Some(6), "{read}");
    let readers: Vec<_> =
        read["readers"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    for reader in ["ClickHouse", "Spark"] {
        if !readers.contains(&reader) {
            skip(&format!("recordings were not read with {reader}: it is not installed"));
        }
    }
    report_of(&folder);
}

/// The report of a recording has what was recorded, in words; one of another time says that there is nothing.
fn report_of(folder: &Path) {
    let file = folder.with_extension("html");
    let report = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        command.arg("report").arg("-o").arg(&file).arg("--recording").arg(folder).args(more);
        command.output().unwrap()
    };
    let output = report(&[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let html = std::fs::read_to_string(&file).unwrap();
    for section in ["findings", "history-", "path", "causes", "packets", "locality"] {
        assert!(html.contains(&format!("<section id=\"{section}")), "no {section}");
    }
    let packets: i64 = rows(folder, Table::Packets)
        .iter()
        .filter(|row| row.row[0].text() == Some("started"))
        .filter_map(|row| row.row[1].count())
        .sum();
    assert!(html.contains(&format!("of {packets} packets in ")), "not of {packets} packets");
    let nothing = report(&["--at", "2001-01-01 03:12"]);
    let said = String::from_utf8_lossy(&nothing.stderr);
    assert!(!nothing.status.success() && said.contains("nothing is recorded"), "{said}");
    let wrong = report(&["--at", "noon"]);
    assert_eq!(wrong.status.code(), Some(2));
}

fn has_file(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| {
        entries.any(|entry| entry.unwrap().path().extension().is_some_and(|e| e == "parquet"))
    })
}
