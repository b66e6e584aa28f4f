//! The instrument `stages` in slices: what passes while it is paused is not seen, and what it knew before
//! is not mistaken for it.

mod common;

use common::{can_run, exactly, possible_cpus, until_exact};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument, Measurement, Protocol};
use nearpath_testing::veth::{Side, VethPair};
use std::net::UdpSocket;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 300;

/// Two sockets of a pair that know each other's neighbour, and a filter for their packets.
fn conversation(pair: &VethPair) -> ([UdpSocket; 2], Filter) {
    let bind = |side: Side| UdpSocket::bind((side.ipv4(), 0));
    let server = pair.run(Side::Server, bind).unwrap();
    let client = pair.run(Side::Client, bind).unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    server.connect(client.local_addr().unwrap()).unwrap();
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    let port = server.local_addr().unwrap().port();
    let filter = Filter { protocol: Some(Protocol::Udp), port: Some(port), ..Filter::default() };
    let sockets = [client, server];
    talk(&sockets, 2);
    (sockets, filter)
}

/// So many datagrams there and back, each a packet sent and one received: four a round.
fn talk([client, server]: &[UdpSocket; 2], rounds: u64) {
    for _ in 0..rounds {
        client.send(b"ping").unwrap();
        server.recv(&mut [0; 8]).unwrap();
        server.send(b"pong").unwrap();
        client.recv(&mut [0; 8]).unwrap();
    }
}

/// The longest of all spans.
fn longest(m: &Measurement) -> Duration {
    Duration::from_nanos(m.spans.iter().filter_map(|span| span.max_ns).max().unwrap_or(0))
}

#[test]
fn what_passes_in_a_pause_is_not_seen() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let (sockets, filter) = conversation(&pair);
    until_exact(|| {
        let options = Options { filter: filter.clone(), budgets: true, ..Options::default() };
        let mut stages = Stages::new(&possible_cpus(), options);
        stages.start().unwrap();
        talk(&sockets, ROUNDS);
        stages.pause(Duration::from_secs(1), &|_| true);
        let paused = stages.read().unwrap();
        talk(&sockets, ROUNDS);
        let later = stages.read().unwrap();
        stages.resume();
        talk(&sockets, ROUNDS);
        let whole = stages.stop().unwrap();

        exactly(paused.packets.started, 4 * ROUNDS, &paused)?;
        assert_eq!((&paused.packets, &paused.spans), (&later.packets, &later.spans));
        exactly(whole.packets.started, 2 * 4 * ROUNDS, &whole)?;
        exactly(whole.packets.completed, 2 * 4 * ROUNDS, &whole)
    });
}

#[test]
fn what_waits_through_a_pause_is_abandoned() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let (sockets, filter) = conversation(&pair);
    let [client, server] = &sockets;
    until_exact(|| {
        let options = Options { filter: filter.clone(), ..Options::default() };
        let mut stages = Stages::new(&possible_cpus(), options);
        stages.start().unwrap();
        client.send(b"ping").unwrap();
        let began = Instant::now();
        stages.pause(Duration::from_millis(20), &|wait| {
            std::thread::sleep(wait);
            true
        });
        let paused = began.elapsed();
        stages.resume();
        // It waited in the socket; what comes now may be at its address.
        server.recv(&mut [0; 8]).unwrap();
        talk(&sockets, ROUNDS);
        let m = stages.stop().unwrap();

        exactly(m.packets.started, 2 + 4 * ROUNDS, &m)?;
        exactly(m.packets.abandoned, 1, &m)?;
        assert!(longest(&m) < paused, "{:?} of {paused:?}", longest(&m));
        Ok(())
    });
}

#[test]
fn a_measurement_in_slices_says_how_long_it_observed() {
    if !can_run() {
        return;
    }
    const INTERVALS: u32 = 3;
    let pair = VethPair::new(2).unwrap();
    let (sockets, filter) = conversation(&pair);
    let options = Options { filter, duty: NonZeroU32::new(8), ..Options::default() };
    let mut stages = Stages::new(&possible_cpus(), options);
    let goes_on = |wait: Duration| {
        let end = Instant::now() + wait;
        let mut waited = false;
        while !waited {
            talk(&sockets, 1);
            waited = Instant::now() >= end;
        }
        true
    };
    let mut seen = Vec::new();
    let interval = Duration::from_millis(200);
    let m = stages
        .measure(INTERVALS * interval, interval, &goes_on, &mut |m| seen.push(m.packets.started))
        .unwrap();
    let observed = m.observed_s.unwrap();
    assert!(observed > 0.0 && observed < m.duration_s / 2.0, "{observed} of {}", m.duration_s);
    // Each interval has a slice with packets in it.
    seen.push(m.packets.started);
    assert_eq!(seen.len(), INTERVALS as usize);
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert!(longest(&m) < interval, "{:?}", longest(&m));
}
