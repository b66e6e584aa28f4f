//! The overhead limit: it is kept from an idle host to the highest rate, and measurements in slices agree with
//! continuous ones.

mod common;

use common::{acquainted_pair, can_run, ping_pong, possible_cpus};
use libbpf_rs::query::ProgInfoIter;
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Detail, Direction, Measurement, Protocol, Span};
use nearpath_testing::veth::VethPair;
use std::collections::HashSet;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn filter_of((_, server): &(UdpSocket, UdpSocket)) -> Filter {
    let port = server.local_addr().unwrap().port();
    Filter { protocol: Some(Protocol::Udp), port: Some(port), ..Filter::default() }
}

/// Measures for this long on a separate thread, while `work` is called repeatedly.
fn measure_while(
    options: Vec<Options>,
    time: Duration,
    work: impl Fn() + Sync,
) -> Vec<Measurement> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let measuring: Vec<_> = options
            .into_iter()
            .map(|options| {
                scope.spawn(|| {
                    let mut stages = Stages::new(&possible_cpus(), options);
                    let should_continue = |wait: Duration| {
                        std::thread::sleep(wait);
                        true
                    };
                    stages.measure(time, SECOND, &should_continue, &mut |_| ()).unwrap()
                })
            })
            .collect();
        let work = scope.spawn(|| {
            while !ended.load(Relaxed) {
                work();
            }
        });
        let measured = measuring.into_iter().map(|m| m.join().unwrap()).collect();
        ended.store(true, Relaxed);
        work.join().unwrap();
        measured
    })
}

/// The kernel's own account of its programs, kept by the test: their time in nanoseconds, of those that
/// were not there before.
struct Account {
    _statistics: OwnedFd,
    before: HashSet<u32>,
}

impl Account {
    fn open() -> Self {
        let before = ProgInfoIter::default().map(|p| p.id).collect();
        // SAFETY: a system call without pointers, whose descriptor has no other owner.
        let statistics = unsafe {
            let fd = libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        Self { _statistics: statistics, before }
    }

    /// Of the programs attached now: to be read before they are removed.
    fn programs_ns(&self) -> u64 {
        let new = ProgInfoIter::default().filter(|p| !self.before.contains(&p.id));
        new.filter(|p| p.name.to_string_lossy() != "empty").map(|p| p.run_time_ns).sum()
    }
}

#[test]
fn an_idle_host_is_observed_continuously() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    // A generous limit, as others may be at work on this machine.
    let options = Options {
        filter: filter_of(&sockets),
        detail: Detail::Coarse,
        limit: Some(0.5),
        ..Options::default()
    };
    let m = measure_while(vec![options], 2 * SECOND, || {
        ping_pong(&sockets, 5);
        std::thread::sleep(Duration::from_millis(20));
    })
    .remove(0);
    assert_eq!((m.observed_s, m.limit_percent), (None, Some(50.0)));
    assert!(m.packets.started > 100, "{:?}", m.packets);
}

#[test]
fn the_limit_is_kept_at_the_highest_rate() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let time = 4 * SECOND;
    for (detail, limit) in [(Detail::Coarse, 0.01), (Detail::Full, 0.02)] {
        let options = Options {
            filter: filter_of(&sockets),
            detail,
            limit: Some(limit),
            ..Options::default()
        };
        let account = Account::open();
        let mut stages = Stages::new(&possible_cpus(), options);
        let ended = AtomicBool::new(false);
        let m = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    ping_pong(&sockets, 1000);
                }
            });
            let should_continue = |wait: Duration| {
                std::thread::sleep(wait);
                true
            };
            let m = stages.measure(time, SECOND, &should_continue, &mut |_| ()).unwrap();
            ended.store(true, Relaxed);
            m
        });
        // Other tests' programs may be among them, which is to our disadvantage; the time of calling is not.
        let share = account.programs_ns() as f64 / time.as_nanos() as f64;
        let observed = m.observed_s.unwrap_or(m.duration_s) / m.duration_s;
        assert!(share < 1.5 * limit, "{detail:?}: {share} of {limit}, observed {observed}");
        assert!(m.packets.started > 500, "{detail:?}: {:?}", m.packets);
        let reported = m.cost.unwrap().cpu_percent / 100.0;
        // Less than allowed is allowed, but not nothing: at the end of the time no slice is begun that is too long.
        assert!(
            reported < 1.5 * limit && reported > 0.05 * limit,
            "{detail:?}: {reported} of {limit}"
        );
    }
}

fn span<'a>(m: &'a Measurement, from: &str, to: &str) -> &'a Span {
    let found =
        m.spans.iter().find(|s| s.direction == Direction::Rx && s.from == from && s.to == to);
    found.unwrap_or_else(|| panic!("{from} -> {to}: {:?}", m.spans))
}

