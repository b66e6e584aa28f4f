//! The instrument `irqs` on this kernel: what it counts of packets over veth is where RPS sends them,
//! agrees with the kernel's own counters, and takes less time than there is.

mod common;

use common::{can_run, has_two_cpus, pin};
use nearpath_host::{Root, Wanted};
use nearpath_instruments::Instrument;
use nearpath_instruments::irqs::{Irqs, Options};
use nearpath_model::irqs::{CpuInterrupts, IrqMeasurement, PriorityField};
use nearpath_model::{Counters, CpuId, Host};
use nearpath_testing::counted;
use nearpath_testing::veth::{Side, VethPair};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Sent one after the other, each when the one before has arrived.
const DATAGRAMS: u64 = 2000;

/// Measures in the server's namespace.
fn measured(pair: &VethPair, options: Options, during: impl FnOnce() + Send) -> IrqMeasurement {
    let run = |_| {
        let root = Root::live();
        let host = nearpath_host::read(&root, &Wanted::default()).unwrap();
        let mut irqs = Irqs::new(&root, &host.topology, &host.nics, options);
        irqs.start().unwrap();
        during();
        // Readings in between have no side effects.
        irqs.read().unwrap();
        Ok(irqs.stop().unwrap())
    };
    pair.run(Side::Server, run).unwrap()
}

/// Datagrams from a thread on one CPU, each received before the next is sent.
fn send(pair: &VethPair, cpu: usize) {
    let bind = |side: Side| pair.run(side, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    let (client, server) = (bind(Side::Client), bind(Side::Server));
    server.set_read_timeout(Some(nearpath_testing::PATIENCE)).unwrap();
    let address = server.local_addr().unwrap();
    let sender = std::thread::spawn(move || {
        pin(cpu);
        let mut buffer = [0; 16];
        for _ in 0..DATAGRAMS {
            client.send_to(&[0; 16], address).unwrap();
            server.recv(&mut buffer).unwrap();
        }
    });
    sender.join().unwrap();
}

/// Held by tests that steer packets by RPS: the kernel counts those of all interfaces together.
static STEERING: Mutex<()> = Mutex::new(());

fn cpu(m: &IrqMeasurement, number: u32) -> &CpuInterrupts {
    m.cpus.iter().find(|row| row.cpu == CpuId(number)).unwrap()
}

#[test]
fn rps_raises_net_rx_and_its_interrupts_where_it_sends_packets() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let _alone = STEERING.lock().unwrap_or_else(PoisonError::into_inner);
    let pair = VethPair::new(1).unwrap();
    for (from, to) in [(0, 1), (1, 0)] {
        pair.write(Side::Server, "queues/rx-0/rps_cpus", &format!("{:x}", 1 << to)).unwrap();
        counted(|| rps(&pair, from, to));
    }
}

/// The kernel's counts are right each time, what the programs saw is when they were all run.
fn rps(pair: &VethPair, from: usize, to: u32) -> Result<(), String> {
    let m = measured(pair, Options::default(), || send(pair, from));
    let (near, far) = (cpu(&m, from as u32), cpu(&m, to));
    // Packets that are under way come in one batch; but each was waited for, so that few did.
    let ipis = far.received_rps.unwrap();
    assert!(ipis >= DATAGRAMS * 9 / 10, "{ipis} RPS interrupts on CPU {to}: {m:#?}");
    assert!(near.received_rps.unwrap() < DATAGRAMS / 10, "{m:#?}");
    let net_rx = m.softirq("NET_RX", CpuId(to));
    assert!(net_rx >= DATAGRAMS * 9 / 10, "{net_rx} runs of NET_RX on CPU {to}: {m:#?}");
    assert!(far.processed.unwrap() >= DATAGRAMS, "{m:#?}");
    assert_times(&m);
    // (On the CPU that sends NET_RX runs, too: it is what sends the interrupts.)
    assert!(far.soft_ns["NET_RX"] > 0 && far.hard_ns.get("call").is_none_or(|ns| *ns > 0));
    // All came by the backlog.
    let polls = far.backlog_polls.unwrap();
    assert!(polls.budget > polls.work && polls.full_polls < polls.polls, "{polls:?}");
    let seen = polls.work >= DATAGRAMS && polls.polls >= DATAGRAMS * 9 / 10;
    if seen { Ok(()) } else { Err(format!("{polls:?}")) }
}

