//! The instrument `stages` in slices: packets during a pause are not seen, and earlier state is not
//! mistaken for them.

mod common;

use common::{acquainted_pair, can_run, exactly, ping_pong, possible_cpus};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Measurement, Protocol};
use nearpath_testing::counted;
use nearpath_testing::veth::VethPair;
use std::net::UdpSocket;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 300;
/// A round is a datagram and its answer, each sent and received.
const PACKETS: u64 = 4 * ROUNDS;

/// The packets of a flow.
fn filter_of((_, server): &(UdpSocket, UdpSocket)) -> Filter {
    let port = server.local_addr().unwrap().port();
    Filter { protocol: Some(Protocol::Udp), port: Some(port), ..Filter::default() }
}

/// The longest of all spans.
fn longest(m: &Measurement) -> Duration {
    Duration::from_nanos(m.spans.iter().filter_map(|span| span.max_ns).max().unwrap_or(0))
}

#[test]
fn packets_in_a_pause_are_not_seen() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let filter = filter_of(&sockets);
    counted(|| {
        let options = Options { filter: filter.clone(), budgets: true, ..Options::default() };
        let mut stages = Stages::new(&possible_cpus(), options);
        stages.start().unwrap();
        ping_pong(&sockets, ROUNDS);
        stages.pause(Duration::from_secs(1), Duration::from_secs(1), &|_| true);
        let paused = stages.read().unwrap();
        ping_pong(&sockets, ROUNDS);
        let later = stages.read().unwrap();
        stages.resume();
        ping_pong(&sockets, ROUNDS);
        let whole = stages.stop().unwrap();

        exactly(paused.packets.started, PACKETS, &paused)?;
        assert_eq!((&paused.packets, &paused.spans), (&later.packets, &later.spans));
        exactly(whole.packets.started, 2 * PACKETS, &whole)?;
        exactly(whole.packets.completed, 2 * PACKETS, &whole)
    });
}

#[test]
fn packets_that_wait_through_a_pause_are_abandoned() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let filter = filter_of(&sockets);
    let (client, server) = &sockets;
    counted(|| {
        let options = Options { filter: filter.clone(), ..Options::default() };
        let mut stages = Stages::new(&possible_cpus(), options);
        stages.start().unwrap();
        client.send(b"ping").unwrap();
        let began = Instant::now();
        stages.pause(Duration::from_millis(20), Duration::from_millis(20), &|wait| {
            std::thread::sleep(wait);
            true
        });
        let paused = began.elapsed();
        stages.resume();
        // It waited in the socket; what comes now may be at its address.
        server.recv(&mut [0; 8]).unwrap();
        ping_pong(&sockets, ROUNDS);
        let m = stages.stop().unwrap();

        exactly(m.packets.started, 2 + PACKETS, &m)?;
        exactly(m.packets.abandoned, 1, &m)?;
        assert!(longest(&m) < paused, "{:?} of {paused:?}", longest(&m));
        Ok(())
    });
}

#[test]
fn a_measurement_in_slices_reports_how_long_it_observed() {
    if !can_run() {
        return;
    }
    const INTERVALS: u32 = 3;
    let pair = VethPair::new(2).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let filter = filter_of(&sockets);
    let options = Options { filter, duty: NonZeroU32::new(8), ..Options::default() };
    let mut stages = Stages::new(&possible_cpus(), options);
    let should_continue = |wait: Duration| {
        let end = Instant::now() + wait;
        let mut waited = false;
        while !waited {
            ping_pong(&sockets, 1);
            waited = Instant::now() >= end;
        }
        true
    };
    let mut seen = Vec::new();
    let interval = Duration::from_millis(200);
    let m = stages
        .measure(INTERVALS * interval, interval, &should_continue, &mut |m| {
            seen.push(m.packets.started)
        })
        .unwrap();
    let observed = m.observed_s.unwrap();
    assert!(observed > 0.0 && observed < 0.9 * m.duration_s, "{observed} of {}", m.duration_s);
    // Each interval has a slice with packets in it. (Attaching takes its time, so there may be fewer.)
    seen.push(m.packets.started);
    assert!(seen.len() > 1 && seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert!(longest(&m) < interval, "{:?}", longest(&m));
}
