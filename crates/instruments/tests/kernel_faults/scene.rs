//! Live traffic over a veth pair, with faults at random times, and how well the budgets of slow
//! packets identify the fault.
//!
//! A round is a datagram that a fault hits and one that it does not hit. For every slow packet the clock
//! shows whether it waited while the fault was present; and its budget's first share says
//! whether the fault was named.

use crate::common::each_cpu_a_node;
use crate::worker::{Policy, pin, schedule};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Culprit, Direction, Measurement, Outlier, Share, ShareKind};
use nearpath_testing::PATIENCE;
use nearpath_testing::veth::{Side, VethPair};
use rustix::time::ClockId;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The CPU of the fault and of the reader, and that of everything else.
pub const VICTIM: u32 = 1;
pub const OTHER: u32 = 0;

/// Default number of rounds.
const ROUNDS: usize = 40;
/// Sockets that each datagram to the group is delivered to: enough work that a few of them keep
/// a CPU in NET_RX for milliseconds.
const LISTENERS: usize = 200;
/// Datagrams that a listener has room for, so that later ones are dropped as those of a test are.
const QUEUED: u32 = 20;
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);

/// Something that makes packets late.
pub trait Fault: Send {
    /// Is about to be there; returns when it is.
    fn begin(&mut self, scene: &Scene);
    /// The packet has been sent; returns at once.
    fn sent(&mut self, _scene: &Scene) {}
    /// The packet has arrived; returns when the fault is over and all is as it was.
    fn end(&mut self, _scene: &Scene) {}
    /// When it was there, where it knows better than by when it was asked to.
    fn times(&self) -> Option<Vec<RangeInclusive<u64>>> {
        None
    }
    /// Whether a share names it.
    fn is_named(&self, share: &Share) -> bool;
}

/// What was seen.
#[derive(Debug, Default, Clone, Copy)]
pub struct Score {
    /// Slow packets with the fault there for more than half of their span.
    pub hit: usize,
    /// How many of these have it as their budget's first share.
    pub found: usize,
    /// Of how many it was the machine beneath that had the most time, or hid what had it: its hypervisor
    /// had the CPU, or no tracepoint was called there.
    pub beneath: usize,
    /// Slow packets whose first share names the fault.
    pub named: usize,
    /// How many of these had it there for a quarter of their span at least.
    pub right: usize,
    /// Slow packets, and those of which at most a twentieth is unknown.
    pub slow: usize,
    pub complete: usize,
}

impl Score {
    pub fn precision(&self) -> f64 {
        self.right as f64 / self.named.max(1) as f64
    }

    pub fn recall(&self) -> f64 {
        self.found as f64 / (self.hit - self.beneath).max(1) as f64
    }
}

/// The traffic: a client on one CPU, a reader on the other.
pub struct Scene {
    pub pair: VethPair,
    pub reader: Reader,
    client: UdpSocket,
    port: u16,
    /// Whether the stages are paused, so that all is known from the watch.
    watches: bool,
}

impl Scene {
    /// With the stages paused: what is slow is known from both ends of its path only.
    pub fn watched(reader: Policy) -> Self {
        Self { watches: true, ..Self::new(reader) }
    }

    pub fn new(reader: Policy) -> Self {
        let pair = VethPair::new(1).unwrap();
        let server = pair.run(Side::Server, |s| UdpSocket::bind((s.ipv4(), 0))).unwrap();
        let client = pair.run(Side::Client, |s| UdpSocket::bind((s.ipv4(), 0))).unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        let port = server.local_addr().unwrap().port();
        Self { reader: Reader::new(server, reader), pair, client, port, watches: false }
    }

