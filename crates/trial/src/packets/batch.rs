//! Several datagrams per system call: sendmmsg and recvmmsg, on a connected socket, with packets of one size.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Maximum packets per call.
pub(super) const MOST: usize = 64;
/// Maximum bytes of a batch: it holds fewer large packets.
const BYTES: usize = 1 << 20;

/// Buffer for packets.
#[derive(Debug)]
pub(super) struct Batch {
    buffer: Vec<u8>,
    size: usize,
    lengths: [usize; MOST],
}

impl Batch {
    /// For packets of this many bytes.
    pub(super) fn new(size: usize) -> Self {
        let size = size.max(1);
        let count = (BYTES / size).clamp(1, MOST);
        Self { buffer: vec![0; count * size], size, lengths: [0; MOST] }
    }

    /// Number of packets that fit.
    pub(super) fn capacity(&self) -> usize {
        self.buffer.len() / self.size
    }

    /// The packets, for writing.
    pub(super) fn packets_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.buffer.chunks_exact_mut(self.size)
    }

    /// Sends the first `count` packets; returns how many of them the kernel accepted, at least one.
    pub(super) fn send(&mut self, socket: &impl AsFd, count: usize) -> io::Result<usize> {
        let fd = socket.as_fd().as_raw_fd();
        self.with_headers(count, |headers, count| {
            // SAFETY: `count` headers, each with one part of the buffer, live through the call.
            unsafe { libc::sendmmsg(fd, headers, count, libc::MSG_NOSIGNAL) }
        })
    }

    /// Waits for a packet and reads those available, as many as fit; returns their number.
    pub(super) fn receive(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        let (fd, capacity) = (socket.as_fd().as_raw_fd(), self.capacity());
        self.with_headers(capacity, |headers, count| {
            let flags = libc::MSG_WAITFORONE;
            // SAFETY: as above; no timeout is passed.
            unsafe { libc::recvmmsg(fd, headers, count, flags, std::ptr::null_mut()) }
        })
    }

    /// The first `count` packets received.
    pub(super) fn received(&self, count: usize) -> impl Iterator<Item = &[u8]> {
        let packets = self.buffer.chunks_exact(self.size).zip(self.lengths);
        packets.take(count).filter_map(|(packet, length)| packet.get(..length))
    }

    fn with_headers(
        &mut self,
        count: usize,
        call: impl FnOnce(*mut libc::mmsghdr, u32) -> i32,
    ) -> io::Result<usize> {
        // SAFETY: all zeroes is a valid value of these plain C structures.
        let (mut headers, mut parts): ([libc::mmsghdr; MOST], [libc::iovec; MOST]) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let count = count.min(self.capacity());
        let packets = self.buffer.chunks_exact_mut(self.size).take(count);
        for ((packet, header), part) in packets.zip(&mut headers).zip(&mut parts) {
            part.iov_base = packet.as_mut_ptr().cast();
            part.iov_len = packet.len();
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
        }
        let done = call(headers.as_mut_ptr(), u32::try_from(count).unwrap_or(0));
        let done = usize::try_from(done).map_err(|_| io::Error::last_os_error())?;
        for (length, header) in self.lengths.iter_mut().zip(&headers).take(done) {
            *length = usize::try_from(header.msg_len).unwrap_or(0);
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn a_batch_arrives_as_it_was_sent() {
        let (here, there) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        here.connect(there.local_addr().unwrap()).unwrap();
        there.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (mut sent, mut came) = (Batch::new(20), Batch::new(30));
        assert_eq!((sent.capacity(), Batch::new(65_507).capacity()), (MOST, 16));
        (0..).zip(sent.packets_mut()).for_each(|(number, packet)| packet.fill(number));
        assert_eq!(sent.send(&here, 5).unwrap(), 5);
        here.send(&[9; 3]).unwrap();
        let mut all = Vec::new();
        while all.len() < 6 {
            let count = came.receive(&there).unwrap();
            all.extend(came.received(count).map(|packet| (packet.len(), packet[0])));
        }
        assert_eq!(all, [(20, 0), (20, 1), (20, 2), (20, 3), (20, 4), (3, 9)]);
        assert_eq!(came.receive(&there).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
