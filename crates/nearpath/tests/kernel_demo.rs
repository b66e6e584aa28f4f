//! The demonstration on this kernel: real packets, misplaced as told, and nothing left of it,
//! however it ends.

use nearpath::demo::Demo;
use nearpath_diagnose::Diagnosis;
use nearpath_host::{CpuSet, Host, NetnsRef, Root, Wanted, in_netns};
use nearpath_instruments::Direction;
use nearpath_testing::wait_for;
use nearpath_trial::load::LoadKind;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");

fn in_server<T: Send>(demo: &Demo, read: impl FnOnce(&Root) -> T + Send) -> T {
    in_netns(&NetnsRef::Fd(demo.server_netns().unwrap()), |root| read(&root)).unwrap()
}

fn received(demo: &Demo) -> u64 {
    let path = "/sys/class/net/demo-server/statistics/rx_packets";
    in_server(demo, |root| root.text(path)).unwrap().parse().unwrap()
}

#[test]
fn real_packets_go_over_a_misplaced_path() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let host = Host::read(&Root::live(), &Wanted::default()).unwrap();
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

#[test]
fn the_misplacement_is_the_first_finding() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let output = Command::new(NEARPATH).args(["demo", "--json", "--for", "2s"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let diagnosis: Diagnosis = serde_json::from_slice(&output.stdout).unwrap();
    if diagnosis.host.online_cpus < 2 {
        nearpath_testing::skip("one CPU: nothing can be misplaced");
        return;
    }
    let first = diagnosis.findings.first().unwrap_or_else(|| panic!("{diagnosis:?}"));
    assert_eq!(first.check, "rps_placement", "{diagnosis:?}");
    assert!(first.title.contains("demo-server") && !first.changes.is_empty(), "{first:?}");
    if nearpath_testing::require_bpf() {
        let measurement = diagnosis.measurement.expect("a measurement");
        assert!(measurement.packets.completed >= 20_000, "{:?}", measurement.packets);
        for (direction, least) in [(Direction::Rx, 6), (Direction::Tx, 5)] {
            let spans = measurement.spans.iter().filter(|span| span.direction == direction);
            let told = spans.filter(|span| span.p50_ns.is_some() && span.p99_ns.is_some()).count();
            assert!(told >= least, "{told} spans of {direction:?}: {:?}", measurement.spans);
        }
    }
}

/// The demonstration, running with its load, and its namespaces watched.
struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    watched: Vec<Watched>,
    links: String,
}

impl Running {
    fn start() -> Self {
        let links = links();
        let mut child = Command::new(NEARPATH)
            .args(["demo", "--json", "--for", "60s"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut running = Self { child, stderr, watched: Vec::new(), links };
        let mut line = String::new();
        while !line.contains("load from CPUs") {
            line.clear();
            let read = running.stderr.read_line(&mut line).unwrap();
            assert!(read > 0, "the demo ended too early");
        }
        let threads = wait_for("two namespaces", || {
            let threads = threads_elsewhere(running.child.id());
            (threads.len() == 2).then_some(threads)
        });
        running.watched = threads.into_values().enumerate().map(Watched::of).collect();
        running
    }

    fn signal(&self, signal: i32) {
        // SAFETY: signals a child that was not waited for, whose number is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id().try_into().unwrap(), signal) }, 0);
    }

    /// Waits for its end, and for that of all that it made.
    fn end(mut self) -> (ExitStatus, Vec<u8>, String) {
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        let mut stdout = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        let status = self.child.wait().unwrap();
        for watched in &self.watched {
            wait_for("the end of a namespace", || watched.is_gone().then_some(()));
        }
        assert_eq!(links(), self.links);
        (status, stdout, said)
    }
}

impl Drop for Running {
    /// Also a test that fails leaves nothing behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A namespace that got an id in this one, by which the kernel tells when it is gone. Nothing
/// holds it but what the demonstration has in it.
struct Watched {
    id: String,
}

impl Watched {
    fn of((index, thread): (usize, u32)) -> Self {
        let name = format!("nearpath-test-{}-{index}", std::process::id());
        ip(&["netns", "attach", &name, &thread.to_string()]);
        ip(&["netns", "set", &name, "auto"]);
        let ids = ip(&["netns", "list-id"]);
        ip(&["netns", "delete", &name]);
        let line = ids.lines().find(|line| line.contains(&name));
        let line = line.unwrap_or_else(|| panic!("no id of {name} in {ids}"));
        Self { id: line.split(" (").next().unwrap().trim().to_owned() }
    }

    fn is_gone(&self) -> bool {
        !ip(&["netns", "list-id"])
            .lines()
            .any(|line| line.split(" (").next().unwrap().trim() == self.id)
    }
}

fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The interfaces of this namespace, by name.
fn links() -> String {
    let links = ip(&["-o", "link"]);
    links.lines().filter_map(|line| line.split(": ").nth(1)).collect::<Vec<_>>().join(" ")
}

/// One thread in each other network namespace that a process or its children have threads in.
fn threads_elsewhere(pid: u32) -> BTreeMap<String, u32> {
    let netns = |thread: u32| {
        let link = fs::read_link(format!("/proc/{thread}/ns/net")).ok()?;
        Some(link.to_string_lossy().into_owned())
    };
    let here = netns(std::process::id()).unwrap();
    let threads = |pid: u32| -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
    };
    let children = |thread: &u32| -> Vec<u32> {
        let path = format!("/proc/{pid}/task/{thread}/children");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let own = threads(pid);
    // The children last, as the threads that this process reads facts with come and go.
    let all = own.iter().copied().chain(own.iter().flat_map(children).flat_map(threads));
    all.filter_map(|thread| Some((netns(thread)?, thread))).filter(|(ns, _)| *ns != here).collect()
}

#[test]
fn an_early_end_by_sigterm_still_shows_what_was_gathered() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let running = Running::start();
    // Twice, as `timeout` does.
    running.signal(libc::SIGTERM);
    running.signal(libc::SIGTERM);
    let (status, stdout, said) = running.end();
    assert!(status.success(), "{status} {said}");
    assert!(said.contains("veth pair and namespaces are gone"), "{said}");
    serde_json::from_slice::<Diagnosis>(&stdout).unwrap();
}

#[test]
fn nothing_is_left_of_a_killed_demo() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let running = Running::start();
    running.signal(libc::SIGKILL);
    let (status, stdout, _) = running.end();
    assert!(!status.success() && stdout.is_empty(), "{status}");
}

#[test]
fn a_server_that_is_killed_is_one_clear_line() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let host = Host::read(&Root::live(), &Wanted::default()).unwrap();
    let demo = Demo::start(&host, OsStr::new(NEARPATH)).unwrap();
    // SAFETY: a process of this test's own, which is not waited for yet.
    assert_eq!(unsafe { libc::kill(demo.server_pid().try_into().unwrap(), libc::SIGKILL) }, 0);
    let error = format!("{:#}", demo.stop().unwrap_err());
    assert_eq!(error, "the demo's server ended too early: signal: 9 (SIGKILL)");
}

#[test]
fn without_privilege_it_says_so_in_one_line() {
    if !nearpath_testing::require_netns() {
        return;
    }
    const CAP_SYS_ADMIN: libc::c_ulong = 21;
    let mut command = Command::new(NEARPATH);
    command.args(["demo", "--for", "1s"]);
    // SAFETY: prctl is a system call that takes no lock and no memory.
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
    assert!(said.contains("takes root (CAP_SYS_ADMIN)") && said.lines().count() == 1, "{said}");
}
