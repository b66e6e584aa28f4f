//! Many hosts with real engines around them: Prometheus as agent and as server, Alertmanager. Hosts are namespaces, of which
//! one is misplaced: its packets are steered to another CPU than their reader's.

mod alertmanager;
mod hosts;
#[path = "../../../monitor/tests/kernel_prometheus/prometheus.rs"]
mod prometheus;

use hosts::Host;
use nearpath_testing::{require_bpf, require_lengthy, require_netns, require_program};
use prometheus::{Prometheus, program};
use std::io::Write;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Programs are loaded once for each daemon, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(180);
const CPU: usize = 0;
/// RPS to the other CPU.
const MISPLACED: &str = "2";

fn patiently<T>(what: &str, time: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + time;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(250));
    }
}

fn pin() {
    let mut set = rustix::thread::CpuSet::new();
    set.set(CPU);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Ten thousand packets per second to all of these hosts, from one CPU.
fn send(hosts: &[&Host], stop: &AtomicBool) {
    pin();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    while !stop.load(Ordering::Relaxed) {
        for host in hosts {
            for _ in 0..20 {
                // A reader that is not there yet answers with ICMP.
                let _ = socket.send_to(&[0; 64], (host.address(), 5555));
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reads on the CPU that sends.
struct Reader(Child);

impl Reader {
    fn start(host: &Host) -> Self {
        let code = "import os,socket\n\
            os.sched_setaffinity(0, {0})\n\
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
            s.bind(('0.0.0.0', 5555))\n\
            while True: s.recv(64)\n";
        Self(host.command("python3").args(["-c", code]).spawn().unwrap())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn available() -> Option<String> {
    let available = require_lengthy()
        && require_bpf()
        && require_netns()
        && require_program("ip")
        && require_program("python3");
    available.then(|| program("NEARPATH_PROMETHEUS", "prometheus"))?
}

/// What the rules of nearpath say, in a file.
fn rules(folder: &std::path::Path) -> String {
    let file = folder.join("rules.yml").to_str().unwrap().to_owned();
    let mut export = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    let export = export.args(["monitor", "export", "prometheus-rules", "-o", &file]);
    assert!(export.status().unwrap().success());
    file
}

fn rank(answer: &[u8]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    let command = command.args(["fleet", "rank", "--by", "host"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(answer).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// The agent scrapes three hosts and writes to the server, whose answer is ranked: the misplaced host is first.
#[test]
fn the_ranking_puts_the_worst_host_first() {
    let Some(program) = available() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut hosts = [Host::new(1), Host::new(2), Host::new(3)];
    hosts[1].set_rps(MISPLACED);
    let _readers: Vec<Reader> = hosts.iter().map(Reader::start).collect();
    for host in &mut hosts {
        let sources = ["--source", "stages,facts,findings", "--max-overhead", "none"];
        let times = ["--interval", "1s", "--findings-interval", "5s"];
        host.monitor(&[sources, times].concat());
    }
    let server = Prometheus::with(
        &program,
        &format!("global: {{evaluation_interval: 2s}}\nrule_files: ['{}']\n", rules(folder.path())),
        &["--web.enable-remote-write-receiver"],
    );
    let target = |(at, host): (usize, &Host)| {
        format!("  - {{targets: ['{}'], labels: {{host: 'host-{}'}}}}\n", host.daemon(), at + 1)
    };
    let targets: String = hosts.iter().enumerate().map(target).collect();
    let agent = format!(
        "global: {{scrape_interval: 2s}}\nscrape_configs:\n- job_name: nearpath\n  static_configs:\n{targets}\
         remote_write:\n- {{url: 'http://{}/api/v1/write', send_native_histograms: true}}\n",
        server.address()
    );
    let _agent = Prometheus::with(&program, &agent, &["--agent"]);
    let query = Command::new(env!("CARGO_BIN_EXE_nearpath")).args(["fleet", "query"]).output();
    let query = String::from_utf8(query.unwrap().stdout).unwrap();
    let stop = AtomicBool::new(false);
    let ranked = std::thread::scope(|scope| {
        let hosts: Vec<&Host> = hosts.iter().collect();
        let stopped = &stop;
        scope.spawn(move || send(&hosts, stopped));
        let _stops = Stops(&stop);
        // All hosts share their CPUs: one or the other may look worse for a moment.
        patiently("a ranking with the misplaced host first", PATIENCE, || {
            let (is_ranked, said) = rank(&server.answer(query.trim()));
            let is_worst = is_ranked && said.starts_with("host-2 is worst: ");
            (is_worst && said.contains("rps_placement") && said.contains("of 3 hosts"))
                .then_some(said)
        })
    });
    let others = ranked.lines().filter(|line| !line.contains("host-2"));
    assert!(others.filter(|line| line.contains("rps_placement")).count() == 0, "{ranked}");
}
