//! Scenes in which packets are lost, and the counts used as references.

use nearpath_testing::veth::{Side, VethPair};
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;

/// The IPv4 address of a side.
pub fn v4(side: Side) -> Ipv4Addr {
    match side.ipv4() {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => unreachable!("it is an IPv4 address"),
    }
}

/// Runs a command in the namespace of the thread.
pub fn command(program: &str, arguments: &[&str]) -> io::Result<()> {
    let output = Command::new(program).args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Writes a sysctl of the namespace of the thread.
pub fn write_sysctl(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(format!("/proc/sys/{name}"), value)
}

/// The index of the device of a side.
pub fn ifindex(pair: &VethPair, side: Side) -> u32 {
    let list = |side: Side| {
        let output = Command::new("ip").args(["-o", "link", "show", side.device()]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.split(':').next().and_then(|index| index.trim().parse().ok()))
    };
    pair.run(side, list).unwrap().unwrap()
}

/// What the root qdisc of a side's device has dropped, as tc says.
pub fn qdisc_drops(pair: &VethPair, side: Side) -> u64 {
    let show = |side: Side| {
        let arguments = ["-s", "-j", "qdisc", "show", "dev", side.device(), "root"];
        let output = Command::new("tc").args(arguments).output()?;
        Ok(serde_json::from_slice::<serde_json::Value>(&output.stdout)?)
    };
    let shown = pair.run(side, show).unwrap();
    shown[0]["drops"].as_u64().unwrap_or_else(|| panic!("{shown}"))
}

/// One of the kernel's counters in the namespace of a side, from a moment on.
pub struct Counter<'a> {
    pair: &'a VethPair,
    side: Side,
    name: &'static str,
    before: u64,
}

impl<'a> Counter<'a> {
    /// From now on.
    pub fn of(pair: &'a VethPair, side: Side, name: &'static str) -> Self {
        Self { pair, side, name, before: read(pair, side, name) }
    }

    /// What it has risen by.
    pub fn rose(&self) -> u64 {
        read(self.pair, self.side, self.name) - self.before
    }
}

fn read(pair: &VethPair, side: Side, name: &str) -> u64 {
    let (protocol, counter) = name.split_once('.').unwrap();
    let text = |_| {
        let file = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        Ok([file("snmp")?, file("netstat")?, file("snmp6")?])
    };
    let [snmp, netstat, snmp6] = pair.run(side, text).unwrap();
    let flat = snmp6
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{protocol}{counter}"))?.trim().parse().ok());
    let lines: Vec<&str> = snmp.lines().chain(netstat.lines()).collect();
    let paired = lines.chunks(2).find_map(|two| {
        let begin = format!("{protocol}: ");
        let names = two[0].strip_prefix(&begin)?.split(' ');
        let mut values = two[1].strip_prefix(&begin)?.split(' ');
        values.nth(names.into_iter().position(|name| name == counter)?)?.parse().ok()
    });
    paired.or(flat).unwrap_or_else(|| panic!("no counter {name}"))
}

/// The counts of the two ends of a flow.
pub struct Conversation {
    /// Datagrams that the sender has sent.
    pub sent: u64,
    /// Datagrams that were in the receiver's socket at the end.
    pub received: u64,
    /// The receiver's port.
    pub port: u16,
}

/// Datagrams for a receiver with a small buffer that reads nothing until all are sent.
pub fn overflow(pair: &VethPair, v6: bool, datagrams: usize) -> Conversation {
    let bind = |side: Side| {
        let address = if v6 { side.ipv6() } else { side.ipv4() };
        UdpSocket::bind((address, 0))
    };
    let receiver = pair.run(Side::Server, bind).unwrap();
    let size = 8192i32;
    // SAFETY: `size` is read within its length.
    let set = unsafe {
        libc::setsockopt(
            receiver.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const size).cast(),
            size_of_val(&size) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
    let sender = pair.run(Side::Client, bind).unwrap();
    let to = receiver.local_addr().unwrap();
    for _ in 0..datagrams {
        sender.send_to(&[0; 200], to).unwrap();
    }
    // The last is delivered, or dropped, before its sender goes on, or by a softirq soon after.
    receiver.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
    let mut received = 0;
    while receiver.recv(&mut [0; 256]).is_ok() {
        received += 1;
    }
    Conversation { sent: datagrams as u64, received, port: to.port() }
}
