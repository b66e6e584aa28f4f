//! Datagrams over a veth pair whose RPS sends them to another CPU than their reader's, and plans and trials of it.

use nearpath_host::{Root, current_netns};
use nearpath_model::CpuSet;
use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_bpf, require_netns, require_root};
use nearpath_trial::load::{Client, DatagramLoad, LoadPlan, Server};
use nearpath_tune::ticks_since_boot;
use serde_json::{Value, json};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use tempfile::TempDir;

pub const RPS: &str = "/sys/class/net/np1/queues/rx-0/rps_cpus";
/// Id, target and new value of the change that turns RPS off.
pub const WITHOUT_RPS: (&str, &str, &str) = ("rps", RPS, "0");

/// Datagrams to a reader on CPU 1, which RPS sends to CPU 0, and a plan that stops that.
pub struct Scene {
    pub pair: VethPair,
    pub state: TempDir,
    _server: Server,
    _client: Client,
    _turn: Turn,
}

/// `fix` looks at the whole host: nothing else of these tests runs meanwhile.
static TURN: RwLock<()> = RwLock::new(());

enum Turn {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

impl Scene {
    pub fn new() -> Option<Self> {
        Self::in_turn(false, 1)
    }

    /// With a sender on this CPU.
    pub fn in_turn(alone: bool, sender: u32) -> Option<Self> {
        // A test that has failed leaves nothing behind that matters here.
        let turn = match alone {
            true => Turn::Alone { _guard: TURN.write().unwrap_or_else(PoisonError::into_inner) },
            false => Turn::Shared { _guard: TURN.read().unwrap_or_else(PoisonError::into_inner) },
        };
        let enough = || thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
        if !(require_root() && require_netns() && require_bpf() && enough()) {
            return None;
        }
        let pair = VethPair::new(1).unwrap();
        pair.write(Side::Server, "queues/rx-0/rps_cpus", "1").unwrap();
        let mut load = LoadPlan::moderate();
        (load.requests.connections, load.streams.connections) = (0, 0);
        load.datagrams = DatagramLoad { flows: 2, rate_hz: 2_000, sizes_bytes: vec![200] };
        let cpu = CpuSet::from_list("1").unwrap();
        let sender = CpuSet::from_list(&sender.to_string()).unwrap();
        let error = |error| io::Error::other(format!("{error}"));
        let server = pair
            .run(Side::Server, |side| Server::start(&load, &[side.ipv4()], &cpu).map_err(error))
            .unwrap();
        let endpoints = server.endpoints().to_vec();
        let client = pair
            .run(Side::Client, |_| Client::start(&load, &endpoints, &sender).map_err(error))
            .unwrap();
        let state = tempfile::tempdir().unwrap();
        Some(Self { pair, state, _server: server, _client: client, _turn: turn })
    }

    /// Runs in the server's namespace.
    pub fn inside<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.pair.run(Side::Server, |_| Ok(run())).unwrap()
    }

    pub fn rps(&self) -> String {
        self.inside(|| Root::live().text(RPS).unwrap())
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        command.env("NEARPATH_STATE_DIR", self.state.path()).stdin(Stdio::null());
        command.arg("tune").args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `tune try` of a plan that turns RPS off.
    pub fn trial(&self, args: &[&str]) -> Child {
        self.trial_of(&[WITHOUT_RPS], args)
    }

    /// The report of `tune try` of these changes, and its standard error.
    pub fn report(&self, changes: &[(&str, &str, &str)], args: &[&str]) -> (Value, String) {
        let output = self.trial_of(changes, args).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (document(&output), said)
    }

    /// The report of a trial of a plan that does no harm.
    pub fn whole_report(&self, changes: &[(&str, &str, &str)], args: &[&str]) -> Value {
        let (report, _) = self.report(changes, args);
        assert_eq!(report["stopped"], Value::Null, "{report}");
        report
    }

    /// `tune try` of a plan of these changes: id, target and new value of each.
    pub fn trial_of(&self, changes: &[(&str, &str, &str)], args: &[&str]) -> Child {
        self.trial_with(self.changes(changes), args)
    }

    pub fn changes(&self, changes: &[(&str, &str, &str)]) -> Vec<Value> {
        let change = |&(id, target, after): &(&str, &str, &str)| {
            json!({
                "id": id, "kind": "rps_cpus", "target": target, "after": after,
                "before": Root::live().text(target).unwrap(),
                "why": "packets are read where they arrive", "finding": null, "persist": [],
                "reboot": false, "optional": false,
            })
        };
        self.inside(|| changes.iter().map(change).collect())
    }

    /// `tune try` of a plan with these changes.
    pub fn trial_with(&self, changes: Vec<Value>, args: &[&str]) -> Child {
        let plan = self.plan(changes);
        let fixed = ["try", plan.to_str().unwrap(), "--json", "--dev", "np1", "--warm-up", "100ms"];
        let args = [&fixed[..], args].concat();
        let mut command = self.command(&args);
        self.inside(|| command.spawn().unwrap())
    }

    /// The file of a plan with these changes.
    pub fn plan(&self, changes: Vec<Value>) -> PathBuf {
        let plan = self.state.path().join("plan.json");
        let (boot, netns, made_ticks) = self.inside(|| {
            let root = Root::live();
            let boot = root.text("/proc/sys/kernel/random/boot_id").unwrap();
            (boot, current_netns(&root).inode, ticks_since_boot(&root))
        });
        let crossings = json!({ "other_cpu": null, "other_llc": null, "other_node": null });
        let document = json!({
            "schema": 1, "goal": "latency", "boot": boot, "netns": netns, "now": crossings,
            "predicted": crossings, "notes": [], "changes": changes, "made_ticks": made_ticks,
        });
        std::fs::write(&plan, document.to_string()).unwrap();
        plan
    }

    /// Waits until the plan of a trial is applied, which it is in every other block.
    pub fn in_force(&self, mut trial: Child) -> Child {
        while self.rps() != "0" {
            if trial.try_wait().unwrap().is_some() {
                let said = trial.wait_with_output().unwrap().stderr;
                panic!("it exited early: {}", String::from_utf8_lossy(&said));
            }
            thread::yield_now();
        }
        trial
    }

    /// What the journal holds.
    pub fn journal(&self) -> Value {
        let mut command = self.command(&["status", "--json"]);
        let output = self.inside(|| command.output().unwrap());
        document(&output)["journal"].clone()
    }
}

pub fn document(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
