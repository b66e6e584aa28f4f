//! Sockets with their options and kernel timestamps.
//!
//! Input: addresses and options. Output: sockets with all options applied. A receive timestamp arrives with the
//! data, a transmit timestamp on the socket's error queue (Documentation/networking/timestamping.rst); both are
//! on the wall clock.

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrLike, SockaddrStorage, TimestampingFlag,
    recvmsg, sendmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;
use rustix::net::sockopt::{
    set_ip_tos, set_ipv6_tclass, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force,
};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

/// Buffer for the control messages of one message: timestamps, and the error with its origin.
const CONTROL_BYTES: usize = 512;
/// Receive buffer of a UDP socket.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Maximum transmit timestamps read at once.
const STAMPS_AT_ONCE: usize = 64;
/// Origin and type of a transmit timestamp, taken at the driver (include/uapi/linux/errqueue.h).
const ORIGIN_TIMESTAMPING: u8 = 4;
const TSTAMP_SND: u32 = 0;
/// `SOF_TIMESTAMPING_OPT_TX_SWHW`: timestamps of both the driver and the NIC (include/uapi/linux/net_tstamp.h).
const OPT_TX_SWHW: u32 = 1 << 14;
/// Origin of a report of a packet that a qdisc dropped because of its time.
const ORIGIN_TXTIME: u8 = 6;
/// SO_BUSY_POLL on all architectures except parisc and sparc (include/uapi/asm-generic/socket.h).
const SO_BUSY_POLL: libc::c_int = 46;

/// Options of a benchmark's sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOptions {
    /// SO_PRIORITY: the priority of its packets on this host (qdiscs, a VLAN's egress map).
    pub priority: Option<u32>,
    /// The DSCP in its packets, 0 to 63.
    pub dscp: Option<u8>,
    /// SO_BUSY_POLL: how long a reader polls the device before it sleeps, in µs.
    pub busy_poll_us: Option<u32>,
}

impl SocketOptions {
    /// Sets the options.
    pub(super) fn set(&self, socket: &impl AsFd, ipv6: bool) -> io::Result<()> {
        let named = |option: &str, result: io::Result<()>| {
            result.map_err(|reason| io::Error::new(reason.kind(), format!("{option}: {reason}")))
        };
        // The DSCP first: setting it also sets the priority (`rt_tos2priority`).
        if let Some(dscp) = self.dscp {
            let tos = dscp << 2;
            let set = if ipv6 {
                set_ipv6_tclass(socket, u32::from(tos))
            } else {
                set_ip_tos(socket, tos)
            };
            named("DSCP", set.map_err(Into::into))?;
        }
        if let Some(priority) = self.priority {
            let priority = priority.try_into().unwrap_or(i32::MAX);
            let set = setsockopt(socket, sockopt::Priority, &priority);
            named("SO_PRIORITY", set.map_err(Into::into))?;
        }
        if let Some(us) = self.busy_poll_us {
            named("SO_BUSY_POLL", busy_poll(socket, us))?;
        }
        Ok(())
    }
}

fn busy_poll(socket: &impl AsFd, us: u32) -> io::Result<()> {
    let us = libc::c_int::try_from(us).unwrap_or(libc::c_int::MAX);
    // SAFETY: pointer and length are those of `us`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_BUSY_POLL,
            (&raw const us).cast(),
            size_of_val(&us) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Requests a buffer large enough for the data that arrives while its reader waits for a CPU: datagrams dropped
/// because it is full would count as lost on the path. Without privilege the kernel may grant less.
pub(crate) fn make_room(socket: &impl AsFd) {
    let forced = set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER_BYTES);
    let _ = forced.or_else(|_| set_socket_recv_buffer_size(socket, RECEIVE_BUFFER_BYTES));
}

/// Switches receive timestamps on or off.
pub(super) fn stamp_received(socket: &impl AsFd, wanted: bool) -> io::Result<()> {
    let mut flags = TimestampingFlag::empty();
    if wanted {
        flags |= TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE
            | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE;
    }
    Ok(setsockopt(socket, sockopt::Timestamping, &flags)?)
}

/// Switches on timestamps of both directions; transmit timestamps are numbered from then on: by datagrams, in a
/// stream by bytes.
pub(super) fn stamp_both(socket: &impl AsFd) -> io::Result<()> {
    let flags = TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_OPT_ID
        | TimestampingFlag::SOF_TIMESTAMPING_OPT_TSONLY;
    Ok(setsockopt(socket, sockopt::Timestamping, &flags)?)
}