    /// One fault for each round, and in between packets without.
    pub fn play(self, fault: &mut dyn Fault, slow: Duration) -> (Score, Measurement) {
        // On a separate thread: its scheduling does not affect later tests.
        std::thread::scope(|scope| match scope.spawn(|| self.play_here(fault, slow)).join() {
            Ok(played) => played,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    fn play_here(self, fault: &mut dyn Fault, slow: Duration) -> (Score, Measurement) {
        pin(OTHER);
        // What it sends is to be sent in the midst of the fault.
        schedule(Policy::Fifo(45));
        let rounds = rounds();
        let options = Options {
            filter: Filter {
                dport: Some(self.port),
                direction: Some(Direction::Rx),
                ..Filter::default()
            },
            budgets: true,
            slow: Some(slow),
            outliers: 20 * rounds,
            watch: self.watches,
            causes: self.watches,
            ..Options::default()
        };
        let mut stages = Stages::new(&each_cpu_a_node(), options);
        stages.start().unwrap();
        if self.watches {
            stages.pause(Duration::ZERO, Duration::ZERO, &|_| true);
        }
        let mut windows = Vec::new();
        // Some linear congruence: the times differ, and are the same in each run.
        let mut random = 4711_u64;
        let mut pause = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_micros(1000 + (random >> 33) % 3000));
        };
        for _ in 0..rounds {
            pause();
            fault.begin(&self);
            let begin = now();
            self.client.send(b"late").unwrap();
            fault.sent(&self);
            let arrived = self.reader.received.recv_timeout(PATIENCE).unwrap();
            windows.push(begin..=arrived);
            fault.end(&self);
            pause();
            self.client.send(b"in time").unwrap();
            self.reader.received.recv_timeout(PATIENCE).unwrap();
            // Slow packets are taken from the programs' ring, which has room for 250.
            stages.read().unwrap();
        }
        let measurement = stages.stop().unwrap();
        (score(&measurement, &fault.times().unwrap_or(windows), fault), measurement)
    }
}

/// How many rounds there are: `NEARPATH_FAULT_ROUNDS`, or what a test can wait for.
fn rounds() -> usize {
    number_in("NEARPATH_FAULT_ROUNDS").unwrap_or(ROUNDS)
}

/// A time of this many milliseconds, multiplied by `NEARPATH_FAULT_SCALE` on a machine where all
/// takes longer.
pub fn ms(milliseconds: u64) -> Duration {
    let scale = number_in("NEARPATH_FAULT_SCALE").unwrap_or(1);
    Duration::from_millis(milliseconds) * u32::try_from(scale).unwrap()
}

fn number_in(variable: &str) -> Option<usize> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

fn score(m: &Measurement, windows: &[RangeInclusive<u64>], fault: &dyn Fault) -> Score {
    let mut score = Score::default();
    for outlier in &m.outliers {
        let shares = || outlier.budget.iter().filter(|share| share.share.is_time());
        assert_eq!(shares().map(|share| share.ns).sum::<u64>(), outlier.span_ns, "{outlier:?}");
        let faulty: u64 = windows.iter().map(|window| within(outlier, window)).sum();
        let (hit, there) = (faulty * 2 > outlier.span_ns, faulty * 4 >= outlier.span_ns);
        let named = shares().next().is_some_and(|first| fault.is_named(first));
        score.hit += usize::from(hit);
        score.named += usize::from(named);
        score.found += usize::from(hit && named);
        score.beneath += usize::from(hit && shares().next().is_some_and(is_beneath));
        score.right += usize::from(there && named);
        score.complete += usize::from(outlier.complete);
        score.slow += 1;
    }
    score
}

/// Whether a share says that it was no task, interrupt or packet of this machine, or that it is not known.
fn is_beneath(share: &Share) -> bool {
    let no_who = |who: &Culprit| *who == Culprit { cpu: who.cpu, ..Culprit::default() };
    match share.share {
        ShareKind::Stolen | ShareKind::Unknown => true,
        ShareKind::Migration => share.who.as_ref().is_none_or(no_who),
        _ => false,
    }
}

/// How long of its span the packet waited within a time.
fn within(outlier: &Outlier, window: &RangeInclusive<u64>) -> u64 {
    let begin = outlier.at_ns.saturating_sub(outlier.span_ns).max(*window.start());
    outlier.at_ns.min(*window.end()).saturating_sub(begin)
}

/// CLOCK_MONOTONIC, as the programs have it.
pub fn now() -> u64 {
    clock(ClockId::Monotonic)
}

/// A clock, in nanoseconds.
pub fn clock(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

/// Has RPS send what a pair's server receives to the victim.
pub fn steer(pair: &VethPair) {
    pair.write(Side::Server, "queues/rx-0/rps_cpus", &format!("{:x}", 1 << VICTIM)).unwrap();
}

/// Reads datagrams, and records when.
pub struct Reader {
    pub received: Receiver<u64>,
    thread: Arc<AtomicI32>,
    over: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl Reader {
    fn new(socket: UdpSocket, policy: Policy) -> Self {
        // That it ends also when a test fails.
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let (sender, received) = channel();
        let (over, thread) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
        let (is_over, id) = (Arc::clone(&over), Arc::clone(&thread));
        let read = move || {
            pin(VICTIM);
            schedule(policy);
            id.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
            let mut buffer = [0; 64];
            while !is_over.load(SeqCst) {
                match socket.recv_from(&mut buffer) {
                    Ok(_) => drop(sender.send(now())),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        };
        let builder = std::thread::Builder::new().name("reader".to_owned());
        let handle = builder.spawn(read).unwrap();
        Self { received, thread, over, handle: Some(handle) }
    }

    /// Its thread id.
    pub fn thread(&self) -> i32 {
        nearpath_testing::wait_for("the reader's thread", || {
            Some(self.thread.load(SeqCst)).filter(|&id| id != 0)
        })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        let _ = self.handle.take().map(JoinHandle::join);
    }
}

/// Sends datagrams that are expensive to receive.
pub struct Burst {
    client: UdpSocket,
    port: u16,
    /// What the kernel needs for one.
    work: Duration,
    _listeners: Vec<UdpSocket>,
}

impl Burst {
    /// Between the two sides of a pair; from then on the victim's CPU receives.
    pub fn new(pair: &VethPair) -> Self {
        let IpAddr::V4(own) = Side::Server.ipv4() else { unreachable!("ipv4() is one") };
        let first = pair.run(Side::Server, |_| listener(own, 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let more =
            pair.run(Side::Server, |_| (1..LISTENERS).map(|_| listener(own, port)).collect());
        let mut listeners: Vec<UdpSocket> = more.unwrap();
        listeners.push(first);
        let client = pair.run(Side::Client, |s| UdpSocket::bind((s.ipv4(), 0))).unwrap();
        let send = || assert!(client.send_to(b"to all of you", (GROUP, port)).is_ok());
        // The CPU that sends receives, too, unless another one is configured.
        (0..QUEUED).for_each(|_| send());
        let begin = Instant::now();
        (0..QUEUED).for_each(|_| send());
        let work = begin.elapsed() / QUEUED;
        steer(pair);
        Self { client, port, work, _listeners: listeners }
    }

    /// As many as take this long to receive.
    pub fn send(&self, work: Duration) {
        let datagrams = work.as_nanos().div_ceil(self.work.as_nanos().max(1));
        for _ in 0..datagrams {
            self.client.send_to(b"to all of you", (GROUP, self.port)).unwrap();
        }
    }
}

/// A socket in the group; its queue fills up, and then the rest is dropped.
fn listener(own: Ipv4Addr, port: u16) -> std::io::Result<UdpSocket> {
    use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
    let it = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    sockopt::set_socket_reuseaddr(&it, true)?;
    bind(&it, &std::net::SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    // Fits a few.
    sockopt::set_socket_recv_buffer_size(&it, 4096)?;
    let it = UdpSocket::from(it);
    it.join_multicast_v4(&GROUP, &own)?;
    Ok(it)
}
