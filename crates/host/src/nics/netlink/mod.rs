//! A netlink connection of the current thread, in its network namespace. Input: requests. Output: the payloads
//! of the replies.
//!
//! The framing is that of `netlink-packet-core`, the socket that of `netlink-sys`. Every reply is read with
//! bounds: a truncated message ends the reading, and never causes a panic.

pub(crate) mod attributes;
pub(crate) mod ethtool;
pub(crate) mod netdev;
#[cfg(test)]
mod recorded;
pub(crate) mod rtnetlink;
pub(crate) mod schedulers;

use attributes::{attribute, attributes, find, text_of, u16_of};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
};
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt;
use std::io;
use std::time::Duration;

/// Flags of an error message and its attribute with the message text, include/uapi/linux/netlink.h.
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// The kernel puts at most 32 KiB of a dump into one datagram (`netlink_recvmsg`, net/netlink/af_netlink.c); a
/// reply about one interface may be longer.
const BUFFER_BYTES: usize = 256 * 1024;

/// `sizeof(struct nlmsghdr)`, include/uapi/linux/netlink.h.
const HEADER_BYTES: usize = 16;

/// A lost reply must not block the reader forever.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum restarts of a dump that changed while it was read.
const DUMP_ATTEMPTS: u32 = 4;

/// A netlink socket of one protocol.
pub struct Connection {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    words: Option<String>,
}

/// One message of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// A reply.
    Data {
        /// Whether the dumped objects changed in the meantime (`NLM_F_DUMP_INTR`).
        interrupted: bool,
        /// Sequence number of the request that it answers.
        sequence: u32,
        /// The family's header and its attributes.
        payload: &'a [u8],
    },
    /// End of a dump or acknowledgement, with an errno or 0.
    End {
        /// Whether the dumped objects changed in the meantime.
        interrupted: bool,
        /// Sequence number of the request that it answers.
        sequence: u32,
        /// The errno, positive; 0 is success.
        errno: i32,
        /// The kernel's message for it (`NLMSGERR_ATTR_MSG`).
        words: Option<String>,
    },
}

/// The messages of a datagram; ends at the first malformed one.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let packet = NetlinkBuffer::new_checked(rest).ok()?;
        let length = usize::try_from(packet.length()).ok()?;
        let payload = rest.get(HEADER_BYTES..length)?;
        rest = rest.get(length.checked_next_multiple_of(4)?..).unwrap_or_default();
        let interrupted = packet.flags() & NLM_F_DUMP_INTR != 0;
        let sequence = packet.sequence_number();
        Some(match packet.message_type() {
            NLMSG_DONE | NLMSG_ERROR => {
                // An end without an error number means success (old kernels' NLMSG_DONE).
                let errno = payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                let is_error = packet.message_type() == NLMSG_ERROR;
                let words = is_error.then(|| words_of(packet.flags(), payload)).flatten();
                Message::End { interrupted, sequence, errno: errno.saturating_abs(), words }
            }
            _ => Message::Data { interrupted, sequence, payload },
        })
    })
}

/// The text in an error message, which follows the request that it answers.
fn words_of(flags: u16, payload: &[u8]) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    // The errno, the request's header, and the rest of the request unless it is omitted.
    let request = payload.get(4..)?;
    let length = match flags & NLM_F_CAPPED {
        0 => usize::try_from(NetlinkBuffer::new_checked(request).ok()?.length()).ok()?,
        _ => HEADER_BYTES,
    };
    let words = find(request.get(length.checked_next_multiple_of(4)?..)?, NLMSGERR_ATTR_MSG)?;
    Some(text_of(words))
}

