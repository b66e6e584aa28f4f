//! `nearpath diagnose` with connections to pinned workers: it reports that they are accepted on another CPU and
//! proposes steering, and reports nothing once that is done. Live, and from files.

use super::servers::{PORT, Server, connect, on_cpu};
use super::{Scene, document, nearpath};
use nearpath_testing::veth::Side;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

/// Connections made by each CPU.
const CONNECTIONS: usize = 400;
/// The checks that look at the CPUs of connections and of their packets.
const LOCALITY: [&str; 3] = ["accepts_off_cpu", "rx_freed_elsewhere", "tx_freed_elsewhere"];

impl Scene {
    /// Its document for a time in which each CPU made [`CONNECTIONS`] connections.
    fn while_connecting(&self, args: &str) -> Value {
        let run = |side: Side| -> std::io::Result<Output> {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
            command.args(args.split_whitespace()).args(["--for", "1h"]).stdin(Stdio::null());
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            let mut stderr = BufReader::new(child.stderr.take().unwrap());
            let mut said = String::new();
            while !said.contains("measuring for") && stderr.read_line(&mut said)? > 0 {}
            for cpu in [self.cpus; CONNECTIONS / 20].into_iter().flatten() {
                on_cpu(cpu, || (0..20).map(|_| connect(side.ipv4())).for_each(|_| {}));
            }
            kill_process(Pid::from_child(&child), Signal::INT)?;
            let output = child.wait_with_output()?;
            stderr.read_to_string(&mut said)?;
            Ok(Output { stderr: said.into_bytes(), ..output })
        };
        document(&self.pair.run(Side::Server, run).unwrap())
    }
}

/// The findings of these checks.
fn found(diagnosis: &Value) -> Vec<&Value> {
    for (measured, count) in [("accepts", "listeners"), ("locality", "places")] {
        assert!(!diagnosis[measured][count].as_array().unwrap().is_empty(), "{diagnosis}");
    }
    let findings = diagnosis["findings"].as_array().unwrap().iter();
    findings.filter(|f| LOCALITY.contains(&f["check"].as_str().unwrap())).collect()
}

#[test]
fn pinned_workers_are_found_only_without_steering() {
    let Some(scene) = Scene::new(&["python3"]) else { return };
    let [a, b] = scene.cpus.map(|cpu| cpu.to_string());
    let _server = Server::python(&scene.pair, Side::Server.ipv4(), &[&a, &b]);
    let diagnose = format!("diagnose --port {PORT} --json");

    let by_chance = scene.while_connecting(&diagnose);
    let findings = found(&by_chance);
    let is_it = |f: &&&Value| f["check"] == "accepts_off_cpu";
    let finding = findings.iter().find(is_it).unwrap_or_else(|| panic!("{by_chance:#}"));
    let share = finding["cost"]["share_percent"].as_f64().unwrap();
    assert!((20.0..80.0).contains(&share), "{finding}");
    let changes = finding["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 1, "the workers are pinned: {finding}");
    let target = changes[0]["target"].as_str().unwrap();
    assert_eq!(target, format!("nearpath steer --port {PORT}"));

    // The advice fixes it.
    let advised = target.strip_prefix("nearpath ").unwrap();
    let steered = scene.nearpath(advised);
    assert!(steered.status.success(), "{steered:?}");
    let steered = scene.while_connecting(&diagnose);
    assert_eq!(found(&steered), Vec::<&Value>::new());
    let (all, here) = (&steered["accepts"]["listeners"][0], "same_cpu");
    assert!(all["accepts"].as_u64() > Some(100) && all["accepts"] == all[here], "{all}");
    scene.off();
}

#[test]
fn files_give_the_same_findings_as_measuring() {
    let Some(scene) = Scene::new(&["python3"]) else { return };
    let [a, b] = scene.cpus.map(|cpu| cpu.to_string());
    let _server = Server::python(&scene.pair, Side::Server.ipv4(), &[&a, &b]);
    let dir = tempfile::tempdir().unwrap();
    let (accepts, locality) = (dir.path().join("accepts"), dir.path().join("locality"));
    let which = format!("--port {PORT} --json");
    for (instrument, file) in [("accepts", &accepts), ("locality", &locality)] {
        let measured = scene.while_connecting(&format!("measure {instrument} {which}"));
        std::fs::write(file, measured.to_string()).unwrap();
    }
    let files = format!("{},{}", accepts.display(), locality.display());
    let diagnosis = scene.document(&format!("diagnose --evidence {files} --json"));
    let checks: Vec<&Value> = found(&diagnosis).into_iter().map(|f| &f["check"]).collect();
    assert!(checks.contains(&&json!("accepts_off_cpu")), "{diagnosis:#}");
    assert_eq!(diagnosis["measurement"], Value::Null);

    let refused = nearpath(dir.path(), "diagnose --evidence /proc/version").unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("cannot use /proc/version: not valid JSON"), "{said}");
}