/// Each CPU's times are some, and no more than there was.
fn assert_times(m: &IrqMeasurement) {
    let elapsed_ns = (m.duration_s * 1e9) as u64;
    for row in &m.cpus {
        let (hard, soft) = (row.irq_ns.unwrap(), row.softirq_ns.unwrap());
        assert!(hard > 0 && soft > 0, "nothing seen on a CPU: {row:#?}");
        assert!(hard + soft < elapsed_ns, "more than {elapsed_ns}: {row:#?}");
        assert_eq!(row.hard_ns.values().sum::<u64>(), hard);
        assert_eq!(row.soft_ns.values().sum::<u64>(), soft);
    }
}

#[test]
fn counts_match_the_kernels() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    // Readings of our own outside of the measurement, and inside.
    let read = || nearpath_host::read_counters(&Root::live(), &[]);
    let mut inside = Vec::new();
    let before = read();
    let m = measured(&pair, Options::default(), || {
        inside.push(read());
        send(&pair, 0);
        inside.push(read());
    });
    let after = read();
    let softirqs = |counters: &Counters, vector: &str, cpu: CpuId| {
        let row = counters.softirqs.iter().find(|row| row.vector == vector).unwrap();
        row.counts.get(&cpu).copied().unwrap_or(0)
    };
    let vectors: Vec<&String> = m.softirqs.keys().collect();
    assert!(vectors.len() >= 9, "{vectors:?}");
    for row in &m.cpus {
        for vector in &vectors {
            let between = |a, b| softirqs(b, vector, row.cpu) - softirqs(a, vector, row.cpu);
            let (least, most) = (between(&inside[0], &inside[1]), between(&before, &after));
            let found = m.softirq(vector, row.cpu);
            assert!((least..=most).contains(&found), "{vector}: {least} {found} {most}");
        }
        let timers = |counters: &Counters| {
            let row_of = counters.arch_irqs.iter().find(|irq| irq.name == "LOC")?;
            row_of.counts.get(&row.cpu).copied()
        };
        let Some(found) = m.arch_irqs.iter().find(|irq| irq.name == "LOC") else { continue };
        let found = found.per_cpu[row.cpu.0 as usize];
        let least = timers(&inside[1]).unwrap() - timers(&inside[0]).unwrap();
        let most = timers(&after).unwrap() - timers(&before).unwrap();
        assert!((least..=most).contains(&found), "LOC: {least} {found} {most}");
    }
}

