//! The instrument `stages` against other means: the kernel's own software timestamps
//! (SO_TIMESTAMPING, Documentation/networking/timestamping.rst) of the same packets at the same
//! two moments. Percentiles agree within 5%, and every packet is there that did not lose its slot to another.
//!
//! Each test prints both, for `--nocapture`.

#![allow(clippy::print_stdout, reason = "prints both measurements")]

mod common;

use common::{can_run, possible_cpus};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Direction, Measurement, PathKind, Span};
use nearpath_testing::counted;
use nearpath_testing::veth::{Side, VethPair};
use std::collections::BTreeMap;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

const PACKETS: usize = 1500;
/// What is agreed upon: a bucket is 4.4% wide.
const TOLERANCE: f64 = 0.05;
/// Share of packets whose thread may lose its CPU between the two measurements, which is an error of neither.
const DISTURBED: f64 = 0.005;

/// From include/uapi/linux/net_tstamp.h and errqueue.h.
const TX_SOFTWARE: u32 = 1 << 1;
const RX_SOFTWARE: u32 = 1 << 3;
const SOFTWARE: u32 = 1 << 4;
const OPT_ID: u32 = 1 << 7;
const TX_SCHED: u32 = 1 << 8;
const OPT_TSONLY: u32 = 1 << 11;
const SCM_TSTAMP_SND: u32 = 0;
const SCM_TSTAMP_SCHED: u32 = 1;

#[test]
fn time_in_a_queue_matches_the_kernels_timestamps() {
    if !can_run() || !nearpath_testing::require_program("tc") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    // 242 bytes take about 194µs.
    pair.run(Side::Client, |side| {
        let shaper = "root tbf rate 10mbit burst 2kb limit 200kb";
        let tc = ["qdisc", "replace", "dev", side.device()];
        let done = Command::new("tc").args(tc).args(shaper.split(' ')).status()?;
        done.success().then_some(()).ok_or_else(|| io::Error::other("tc failed"))
    })
    .unwrap();
    let (client, server) = sockets(&pair);
    stamp(&client, TX_SOFTWARE | TX_SCHED | SOFTWARE | OPT_ID | OPT_TSONLY).unwrap();
    counted(|| queued(&client, &server));
}

/// Bursts of datagrams through a queue: whether what nearpath measures is what the stamps say.
fn queued(client: &UdpSocket, server: &UdpSocket) -> Result<(), String> {
    stamp(client, TX_SOFTWARE | TX_SCHED | SOFTWARE | OPT_ID | OPT_TSONLY).unwrap();
    // By the packet's number: when it came to the queue, and when it left.
    let mut stamps: BTreeMap<u32, [u64; 2]> = BTreeMap::new();
    // When the send call of each began.
    let mut calls = Vec::new();
    let m = measure(server, &["qdisc_enqueue", "qdisc_dequeue"], || {
        let mut sent = 0;
        let mut burst = 1;
        while sent < PACKETS {
            let now = burst.min(PACKETS - sent);
            for _ in 0..now {
                calls.push(realtime_ns());
                client.send(&[0; 200]).unwrap();
            }
            for _ in 0..now {
                server.recv(&mut [0; 256]).unwrap();
            }
            // Both stamps of each, as the queue that they wait in is short.
            for _ in 0..2 * now {
                let (which, packet, at_ns) = sent_stamp(client).unwrap();
                match which {
                    SCM_TSTAMP_SCHED => stamps.entry(packet).or_default()[0] = at_ns,
                    SCM_TSTAMP_SND => stamps.entry(packet).or_default()[1] = at_ns,
                    other => panic!("a stamp of another kind: {other}"),
                }
            }
            sent += now;
            burst = burst * 7 % 61 + 1;
        }
    });
    assert_eq!(stamps.len(), PACKETS);
    let reference = stamps.values().map(|[begin, end]| end.saturating_sub(*begin)).collect();
    compare(&m, Direction::Tx, "net_dev_queue", "net_dev_start_xmit", reference)?;
    // The packets' numbers go up by one with each call.
    let ends = stamps.values().map(|[_, end]| *end);
    let reference = ends.zip(calls).map(|(end, call)| end.saturating_sub(call)).collect();
    compare_path(&m, PathKind::Transmit, reference)
}

