//! `nearpath measure accepts` under load: a connection storm to nginx while its workers are restarted, and ten
//! thousand listening sockets. All accepts are counted, memory is bounded, nothing is left behind.
//!
//! The storm lasts 3 s, a minute in `make test-all`.

#![allow(clippy::print_stdout, reason = "the figures are worth reading")]

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nearpath_model::accepts::AcceptMeasurement;
use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_bpf, require_netns, require_program, wait_for};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tempfile::TempDir;

const PORT: u16 = 8181;
/// nginx's status page, with the number of accepted connections.
const STATUS: u16 = 8182;
const WORKERS: usize = 2;
/// Approximate number of worker restarts in a storm; the number of connections is not known beforehand.
const RESTARTS: u64 = 8;
/// Estimated maximum of connections per second; the more there are, the more restarts.
const FEW_A_SECOND: u64 = 5000;
const LISTENERS: u16 = 10_000;
/// Connections to each of them, so that memory is measured after several intervals.
const ROUNDS: usize = 5;
/// Memory growth from the first accept to the last that is not a leak: buffers and results.
const GROWTH_KIB: u64 = 4096;

/// A running measurement.
struct Measuring {
    child: Child,
    objects: Objects,
    rss_kib: u64,
}

/// The BPF objects of a process, by ids, which are unique.
#[derive(Debug, Default, PartialEq, Eq)]
struct Objects {
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
    links: BTreeSet<u32>,
}

impl Objects {
    fn of(child: &Child) -> Self {
        let mut objects = Self::default();
        let files = std::fs::read_dir(format!("/proc/{}/fdinfo", child.id())).into_iter().flatten();
        for info in files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok()) {
            for line in info.lines() {
                let (name, value) = line.split_once(':').unwrap_or_default();
                let ids = match name {
                    // The fdinfo of a link also has its program id.
                    "prog_id" => &mut objects.programs,
                    "map_id" => &mut objects.maps,
                    "link_id" => &mut objects.links,
                    _ => continue,
                };
                ids.insert(value.trim().parse().unwrap());
            }
        }
        objects
    }

    /// Waits until the kernel has freed them, which takes an RCU grace period.
    fn wait_until_gone(&self) {
        wait_for("programs, maps and links to be freed", || {
            let programs = ProgInfoIter::default().any(|p| self.programs.contains(&p.id));
            let maps = MapInfoIter::default().any(|m| self.maps.contains(&m.id));
            let links = LinkInfoIter::default().any(|l| self.links.contains(&l.id));
            (!programs && !maps && !links).then_some(())
        });
    }

    /// Whether the programs are counting: then one of their variables is not 0.
    fn are_active(&self) -> bool {
        let variables = |id: &u32| {
            let map = MapHandle::from_map_id(*id).ok()?;
            let is_it = map.name() == "accepts_.bss";
            is_it.then(|| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten())?
        };
        self.maps.iter().find_map(variables).is_some_and(|bytes| bytes.iter().any(|&b| b != 0))
    }
}

impl Measuring {
    /// Starts in the server's namespace; returns when accepts are counted.
    fn start(pair: &VethPair) -> Self {
        let netns = pair.netns(Side::Server).as_raw_fd();
        let netns = format!("/proc/{}/fd/{netns}", std::process::id());
        let mut child = Command::new(env!("CARGO_BIN_EXE_nearpath"))
            .args(["measure", "accepts", "--json", "--for", "10m", "--netns", &netns])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let objects = wait_for("active programs", || {
            assert!(child.try_wait().unwrap().is_none(), "it exited early");
            Some(Objects::of(&child)).filter(Objects::are_active)
        });
        let rss_kib = rss_kib(&child);
        Self { child, objects, rss_kib }
    }

    /// Stops it as Ctrl-C does; returns the measurement and the growth of its memory.
    fn end(self) -> (AcceptMeasurement, u64) {
        let grown = rss_kib(&self.child).saturating_sub(self.rss_kib);
        signal(self.child.id(), Signal::INT);
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success());
        self.objects.wait_until_gone();
        assert!(self.objects.programs.len() > 1 && !self.objects.links.is_empty());
        (serde_json::from_slice(&output.stdout).unwrap(), grown)
    }
}

