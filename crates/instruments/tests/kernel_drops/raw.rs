//! Hand-made IPv4 packets, sent unchanged by the kernel.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// An IPv4 packet with a UDP header, or other bytes, behind it.
#[derive(Debug, Clone)]
pub struct Packet {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Time to live.
    pub ttl: u8,
    /// Protocol.
    pub protocol: u8,
    /// What follows the header.
    pub payload: Vec<u8>,
}

impl Packet {
    /// A datagram; a checksum of 0 means none, any other is wrong.
    pub fn udp(src: Ipv4Addr, dst: Ipv4Addr, port: u16, checksum: u16) -> Self {
        let words = [5000, port, 8 + 4, checksum];
        let mut payload: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        payload.extend(*b"data");
        Self { src, dst, ttl: 64, protocol: 17, payload }
    }

    /// Without its checksum, which the kernel fills in.
    fn bytes(&self) -> Vec<u8> {
        let length = (20 + self.payload.len()) as u16;
        let mut bytes = vec![0x45, 0];
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, 0, 0, 0, self.ttl, self.protocol, 0, 0]);
        bytes.extend(self.src.octets());
        bytes.extend(self.dst.octets());
        bytes.extend(&self.payload);
        bytes
    }

    /// Sends it this many times from the namespace of the thread.
    pub fn send(&self, times: usize) -> io::Result<()> {
        // SAFETY: a system call without pointers.
        let fd = unsafe {
            libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just created and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let to = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(self.dst.octets()) },
            sin_zero: [0; 8],
        };
        let bytes = self.bytes();
        for _ in 0..times {
            // SAFETY: both buffers live through the call, and their sizes are given.
            let sent = unsafe {
                libc::sendto(
                    socket.as_raw_fd(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    0,
                    (&raw const to).cast(),
                    size_of_val(&to) as libc::socklen_t,
                )
            };
            if sent < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}
