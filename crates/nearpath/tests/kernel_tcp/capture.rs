//! Round-trip times from packets: a capture by tcpdump(8), and what RFC 6298 calls a sample.
//!
//! Input: a file of tcpdump with times in nanoseconds, of IPv4 or IPv6. Output: for each acknowledgement of new data, the
//! time since the first segment that it acknowledges was sent; none for segments sent twice (Karn's algorithm).

use nearpath_testing::veth::{Side, VethPair};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// `tcpdump` of one port, until it is ended.
pub struct Capture {
    child: Child,
    file: tempfile::NamedTempFile,
}

impl Capture {
    /// Begins; returns when packets are captured.
    pub fn begin(pair: &VethPair, side: Side, port: u16) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let mut child = pair
            .run(side, |side| {
                Command::new("tcpdump")
                    .args(["-i", side.device(), "-w"])
                    .arg(&path)
                    .args(["-U", "--immediate-mode", "-s", "96", "-Z", "root", "-B", "8192"])
                    .args(["--time-stamp-precision=nano", "tcp", "port", &port.to_string()])
                    .stderr(Stdio::piped())
                    .spawn()
            })
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("listening on")), "tcpdump has not begun");
        // It may write more.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, file }
    }

    /// Ends it; the samples of data that `local` sent, with the time of the acknowledgement since 1970.
    pub fn end(mut self, local: IpAddr) -> Vec<(Duration, u64)> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
        samples(self.file.path(), local)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Addresses, and what follows the IP header, of a frame; the length is what the header says, as the end of the frame is
/// not captured.
fn segment(frame: &[u8]) -> (IpAddr, &[u8], u32) {
    let ip = &frame[14..];
    if ip[0] >> 4 == 4 {
        let header = usize::from(ip[0] & 15) * 4;
        let from = <[u8; 4]>::try_from(&ip[12..16]).unwrap();
        return (from.into(), &ip[header..], u32::from(u16_at(ip, 2)) - header as u32);
    }
    assert_eq!((ip[0] >> 4, ip[6]), (6, 6), "neither IPv4 nor IPv6 with TCP");
    let from = <[u8; 16]>::try_from(&ip[8..24]).unwrap();
    (from.into(), &ip[40..], u16_at(ip, 4).into())
}

/// Data that was sent and not acknowledged: from and up to which number, and when; `None` if it was sent twice.
struct Sent {
    start: u32,
    end: u32,
    ns: Option<u64>,
}

/// The samples of a file. Frames may be as large as TSO allows, and an acknowledgement may be of a part of one: its time
/// is that of the whole, as in the kernel (`tcp_tso_acked`).
fn samples(file: &Path, local: IpAddr) -> Vec<(Duration, u64)> {
    let bytes = std::fs::read(file).unwrap();
    let native = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(native(0), 0xa1b2_3c4d, "not a capture in nanoseconds");
    let is_after = |a: u32, b: u32| a != b && a.wrapping_sub(b) < 1 << 31;
    let mut at = 24;
    let mut sent: VecDeque<Sent> = VecDeque::new();
    let (mut acked, mut found) = (None, Vec::new());
    while at + 16 <= bytes.len() {
        let ns = u64::from(native(at)) * 1_000_000_000 + u64::from(native(at + 4));
        let length = native(at + 8) as usize;
        let Some(frame) = bytes.get(at + 16..at + 16 + length) else { break };
        at += 16 + length;
        let (from, tcp, total) = segment(frame);
        let data = total - u32::from(tcp[12] >> 4) * 4;
        let (start, ack, flags) = (u32_at(tcp, 4), u32_at(tcp, 8), tcp[13]);
        let end = start.wrapping_add(data);
        if from == local && data > 0 {
            let is_new = sent.back().is_none_or(|last| is_after(end, last.end));
            // Of what was sent before, from this number on.
            for again in sent.iter_mut().filter(|again| is_after(again.end, start)) {
                again.ns = None;
            }
            if is_new {
                sent.push_back(Sent { start, end, ns: Some(ns) });
            }
        } else if from != local && flags & 0x10 != 0 {
            if acked.is_some_and(|acked| !is_after(ack, acked)) {
                continue;
            }
            acked = Some(ack);
            let touched = sent.iter().take_while(|sent| is_after(ack, sent.start));
            let times: Vec<Option<u64>> = touched.map(|sent| sent.ns).collect();
            while sent.front().is_some_and(|first| !is_after(first.end, ack)) {
                sent.pop_front();
            }
            if let Some(times) = times.into_iter().collect::<Option<Vec<u64>>>() {
                let at = Duration::from_nanos(ns);
                found.extend(times.first().map(|first| (at, ns.saturating_sub(*first))));
            }
        }
    }
    found
}
