//! The loop of an operator: a misplacement raises an alert in Alertmanager's webhook, `tune` resolves it.

use super::hosts::Host;
use super::prometheus::{Prometheus, free_address, get, program};
use super::{MISPLACED, Reader, Stops, available, patiently, rules, send};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const ALERT: &str = "NearpathMisplaced";
/// From the misplacement to the webhook.
const RAISED: Duration = Duration::from_secs(120);
/// From the change to the webhook: a group of alerts is sent again after a minute.
const RESOLVED: Duration = Duration::from_secs(240);

struct Alertmanager(Child);

impl Alertmanager {
    /// With nearpath's own configuration, whose receiver is replaced, as it says.
    fn start(program: &str, folder: &Path, webhook: SocketAddr) -> (Self, SocketAddr) {
        let mut export = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        let exported = export.args(["monitor", "export", "alertmanager"]).output().unwrap();
        let config = String::from_utf8(exported.stdout).unwrap();
        let replaced = config.replace("127.0.0.1:9095", &webhook.to_string());
        assert_ne!(config, replaced);
        let file = folder.join("alertmanager.yml");
        std::fs::write(&file, replaced).unwrap();
        let address = free_address();
        let child = unpacked(program)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.path={}", folder.join("alerts").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--cluster.listen-address=")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        (Self(child), address)
    }
}

/// Debian's program has the path of its templates compiled in. Of an unpacked package, they are there in a mount namespace of
/// its own.
fn unpacked(program: &str) -> Command {
    let shared = Path::new(program).ancestors().nth(2).map(|usr| usr.join("share"));
    let shared = shared.filter(|shared| shared.join("prometheus/alertmanager").is_dir());
    let Some(shared) = shared.filter(|shared| shared != Path::new("/usr/share")) else {
        return Command::new(program);
    };
    let mount = format!(
        "mount -t overlay overlay -o lowerdir={}:/usr/share /usr/share && exec \"$@\"",
        shared.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &mount, "sh", program]);
    command
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes what Alertmanager sends; ends with the process.
fn webhook() -> (SocketAddr, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (to, alerts) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Some(document) = posted(stream)
                && to.send(document).is_err()
            {
                break;
            }
        }
    });
    (address, alerts)
}

fn posted(stream: TcpStream) -> Option<Value> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    reader.get_mut().write_all(answer.as_bytes()).ok()?;
    serde_json::from_slice(&body).ok()
}

/// The state of the alert in what was sent; `None` if it is not of it.
fn state(document: &Value) -> Option<String> {
    let alerts = document["alerts"].as_array()?;
    let alert = alerts.iter().find(|alert| alert["labels"]["alertname"] == ALERT)?;
    Some(alert["status"].as_str()?.to_owned())
}

/// The figures of docs/monitor.md.
#[allow(clippy::print_stderr, reason = "figures for people")]
fn say(text: &str) {
    eprintln!("{text}");
}

#[test]
fn a_misplacement_raises_an_alert_and_tune_resolves_it() {
    let Some(prometheus) = available() else { return };
    let Some(program) = program("NEARPATH_ALERTMANAGER", "prometheus-alertmanager") else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut host = Host::new(7);
    let _reader = Reader::start(&host);
    // All is as by default. Without a limit, as programs that are not optimised exceed it on a busy machine.
    let is_release = nearpath_testing::other_build().is_some();
    host.monitor(if is_release { &[] } else { &["--max-overhead", "none"] });
    let (webhook, alerts) = webhook();
    let (_alertmanager, address) = Alertmanager::start(&program, folder.path(), webhook);
    let config = format!(
        "global: {{scrape_interval: 15s}}\nrule_files: ['{}']\n\
         alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{address}']}}]}}]}}\n\
         scrape_configs: [{{job_name: nearpath, static_configs: [{{targets: ['{}']}}]}}]\n",
        rules(folder.path()),
        host.daemon()
    );
    let prometheus = Prometheus::with(&prometheus, &config, &[]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (sent_to, stopped) = (&host, &stop);
        scope.spawn(move || send(&[sent_to], stopped));
        let _stops = Stops(&stop);
        // All is well at first: it observes, and nothing is misplaced.
        patiently("diagnoses", Duration::from_secs(600), || {
            let up = prometheus.query("nearpath_instrument_up", "instrument");
            let has = |name: &str| up.iter().any(|(at, value)| at == name && *value == 1.0);
            (has("stages") && has("findings")).then_some(())
        });
        // Loading the programs is paid back before there is a diagnosis at each interval.
        let mut times = Vec::new();
        patiently("diagnoses at each interval", Duration::from_secs(600), || {
            let (_, page) = get(host.daemon(), "/findings", "*/*")?;
            let document: Value = serde_json::from_slice(&page).ok()?;
            let time_s = document["time_s"].as_u64()?;
            if times.last() != Some(&time_s) {
                times.push(time_s);
            }
            let [.., before, last] = times[..] else { return None };
            (last - before <= 35).then_some(())
        });
        assert!(alerts.try_iter().all(|document| state(&document).is_none()));

        host.set_rps(MISPLACED);
        let injected = Instant::now();
        let wait = |what: &str, wanted: &str, time: Duration| {
            patiently(what, time, || {
                let states: Vec<String> = alerts.try_iter().filter_map(|d| state(&d)).collect();
                states.iter().any(|state| state == wanted).then_some(())
            });
        };
        wait("the alert", "firing", RAISED);
        let raised = injected.elapsed().as_secs();

        let found = folder.path().join("found.json");
        let found = found.to_str().unwrap();
        let nearpath = |arguments: &[&str]| {
            let mut command = host.command(env!("CARGO_BIN_EXE_nearpath"));
            command.args(arguments).env("NEARPATH_STATE_DIR", folder.path());
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{arguments:?}: {said}");
            output.stdout
        };
        let diagnosis = nearpath(&["diagnose", "--for", "5s", "--json"]);
        std::fs::write(found, diagnosis).unwrap();
        nearpath(&["tune", "apply", "--nic", "eth0", "--findings", found]);
        assert_ne!(host.rps(), MISPLACED);
        let changed = Instant::now();
        wait("its end", "resolved", RESOLVED);
        say(&format!("raised after {raised} s, resolved after {} s", changed.elapsed().as_secs()));
    });
}
