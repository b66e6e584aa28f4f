//! The instrument `accepts` on this kernel, compared with the server's own data: SO_INCOMING_CPU of each
//! connection, and its own CPU.

#![allow(clippy::print_stdout, reason = "the figures are worth reading")]

mod common;

use common::{
    EACH, can_run, connect_from_both, each_cpu_a_node, has_two_cpus, incoming_cpu, is_half, listen,
    pin,
};
use nearpath_host::Root;
use nearpath_instruments::Instrument;
use nearpath_instruments::accepts::{Accepts, Options};
use nearpath_model::accepts::{AcceptMeasurement, DistanceCounts, Listener};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

/// Connects from CPU 0 and from CPU 1 while a thread on CPU 1 accepts; how many connections the
/// thread says that it got from its own CPU.
fn connections(listener: &TcpListener) -> u64 {
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            pin(1);
            let accepted = || incoming_cpu(&listener.accept().unwrap().0);
            (0..2 * EACH).map(|_| u64::from(accepted() == 1)).sum()
        });
        connect_from_both(address);
        server.join().unwrap()
    })
}

/// The measurement while connections are made to each of these.
fn measured(options: Options, listeners: &[&TcpListener]) -> (AcceptMeasurement, Vec<u64>) {
    let root = Root::live();
    let mut accepts = Accepts::new(&root, &each_cpu_a_node(), options);
    accepts.start().unwrap();
    let own = listeners.iter().map(|listener| connections(listener)).collect();
    (accepts.stop().unwrap(), own)
}

fn found<'a>(m: &'a AcceptMeasurement, listener: &TcpListener) -> Option<&'a Listener> {
    let local: SocketAddr = listener.local_addr().unwrap();
    m.listeners.iter().find(|found| found.local == local.to_string())
}

#[test]
fn counts_are_those_of_the_server() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let (v4, v6) = (listen(Ipv4Addr::LOCALHOST.into()), listen(Ipv6Addr::LOCALHOST.into()));
    let (m, own) = measured(Options::default(), &[&v4, &v6]);
    let all = 2 * EACH as u64;
    for (listener, own) in [&v4, &v6].into_iter().zip(own) {
        let found = found(&m, listener).unwrap();
        assert!(is_half(own), "what a CPU sends to its own machine it receives: {own}");
        let places = DistanceCounts {
            accepts: all,
            same_cpu: own,
            other_node: all - own,
            ..DistanceCounts::default()
        };
        println!("{}: {:?}, the server says {places:?}", found.local, found.places);
        assert_eq!(found.places, places, "{} runs skipped", m.skipped);
        let [worker] = found.workers.as_slice() else { panic!("{found:?}") };
        assert_eq!((worker.pid, worker.places), (std::process::id(), places));
        assert_ne!(worker.tid, worker.pid, "another thread accepts");
    }
    assert_eq!(m.lost, 0);
}

#[test]
fn only_matching_accepts_are_counted_and_listed() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let (one, other) = (listen(Ipv4Addr::LOCALHOST.into()), listen(Ipv4Addr::LOCALHOST.into()));
    let port = Some(one.local_addr().unwrap().port());
    let (m, _) = measured(Options { port, each: true, ..Options::default() }, &[&one, &other]);
    assert!(found(&m, &one).is_some() && m.listeners.len() == 1, "{:?}", m.listeners);
    assert_eq!((m.events.len(), m.events_dropped), (2 * EACH, 0));
    let fd = one.as_raw_fd();
    for event in &m.events {
        let (received_on, accepted_on) = event.cpus();
        let (pid, said) = (std::process::id(), event.to_string());
        let begin = format!("cpu=#{accepted_on} pid={pid} accept({fd}) -> fd=");
        assert!(said.starts_with(&begin), "{said}");
        let rxcpu = format!(" rxcpu=#{}", received_on.unwrap());
        assert!(said.ends_with(&rxcpu) && accepted_on == 1, "{said}");
    }
    let own = m.events.iter().filter(|event| event.cpus() == (Some(1), 1)).count();
    assert!(is_half(own as u64), "{own}");

    // A thread's name is that of its test, cut at 15 bytes.
    for (options, seen) in [
        (Options { pid: Some(std::process::id()), ..Options::default() }, true),
        (Options { pid: Some(1), ..Options::default() }, false),
        (Options { comm: Some("only_matching_a".into()), ..Options::default() }, true),
        (Options { comm: Some("only_those".into()), ..Options::default() }, false),
        (Options { netns: Some(1), ..Options::default() }, false),
    ] {
        let (m, _) = measured(options.clone(), &[&one]);
        assert_eq!(found(&m, &one).is_some(), seen, "{options:?}");
    }
}
