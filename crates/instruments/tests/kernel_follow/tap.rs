//! A tap whose user passes packets in pages, as some drivers do: only Ethernet's header is in the sk_buff itself.

use crate::scene::{ethernet_address, ip};
use nearpath_testing::veth::{Side, VethPair};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// include/uapi/linux/if_tun.h
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const IFF_TAP: u16 = 0x2;
const IFF_NO_PI: u16 = 0x1000;
const IFF_NAPI: u16 = 0x10;
const IFF_NAPI_FRAGS: u16 = 0x20;

const SENDER: ([u8; 4], u16) = ([10, 96, 0, 1], 4711);

/// The tap, in a namespace of the pair.
pub struct Tap {
    file: File,
    address: [u8; 6],
}

impl Tap {
    /// Creates it with the address 10.96.0.2 on the server's side, and a socket there.
    pub fn with_reader(pair: &VethPair) -> (Self, UdpSocket) {
        pair.run(Side::Server, |_| {
            let file = File::options().read(true).write(true).open("/dev/net/tun")?;
            let mut request = [0u8; 40];
            request[..4].copy_from_slice(b"pag0");
            let flags = IFF_TAP | IFF_NO_PI | IFF_NAPI | IFF_NAPI_FRAGS;
            request[16..18].copy_from_slice(&flags.to_ne_bytes());
            // SAFETY: `request` is a struct ifreq.
            if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) } < 0 {
                return Err(io::Error::last_os_error());
            }
            ip(&["addr", "add", "10.96.0.2/24", "dev", "pag0"])?;
            ip(&["link", "set", "pag0", "up"])?;
            let reader = UdpSocket::bind("10.96.0.2:0")?;
            reader.set_read_timeout(Some(nearpath_testing::PATIENCE))?;
            Ok((Self { file, address: ethernet_address("pag0")? }, reader))
        })
        .unwrap()
    }

    /// The flow of what is sent, as a group is called.
    pub fn flow(&self, reader: &UdpSocket) -> String {
        let from = SocketAddr::from(SENDER);
        format!("UDP {from} > {}", reader.local_addr().unwrap())
    }

    /// Sends a datagram to the reader.
    pub fn send_in_pages(&self, reader: &UdpSocket) {
        let SocketAddr::V4(to) = reader.local_addr().unwrap() else { unreachable!() };
        let mut frame = Vec::from(self.address);
        frame.extend([2, 0, 0, 0, 0, 1, 0x08, 0x00]);
        let data = [7u8; 32];
        let length = u16::try_from(data.len()).unwrap();
        let mut packet = vec![0x45, 0];
        packet.extend((28 + length).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        packet.extend(SENDER.0);
        packet.extend(to.ip().octets());
        let sum = checksum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(SENDER.1.to_be_bytes());
        packet.extend(to.port().to_be_bytes());
        packet.extend((8 + length).to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(data);
        let parts = [IoSlice::new(&frame), IoSlice::new(&packet)];
        let written = (&self.file).write_vectored(&parts).unwrap();
        assert_eq!(written, frame.len() + packet.len());
    }
}

/// RFC 1071
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