/// Makes a socket's buffer large enough for the data that arrives while it is not read.
fn has_room(socket: &UdpSocket) {
    let bytes: libc::c_int = 8 << 20;
    // SAFETY: `bytes` is read within its length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Datagrams to a reader that takes them for a third of the time and is away for the rest of it: measured
/// all the time, and within a limit; both at once.
fn late_reader(period: Duration, limit: f64, time: Duration) -> [Measurement; 2] {
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let (client, server) = &sockets;
    server.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    has_room(server);
    let options = |limit| Options {
        filter: Filter { direction: Some(Direction::Rx), ..filter_of(&sockets) },
        detail: Detail::Coarse,
        limit,
        ..Options::default()
    };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while !ended.load(Relaxed) {
                let until = Instant::now() + period / 3;
                while Instant::now() < until {
                    let _ = server.recv(&mut buffer);
                }
                std::thread::sleep(period * 2 / 3);
            }
        });
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                for _ in 0..16 {
                    client.send(b"ping").unwrap();
                }
                std::thread::sleep(Duration::from_micros(900));
            }
        });
        let both = vec![options(None), options(Some(limit))];
        let measured = measure_while(both, time, || std::thread::sleep(SECOND / 10));
        ended.store(true, Relaxed);
        measured.try_into().expect("two")
    })
}

/// The bucket of a latency: each is 4.4% wide.
fn bucket(ns: Option<u64>) -> f64 {
    (ns.unwrap_or(1) as f64).log2() * 16.0
}

#[test]
fn percentiles_in_slices_are_those_of_all_packets() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    let mut wrong = Vec::new();
    // On a busy machine the threads of the load stand still for so long that a slice sees another load.
    for _ in 0..5 {
        let [all, limited] = late_reader(Duration::from_millis(6), 0.01, 8 * SECOND);
        assert!(limited.observed_s.is_some(), "it was not limited: {:?}", limited.cost);
        let spans = [&all, &limited].map(|m| span(m, "sk_data_ready", "sock_recv"));
        let distance =
            |of: fn(&Span) -> Option<u64>| (bucket(of(spans[0])) - bucket(of(spans[1]))).abs();
        let (p50, p90) = (distance(|s| s.p50_ns), distance(|s| s.p90_ns));
        // How much a limit lets through depends on what a packet costs here: enough for a percentile, at least.
        if spans.iter().all(|s| s.count >= 1_000) && p50 <= 1.0 && p90 <= 1.0 {
            return;
        }
        wrong.push((p50, p90, spans.map(|s| s.count)));
    }
    panic!("distance in buckets, and packets: {wrong:?}");
}

/// The share of packets that took longer.
fn longer(span: &Span, than: Duration) -> f64 {
    let longer = span.buckets.iter().filter(|(upper, _)| u128::from(*upper) > than.as_nanos());
    longer.map(|(_, count)| count).sum::<u64>() as f64 / span.count as f64
}

/// A reader that comes each 60ms: datagrams wait for it up to 40ms, as long as a slice is.
#[test]
fn waits_longer_than_a_slice_are_seen_in_proportion() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    let mut wrong = Vec::new();
    for _ in 0..4 {
        let [all, limited] = late_reader(Duration::from_millis(60), 0.01, 8 * SECOND);
        let spans = [&all, &limited].map(|m| span(m, "sk_data_ready", "sock_recv"));
        let shares = spans.map(|s| longer(s, Duration::from_millis(20)));
        if shares[0] > 0.2 && (shares[0] - shares[1]).abs() < 0.1 {
            return;
        }
        wrong.push((shares, spans.map(|s| s.count)));
    }
    panic!("shares beyond 20ms, and packets: {wrong:?}");
}

/// A reader that comes each 1.2 s: most datagrams wait far longer than the pause between two slices begins with.
#[test]
fn packets_that_wait_for_their_reader_outlast_a_slice() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    let mut wrong = Vec::new();
    for _ in 0..3 {
        let [all, limited] = late_reader(Duration::from_millis(1200), 0.01, 8 * SECOND);
        let spans = [&all, &limited].map(|m| span(m, "sk_data_ready", "sock_recv"));
        let shares = spans.map(|s| longer(s, Duration::from_millis(150)));
        let lost = limited.packets.abandoned as f64 / limited.packets.started as f64;
        assert!(limited.observed_s.is_some(), "it was not limited: {:?}", limited.cost);
        if shares[0] > 0.3 && shares[1] > 0.3 && lost < 0.1 {
            return;
        }
        wrong.push((shares, spans.map(|s| s.count), lost));
    }
    panic!("shares beyond 150ms, packets, and abandoned: {wrong:?}");
}
