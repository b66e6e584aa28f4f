//! What is kept of a connection between two readings: little, as there may be a hundred thousand.

use super::compact::{Counts, End};
use super::cpus::Arrival;
use super::events::Ended;
use super::limit::{Before, Late, SenderTimes, Times, divide, is_not_accepted};
use super::pressure::Pressure;
use nearpath_host::{TcpInfo, TcpSocket};
use nearpath_model::tcp::{TcpCounts, TcpReset, TcpState};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// A connection.
#[derive(Debug, Clone)]
pub(super) struct Track {
    pub cookie: u64,
    pub v6: bool,
    pub local: End,
    pub remote: End,
    pub inode: u32,
    /// When it was first and last seen; it was established after the first if `is_new`.
    pub since: Instant,
    pub seen: Instant,
    pub is_new: bool,
    /// Number of the last reading that contained it.
    pub reading: u64,
    /// Whether its end was reported.
    pub closed: bool,
    pub state: TcpState,
    /// Counts at the start, unless they have never changed; and at the last reading.
    first: Option<Box<Counts>>,
    last: Counts,
    before: Option<Before>,
    /// Where its last packet arrived.
    pub arrival: Arrival,
    /// The process that has it open, if it is known.
    pub pid: Option<u32>,
    /// What few connections have.
    rare: Option<Box<Rare>>,
    /// Whether data waited for its reader at any reading.
    pub has_waited_for_reader: bool,
    pub times: Times,
    pub sender: SenderTimes,
    pub rtt_us: u32,
    pub min_rtt_us: u32,
}

/// Of a connection that has ended, or that waited for accept(2).
#[derive(Debug, Clone, Default)]
pub(super) struct Rare {
    /// Of one that has ended: its process by name, its age, how long it took to be established, who reset it.
    pub comm: Option<String>,
    pub age: Option<Duration>,
    pub connect: Option<Duration>,
    pub reset: Option<TcpReset>,
    /// Since when it is known to wait for accept(2), and how long it waited.
    waits_for_accept: Option<Instant>,
    pub accept_wait: Option<Duration>,
}

impl Track {
    /// A connection of which only this is known.
    fn between(
        cookie: u64,
        v6: bool,
        (local, remote): (SocketAddr, SocketAddr),
        now: Instant,
    ) -> Self {
        Self {
            cookie,
            v6,
            local: local.into(),
            remote: remote.into(),
            inode: 0,
            since: now,
            seen: now,
            is_new: false,
            reading: 0,
            closed: false,
            state: TcpState::Established,
            first: None,
            last: Counts::unknown(),
            before: None,
            arrival: Arrival::default(),
            pid: None,
            rare: None,
            has_waited_for_reader: false,
            times: Times::default(),
            sender: SenderTimes::default(),
            rtt_us: 0,
            min_rtt_us: u32::MAX,
        }
    }

    /// A connection that is seen for the first time; `is_new` if it did not exist at the start.
    pub fn new(socket: &TcpSocket, cookie: u64, now: Instant, is_new: bool) -> Self {
        let ends = (socket.local, socket.remote);
        let mut track = Self {
            inode: socket.inode,
            is_new,
            state: socket.state,
            has_waited_for_reader: socket.receive_queue > 0,
            ..Self::between(cookie, socket.v6, ends, now)
        };
        if let Some(info) = &socket.info {
            // All that a new connection has done belongs to the interval.
            track.first = is_new.then(Box::default);
            track.remember(info, socket, 0.0);
        }
        track.look_for_accept(socket, now);
        track
    }

    /// How long it waits for accept(2), to the time between two readings.
    fn look_for_accept(&mut self, socket: &TcpSocket, now: Instant) {
        let waits = is_not_accepted(socket);
        if !waits && self.rare.is_none() {
            return;
        }
        let rare = self.rare.get_or_insert_default();
        let since = rare.waits_for_accept.or(waits.then_some(now));
        if let Some(since) = since {
            rare.accept_wait = Some(now.saturating_duration_since(since));
        }
        rare.waits_for_accept = since.filter(|_| waits);
    }

    /// What few connections have.
    pub fn rare(&self) -> Option<&Rare> {
        self.rare.as_deref()
    }

    /// A connection of which nothing but its end was seen.
    pub fn of_end(end: &Ended, cookie: u64, now: Instant) -> Self {
        let mut track = Self {
            since: end.age.and_then(|age| now.checked_sub(age)).unwrap_or(now),
            is_new: end.age.is_some(),
            state: end.state,
            ..Self::between(cookie, end.v6, (end.local, end.remote), now)
        };
        track.end(end);
        track
    }

    /// Ends it, with all that it did.
    pub fn end(&mut self, end: &Ended) {
        self.keep_first();
        self.last = Counts::of_end(&end.counts, &self.last);
        (self.rtt_us, self.min_rtt_us) = (end.rtt_us, end.min_rtt_us);
        self.pid = end.pid.or(self.pid);
        let rare = self.rare.get_or_insert_default();
        rare.comm = (!end.comm.is_empty()).then(|| end.comm.clone());
        (rare.age, rare.connect, rare.reset) = (end.age, end.connect, end.reset);
        self.closed = true;
    }

    /// The counts change from now on.
    fn keep_first(&mut self) {
        if self.first.is_none() {
            self.first = Some(Box::new(self.last));
        }
    }

    /// Continues it with a later reading.
    pub fn update(&mut self, socket: &TcpSocket, now: Instant, pressure: &Pressure) {
        let seconds = now.saturating_duration_since(self.seen).as_secs_f64();
        self.seen = now;
        self.state = socket.state;
        self.inode = socket.inode;
        self.has_waited_for_reader |= socket.receive_queue > 0;
        self.look_for_accept(socket, now);
        let Some(info) = &socket.info else { return };
        if let Some(before) = self.before.filter(|_| seconds > 0.0) {
            let late = Late {
                softirq: pressure.is_cpu_late(self.arrival.cpu),
                reader: socket.receive_queue > 0
                    && pressure.is_reader_late(self.pid, self.arrival.reader.map(NonZeroU32::get)),
            };
            let sender = divide(&before, socket, info, seconds, late, &mut self.times);
            self.sender.busy += sender.busy;
            self.sender.receive_window += sender.receive_window;
            self.sender.send_buffer += sender.send_buffer;
            self.sender.application += sender.application;
        }
        self.remember(info, socket, seconds);
    }

    fn remember(&mut self, info: &TcpInfo, socket: &TcpSocket, seconds: f64) {
        let counts = Counts::of(info);
        if self.before.is_some() && counts != self.last {
            self.keep_first();
        }
        self.before = Some(Before::of(info, socket, self.before.as_ref(), seconds));
        self.last = counts;
        (self.rtt_us, self.min_rtt_us) = (info.rtt, info.min_rtt);
    }

    /// Counts since the connection began.
    pub fn totals(&self) -> TcpCounts {
        self.last.get()
    }

    /// What has happened since it was first seen, or since its start if it is new.
    pub fn counts(&self) -> TcpCounts {
        let first = self.first.as_deref().unwrap_or(&self.last);
        self.last.get().since(&first.get())
    }

    /// How long it was observed, in seconds.
    pub fn observed_s(&self) -> f64 {
        self.seen.saturating_duration_since(self.since).as_secs_f64()
    }
}