#[test]
fn waiting_for_a_reader_matches_the_kernels_timestamps() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = sockets(&pair);
    stamp(&server, RX_SOFTWARE | SOFTWARE).unwrap();
    // The kernel begins to stamp a while after it is asked to.
    let begun = Instant::now();
    loop {
        client.send(&[0; 64]).unwrap();
        let sent_ns = realtime_ns();
        if received_stamp(&server).unwrap().is_some_and(|stamp_ns| stamp_ns <= sent_ns) {
            break;
        }
        assert!(begun.elapsed() < nearpath_testing::PATIENCE, "the kernel stamps no packets");
    }
    counted(|| waiting(&client, &server));
}

/// Datagrams that wait for a reader: what nearpath measures, and what stamps and the reader say.
fn waiting(client: &UdpSocket, server: &UdpSocket) -> Result<(), String> {
    let mut reference = Vec::new();
    let m = measure(server, &[], || {
        for packet in 0..PACKETS {
            client.send(&[0; 64]).unwrap();
            // Between 0.2 and 2.2ms, without any order.
            spin(Duration::from_micros(200 + packet as u64 * 7919 % 2000));
            let stamp_ns = received_stamp(server).unwrap().unwrap();
            reference.push(realtime_ns().saturating_sub(stamp_ns));
        }
    });
    compare(&m, Direction::Rx, "sk_data_ready", "sock_recv", reference.clone())?;
    // The stamp is set where the packet comes from its device, at its first stage.
    compare_path(&m, PathKind::Receive, reference)
}

/// A client that is connected to the server.
fn sockets(pair: &VethPair) -> (UdpSocket, UdpSocket) {
    let bind = |side: Side| {
        let socket = UdpSocket::bind((side.ipv4(), 0))?;
        socket.set_read_timeout(Some(nearpath_testing::PATIENCE))?;
        Ok(socket)
    };
    let (client, server) =
        (pair.run(Side::Client, bind).unwrap(), pair.run(Side::Server, bind).unwrap());
    client.connect(server.local_addr().unwrap()).unwrap();
    // The first waits for its neighbour's address.
    client.send(&[0]).unwrap();
    server.recv(&mut [0]).unwrap();
    (client, server)
}

/// Measures what is sent to the server, without some stages: what they divide is one span then.
fn measure(server: &UdpSocket, without: &[&str], work: impl FnOnce()) -> Measurement {
    let filter = Filter { dport: Some(server.local_addr().unwrap().port()), ..Filter::default() };
    let without = without.iter().map(|&stage| stage.to_owned()).collect();
    let options = Options { filter, without, ..Options::default() };
    let mut stages = Stages::new(&possible_cpus(), options);
    stages.start().unwrap();
    work();
    stages.stop().unwrap()
}

/// Whether the percentiles of a span are those of the reference.
fn compare(
    m: &Measurement,
    direction: Direction,
    from: &str,
    to: &str,
    reference: Vec<u64>,
) -> Result<(), String> {
    let is_it = |s: &&Span| s.direction == direction && s.from == from && s.to == to;
    let span = m.spans.iter().find(is_it).ok_or_else(|| format!("no {from} -> {to}: {m:#?}"))?;
    let found = [span.p50_ns, span.p90_ns, span.p99_ns];
    compare_percentiles(
        &format!("{from} -> {to}"),
        span.count,
        found,
        m.packets.collided,
        reference,
    )
}

/// The same of whole paths, and how many took longer than a time.
fn compare_path(m: &Measurement, kind: PathKind, reference: Vec<u64>) -> Result<(), String> {
    let path = m.paths.iter().find(|path| path.kind == kind);
    let path = path.ok_or_else(|| format!("no {kind:?}: {m:#?}"))?;
    for above in &path.above {
        let right = reference.iter().filter(|&&ns| ns > above.ns).count() as u64;
        // Those next to the time may be on its other side.
        let near = |ns: u64| (ns as f64 / above.ns as f64 - 1.0).abs() < TOLERANCE;
        let near = reference.iter().filter(|&&ns| near(ns)).count() as u64;
        if above.count.abs_diff(right) > near + m.packets.collided {
            return Err(format!("{kind:?}: {right} by the kernel's stamps, {above:?}"));
        }
    }
    let found = [path.p50_ns, path.p90_ns, path.p99_ns];
    compare_percentiles(
        &format!("{kind:?}, end to end"),
        path.count,
        found,
        m.packets.collided,
        reference,
    )
}

