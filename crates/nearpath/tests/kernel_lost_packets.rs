//! `nearpath diagnose` on this kernel, of packets that are dropped on their way: those to a port on which nothing listens
//! are reported, with the kernel's reason; where a reader takes them nothing is.
//!
//! The judge is the kernel's own counter of datagrams without a socket, in the namespace of the receiver.

use nearpath_model::{Diagnosis, Finding};
use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_bpf, require_kernel, require_lengthy, require_netns};
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");
const BETWEEN: Duration = Duration::from_millis(2);

/// Ends the sender, also when a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// `Udp: NoPorts` of a namespace.
fn no_ports(pair: &VethPair) -> u64 {
    let read = |_| std::fs::read_to_string("/proc/thread-self/net/snmp");
    let text = pair.run(Side::Server, read).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "NoPorts").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// What is found while datagrams come, and how many of them had no socket.
fn diagnosed(pair: &VethPair, to: SocketAddr) -> (Vec<Finding>, u64) {
    let sender = pair.run(Side::Client, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    let ends = AtomicBool::new(false);
    let before = no_ports(pair);
    let found = thread::scope(|scope| {
        let end = End(&ends);
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                // An ICMP error of the last one is reported here.
                let _ = sender.send_to(&[7; 100], to);
                thread::sleep(BETWEEN);
            }
        });
        let mut command = Command::new(NEARPATH);
        command.args(["diagnose", "--json", "--for", "2s", "--measure", "stages"]);
        command.args(["--netns", &pair.path(Side::Server)]);
        let mut child = nearpath_testing::begin(&mut command, "measuring for");
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        drop(end);
        assert!(child.wait().unwrap().success(), "{text}");
        let diagnosis: Diagnosis = serde_json::from_str(&text).unwrap();
        diagnosis.findings.into_iter().filter(|found| found.check == "packet_drops").collect()
    });
    (found, no_ports(pair) - before)
}

#[test]
fn datagrams_that_nothing_listens_for_are_reported() {
    if !(require_lengthy()
        && require_netns()
        && require_bpf()
        && require_kernel((5, 17), "reasons of drops"))
    {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let socket = pair.run(Side::Server, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    let to = socket.local_addr().unwrap();
    let (found, lost) = diagnosed(&pair, to);
    assert_eq!((found.len(), lost), (0, 0), "the socket is there: {found:?}");
    drop(socket);
    let (found, lost) = diagnosed(&pair, to);
    let [found] = found.as_slice() else { panic!("{found:?} of {lost}") };
    assert!(lost > 50, "{lost}");
    assert!(found.evidence[0].contains("NO_SOCKET"), "{found:?}");
    let share = found.cost.share_percent.unwrap();
    assert!(share > 90.0, "{share} of packets, none of which had a socket");
}
