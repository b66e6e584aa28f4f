//! `nearpath steer --pin` on this kernel: unpinned workers get a CPU each and are steered to; `off` restores their
//! affinity.

use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_bpf, require_netns, require_program, skip};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

const PORT: u16 = 8181;
const CONNECTIONS: usize = 20;

/// `server.py` with two workers, and a journal.
struct Scene {
    pair: VethPair,
    journal: TempDir,
    server: Child,
    online: String,
}

impl Scene {
    fn new() -> Option<Self> {
        if !require_bpf() || !require_netns() || !require_program("python3") {
            return None;
        }
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        let online = online.trim().to_owned();
        if online == "0" {
            skip("only one CPU");
            return None;
        }
        let pair = VethPair::new(1).unwrap();
        let server = start_server(&pair, &[&online, &online]);
        Some(Self { pair, journal: tempfile::tempdir().unwrap(), server, online })
    }

    fn nearpath(&self, args: &str) -> Output {
        let run = |_| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
            command.env("NEARPATH_STATE_DIR", self.journal.path()).stdin(Stdio::null());
            command.args(args.split_whitespace()).output()
        };
        self.pair.run(Side::Server, run).unwrap()
    }

    fn document(&self, args: &str) -> Value {
        let output = self.nearpath(args);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The affinity of each worker, by process id.
    fn workers(&self) -> BTreeMap<u32, String> {
        let pid = self.server.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
        pids.map(|pid: u32| (pid, allowed(pid))).collect()
    }

    /// For connections from each CPU that a worker is pinned to: the accepting worker.
    fn accepted_by(&self) -> Vec<(String, u32)> {
        let cpus: BTreeSet<String> = self.workers().into_values().collect();
        let each = cpus.iter().flat_map(|cpu| std::iter::repeat_n(cpu, CONNECTIONS));
        let answer = |cpu: &String| {
            let connect = |side: Side| {
                std::thread::scope(|scope| scope.spawn(|| ask(side, cpu)).join().unwrap())
            };
            (cpu.clone(), self.pair.run(Side::Server, connect).unwrap())
        };
        each.map(answer).collect()
    }

    fn end_server(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Its workers exit with it.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn start_server(pair: &VethPair, workers: &[&str]) -> Child {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel_steer/server.py");
    let start = |side: Side| {
        let mut command = Command::new("python3");
        command.arg("-u").arg(&file).args([side.ipv4().to_string(), PORT.to_string()]);
        command.args(workers).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
    };
    let mut server = pair.run(Side::Server, start).unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    server
}

/// The process that accepts a connection from a CPU; the connection is also received on that CPU.
fn ask(side: Side, cpu: &str) -> std::io::Result<u32> {
    let mut only = rustix::thread::CpuSet::new();
    only.set(cpu.parse().unwrap());
    rustix::thread::sched_setaffinity(None, &only)?;
    let mut answer = String::new();
    TcpStream::connect((side.ipv4(), PORT))?.read_to_string(&mut answer)?;
    Ok(answer.split(' ').next().unwrap().parse().unwrap())
}

fn allowed(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap().trim().to_owned()
}

#[test]
fn workers_are_pinned_steered_to_and_restored() {
    let Some(mut scene) = Scene::new() else { return };
    let free = scene.workers();
    assert!(free.values().all(|cpus| *cpus == scene.online), "{free:?}");
    let refused = scene.nearpath(&format!("steer --port {PORT}"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("--pin pins each"), "{said}");

    // A dry run changes nothing.
    let dry = scene.document(&format!("steer --port {PORT} --pin --dry-run --json"));
    assert_eq!((&dry["applied"], dry["changes"].as_array().unwrap().len()), (&false.into(), 3));
    assert_eq!(scene.workers(), free);

    let made = scene.document(&format!("steer --port {PORT} --pin --json"));
    let [first, second, steering] = made["changes"].as_array().unwrap().as_slice() else {
        panic!("{made}")
    };
    for pin in [first, second] {
        assert_eq!(pin["before"]["text"], *scene.online);
        assert_eq!(pin["persistence"], "while_running");
    }
    assert!(steering["target"].get("reuseport_group").is_some(), "{made}");
    let pinned = scene.workers();
    assert_eq!(pinned.values().collect::<BTreeSet<_>>().len(), 2, "{pinned:?}");
    for (cpu, pid) in scene.accepted_by() {
        assert_eq!(pinned[&pid], cpu);
    }

    // `off` restores their affinity, except for one that was changed externally.
    let (&moved, to) = pinned.iter().next().unwrap();
    assert!(scene.nearpath(&format!("steer off --port {PORT}")).status.success());
    assert_eq!(scene.workers(), free);
    let again = scene.document(&format!("steer --port {PORT} --pin --json"));
    assert_eq!(again["applied"], true);
    let other = pinned.values().find(|cpu| *cpu != to).unwrap();
    let here = &scene.workers()[&moved];
    let elsewhere = if here == to { other } else { to };
    let pid = moved.to_string();
    assert!(
        Command::new("taskset").args(["-cp", elsewhere, &pid]).output().unwrap().status.success()
    );
    let off = scene.nearpath("steer off");
    let said = String::from_utf8_lossy(&off.stderr).into_owned();
    assert!(off.status.success() && said.contains("changed externally"), "{said}");
    assert_eq!((&scene.workers()[&moved], scene.workers().len()), (elsewhere, 2));
    let others = scene.workers().into_iter().filter(|(pid, _)| *pid != moved);
    assert_eq!(others.map(|(_, cpus)| cpus).collect::<Vec<_>>(), [scene.online.clone()]);

    // `off` works after the server's exit, and leaves nothing of it in the journal.
    assert!(scene.nearpath(&format!("steer --port {PORT} --pin")).status.success());
    scene.end_server();
    assert!(scene.nearpath("steer off").status.success());
    assert_eq!(scene.document("tune status --json")["journal"], Value::Array(vec![]));
}
