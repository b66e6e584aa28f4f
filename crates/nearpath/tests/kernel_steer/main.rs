//! `nearpath steer` on this kernel with real servers: which worker accepts before and after, whether requests fail
//! meanwhile, what is refused, and what is reported after a restart of the server.

mod diagnosed;
mod servers;

use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{lengthy, require_bpf, require_netns, require_program, skip, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use servers::{PORT, Server, ask, children, connect, on_cpu, two_cpus};
use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// A namespace for server and clients, with its own journal.
struct Scene {
    pair: VethPair,
    journal: TempDir,
    cpus: [usize; 2],
}

impl Scene {
    /// `None`, with the skip counted, if the machine lacks something.
    fn new(programs: &[&str]) -> Option<Self> {
        let there = require_bpf() && require_netns() && programs.iter().all(|p| require_program(p));
        if !there {
            return None;
        }
        let Some(cpus) = two_cpus() else {
            skip("only one CPU");
            return None;
        };
        let (pair, journal) = (VethPair::new(1).unwrap(), tempfile::tempdir().unwrap());
        Some(Self { pair, journal, cpus })
    }

    /// nearpath in the server's namespace.
    fn nearpath(&self, args: &str) -> Output {
        self.pair.run(Side::Server, |_| nearpath(self.journal.path(), args)).unwrap()
    }

    /// Its JSON output.
    fn document(&self, args: &str) -> Value {
        document(&self.nearpath(args))
    }

    fn steer(&self, args: &str) -> Value {
        self.document(&format!("steer --port {PORT} --json {args}"))
    }

    fn off(&self) {
        let output = self.nearpath(&format!("steer off --port {PORT}"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains("steering removed"), "{said}");
    }

    /// The group that listens on the port.
    fn group(&self, protocol: &str) -> Value {
        let status = self.document("steer status --json");
        let groups = status["groups"].as_array().unwrap().clone();
        let is_it = |group: &Value| group["protocol"] == protocol;
        groups.into_iter().find(is_it).unwrap_or_else(|| panic!("{status}"))
    }

    /// Asserts that it is refused with one line that contains this text.
    fn refused(&self, args: &str, says: &str) {
        let output = self.nearpath(&format!("steer --port {PORT} {args}"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains(says), "{said}");
    }

    /// For 20 connections from each CPU to `server.py`: the CPU of the client, the CPU that accepts, and the CPU that
    /// received (SO_INCOMING_CPU).
    fn answers(&self) -> Vec<[u64; 3]> {
        let connections = self.cpus.into_iter().flat_map(|cpu| std::iter::repeat_n(cpu, 20));
        let answer = |cpu: usize| {
            let connect = |side: Side| Ok(on_cpu(cpu, || connect(side.ipv4())));
            let [_, accepted_on, received_on] = self.pair.run(Side::Server, connect).unwrap();
            [cpu as u64, accepted_on, received_on]
        };
        connections.map(answer).collect()
    }

    /// The share of the connections of wrk on each CPU that nginx's worker on that CPU accepts.
    fn nginx_share(&self, nginx: &Server) -> f64 {
        let before = nginx.read("log").lines().count();
        for wrk in self.cpus.map(|cpu| on_cpu_wrk(&self.pair, cpu, "1s")) {
            assert_no_request_failed(&wrk.wait_with_output().unwrap());
        }
        let (mut own, mut all) = (0, 0);
        for line in nginx.read("log").lines().skip(before) {
            let (pid, from) = line.split_once(" /from/").unwrap();
            all += 1;
            own += u32::from(allowed(pid) == from);
        }
        assert!(all > 200, "only {all} requests");
        f64::from(own) / f64::from(all)
    }
}

fn nearpath(journal: &Path, args: &str) -> std::io::Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    command.env("NEARPATH_STATE_DIR", journal).stdin(Stdio::null());
    command.args(args.split_whitespace()).output()
}

fn document(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The CPUs that a process may run on.
fn allowed(pid: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap().trim().to_owned()
}

/// wrk on one CPU, with a new connection for each request.
fn on_cpu_wrk(pair: &VethPair, cpu: usize, duration: &str) -> Child {
    let url = format!("http://{}:{PORT}/from/{cpu}", Side::Server.ipv4());
    let spawn = |_| {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "wrk", "-t1", "-c8", "-d", duration]);
        command.args(["-H", "Connection: close", &url]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    pair.run(Side::Server, spawn).unwrap()
}

/// A request that takes longer than the two seconds which wrk allows has not failed: on a busy machine some do.
/// Whether one waits for ever, [`connections`] show.
fn assert_no_request_failed(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("requests in"), "{said}");
    let errors = said.lines().find_map(|line| line.trim().strip_prefix("Socket errors: "));
    assert!(
        errors.is_none_or(|errors| errors.starts_with("connect 0, read 0, write 0,")),
        "{said}"
    );
    assert!(!said.contains("Non-2xx"), "{said}");
}

/// The clients' connections in the server's namespace, from the SYN to the end, by the inodes of their sockets.
fn connections(pair: &VethPair) -> HashSet<String> {
    let read = |_| std::fs::read_to_string("/proc/thread-self/net/tcp");
    let table = pair.run(Side::Server, read).unwrap();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let is_client = |row: &Vec<&str>| row[2].ends_with(&format!(":{PORT:04X}"));
    rows.filter(is_client).map(|row| row[9].to_owned()).filter(|inode| inode != "0").collect()
}

#[test]
fn nginx_accepts_where_connections_are_received() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    let Some(scene) = Scene::new(&["nginx", "wrk", "taskset"]) else { return };
    let nginx = Server::nginx(&scene.pair, scene.cpus);
    let by_chance = |share: f64| assert!((0.2..0.8).contains(&share), "{share}");

    by_chance(scene.nginx_share(&nginx));
    let plan = scene.steer("--dry-run");
    assert_eq!(plan["applied"], false);
    assert_eq!(scene.group("tcp")["program"], Value::Null, "a dry run changes nothing");
    assert_eq!(
        std::fs::read_dir(scene.journal.path()).unwrap().count(),
        0,
        "and leaves no journal"
    );

    assert_eq!(scene.steer("")["applied"], true);
    assert!((scene.nginx_share(&nginx) - 1.0).abs() < f64::EPSILON);
    let group = scene.group("tcp");
    assert_eq!(group["program"], "nearpath");
    let workers: Vec<u64> = children(nginx.pid()).into_iter().map(u64::from).collect();
    for socket in group["sockets"].as_array().unwrap() {
        assert!(workers.contains(&socket["pid"].as_u64().unwrap()), "{group}");
        assert_eq!(socket["cpus"], allowed(&socket["pid"].to_string()));
    }
    scene.refused("", "is already steered by nearpath");
    scene.off();
    assert_eq!(scene.group("tcp")["program"], Value::Null);
    by_chance(scene.nginx_share(&nginx));

    // The classic program uses the order of the group, which is that of nginx's workers.
    scene.steer("--cbpf");
    assert_eq!(scene.group("tcp")["program"], "nearpath");
    if scene.cpus.iter().enumerate().all(|(place, cpu)| cpu % 2 == place) {
        assert!((scene.nginx_share(&nginx) - 1.0).abs() < f64::EPSILON);
    }

    // The restarted server has new sockets.
    drop(nginx);
    let closed = |status: &Value| {
        let gone = status["gone"].as_array().unwrap();
        assert_eq!(gone.len(), 1, "{status}");
        assert!(gone[0]["reason"].as_str().unwrap().contains("sockets were closed"), "{status}");
    };
    closed(&scene.document("steer status --json"));
    let _nginx = Server::nginx(&scene.pair, scene.cpus);
    closed(&scene.document("steer status --json"));
    assert_eq!(scene.group("tcp")["program"], Value::Null);
    scene.steer("");
    let status = scene.document("steer status --json");
    assert_eq!(status["gone"], json!([]));
    scene.off();
}

#[test]
fn no_request_fails_while_steering_is_attached_and_detached() {
    let Some(scene) = Scene::new(&["nginx", "wrk", "taskset"]) else { return };
    let times = if lengthy() { 100 } else { 3 };
    let nginx = Server::nginx(&scene.pair, scene.cpus);
    let load = scene.cpus.map(|cpu| on_cpu_wrk(&scene.pair, cpu, "1h"));
    for _ in 0..times {
        // Connections are made before, during and after each change.
        let before = nginx.read("log").len();
        assert_eq!(scene.steer("")["applied"], true);
        scene.off();
        wait_for("requests", || (nginx.read("log").len() > before).then_some(()));
    }
    assert_eq!(scene.group("tcp")["program"], Value::Null);
    // Each request that was under way is answered: its connection ends while the load goes on.
    let mut under_way = wait_for("requests under way", || {
        Some(connections(&scene.pair)).filter(|connections| !connections.is_empty())
    });
    wait_for("the answer to each request", || {
        let still = connections(&scene.pair);
        under_way.retain(|connection| still.contains(connection));
        under_way.is_empty().then_some(())
    });
    for wrk in load {
        let pid = Pid::from_raw(wrk.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        assert_no_request_failed(&wrk.wait_with_output().unwrap());
    }
    // Only the number of the last change is left.
    let journal = std::fs::read_to_string(scene.journal.path().join("journal.jsonl")).unwrap();
    let last: Value = serde_json::from_str(journal.lines().last().unwrap()).unwrap();
    assert_eq!((&last["id"], &last["event"]), (&json!(times), &json!("undone")));
}

#[test]
fn datagrams_go_to_the_thread_on_their_cpu() {
    const QUERIES: u64 = 64;
    let Some(scene) = Scene::new(&["unbound", "unbound-control"]) else { return };
    let unbound = Server::unbound(&scene.pair, scene.cpus);
    let ask_on = |cpu: usize| {
        let before = unbound.unbound_queries();
        let send = |side: Side| (0..QUERIES).try_for_each(|_| on_cpu(cpu, || ask(side.ipv4())));
        scene.pair.run(Side::Server, send).unwrap();
        let after = unbound.unbound_queries();
        [after[0] - before[0], after[1] - before[1]]
    };
    let chance = ask_on(scene.cpus[0]);
    assert!(chance.iter().all(|&queries| queries > QUERIES / 8), "{chance:?}");
    scene.steer("--udp");
    assert_eq!(scene.group("udp")["program"], "nearpath");
    // unbound has a TCP group, too, which stays unchanged.
    assert_eq!(scene.group("tcp")["program"], Value::Null);
    assert_eq!(scene.cpus.map(ask_on), [[QUERIES, 0], [0, QUERIES]]);
    scene.off();
}

#[test]
fn a_foreign_program_is_restored_or_kept() {
    let Some(mut scene) = Scene::new(&["python3"]) else { return };
    let [a, b] = scene.cpus.map(|cpu| cpu.to_string());
    let _server = Server::python(&scene.pair, Side::Server.ipv4(), &["classic", &b, &a]);
    let [_, second] = scene.cpus.map(|cpu| cpu as u64);
    let all_to_the_first = |scene: &Scene| {
        let answers = scene.answers();
        assert!(answers.iter().all(|&[_, accepted_on, _]| accepted_on == second), "{answers:?}");
    };
    all_to_the_first(&scene);
    assert_eq!(scene.group("tcp")["program"], "other");
    scene.steer("");
    for [from, accepted_on, received_on] in scene.answers() {
        assert_eq!([accepted_on, received_on], [from, from]);
    }
    // Without it in the journal the program is foreign, and could not be restored.
    let ours = std::mem::replace(&mut scene.journal, tempfile::tempdir().unwrap());
    scene.refused("", "is attached already and could not be restored");
    assert_eq!(scene.group("tcp")["program"], "other");
    scene.journal = ours;
    scene.off();
    all_to_the_first(&scene);
    assert_eq!(scene.group("tcp")["program"], "other");
}

#[test]
fn connections_of_an_exited_worker_go_to_the_others() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    let Some(scene) = Scene::new(&["python3"]) else { return };
    let [a, b] = scene.cpus.map(|cpu| cpu.to_string());
    let server = Server::python(&scene.pair, Side::Server.ipv4(), &["own", &a, &b]);
    scene.steer("");
    assert!(scene.answers().iter().all(|[from, accepted_on, _]| from == accepted_on));
    let workers = children(server.pid());
    let first = workers.iter().find(|pid| allowed(&pid.to_string()) == a).unwrap();
    kill_process(Pid::from_raw((*first).try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    wait_for("the worker's exit", || (children(server.pid()).len() == 1).then_some(()));
    let answers = scene.answers();
    assert_eq!(answers.len(), 40);
    assert!(answers.iter().all(|&[_, accepted_on, _]| accepted_on == scene.cpus[1] as u64));
    // The rest of the group is still steered, and can be detached.
    assert_eq!(scene.group("tcp")["program"], "nearpath");
    scene.off();
}

/// With the kernel's BTF hidden and given as a file, BPF iterators cannot be used: sockets are duplicated and
/// inspected.
#[test]
fn duplicated_sockets_give_the_same_groups() {
    const HIDE: &str = "mount --bind $1 /sys/kernel/btf && shift && exec \"$@\"";
    let Some(scene) = Scene::new(&["python3", "unshare"]) else { return };
    let [a, b] = scene.cpus.map(|cpu| cpu.to_string());
    let _server = Server::python(&scene.pair, Side::Server.ipv4(), &["classic", &a, &b]);
    let (empty, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = dir.path().join("btf");
    std::fs::copy("/sys/kernel/btf/vmlinux", &file).unwrap();
    let without = |args: &str| {
        let run = |_| {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", HIDE, "sh"]).arg(empty.path());
            command.arg(env!("CARGO_BIN_EXE_nearpath")).args(args.split_whitespace());
            command.env("NEARPATH_STATE_DIR", scene.journal.path()).stdin(Stdio::null());
            command.output()
        };
        scene.pair.run(Side::Server, run).unwrap()
    };
    let with_file = |args: &str| document(&without(&format!("{args} --btf {}", file.display())));
    let both = |program: &str| {
        let taken = with_file("steer status --json");
        assert_eq!(scene.document("steer status --json"), taken);
        assert_eq!(taken["groups"][0]["program"], program, "{taken}");
    };
    both("other");
    assert_eq!(with_file(&format!("steer --port {PORT} --json"))["applied"], true);
    both("nearpath");
    assert!(scene.answers().iter().all(|[from, accepted_on, _]| from == accepted_on));
    let off = without(&format!("steer off --btf {}", file.display()));
    assert!(off.status.success(), "{off:?}");
    both("other");

    let refused = |args: &str, says: &str| {
        let output = without(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains(says), "{said}");
    };
    refused("steer status", "unless it is given with --btf FILE");
    refused("steer status --btf /missing", "/missing: not found");
}

#[test]
fn unsupported_groups_are_refused_with_the_reason() {
    let Some(scene) = Scene::new(&["python3"]) else { return };
    let [a, b] = scene.cpus.map(|cpu| cpu.to_string());
    scene.refused("", "no socket is bound to it");
    {
        let server = Server::python(&scene.pair, Side::Server.ipv4(), &[&a]);
        scene.refused("", "the REUSEPORT group has only one socket");
        let output =
            nearpath(scene.journal.path(), &format!("steer --port {PORT} --pid {}", server.pid()));
        let said = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
        let hint = format!("--netns pid:{}", server.pid());
        assert!(said.contains("in another network namespace") && said.contains(&hint), "{said}");
    }
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    {
        let _server = Server::python(&scene.pair, Side::Server.ipv4(), &[&a, online.trim()]);
        scene.refused("", "may run on every CPU");
    }
    let server = Server::python(&scene.pair, Side::Server.ipv4(), &[&a, &b]);
    scene.refused("--udp", "no socket is bound to it");
    scene.refused("--pid 1", "no REUSEPORT group of that address and process");
    scene.refused("--address 127.0.0.1", "no REUSEPORT group of that address and process");
    {
        let _other = Server::python(&scene.pair, Ipv4Addr::LOCALHOST.into(), &[&a, &b]);
        scene.refused("", "in different REUSEPORT groups: 10.99.0.2:8181 (2 sockets), 127.0.0.1");
        let plan = scene.steer("--dry-run --address 127.0.0.1");
        let group = &plan["changes"][0]["target"]["reuseport_group"];
        assert_eq!(group["local"], "127.0.0.1:8181");
    }
    // From outside its namespace, with --netns.
    let outside = |args: &str| {
        let args = format!("steer {args} --netns pid:{}", server.pid());
        nearpath(scene.journal.path(), &args).unwrap()
    };
    assert_eq!(document(&outside(&format!("--port {PORT} --json")))["applied"], true);
    assert_eq!(scene.group("tcp")["program"], "nearpath");
    let here = document(&nearpath(scene.journal.path(), "steer status --json").unwrap());
    let reason = here["gone"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("in another network namespace"), "{here}");
    assert!(outside("off").status.success());
    assert_eq!(scene.group("tcp")["program"], Value::Null);
}

/// A record is dropped on proof alone: from another namespace the sockets cannot be seen, and steering stays in effect.
#[test]
fn steering_is_not_forgotten_in_another_namespace() {
    let Some(scene) = Scene::new(&["python3"]) else { return };
    let [a, b] = scene.cpus.map(|cpu| cpu.to_string());
    let server = Server::python(&scene.pair, Side::Server.ipv4(), &[&a, &b]);
    assert_eq!(scene.steer("")["applied"], true);
    let outside = |args: &str| nearpath(scene.journal.path(), args).unwrap();
    let rollback = outside("tune rollback");
    let said = [rollback.stdout, rollback.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(rollback.status.code() == Some(1) && said.contains("use --netns"), "{said}");
    assert_eq!(scene.group("tcp")["program"], "nearpath");
    let journal = |args: &str| document(&outside(args))["journal"].clone();
    assert_eq!(journal("tune status --json").as_array().unwrap().len(), 1);
    let within = format!("tune rollback --netns pid:{}", server.pid());
    let undone = outside(&within);
    assert!(undone.status.success(), "{undone:?}");
    assert_eq!(scene.group("tcp")["program"], Value::Null);

    // Of a server that has exited there is nothing to undo, wherever it was; where all descriptors can be read.
    if std::fs::read_link("/proc/1/fd/0").is_err() {
        return skip("descriptors of process 1 cannot be read");
    }
    assert_eq!(scene.steer("")["applied"], true);
    drop(server);
    let groups = || scene.document("steer status --json")["groups"].clone();
    wait_for("the exit of its workers", || (groups() == json!([])).then_some(()));
    let undone = outside("tune rollback");
    assert!(undone.status.success(), "{undone:?}");
    assert_eq!(journal("tune status --json"), json!([]));
}