impl Connection {
    /// Opens a socket, for example of `libc::NETLINK_ROUTE`.
    ///
    /// # Errors
    /// The kernel does not have the protocol, or refuses.
    pub fn open(protocol: libc::c_int) -> io::Result<Self> {
        let mut socket = Socket::new(protocol as isize)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))?;
        // Without it errors have no message text.
        let _ = socket.set_ext_ack(true);
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(BUFFER_BYTES), words: None })
    }

    /// Requests all objects of a kind and passes each reply's payload to `each`.
    ///
    /// A dump that changed while it was read is restarted a few times, so `each` may see an object twice.
    ///
    /// # Errors
    /// The error that ended the dump; the replies before it were passed to `each`.
    pub(crate) fn dump(
        &mut self,
        message_type: u16,
        payload: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        for _ in 0..DUMP_ATTEMPTS {
            self.send(message_type, NLM_F_REQUEST | NLM_F_DUMP, payload)?;
            if !self.receive(&mut each)? {
                break;
            }
        }
        Ok(())
    }

    /// Requests one object and passes the reply's payload to `each`.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn ask(
        &mut self,
        message_type: u16,
        payload: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.send(message_type, NLM_F_REQUEST | NLM_F_ACK, payload)?;
        self.receive(&mut each).map(drop)
    }

    /// The kernel's message for the last error, if it had one.
    #[must_use]
    pub fn words(&self) -> Option<&str> {
        self.words.as_deref()
    }

    /// The id of a generic netlink family, which the kernel assigns when the family registers.
    ///
    /// # Errors
    /// ENOENT: the kernel does not have the family.
    pub fn family(&mut self, name: &str) -> io::Result<u16> {
        let mut text = name.as_bytes().to_vec();
        text.push(0);
        let name = attribute(libc::CTRL_ATTR_FAMILY_NAME as u16, &text);
        let request = generic(libc::CTRL_CMD_GETFAMILY as u8, &name);
        let mut family = None;
        self.ask(libc::GENL_ID_CTRL as u16, &request, |payload| {
            family = family.or(attributes(generic_body(payload))
                .find(|(kind, _)| *kind == libc::CTRL_ATTR_FAMILY_ID as u16)
                .and_then(|(_, value)| u16_of(value)));
        })?;
        family.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    fn send(&mut self, message_type: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
        self.words = None;
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = vec![0; HEADER_BYTES + payload.len()];
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut packet = NetlinkBuffer::new(&mut bytes);
        packet.set_length(length);
        packet.set_message_type(message_type);
        packet.set_flags(flags);
        packet.set_sequence_number(self.sequence);
        packet.payload_mut().copy_from_slice(payload);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Reads until the end of the request; returns whether the dump changed while it was read.
    fn receive(&mut self, each: &mut impl FnMut(&[u8])) -> io::Result<bool> {
        let mut changed = false;
        loop {
            self.buffer.clear();
            let length = match self.socket.recv(&mut self.buffer, libc::MSG_TRUNC) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            if length > self.buffer.len() {
                return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
            }
            for message in messages(&self.buffer) {
                match message {
                    Message::Data { interrupted, sequence, payload }
                        if sequence == self.sequence =>
                    {
                        changed |= interrupted;
                        each(payload);
                    }
                    Message::End { interrupted, sequence, errno, words }
                        if sequence == self.sequence =>
                    {
                        self.words = words;
                        return match errno {
                            0 => Ok(changed | interrupted),
                            errno => Err(io::Error::from_raw_os_error(errno)),
                        };
                    }
                    // The rest of an earlier request that ended with an error.
                    _ => {}
                }
            }
        }
    }
}

/// A generic netlink request: `struct genlmsghdr` (include/uapi/linux/genetlink.h), then the
/// attributes.
pub fn generic(command: u8, attributes: &[u8]) -> Vec<u8> {
    [&[command, 1, 0, 0], attributes].concat()
}

/// The attributes of a generic netlink reply.
pub fn generic_body(payload: &[u8]) -> &[u8] {
    payload.get(4..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(message_type: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + payload.len()];
        let length = bytes.len() as u32;
        let mut packet = NetlinkBuffer::new(&mut bytes);
        packet.set_length(length);
        packet.set_message_type(message_type);
        packet.set_flags(flags);
        packet.set_sequence_number(7);
        packet.payload_mut().copy_from_slice(payload);
        bytes
    }

    #[test]
    fn messages_of_a_datagram() {
        let mut datagram = message(16, 0, &[1, 2, 3]);
        datagram.push(0); // to a multiple of four
        datagram.extend(message(NLMSG_DONE, NLM_F_DUMP_INTR, &(-95i32).to_ne_bytes()));
        let read: Vec<_> = messages(&datagram).collect();
        assert_eq!(
            read,
            [
                Message::Data { interrupted: false, sequence: 7, payload: &[1, 2, 3] },
                Message::End { interrupted: true, sequence: 7, errno: 95, words: None },
            ]
        );
    }

    #[test]
    fn malformed_datagrams_end_the_reading() {
        let whole = message(16, 0, &[0; 40]);
        for end in 0..whole.len() {
            assert_eq!(messages(&whole[..end]).count(), 0, "cut at {end}");
        }
        let mut short = whole.clone();
        short[0] = 4; // a length below that of the header
        assert_eq!(messages(&short).count(), 0);
        let mut long = whole;
        long[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(messages(&long).count(), 0);
        // The text of an error, after a request that is omitted, and one that is not.
        let words = attribute(NLMSGERR_ATTR_MSG, b"not so\0");
        let request = message(20, 0, &[1; 8]);
        for (flags, request) in [(NLM_F_CAPPED, &request[..HEADER_BYTES]), (0, &request)] {
            let payload = [&(-22i32).to_ne_bytes(), request, &words].concat();
            let refusal = message(NLMSG_ERROR, flags | NLM_F_ACK_TLVS, &payload);
            let read = messages(&refusal).next();
            assert!(
                matches!(&read, Some(Message::End { errno: 22, words: Some(w), .. }) if w == "not so"),
                "{read:?}"
            );
            for end in 0..refusal.len() {
                let _ = messages(&refusal[..end]).count();
            }
        }
        // i32::MIN has no positive counterpart.
        let end = message(NLMSG_ERROR, 0, &i32::MIN.to_ne_bytes());
        assert!(matches!(messages(&end).next(), Some(Message::End { errno: i32::MAX, .. })));
    }
}
