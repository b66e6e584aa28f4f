//! One connection or flow: its sockets, the side that sends and the side that receives.
//!
//! Input: a plan and a target. Output: [`Outgoing`] and [`Incoming`]. In an open loop over UDP each has its own
//! socket with the same port: transmit timestamps arrive on the error queue of the sending socket, and would
//! wake a thread that waits there for answers. (Of sockets that share a port the connected one receives,
//! `compute_score` in net/ipv4/udp.c.)

use super::loops::nanoseconds;
use super::message::{Kind, Message, Turn};
use super::plan::{LatencyPlan, Loop, Transport};
use super::slots::{Sent, Slots};
use super::sockets::{self, Control};
use super::sockets::{Report, Stamp};
use super::tally::Answer;
use super::txtime::{Scheduled, device_of};
use crate::clock::{now_ns, wall_ns};
use nix::sys::socket::{MsgFlags, SockaddrStorage, recv, send, sendto};
use rustix::net::sockopt::{Timeout, set_socket_reuseaddr, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Timeout of a connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// The sending side.
#[derive(Debug)]
pub(super) struct Outgoing {
    socket: OwnedFd,
    /// The destination; `None` for a connected socket.
    to: Option<SockaddrStorage>,
    transport: Transport,
    header: Message,
    message: Vec<u8>,
    slots: Arc<Slots>,
    /// The number of the next probe.
    sequence: u64,
    /// Whether timestamps are available, and can be assigned to probes by their numbers.
    stamps: bool,
    control: Control,
    /// For probes that are handed over ahead of time.
    pub(super) scheduled: Option<Scheduled>,
    /// When the last probe was sent.
    pub(super) last_ns: u64,
    /// Probes that the kernel refused to send, and the last error.
    pub(super) failed: u64,
    pub(super) failure: Option<io::Error>,
}

/// The receiving side.
#[derive(Debug)]
pub(super) struct Incoming {
    socket: OwnedFd,
    transport: Transport,
    expected: Message,
    /// Whether the probe itself is an answer.
    echo: bool,
    buffer: Vec<u8>,
    /// Buffer for timestamps; `None` if they are not requested.
    control: Option<Control>,
}

/// The result of a receive.
#[derive(Debug)]
pub(super) enum Event {
    Answer(Answer),
    /// A datagram that is not an answer to this flow, an empty one, or an interrupted wait.
    Other,
    /// Timeout.
    Timeout,
    /// The peer has closed the connection.
    Closed,
}

/// Both sides of a flow, and the reason if the kernel provides no timestamps.
pub(super) struct Flow {
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    pub(super) no_stamps: Option<String>,
}

impl Flow {
    pub(super) fn open(
        plan: &LatencyPlan,
        session: u64,
        flow: u32,
        slots: Arc<Slots>,
    ) -> io::Result<Self> {
        let (ipv6, is_open) = (plan.target.is_ipv6(), plan.mode != Loop::Closed);
        let (incoming, own) = match plan.transport {
            Transport::Tcp => (tcp(plan.target)?, None),
            Transport::Udp if (is_open && plan.split) || plan.lead.is_some() => {
                let (receiving, sending) = udp_pair(plan.target)?;
                (receiving, Some(sending))
            }
            Transport::Udp => (udp(plan.target)?, None),
        };
        if plan.lead.is_none() {
            plan.options.set(&incoming, ipv6)?;
        }
        if plan.transport == Transport::Udp {
            sockets::make_room(&incoming);
        }
        let to = own.is_some().then(|| SockaddrStorage::from(plan.target));
        let outgoing = match own {
            Some(socket) => socket,
            None => incoming.try_clone()?,
        };
        plan.options.set(&outgoing, ipv6)?;
        let mut no_stamps = None;
        if plan.split {
            let receipt =
                if to.is_some() { sockets::stamp_received(&incoming, true) } else { Ok(()) };
            let set = receipt.and_then(|()| sockets::stamp_both(&outgoing));
            let set = match plan.lead {
                Some(_) => set.and_then(|()| sockets::schedule_sends(&outgoing)),
                None => set,
            };
            no_stamps = set.err().map(|reason| format!("SO_TIMESTAMPING: {reason}"));
        }
        // Probes that do not count are sent without a time, and with the priority of other traffic.
        let lead_ns = plan.lead.map(nanoseconds);
        let plain = |lead_ns| incoming.try_clone().map(|plain| Scheduled::new(lead_ns, plain));
        let scheduled = lead_ns.map(plain).transpose()?;
        let kind = Kind::Probe;
        let (size, times, turn) = (plan.size, plan.split, Turn::default());
        let header = Message { kind, size, flow, session, sequence: 0, times, turn };
        let size = usize::try_from(plan.size).unwrap_or(super::SIZE_MIN);
        Ok(Self {
            outgoing: Outgoing {
                socket: outgoing,
                to,
                transport: plan.transport,
                header,
                message: vec![0; size],
                slots,
                sequence: 0,
                stamps: plan.split && no_stamps.is_none(),
                control: Control::new(),
                scheduled,
                last_ns: 0,
                failed: 0,
                failure: None,
            },
            incoming: Incoming {
                socket: incoming,
                transport: plan.transport,
                expected: Message { kind: Kind::Answer, ..header },
                echo: plan.echo && plan.transport == Transport::Udp,
                // One more byte, so that a longer datagram is not mistaken for one of the right size.
                buffer: vec![0; size + 1],
                control: plan.split.then(Control::new),
            },
            no_stamps,
        })
    }
}

fn tcp(target: SocketAddr) -> io::Result<OwnedFd> {
    let stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

fn udp_socket(target: SocketAddr) -> io::Result<OwnedFd> {
    let family = if target.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    Ok(socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn udp(target: SocketAddr) -> io::Result<OwnedFd> {
    let socket = udp_socket(target)?;
    connect(&socket, &target)?;
    Ok(socket)
}

/// A connected socket and an unconnected one with the same address.
fn udp_pair(target: SocketAddr) -> io::Result<(OwnedFd, OwnedFd)> {
    let (receiving, sending) = (udp_socket(target)?, udp_socket(target)?);
    set_socket_reuseaddr(&receiving, true)?;
    set_socket_reuseaddr(&sending, true)?;
    connect(&receiving, &target)?;
    let receiving = UdpSocket::from(receiving);
    bind(&sending, &receiving.local_addr()?)?;
    Ok((receiving.into(), sending))
}

impl Outgoing {
    /// The number of the next probe.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Sends a probe that was due at `due`; without a time it is due when it is sent.
    ///
    /// # Errors
    /// The connection failed. Datagrams that the kernel refuses are counted, as they were due.
    pub(super) fn send(&mut self, intended_ns: Option<u64>) -> io::Result<()> {
        self.header.sequence = self.sequence;
        self.header.write(&mut self.message);
        let sending_ns = now_ns();
        let sent = Sent { intended_ns: intended_ns.unwrap_or(sending_ns), sending_ns };
        self.slots.sending(self.sequence, sent);
        self.last_ns = sending_ns;
        let written = self.put(sent, intended_ns.is_some());
        self.sequence += 1;
        match (written, self.transport) {
            (Ok(()), _) => Ok(()),
            (Err(reason), Transport::Tcp) => Err(reason),
            (Err(reason), Transport::Udp) => {
                self.failed += 1;
                self.failure = Some(reason);
                // Whether it used up a timestamp number depends on where it was refused.
                self.stamps = false;
                Ok(())
            }
        }
    }

    /// Writes a probe, or hands it over with its time.
    fn put(&mut self, sent: Sent, counts: bool) -> io::Result<()> {
        let Some(scheduled) = &mut self.scheduled else { return self.write() };
        let (true, Some(to)) = (counts, &self.to) else {
            let flags = MsgFlags::MSG_NOSIGNAL;
            return Ok(send(scheduled.plain.as_raw_fd(), &self.message, flags).map(drop)?);
        };
        let at_ns = Scheduled::tai(sent.intended_ns);
        scheduled.sending(self.sequence, at_ns, sent.intended_ns, sent.sending_ns);
        sockets::send_at(&self.socket, &self.message, to, at_ns)
    }

    fn write(&self) -> io::Result<()> {
        let (fd, mut rest) = (self.socket.as_raw_fd(), &self.message[..]);
        while !rest.is_empty() {
            let flags = MsgFlags::MSG_NOSIGNAL;
            let sent = match &self.to {
                Some(to) => sendto(fd, rest, to, flags),
                None => send(fd, rest, flags),
            };
            match sent.map_err(io::Error::from) {
                Ok(bytes) => rest = rest.get(bytes..).unwrap_or_default(),
                Err(reason) if sockets::again(&reason) => {}
                Err(reason) => return Err(reason),
            }
        }
        Ok(())
    }

    /// Reads the kernel's pending timestamps. They are numbered from 0, in a stream by the last byte sent, and
    /// the numbers wrap at 2^32. Returns whether there may be more.
    pub(super) fn take_stamps(&mut self) -> bool {
        let (true, Some(latest)) = (self.stamps, self.sequence.checked_sub(1)) else {
            return false;
        };
        let unit = match self.transport {
            Transport::Udp => 1,
            Transport::Tcp => u64::from(self.header.size),
        };
        let (slots, scheduled) = (&self.slots, &mut self.scheduled);
        // Those with a time have numbers of their own.
        let first = scheduled.as_ref().map_or(Some(0), |scheduled| scheduled.first);
        let Some((first, latest)) = first.and_then(|f| Some((f, latest.checked_sub(f)?))) else {
            return false;
        };
        sockets::sent_stamps(&self.socket, &mut self.control, |report| match report {
            Report::Sent { number, stamp } => {
                let sequence = stamped(latest, unit, number).map(|sequence| first + sequence);
                match (sequence, scheduled.as_mut(), stamp) {
                    (Some(sequence), None, Stamp::Software(ns)) => slots.stamped(sequence, ns),
                    (Some(sequence), Some(scheduled), stamp) if slots.counts(sequence) => {
                        if let Some(sent) = slots.get(sequence) {
                            scheduled.left(stamp, sent.intended_ns);
                        }
                    }
                    _ => {}
                }
            }
            Report::Dropped { code, at_ns } => {
                if let Some(scheduled) = scheduled.as_mut() {
                    scheduled.dropped(code, at_ns);
                }
            }
        })
    }
}

/// The probe of a timestamp's number, where `latest` was the last one sent and each spans this many numbers.
fn stamped(latest: u64, unit: u64, number: u32) -> Option<u64> {
    let last = (latest.wrapping_add(1)).wrapping_mul(unit).wrapping_sub(1);
    let back = u64::from((last as u32).wrapping_sub(number));
    (back % unit == 0).then_some(back / unit).and_then(|back| latest.checked_sub(back))
}

impl Incoming {
    /// The socket, through which another thread can end the wait.
    pub(super) fn handle(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// The interface with the flow's local address.
    pub(super) fn device(&self) -> Option<String> {
        let local = UdpSocket::from(self.socket.try_clone().ok()?).local_addr().ok()?;
        device_of(local)
    }

    /// Sets the timeout for an answer.
    pub(super) fn wait_at_most(&self, time: Option<Duration>) -> io::Result<()> {
        Ok(set_socket_timeout(&self.socket, Timeout::Recv, time)?)
    }

    /// Waits for data.
    ///
    /// # Errors
    /// An error of the kernel; for a connection also data that is not an answer.
    pub(super) fn next(&mut self) -> io::Result<Event> {
        let size = self.message_size();
        let mut filled = 0;
        let stamp_ns = loop {
            // From a connection only the rest of this message, so that the timestamp belongs to it.
            let room = match self.transport {
                Transport::Udp => &mut self.buffer[..],
                Transport::Tcp => &mut self.buffer[filled..size],
            };
            let received = match &mut self.control {
                Some(control) => sockets::receive::<()>(&self.socket, room, control)
                    .map(|received| (received.bytes, received.stamp_ns)),
                // The cheaper system call.
                None => recv(self.socket.as_raw_fd(), room, MsgFlags::empty())
                    .map(|bytes| (bytes, None))
                    .map_err(io::Error::from),
            };
            match received {
                Ok((bytes, stamp_ns)) => {
                    filled += bytes;
                    let is_whole = self.transport == Transport::Udp || filled == size;
                    if is_whole {
                        break stamp_ns;
                    }
                    if bytes == 0 {
                        return Ok(Event::Closed);
                    }
                }
                Err(reason) if sockets::again(&reason) => {}
                Err(reason) if filled == 0 && reason.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Event::Timeout);
                }
                // The rest of a message is still to come.
                Err(reason) if reason.kind() == io::ErrorKind::WouldBlock => {}
                Err(reason) => return Err(reason),
            }
        };
        let read_ns = now_ns();
        let read_wall_ns = stamp_ns.map_or(0, |_| wall_ns());
        let message = self.buffer.get(..filled).filter(|bytes| bytes.len() == size);
        match message.and_then(Message::parse).filter(|message| self.is_answer(message)) {
            Some(Message { sequence, turn, .. }) => {
                Ok(Event::Answer(Answer { sequence, turn, stamp_ns, read_ns, read_wall_ns }))
            }
            None if self.transport == Transport::Udp => Ok(Event::Other),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "received data that is not an answer",
            )),
        }
    }

    fn message_size(&self) -> usize {
        self.buffer.len() - 1
    }

    fn is_answer(&self, message: &Message) -> bool {
        let Message { sequence, turn, kind, .. } = *message;
        let is_kind = kind == Kind::Answer || self.echo;
        is_kind && *message == Message { sequence, turn, kind, ..self.expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_assigned_to_their_probes() {
        assert_eq!(
            (stamped(5, 1, 5), stamped(5, 1, 0), stamped(5, 1, 6)),
            (Some(5), Some(0), None)
        );
        assert_eq!((stamped(2, 100, 299), stamped(2, 100, 99)), (Some(2), Some(0)));
        assert_eq!(stamped(2, 100, 250), None, "in the middle of a message");
        // Numbers of 32 bits wrap.
        let latest = (1 << 32) + 3;
        assert_eq!(
            (stamped(latest, 1, 3), stamped(latest, 1, u32::MAX)),
            (Some(latest), Some(latest - 4))
        );
        let bytes = ((latest + 1) * 1000 - 1) as u32;
        assert_eq!(stamped(latest, 1000, bytes.wrapping_sub(7000)), Some(latest - 7));
    }
}
