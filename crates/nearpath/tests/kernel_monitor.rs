//! `nearpath monitor` on this kernel: its pages, what it says to a service manager, sockets that are passed to it, and
//! its end.

use nearpath_testing::{begin, require_bpf, require_program, wait_for};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A daemon that is ended with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Sends SIGTERM, and returns whether it ended with status 0.
    fn ends_well(mut self) -> bool {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let end = Instant::now() + Duration::from_secs(120);
        while Instant::now() < end {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn it_serves_reports_to_its_manager_and_ends_with_sigterm() {
    if !require_bpf() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let address = free();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    command
        .args(["monitor", "--interval", "300ms", "--max-overhead", "none"])
        .args(["--findings-interval", "1s", "--listen", &address.to_string()])
        .args(["--source", "facts,steering,findings,locality"])
        .env("NOTIFY_SOCKET", folder.path().join("notify"))
        .env("NEARPATH_STATE_DIR", folder.path())
        .stdin(Stdio::null());
    let daemon = Daemon(begin(&mut command, &format!("serving http://{address}/metrics")));
    let mut said = [0; 256];
    let mut states = Vec::new();
    while states.len() < 4 {
        let n = manager.recv(&mut said).unwrap();
        states.push(String::from_utf8_lossy(&said[..n]).into_owned());
    }
    assert!(states[0].starts_with("READY=1"), "{states:?}");
    assert!(states[1..].iter().all(|state| state == "WATCHDOG=1"), "{states:?}");
    let metrics = get(address, "/metrics").unwrap();
    assert!(metrics.contains("nearpath_build_info{version="), "{metrics}");
    assert!(metrics.contains("nearpath_steering_settings{state=\"drifted\"} 0"), "{metrics}");
    // What is off has no series.
    assert!(!metrics.contains("instrument=\"stages\""), "{metrics}");
    let report = wait_for("a diagnosis", || {
        get(address, "/report").filter(|page| page.starts_with("HTTP/1.1 200 "))
    });
    assert!(report.contains("Content-Type: text/html; charset=utf-8\r\n"), "{report}");
    assert!(report.contains("<section id=\"findings\"") && report.ends_with("</html>\n"));
    assert!(get(address, "/-/healthy").unwrap().starts_with("HTTP/1.1 200 "));
    assert!(daemon.ends_well());
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_passed_socket_is_used() {
    if !require_bpf() || !require_program("systemd-socket-activate") {
        return;
    }
    let (passed, unused) = (free(), free());
    let mut command = Command::new("systemd-socket-activate");
    command
        .arg(format!("--listen={passed}"))
        .arg(env!("CARGO_BIN_EXE_nearpath"))
        .args(["monitor", "--source", "facts", "--interval", "300ms"])
        .args(["--listen", &unused.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let daemon = Daemon(command.spawn().unwrap());
    // The first connection starts it.
    let page =
        wait_for("the daemon", || get(passed, "/-/ready").filter(|page| page.contains(" 200 ")));
    assert!(page.ends_with("ready\n"), "{page}");
    assert!(TcpStream::connect(unused).is_err());
    assert!(daemon.ends_well());
}

#[test]
fn once_prints_one_exposition() {
    if !require_bpf() {
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_nearpath"))
        .args(["monitor", "--once", "--interval", "300ms", "--source", "facts,drops,findings"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    for name in
        ["nearpath_softnet_processed_total", "nearpath_instrument_up{instrument=\"drops\"} 1"]
    {
        assert!(text.contains(name), "no {name} in {text}");
    }
    assert!(text.lines().all(|line| line.starts_with(['#', 'n'])), "{text}");
}