fn rss_kib(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// nginx with a socket per worker; stopped and waited for when this is dropped.
struct Nginx<'a> {
    pair: &'a VethPair,
    child: Child,
    _folder: TempDir,
}

impl<'a> Nginx<'a> {
    fn start(pair: &'a VethPair) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path tmp;\n"))
            .concat();
        let text = format!(
            "user root; daemon off; pid pid; error_log error.log;\n\
             worker_processes {WORKERS}; worker_cpu_affinity auto;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; {temporary}\
             server {{ listen {PORT} reuseport backlog=4096; location / {{ return 200; }} }}\n\
             server {{ listen {STATUS}; location / {{ stub_status; }} }} }}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), text).unwrap();
        let path = folder.path().display().to_string();
        let child = pair.run(Side::Server, |_| {
            let mut command = Command::new("nginx");
            command.args(["-p", &path, "-c", "nginx.conf"]).stdin(Stdio::null());
            command.stderr(Stdio::null()).spawn()
        });
        let nginx = Self { pair, child: child.unwrap(), _folder: folder };
        wait_for("nginx's workers", || {
            let answers = || pair.run(Side::Server, |side| TcpStream::connect((side.ipv4(), PORT)));
            (nginx.workers().len() == WORKERS && answers().is_ok()).then_some(())
        });
        nginx
    }

    fn workers(&self) -> BTreeSet<u32> {
        let pid = self.child.id();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    /// The number of connections it has accepted, including the one of this request.
    fn accepted(&self) -> u64 {
        let ask = |side: Side| {
            let mut connection = TcpStream::connect((side.ipv4(), STATUS))?;
            connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer)?;
            Ok(answer)
        };
        // The worker that handles the request may be the one that is killed.
        wait_for("an answer of nginx", || {
            let answer = self.pair.run(Side::Server, ask).ok()?;
            let numbers = answer.split("accepts handled requests").nth(1)?;
            numbers.split_whitespace().next()?.parse().ok()
        })
    }

    /// The same once all earlier connections are included: one that a worker has not accepted yet, such as that
    /// of [`Nginx::start`], would otherwise be in the next number.
    fn accepted_when_idle(&self) -> u64 {
        wait_for("an idle nginx", || {
            self.has_accepted_all().then_some(())?;
            let before = self.accepted();
            let now = self.accepted();
            (now == before + 1).then_some(now)
        })
    }

    /// Kills a worker; returns when there is a new one.
    fn kill_worker(&self) {
        let before = self.workers();
        signal(*before.first().unwrap(), Signal::KILL);
        wait_for("a new worker", || {
            let now = self.workers();
            (now.len() == WORKERS && now != before).then_some(())
        });
    }

    /// Whether no connection is waiting to be accepted.
    fn has_accepted_all(&self) -> bool {
        let read = |_| std::fs::read_to_string("/proc/thread-self/net/tcp");
        let sockets = self.pair.run(Side::Server, read).unwrap();
        let listening = sockets.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        listening
            .map(|line| line.split_whitespace().nth(4).unwrap())
            .all(|q| q.ends_with(":00000000"))
    }
}

impl Drop for Nginx<'_> {
    fn drop(&mut self) {
        signal(self.child.id(), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Makes new connections for this many seconds, from two threads.
fn load(pair: &VethPair, seconds: u64) -> Child {
    let url = format!("http://{}:{PORT}/", Side::Server.ipv4());
    let duration = format!("{seconds}s");
    let spawn = |_| {
        let mut command = Command::new("wrk");
        command.args(["-t2", "-c64", "-d", &duration, "-H", "Connection: close", &url]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
    };
    pair.run(Side::Client, spawn).unwrap()
}

#[test]
fn a_storm_with_worker_restarts_is_counted() {
    let there =
        require_bpf() && require_netns() && require_program("nginx") && require_program("wrk");
    if !there {
        return;
    }
    let seconds = if nearpath_testing::lengthy() { 60 } else { 3 };
    let pair = VethPair::new(2).unwrap();
    let nginx = Nginx::start(&pair);
    let before = nginx.accepted_when_idle();
    let measuring = Measuring::start(&pair);
    let began = Instant::now();
    let mut load = load(&pair, seconds);
    let mut restarts = 0;
    let mut next = before;
    while load.try_wait().unwrap().is_none() {
        nginx.kill_worker();
        restarts += 1;
        next += seconds * FEW_A_SECOND / RESTARTS;
        wait_for("more connections", || {
            (load.try_wait().unwrap().is_some() || nginx.accepted() >= next).then_some(())
        });
    }
    let storm_s = began.elapsed().as_secs_f64();
    wait_for("the last connections", || nginx.has_accepted_all().then_some(()));
    let accepted = nginx.accepted() - before;
    let (m, grown_kib) = measuring.end();

    let counted: u64 = m.listeners.iter().map(|listener| listener.places.accepts).sum();
    println!(
        "{accepted} accepts in {storm_s:.1}s, {:.0}/s, {restarts} restarts: {counted} counted, \
         {} lost, {} skipped, memory +{grown_kib} KiB, cost {:?}",
        accepted as f64 / storm_s,
        m.lost,
        m.skipped,
        m.cost
    );
    // nginx counts after accept(2) returns: a worker may be killed in between.
    assert!((accepted..=accepted + restarts).contains(&counted), "{counted}, not {accepted}");
    assert_eq!(m.lost, 0);
    assert!(restarts > 1 && accepted > seconds * 500, "too few accepts or restarts");
    let of_port =
        |port: u16| m.listeners.iter().find(move |l| l.local == format!("0.0.0.0:{port}"));
    let workers = &of_port(PORT).unwrap().workers;
    // The last workers may have started too late to get a connection.
    assert!(workers.len() as u64 >= restarts, "{restarts} restarts: {workers:?}");
    assert!(workers.iter().all(|worker| worker.comm == "nginx"), "{workers:?}");
    assert!(
        workers.iter().any(|worker| worker.cpus.is_none()),
        "no worker has exited: {workers:?}"
    );
    assert!(grown_kib < GROWTH_KIB, "{grown_kib} KiB");
}

#[test]
fn ten_thousand_listeners_are_counted_separately() {
    if !require_bpf() || !require_netns() {
        return;
    }
    let files = Some(u64::from(LISTENERS) * 2);
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files }).unwrap();
    let pair = VethPair::new(1).unwrap();
    let listen = |side: Side| {
        let addresses = (10_000..10_000 + LISTENERS).map(|port| SocketAddr::new(side.ipv4(), port));
        addresses.map(TcpListener::bind).collect::<std::io::Result<Vec<_>>>()
    };
    let listeners = pair.run(Side::Server, listen).unwrap();
    let measuring = Measuring::start(&pair);
    let connect = |_| {
        for listener in listeners.iter().cycle().take(ROUNDS * listeners.len()) {
            let _client = TcpStream::connect(listener.local_addr()?)?;
            listener.accept()?;
        }
        Ok(())
    };
    pair.run(Side::Server, connect).unwrap();
    let (m, grown_kib) = measuring.end();
    println!("{} listeners: memory +{grown_kib} KiB, cost {:?}", m.listeners.len(), m.cost);
    let local: BTreeSet<String> =
        listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    assert_eq!(m.listeners.iter().map(|l| l.local.clone()).collect::<BTreeSet<_>>(), local);
    assert!(m.listeners.iter().all(|l| l.places.accepts == ROUNDS as u64), "{:?}", m.listeners);
    assert_eq!(m.lost, 0);
    // About a kilobyte per listener while the result is assembled.
    assert!(grown_kib < GROWTH_KIB + u64::from(LISTENERS), "{grown_kib} KiB");
}
