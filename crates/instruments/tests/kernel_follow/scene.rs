//! Parts of the scenes: set-up of devices, special ways of sending packets, and reference counts.

use nearpath_model::{Direction, Measurement};
use nearpath_testing::veth::{Side, VethPair};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;

/// Packets that reached a stage, by any path.
pub fn arrived(m: &Measurement, direction: Direction, to: &str) -> u64 {
    m.spans.iter().filter(|s| s.direction == direction && s.to == to).map(|s| s.count).sum()
}

/// The namespace of a side, as the programs know it.
pub fn namespace(pair: &VethPair, side: Side) -> u32 {
    u32::try_from(pair.inode(side).unwrap()).unwrap()
}

/// Runs a program in the namespace of the thread.
pub fn tool(program: &str, arguments: &[&str]) -> io::Result<()> {
    let output = Command::new(program).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(io::Error::other(said)) }
}

/// Runs `ip` there.
pub fn ip(arguments: &[&str]) -> io::Result<()> {
    tool("ip", arguments)
}

/// What `ip -o link` says of an interface of the thread's namespace.
fn link(name: &str) -> io::Result<String> {
    let output = Command::new("ip").args(["-o", "link", "show", "dev", name]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Its index.
pub fn ifindex(name: &str) -> io::Result<u32> {
    let line = link(name)?;
    let number = line.split(':').next().and_then(|number| number.parse().ok());
    number.ok_or_else(|| io::Error::other(line))
}

/// Its Ethernet address.
pub fn ethernet_address(name: &str) -> io::Result<[u8; 6]> {
    let line = link(name)?;
    let mut words = line.split_whitespace().skip_while(|word| *word != "link/ether");
    let text = words.nth(1).unwrap_or_default();
    let bytes: Vec<u8> = text.split(':').filter_map(|b| u8::from_str_radix(b, 16).ok()).collect();
    bytes.try_into().map_err(|_| io::Error::other(line.clone()))
}

/// Packets that a side's device has received, as it counts itself.
pub fn received_by(pair: &VethPair, side: Side) -> u64 {
    pair.run(side, |side| {
        let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
        let name = format!("{}:", side.device());
        let row = table.lines().find_map(|line| line.trim().strip_prefix(&name).map(str::to_owned));
        let packets = row.as_deref().and_then(|row| row.split_whitespace().nth(1)?.parse().ok());
        packets.ok_or_else(|| io::Error::other(table.clone()))
    })
    .unwrap()
}

/// 32 connections from the client to the server, 100 KiB by each, and an answer of one byte to each of ten requests.
pub fn stream_by_many(pair: &VethPair) {
    const BYTES: usize = 100 << 10;
    let listener = pair.run(Side::Server, |s| TcpListener::bind((s.ipv4(), 0))).unwrap();
    let address = listener.local_addr().unwrap();
    for _ in 0..32 {
        let mut client = pair.run(Side::Client, |_| TcpStream::connect(address)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                server.read_exact(&mut vec![0; BYTES]).unwrap();
                for _ in 0..10 {
                    server.read_exact(&mut [0; 1]).unwrap();
                    server.write_all(b"a").unwrap();
                }
            });
            client.write_all(&vec![0; BYTES]).unwrap();
            for _ in 0..10 {
                client.write_all(b"q").unwrap();
                client.read_exact(&mut [0; 1]).unwrap();
            }
        });
    }
}

/// This many datagrams of 32 bytes in one system call, sendmmsg(2).
pub fn send_many(client: &UdpSocket, count: usize) {
    let mut bytes = [7u8; 32];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a header of zeros has no name and no control data.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_iov = &raw mut part;
    message.msg_hdr.msg_iovlen = 1;
    let mut messages = vec![message; count];
    let count = libc::c_uint::try_from(count).unwrap();
    // SAFETY: each of the messages points to `part`, which points to `bytes`.
    let sent = unsafe { libc::sendmmsg(client.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
    assert_eq!(sent, count.cast_signed(), "{}", io::Error::last_os_error());
}

/// Reads this many datagrams.
pub fn read_many(reader: &UdpSocket, count: u64) {
    for _ in 0..count {
        reader.recv(&mut [0; 600]).unwrap();
    }
}

/// This many datagrams of 32 bytes that are sent as one, and are segmented later (udp(7), `UDP_SEGMENT`).
pub fn segmented_send(client: &UdpSocket, count: usize) {
    let segment: libc::c_int = 32;
    // SAFETY: the option is an int, and is read within its length.
    let result = unsafe {
        libc::setsockopt(
            client.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const segment).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    client.send(&vec![7; 32 * count]).unwrap();
}

/// An XDP program on a device that lets all packets pass. A veth device then copies what it is handed as a NIC
/// would: into new sk_buffs.
pub struct Xdp {
    _link: OwnedFd,
}

impl Xdp {
    /// Attaches it.
    pub fn pass(pair: &VethPair, side: Side) -> Self {
        let attach = |side: Side| attach_xdp(&pass_program()?, ifindex(side.device())?);
        Self { _link: pair.run(side, attach).unwrap() }
    }
}

/// A program that returns XDP_PASS.
fn pass_program() -> io::Result<OwnedFd> {
    let instruction = |code, imm| libbpf_sys::bpf_insn { code, imm, ..Default::default() };
    // r0 = XDP_PASS; exit
    let program = [instruction(0xb7, 2), instruction(0x95, 0)];
    // SAFETY: strings end with a zero, and the instructions are as many as is said.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            c"pass".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len().try_into().unwrap(),
            std::ptr::null_mut(),
        )
    };
    owned(fd)
}

fn attach_xdp(program: &OwnedFd, device: u32) -> io::Result<OwnedFd> {
    let (program, device) = (program.as_raw_fd(), libc::c_int::try_from(device).unwrap());
    // SAFETY: numbers alone.
    owned(unsafe {
        libbpf_sys::bpf_link_create(program, device, libbpf_sys::BPF_XDP, std::ptr::null())
    })
}

/// A new descriptor, or the error in its place.
fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: it has just been opened, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
