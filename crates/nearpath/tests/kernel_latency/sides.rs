//! Both sides of a latency benchmark, as processes in their namespaces. They end with the test.

use nearpath_testing::veth::{Side, VethPair};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Child, ChildStdout, Command, Stdio};

/// `nearpath bench reflect` on the server's side.
pub struct Reflecting {
    child: Child,
    /// Address that it answers on.
    pub target: String,
    /// Address that it counts packets on.
    #[allow(dead_code, reason = "the packet tests read it")]
    pub sink: String,
}

/// Starts nearpath in the namespace of a side: the build of these tests, or the optimised one that
/// `make bench-latency` has built.
pub fn spawn(pair: &VethPair, side: Side, args: &[&str]) -> Child {
    let built = || env!("CARGO_BIN_EXE_nearpath").into();
    let binary = nearpath_testing::other_build().unwrap_or_else(built);
    let start = |_| {
        Command::new(&binary)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    pair.run(side, start).unwrap()
}

/// The report of a prober on the client's side.
pub fn probe(pair: &VethPair, target: &str, args: &[&str]) -> Value {
    let all = [&["bench", "latency", target, "--json"], args].concat();
    let output = spawn(pair, Side::Client, &all).wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

impl Reflecting {
    /// Starts it and waits until it listens.
    pub fn start(pair: &VethPair, address: IpAddr, args: &[&str]) -> Self {
        let address = address.to_string();
        let common = ["bench", "reflect", "--json", "--bind", &address, "--port", "0"];
        let mut child = spawn(pair, Side::Server, &[&common[..], args].concat());
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut address = |what: &str| {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            assert!(line.contains(what), "{line}");
            line.split_whitespace().last().unwrap_or_default().to_owned()
        };
        let (target, sink) = (address("answering"), address("counting"));
        Self { child, target, sink }
    }

    /// Sends it a signal: `STOP` or `CONT`.
    pub fn signal(&self, signal: &str) {
        let signal = match signal {
            "STOP" => Signal::STOP,
            "CONT" => Signal::CONT,
            _ => Signal::INT,
        };
        let pid = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Stops it as Ctrl-C does; returns what it answered.
    pub fn end(mut self) -> Value {
        self.signal("INT");
        let out: ChildStdout = self.child.stdout.take().unwrap();
        serde_json::from_reader(out).unwrap()
    }
}

impl Drop for Reflecting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
