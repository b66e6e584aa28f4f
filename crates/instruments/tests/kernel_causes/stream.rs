//! A continuous stream of datagrams, one every half millisecond, so that many wait behind one obstacle; and
//! how well the budgets of slow packets identify it.
//!
//! For every slow packet the clock shows whether it waited while the obstacle was present.

use crate::common::each_cpu_a_node;
use crate::worker::{Policy, pin, schedule};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Direction, Measurement, Outlier, Share, ShareKind};
use nearpath_testing::veth::{Side, VethPair};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::time::ClockId;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The CPU of the readers, and that of everything else.
pub const VICTIM: u32 = 1;
pub const OTHER: u32 = 0;
/// Interval of datagrams in microseconds.
const INTERVAL_US: u64 = 500;

/// A time of this many microseconds, multiplied by `NEARPATH_FAULT_SCALE` on a machine where all takes
/// longer.
pub fn us(microseconds: u64) -> Duration {
    let scale = std::env::var("NEARPATH_FAULT_SCALE");
    let scale = scale.map_or(1, |scale| scale.parse().expect("NEARPATH_FAULT_SCALE is a number"));
    Duration::from_micros(microseconds) * scale
}

/// Latency above which a packet is slow.
pub fn slow() -> Duration {
    us(2000)
}

/// How long a scene takes.
pub fn lasts() -> Duration {
    us(1_000_000)
}

/// How the reader waits for its datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    Recv,
    Poll,
    Epoll,
}

/// Periods in which an obstacle was present, on the clock of the programs.
pub type Windows = Arc<Mutex<Vec<RangeInclusive<u64>>>>;

/// What a reader does between two datagrams.
pub type Between = Box<dyn FnMut() + Send>;

/// The traffic: it ends with its owner.
pub struct Stream {
    pub pair: VethPair,
    pub server: UdpSocket,
    pub port: u16,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    /// A pair whose server's packets RPS sends to the readers' CPU.
    pub fn new() -> Self {
        let pair = VethPair::new(1).unwrap();
        pair.write(Side::Server, "queues/rx-0/rps_cpus", &format!("{:x}", 1 << VICTIM)).unwrap();
        let server = pair.run(Side::Server, |s| UdpSocket::bind((s.ipv4(), 0))).unwrap();
        let port = server.local_addr().unwrap().port();
        Self { pair, server, port, over: Arc::default(), threads: Vec::new() }
    }

    /// Starts a reader; with what it does between two datagrams.
    pub fn read(&mut self, waits: Waits, policy: Policy, mut between: Between) {
        let socket = self.server.try_clone().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        if waits != Waits::Recv {
            socket.set_nonblocking(true).unwrap();
        }
        self.start("reader", move |over| {
            pin(VICTIM);
            schedule(policy);
            let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let data = epoll::EventData::new_u64(0);
            epoll::add(&instance, &socket, data, epoll::EventFlags::IN).unwrap();
            let mut buffer = [0; 2048];
            while !over.load(SeqCst) {
                wait(waits, &socket, &instance);
                match socket.recv(&mut buffer) {
                    Ok(_) => between(),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        });
    }

    /// Starts a thread that ends with the traffic.
    pub fn start(&mut self, name: &str, run: impl FnOnce(&AtomicBool) + Send + 'static) {
        let over = Arc::clone(&self.over);
        let builder = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(builder.spawn(move || run(&over)).unwrap());
    }

    /// Sends for a time, and measures.
    pub fn play(mut self, direction: Direction) -> Measurement {
        let client = self.pair.run(Side::Client, |s| UdpSocket::bind((s.ipv4(), 0))).unwrap();
        client.connect((Side::Server.ipv4(), self.port)).unwrap();
        client.set_nonblocking(true).unwrap();
        self.start("sender", move |over| {
            pin(OTHER);
            schedule(Policy::Fifo(45));
            while !over.load(SeqCst) {
                // A datagram that does not fit is not sent.
                let _ = client.send(&[0; 64]);
                std::thread::sleep(us(INTERVAL_US));
            }
        });
        let filter =
            Filter { dport: Some(self.port), direction: Some(direction), ..Filter::default() };
        measure(filter, slow(), || std::thread::sleep(lasts()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            // Send failures are counted as missing packets.
            let _ = thread.join();
        }
    }
}

/// Measures what passes a filter meanwhile; from when on it is slow.
pub fn measure(filter: Filter, slow: Duration, meanwhile: impl FnOnce()) -> Measurement {
    let options =
        Options { filter, budgets: true, slow: Some(slow), outliers: 20_000, ..Options::default() };
    let mut stages = Stages::new(&each_cpu_a_node(), options);
    stages.start().unwrap();
    meanwhile();
    stages.stop().unwrap()
}

fn wait(waits: Waits, socket: &UdpSocket, instance: &rustix::fd::OwnedFd) {
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    match waits {
        Waits::Recv => {}
        Waits::Poll => {
            let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout));
        }
        Waits::Epoll => {
            let mut events = Vec::with_capacity(1);
            let _ =
                epoll::wait(instance, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
        }
    }
}

/// CLOCK_MONOTONIC, as the programs have it.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

/// After every N datagrams the reader does something else; the period is recorded.
pub fn now_and_then(windows: &Windows, mut does: impl FnMut() + Send + 'static) -> Between {
    const EVERY: u32 = 60;
    let windows = Arc::clone(windows);
    let mut read = 0;
    Box::new(move || {
        read += 1;
        if read % EVERY == 0 {
            let begin = now();
            does();
            windows.lock().unwrap().push(begin..=now());
        }
    })
}

/// How many packets an obstacle hit, and of how many the first share names it; and how many name it, and
/// of how many it was there.
#[derive(Debug, Default)]
pub struct Score {
    pub hit: usize,
    pub found: usize,
    pub named: usize,
    pub right: usize,
    pub beneath: usize,
}

impl Score {
    pub fn of(m: &Measurement, windows: &Windows, is_named: impl Fn(&Share) -> bool) -> Self {
        let windows = windows.lock().unwrap();
        let mut score = Self::default();
        for outlier in &m.outliers {
            let shares = || outlier.budget.iter().filter(|share| share.share.is_time());
            let sum: u64 = shares().map(|share| share.ns).sum();
            assert_eq!(sum, outlier.span_ns, "{outlier:?}");
            let there: u64 = windows.iter().map(|window| within(outlier, window)).sum();
            let first = shares().next();
            let named = first.is_some_and(&is_named);
            let beneath = first.is_some_and(|share| share.share == ShareKind::Stolen);
            score.beneath += usize::from(beneath);
            score.hit += usize::from(there * 2 > outlier.span_ns && !beneath);
            score.found += usize::from(there * 2 > outlier.span_ns && named);
            score.named += usize::from(named);
            score.right += usize::from(there * 4 >= outlier.span_ns && named);
        }
        score
    }

    /// Whether it was named where it was there, and nowhere else.
    pub fn is_good(&self) -> bool {
        self.hit >= ENOUGH && self.found * 20 >= self.hit * 19 && self.right * 20 >= self.named * 19
    }
}

/// Slow packets that must have been hit.
const ENOUGH: usize = 100;

/// How long of its span a packet waited within a time.
fn within(outlier: &Outlier, window: &RangeInclusive<u64>) -> u64 {
    let begin = outlier.at_ns.saturating_sub(outlier.span_ns).max(*window.start());
    outlier.at_ns.min(*window.end()).saturating_sub(begin)
}
