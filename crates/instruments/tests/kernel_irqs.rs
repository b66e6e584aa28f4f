//! The instrument `irqs` on this kernel: what it counts of packets over veth is where RPS sends them,
//! agrees with the kernel's own counters, and takes less time than there is.

mod common;

use common::{can_run, has_two_cpus, pin, until_exact};
use nearpath_host::{Root, Wanted};
use nearpath_instruments::Instrument;
use nearpath_instruments::irqs::{Irqs, Options};
use nearpath_model::irqs::{CpuInterrupts, IrqMeasurement};
use nearpath_model::{Counters, CpuId, Host};
use nearpath_testing::veth::{Side, VethPair};
use std::net::UdpSocket;
use std::process::Command;

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

fn cpu(m: &IrqMeasurement, number: u32) -> &CpuInterrupts {
    m.cpus.iter().find(|row| row.cpu == CpuId(number)).unwrap()
}

#[test]
fn rps_raises_net_rx_and_its_interrupts_where_it_sends_packets() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    for (from, to) in [(0, 1), (1, 0)] {
        pair.write(Side::Server, "queues/rx-0/rps_cpus", &format!("{:x}", 1 << to)).unwrap();
        until_exact(|| rps(&pair, from, to));
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
    until_exact(|| {
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

#[test]
fn an_instrument_that_was_not_started_reports_it() {
    let root = Root::live();
    let host = Host::default();
    let mut irqs = Irqs::new(&root, &host.topology, &host.nics, Options::default());
    assert!(irqs.read().is_err() && irqs.stop().is_err());
}
