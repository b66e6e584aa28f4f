//! Round-trip times from packets: a capture by tcpdump(8), and what RFC 6298 calls a sample.
//!
//! Input: a file of tcpdump with times in nanoseconds. Output: for each acknowledgement of new data, the time since the
//! first segment that it acknowledges was sent; none for segments sent twice (Karn's algorithm).

use nearpath_testing::veth::{Side, VethPair};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

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

    /// Ends it; the samples of data that `local` sent.
    pub fn end(mut self, local: IpAddr) -> Vec<u64> {
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

/// The samples of a file.
fn samples(file: &Path, local: IpAddr) -> Vec<u64> {
    let bytes = std::fs::read(file).unwrap();
    let native = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(native(0), 0xa1b2_3c4d, "not a capture in nanoseconds");
    let mut at = 24;
    // When a segment was sent, by the number after its last byte; `None` if it was sent twice.
    let mut sent: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    let mut found = Vec::new();
    while at + 16 <= bytes.len() {
        let ns = u64::from(native(at)) * 1_000_000_000 + u64::from(native(at + 4));
        let length = native(at + 8) as usize;
        let Some(frame) = bytes.get(at + 16..at + 16 + length) else { break };
        at += 16 + length;
        let ip = &frame[14..];
        assert_eq!(ip[0] >> 4, 4, "not IPv4");
        let (from, total) =
            (IpAddr::from(<[u8; 4]>::try_from(&ip[12..16]).unwrap()), u16_at(ip, 2));
        let header = usize::from(ip[0] & 15) * 4;
        let tcp = &ip[header..];
        let data = u32::from(total) - header as u32 - u32::from(tcp[12] >> 4) * 4;
        let (end, ack, flags) = (u32_at(tcp, 4).wrapping_add(data), u32_at(tcp, 8), tcp[13]);
        if from == local && data > 0 {
            sent.entry(end).and_modify(|time| *time = None).or_insert(Some(ns));
        } else if from != local && flags & 0x10 != 0 {
            let is_acked = |end: u32| ack.wrapping_sub(end) < 1 << 31;
            let acked: Vec<u32> = sent.keys().copied().filter(|&end| is_acked(end)).collect();
            let times: Vec<Option<u64>> =
                acked.iter().map(|end| sent.remove(end).unwrap()).collect();
            if let Some(first) = times.iter().copied().collect::<Option<Vec<u64>>>() {
                found.extend(first.into_iter().min().map(|first| ns.saturating_sub(first)));
            }
        }
    }
    found
}
