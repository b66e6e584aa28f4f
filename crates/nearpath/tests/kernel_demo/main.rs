//! The demonstrations on this kernel: real packets, misplaced as configured or fixed step by step, and nothing
//! left behind however they end.

mod locality;
mod running;
mod tune;

use nearpath::demo::Demo;
use nearpath_host::{NetnsRef, Root, Wanted, in_netns};
use nearpath_model::{CpuSet, Diagnosis, Direction};
use nearpath_testing::wait_for;
use nearpath_trial::load::LoadKind;
use running::Running;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");

fn in_server<T: Send>(demo: &Demo, read: impl FnOnce(&Root) -> T + Send) -> T {
    in_netns(&NetnsRef::Fd(demo.server_netns().unwrap()), |root| read(&root)).unwrap()
}

fn received(demo: &Demo) -> u64 {
    let path = "/sys/class/net/demo-server/statistics/rx_packets";
    in_server(demo, |root| root.text(path)).unwrap().parse().unwrap()
}

#[test]
fn real_packets_take_a_misplaced_path() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let host = nearpath_host::read(&Root::live(), &Wanted::default()).unwrap();
    let demo = Demo::start(&host, OsStr::new(NEARPATH)).unwrap();
    let placement = demo.placement().clone();
    assert_ne!(placement.rps, Some(placement.reader));
    let wanted: CpuSet = placement.rps.into_iter().collect();
    let queues = "/sys/class/net/demo-server/queues";
    let masks: Vec<String> = in_server(&demo, |root| {
        let names = root.list(queues).unwrap().into_iter().map(|entry| entry.name);
        let rx = names.filter(|name| name.starts_with("rx-"));
        rx.map(|name| root.text(&format!("{queues}/{name}/rps_cpus")).unwrap()).collect()
    });
    assert!(masks.len() >= 2, "{masks:?}");
    for mask in masks {
        assert_eq!(CpuSet::from_mask(&mask).unwrap(), wanted);
    }
    wait_for("10,000 packets", || (received(&demo) >= 10_000).then_some(()));
    let report = demo.stop().unwrap();
    assert_eq!(report.failures, Vec::<String>::new());
    for kind in [LoadKind::TcpRequests, LoadKind::TcpStream, LoadKind::UdpDatagrams] {
        for ipv6 in [false, true] {
            let count = report.counts.iter().find(|c| (c.kind, c.ipv6) == (kind, ipv6));
            let count = count.unwrap_or_else(|| panic!("no {kind:?} (IPv6: {ipv6}): {report:?}"));
            assert!(count.sent > 0 && count.received > 0, "{count:?}");
            assert!(count.connections > 0 && count.received <= count.sent, "{count:?}");
        }
    }
}

/// Packets needed for a 99th percentile of each span.
const ENOUGH: u64 = 20_000;

fn diagnosed(duration: &str) -> Diagnosis {
    // All packets: the test needs percentiles of each span.
    let all = ["--max-overhead", "none"];
    let output = Command::new(NEARPATH)
        .args(["demo", "--json", "--for", duration])
        .args(all)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_misplacement_is_the_first_finding() {
    if !nearpath_testing::require_netns() {
        return;
    }
    // The time to get enough packets for percentiles depends on the machine.
    let mut diagnosis = diagnosed("2s");
    if diagnosis.measurement.as_ref().is_some_and(|m| m.packets.completed < ENOUGH) {
        diagnosis = diagnosed("30s");
    }
    if diagnosis.host.online_cpus < 2 {
        nearpath_testing::skip("one CPU: nothing can be misplaced");
        return;
    }
    let first = diagnosis.findings.first().unwrap_or_else(|| panic!("{diagnosis:?}"));
    assert_eq!(first.check, "rps_placement", "{diagnosis:?}");
    assert!(first.title.contains("demo-server") && !first.changes.is_empty(), "{first:?}");
    if nearpath_testing::require_bpf() {
        let measurement = diagnosis.measurement.expect("a measurement");
        assert!(measurement.packets.completed >= ENOUGH, "{:?}", measurement.packets);
        for (direction, least) in [(Direction::Rx, 6), (Direction::Tx, 5)] {
            let spans = measurement.spans.iter().filter(|span| span.direction == direction);
            let known = spans.filter(|span| span.p50_ns.is_some() && span.p99_ns.is_some()).count();
            assert!(known >= least, "{known} spans of {direction:?}: {:?}", measurement.spans);
        }
    }
}

#[test]
fn all_that_the_demonstration_prints_is_one_screen() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let output = Command::new(NEARPATH).args(["demo", "--for", "1s"]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let screen = text(&output.stderr) + &text(&output.stdout);
    assert!(output.status.success(), "{screen}");
    assert!(screen.lines().count() <= 24, "{screen}");
    let wide: Vec<&str> = screen.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn sigterm_stops_early_and_shows_the_results() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !nearpath_testing::require_netns() {
        return;
    }
    let running = Running::start(&["demo", "--json", "--for", "60s"], "load from ");
    // Twice, as `timeout` does.
    running.signal(libc::SIGTERM);
    running.signal(libc::SIGTERM);
    let (status, stdout, said) = running.end();
    assert!(status.success(), "{status} {said}");
    assert!(said.contains("namespaces removed"), "{said}");
    serde_json::from_slice::<Diagnosis>(&stdout).unwrap();
}

#[test]
fn a_killed_demo_leaves_nothing_behind() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let running = Running::start(&["demo", "--json", "--for", "60s"], "load from ");
    running.signal(libc::SIGKILL);
    let (status, stdout, _) = running.end();
    assert!(!status.success() && stdout.is_empty(), "{status}");
}

#[test]
fn a_killed_server_is_one_clear_line() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let host = nearpath_host::read(&Root::live(), &Wanted::default()).unwrap();
    let demo = Demo::start(&host, OsStr::new(NEARPATH)).unwrap();
    // SAFETY: a child of this test that has not been reaped.
    assert_eq!(unsafe { libc::kill(demo.server_pid().try_into().unwrap(), libc::SIGKILL) }, 0);
    let error = format!("{:#}", demo.stop().unwrap_err());
    assert_eq!(error, "the demo's server exited early: signal: 9 (SIGKILL)");
}

#[test]
fn missing_privilege_is_one_line() {
    if !nearpath_testing::require_netns() {
        return;
    }
    const CAP_SYS_ADMIN: libc::c_ulong = 21;
    let mut command = Command::new(NEARPATH);
    command.args(["demo", "--for", "1s"]);
    // SAFETY: prctl is a plain system call without locks or allocation.
    let output = unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
    .output()
    .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty());
    assert!(said.contains("requires root (CAP_SYS_ADMIN)") && said.lines().count() == 1, "{said}");
}