#[test]
fn napi_instances_of_virtual_devices_are_seen() {
    if !can_run() || !nearpath_testing::require_program("ethtool") {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let device = Side::Server.device();
    // A veth polls for what it may merge, which what could still be cut into segments is not.
    for (side, offload) in [(Side::Server, ["gro", "on"]), (Side::Client, ["tso", "off"])] {
        let set =
            |side: Side| Command::new("ethtool").args(["-K", side.device()]).args(offload).status();
        assert!(pair.run(side, set).unwrap().success());
    }
    let options = Options { nic: Some(device.to_owned()), ..Options::default() };
    counted(|| {
        let m = measured(&pair, options.clone(), || send(&pair, 0));
        for napi in &m.napi {
            assert_eq!(napi.device, device, "no other devices: {m:#?}");
            assert_eq!(napi.netns, pair.inode(Side::Server).unwrap());
            assert_eq!(napi.per_cpu.iter().sum::<u64>(), napi.polls.polls);
            assert!(napi.napi_id.is_some(), "{napi:?}");
        }
        let work: u64 = m.napi.iter().map(|napi| napi.polls.work).sum();
        if work >= DATAGRAMS { Ok(()) } else { Err(format!("{work} packets: {:?}", m.napi)) }
    });
}

/// An Ethernet frame to everybody with an IPv4 header, with these VLAN tags.
fn frame(tags: &[(u16, u16)], dscp: u8) -> Vec<u8> {
    let mut frame = [[0xff; 6], SOURCE].concat();
    for (protocol, tag) in tags {
        frame.extend([protocol.to_be_bytes(), tag.to_be_bytes()].concat());
    }
    frame.extend(0x0800u16.to_be_bytes());
    frame.extend([0x45, dscp << 2]);
    frame.resize(80, 0);
    frame
}

/// Sends frames from the client's device, each when the one before was received by the server's.
fn send_frames(pair: &VethPair, frames: &[Vec<u8>]) {
    let [client, server] =
        [Side::Client, Side::Server].map(|side| pair.run(side, packet_socket).unwrap());
    let timeout = libc::timeval { tv_sec: nearpath_testing::PATIENCE.as_secs() as i64, tv_usec: 0 };
    let length = size_of_val(&timeout) as u32;
    // SAFETY: the value is borrowed for the call.
    let set = unsafe {
        let value = (&raw const timeout).cast();
        libc::setsockopt(server.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, length)
    };
    assert_eq!(set, 0);
    for frame in frames {
        // SAFETY: the buffer is borrowed for the call.
        let sent = unsafe { libc::send(client.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
        let mut buffer = [0u8; 256];
        // The kernel's own packets have other sources.
        while buffer[6..12] != SOURCE {
            let (at, length) = (buffer.as_mut_ptr().cast(), buffer.len());
            // SAFETY: the buffer is borrowed for the call.
            let read = unsafe { libc::recv(server.as_raw_fd(), at, length, 0) };
            assert!(read > 0, "{}", std::io::Error::last_os_error());
        }
    }
}

/// The source of all frames.
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A socket for frames on the side's device.
fn packet_socket(side: Side) -> std::io::Result<OwnedFd> {
    let name = std::ffi::CString::new(side.device()).unwrap();
    // SAFETY: system calls with borrowed arguments; the descriptor is new.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(fd);
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: libc::if_nametoindex(name.as_ptr()) as i32,
            ..std::mem::zeroed()
        };
        let length = size_of_val(&address) as u32;
        match libc::bind(fd, (&raw const address).cast(), length) {
            0 => Ok(socket),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;

#[test]
fn packets_are_counted_by_their_outermost_priority() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let kinds = [
        (frame(&[(VLAN, 3 << 13 | 5)], 0), 300),
        (frame(&[(VLAN, 5)], 46), 20),
        // The inner tag does not count.
        (frame(&[(SERVICE_VLAN, 6 << 13 | 7), (VLAN, 2 << 13 | 5)], 10), 40),
        (frame(&[], 46), 7),
    ];
    let frames: Vec<Vec<u8>> = kinds.iter().flat_map(|(f, n)| vec![f.clone(); *n]).collect();
    let device = Side::Server.device();
    let of = |by| {
        let options =
            Options { nic: Some(device.to_owned()), priorities: Some(by), ..Options::default() };
        let m = measured(&pair, options, || send_frames(&pair, &frames));
        let of = m.priorities.clone().unwrap_or_else(|| panic!("{:?}", m.unknown));
        assert_eq!((of.by, m.events_lost), (by, 0));
        let mut sums = std::collections::BTreeMap::<Option<u8>, u64>::new();
        for row in &of.rows {
            assert_eq!(row.nic, device, "no other devices");
            assert_eq!(row.per_cpu.iter().sum::<u64>(), row.packets);
            *sums.entry(row.priority).or_default() += row.packets;
        }
        sums
    };
    counted(|| {
        let pcp = of(PriorityField::Pcp);
        let tagged: Vec<_> = pcp.iter().filter_map(|(p, n)| Some((p.as_ref()?, n))).collect();
        // The kernel itself sends packets without a tag.
        if tagged == [(&0, &20), (&3, &300), (&6, &40)] && pcp[&None] >= 7 {
            Ok(())
        } else {
            Err(format!("{pcp:?}"))
        }
    });
    counted(|| {
        let dscp = of(PriorityField::Dscp);
        let counts = [46, 10].map(|dscp_of| dscp.get(&Some(dscp_of)).copied());
        if counts == [Some(27), Some(40)] && dscp[&Some(0)] >= 300 {
            Ok(())
        } else {
            Err(format!("{dscp:?}"))
        }
    });
}

#[test]
fn priorities_show_where_rps_sends_packets() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let _alone = STEERING.lock().unwrap_or_else(PoisonError::into_inner);
    let pair = VethPair::new(1).unwrap();
    let device = Side::Server.device();
    pair.write(Side::Server, "queues/rx-0/rps_cpus", "2").unwrap();
    let frames = vec![frame(&[(VLAN, 3 << 13)], 0); 500];
    let priorities = Some(PriorityField::Pcp);
    let options = Options { nic: Some(device.to_owned()), priorities, ..Options::default() };
    counted(|| {
        let m = measured(&pair, options.clone(), || {
            std::thread::scope(|scope| {
                let send = || {
                    pin(0);
                    send_frames(&pair, &frames);
                };
                scope.spawn(send).join().unwrap();
            });
        });
        let of = m.priorities.unwrap();
        let found = of.separations();
        let [only] = found.as_slice() else { return Err(format!("{found:?}")) };
        let is_there = (only.priority, only.packets, only.cpu, only.elsewhere);
        if is_there == (3, 500, CpuId(1), 0) { Ok(()) } else { Err(format!("{only:?}")) }
    });
}

#[test]
fn an_instrument_that_was_not_started_reports_it() {
    let root = Root::live();
    let host = Host::default();
    let mut irqs = Irqs::new(&root, &host.topology, &host.nics, Options::default());
    assert!(irqs.read().is_err() && irqs.stop().is_err());
}