fn compare_percentiles(
    what: &str,
    count: u64,
    [p50, p90, p99]: [Option<u64>; 3],
    lost: u64,
    mut reference: Vec<u64>,
) -> Result<(), String> {
    let packets = PACKETS as u64;
    if count > packets || count + lost < packets {
        return Err(format!("{what} has {count} of {packets}, and {lost} collided"));
    }
    reference.sort_unstable();
    for (name, percentile, found) in [("p50", 0.5, p50), ("p90", 0.9, p90), ("p99", 0.99, p99)] {
        let at = |rank: f64| reference[(rank.ceil() as usize).clamp(1, reference.len()) - 1] as f64;
        let rank = percentile * reference.len() as f64;
        let (found, right) = (found.unwrap() as f64, at(rank));
        let said = format!(
            "{what} {name}: {:.1}µs, by the kernel's stamps {:.1}µs ({:+.2}%)",
            found / 1e3,
            right / 1e3,
            100.0 * (found / right - 1.0)
        );
        println!("{said}");
        let disturbed = DISTURBED * reference.len() as f64;
        let (least, most) = (at(rank - disturbed), at(rank + disturbed));
        if found < least * (1.0 - TOLERANCE) || found > most * (1.0 + TOLERANCE) {
            return Err(said);
        }
    }
    Ok(())
}

/// Enables timestamps.
fn stamp(socket: &UdpSocket, flags: u32) -> io::Result<()> {
    let length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the option's value is read within its length.
    let error = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const flags).cast(),
            length,
        )
    };
    if error == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes the next datagram; its stamp, if it has one.
fn received_stamp(socket: &UdpSocket) -> io::Result<Option<u64>> {
    let mut stamp = None;
    receive(socket, 0, |level, kind, data| {
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) {
            stamp = Some(nanoseconds(data));
        }
    })?;
    Ok(stamp)
}

/// The next stamp of what was sent: its kind, the packet's number, and the moment.
fn sent_stamp(socket: &UdpSocket) -> io::Result<(u32, u32, u64)> {
    let mut wanted = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one descriptor, which outlives the call.
    let ready = unsafe { libc::poll(&raw mut wanted, 1, 60_000) };
    if ready != 1 {
        return Err(io::Error::other("a packet that was sent has no stamp"));
    }
    let (mut error, mut at_ns) = (None, None);
    receive(socket, libc::MSG_ERRQUEUE, |level, kind, data| match (level, kind) {
        (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => at_ns = Some(nanoseconds(data)),
        (libc::SOL_IP, libc::IP_RECVERR) => {
            // SAFETY: the kernel writes this structure, and no reference to it is kept.
            error = Some(unsafe { data.cast::<libc::sock_extended_err>().read_unaligned() });
        }
        _ => {}
    })?;
    match (error, at_ns) {
        (Some(error), Some(at_ns)) => Ok((error.ee_info, error.ee_data, at_ns)),
        _ => Err(io::Error::other("an error other than a timestamp")),
    }
}

/// One message with its control messages: level, type and data of each.
fn receive(
    socket: &UdpSocket,
    flags: libc::c_int,
    mut each: impl FnMut(libc::c_int, libc::c_int, *const u8),
) -> io::Result<()> {
    let mut bytes = [0u8; 512];
    let mut control = [0u64; 64];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a message without anything, into which the buffers are entered; they outlive the
    // call, and the control messages are walked within what the kernel wrote.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        if libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            each((*header).cmsg_level, (*header).cmsg_type, libc::CMSG_DATA(header));
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok(())
}

/// `struct scm_timestamping`: the first of its three times is the software's, CLOCK_REALTIME.
fn nanoseconds(data: *const u8) -> u64 {
    // SAFETY: the kernel wrote three of them.
    let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn realtime_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}