/// Makes a socket accept the time at which each datagram is to leave, and report those that a qdisc drops.
pub(super) fn schedule_sends(socket: &impl AsFd) -> io::Result<()> {
    let txtime =
        libc::sock_txtime { clockid: libc::CLOCK_TAI, flags: libc::SOF_TXTIME_REPORT_ERRORS };
    setsockopt(socket, sockopt::TxTime, &txtime)?;
    // Time stamps of the NIC as well, where it takes them already; the driver takes its own in any case.
    let flags = TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_TX_HARDWARE
        | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_RAW_HARDWARE
        | TimestampingFlag::from_bits_retain(OPT_TX_SWHW)
        | TimestampingFlag::SOF_TIMESTAMPING_OPT_ID
        | TimestampingFlag::SOF_TIMESTAMPING_OPT_TSONLY;
    Ok(setsockopt(socket, sockopt::Timestamping, &flags)?)
}

/// Sends a datagram that is to leave at that time, in nanoseconds of CLOCK_TAI.
pub(super) fn send_at(
    socket: &impl AsFd,
    bytes: &[u8],
    to: &SockaddrStorage,
    at_ns: u64,
) -> io::Result<()> {
    let (parts, time) = ([IoSlice::new(bytes)], [ControlMessage::TxTime(&at_ns)]);
    let fd = socket.as_fd().as_raw_fd();
    sendmsg(fd, &parts, &time, MsgFlags::MSG_NOSIGNAL, Some(to))?;
    Ok(())
}

/// What the error queue reports of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// It was sent: its number among those of its socket, and the time.
    Sent { number: u32, stamp: Stamp },
    /// A qdisc dropped it because of its time, on CLOCK_TAI.
    Dropped { code: u8, at_ns: u64 },
}

/// A transmit timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stamp {
    /// Of the driver, on the wall clock.
    Software(u64),
    /// Of the NIC, on its own clock.
    Hardware(u64),
}

/// Buffer for control messages.
#[derive(Debug)]
pub(super) struct Control(Vec<u8>);

impl Control {
    pub(super) fn new() -> Self {
        Self(vec![0; CONTROL_BYTES])
    }
}

/// Received data: its length, the kernel's timestamp if there is one, and the sender.
#[derive(Debug)]
pub(super) struct Received<S> {
    pub(super) bytes: usize,
    pub(super) stamp_ns: Option<u64>,
    pub(super) from: Option<S>,
}

/// Receives a datagram, or the available bytes of a stream up to the length of the buffer.
pub(super) fn receive<S: SockaddrLike>(
    socket: &impl AsFd,
    buffer: &mut [u8],
    control: &mut Control,
) -> io::Result<Received<S>> {
    let fd = socket.as_fd().as_raw_fd();
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::empty();
    let message = recvmsg::<S>(fd, &mut parts, Some(&mut control.0), flags)?;
    let mut stamp_ns = None;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmTimestampsns(stamps) = part {
            stamp_ns = nanoseconds(&stamps.system);
        }
    }
    Ok(Received { bytes: message.bytes, stamp_ns, from: message.address })
}

/// Reads transmit timestamps, and reports of dropped datagrams, from the error queue without waiting. Returns whether there
/// may be more.
pub(super) fn sent_stamps(
    socket: &impl AsFd,
    control: &mut Control,
    mut each: impl FnMut(Report),
) -> bool {
    let fd = socket.as_fd().as_raw_fd();
    for _ in 0..STAMPS_AT_ONCE {
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let Ok(message) = recvmsg::<()>(fd, &mut [], Some(&mut control.0), flags) else {
            return false;
        };
        let (mut stamp, mut number) = (None, None);
        for part in message.cmsgs().into_iter().flatten() {
            match part {
                ControlMessageOwned::ScmTimestampsns(stamps) => {
                    let hardware = || nanoseconds(&stamps.hw_raw).map(Stamp::Hardware);
                    stamp = nanoseconds(&stamps.system).map(Stamp::Software).or_else(hardware);
                }
                ControlMessageOwned::Ipv4RecvErr(error, _)
                | ControlMessageOwned::Ipv6RecvErr(error, _) => {
                    if error.ee_origin == ORIGIN_TXTIME {
                        each(Report::of_drop(error.ee_code, error.ee_data, error.ee_info));
                        continue;
                    }
                    let is_stamp =
                        error.ee_origin == ORIGIN_TIMESTAMPING && error.ee_info == TSTAMP_SND;
                    number = is_stamp.then_some(error.ee_data);
                }
                _ => {}
            }
        }
        if let (Some(number), Some(stamp)) = (number, stamp) {
            each(Report::Sent { number, stamp });
        }
    }
    true
}

/// A kernel timestamp; zero means that none was taken.
fn nanoseconds(stamp: &TimeSpec) -> Option<u64> {
    let seconds = u64::try_from(stamp.tv_sec()).ok()?;
    let ns =
        seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(stamp.tv_nsec()).ok()?)?;
    Some(ns).filter(|&ns| ns > 0)
}

/// Whether a read was interrupted by a signal, and must be retried.
pub(super) fn again(reason: &io::Error) -> bool {
    reason.raw_os_error() == Some(Errno::EINTR as i32)
}
