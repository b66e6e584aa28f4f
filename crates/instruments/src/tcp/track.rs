//! What is kept of a connection between two readings: little, as there may be a hundred thousand.

use super::cpus::{Arrival, Pressure};
use super::events::Ended;
use super::limit::{Before, Late, SenderTimes, Times, divide, is_not_accepted};
use nearpath_host::{TcpInfo, TcpSocket};
use nearpath_model::tcp::{TcpCounts, TcpReset, TcpState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A connection.
#[derive(Debug, Clone)]
pub(super) struct Track {
    pub cookie: u64,
    pub v6: bool,
    pub local: SocketAddr,
    pub remote: SocketAddr,
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
    /// Counts at the start, and at the last reading.
    first: TcpCounts,
    last: TcpCounts,
    before: Option<Before>,
    /// Where its last packet arrived.
    pub arrival: Arrival,
    /// The process that has it open, if it is known.
    pub pid: Option<u32>,
    /// Of one that has ended: its process by name, its age, and how long it took to be established.
    pub comm: Option<String>,
    pub age: Option<Duration>,
    pub connect: Option<Duration>,
    pub reset: Option<TcpReset>,
    /// Since when it is known to wait for accept(2), and how long it waited.
    waits_for_accept: Option<Instant>,
    pub accept_wait: Option<Duration>,
    /// Whether data waited for its reader at any reading.
    pub has_waited_for_reader: bool,
    pub times: Times,
    pub sender: SenderTimes,
    pub rtt_us: u32,
    pub min_rtt_us: u32,
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
            local,
            remote,
            inode: 0,
            since: now,
            seen: now,
            is_new: false,
            reading: 0,
            closed: false,
            state: TcpState::Established,
            first: TcpCounts::default(),
            last: TcpCounts::default(),
            before: None,
            arrival: Arrival::default(),
            pid: None,
            comm: None,
            age: None,
            connect: None,
            reset: None,
            waits_for_accept: None,
            accept_wait: None,
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
            let counts = counts(info);
            // All that a new connection has done belongs to the interval.
            let nothing =
                || TcpCounts { timeouts: Some(0), timeout_s: Some(0.0), ..TcpCounts::default() };
            track.first = if is_new { nothing() } else { counts };
            track.remember(info, socket, counts);
        }
        track.look_for_accept(socket, now);
        track
    }

    /// How long it waits for accept(2), to the time between two readings.
    fn look_for_accept(&mut self, socket: &TcpSocket, now: Instant) {
        if is_not_accepted(socket) {
            let since = *self.waits_for_accept.get_or_insert(now);
            self.accept_wait = Some(now.saturating_duration_since(since));
        } else if let Some(since) = self.waits_for_accept.take() {
            self.accept_wait = Some(now.saturating_duration_since(since));
        }
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
        let (timeouts, timeout_s) = (self.last.timeouts, self.last.timeout_s);
        self.last = TcpCounts { timeouts, timeout_s, ..end.counts };
        (self.rtt_us, self.min_rtt_us) = (end.rtt_us, end.min_rtt_us);
        self.pid = end.pid.or(self.pid);
        self.comm = (!end.comm.is_empty()).then(|| end.comm.clone());
        (self.age, self.connect, self.reset) = (end.age, end.connect, end.reset);
        self.closed = true;
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
                reader: socket.receive_queue > 0 && pressure.is_reader_late(self.pid),
            };
            let sender = divide(&before, socket, info, seconds, late, &mut self.times);
            self.sender.busy += sender.busy;
            self.sender.receive_window += sender.receive_window;
            self.sender.send_buffer += sender.send_buffer;
            self.sender.application += sender.application;
        }
        self.remember(info, socket, counts(info));
    }

    fn remember(&mut self, info: &TcpInfo, socket: &TcpSocket, counts: TcpCounts) {
        self.before = Some(Before::of(info, socket, self.before.as_ref()));
        self.last = counts;
        (self.rtt_us, self.min_rtt_us) = (info.rtt, info.min_rtt);
    }

    /// Counts since the connection began.
    pub fn totals(&self) -> TcpCounts {
        self.last
    }

    /// What has happened since it was first seen, or since its start if it is new.
    pub fn counts(&self) -> TcpCounts {
        self.last.since(&self.first)
    }

    /// How long it was observed, in seconds.
    pub fn observed_s(&self) -> f64 {
        self.seen.saturating_duration_since(self.since).as_secs_f64()
    }
}

fn counts(info: &TcpInfo) -> TcpCounts {
    TcpCounts {
        bytes_sent: info.bytes_sent,
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        segments_out: info.segs_out.into(),
        segments_in: info.segs_in.into(),
        delivered: info.delivered.into(),
        segments_sent: info.data_segs_out.into(),
        segments_received: info.data_segs_in.into(),
        retransmits: info.total_retrans.into(),
        retransmitted_bytes: info.bytes_retrans,
        spurious_retransmits: info.dsack_dups.into(),
        timeouts: info.total_rto.map(u64::from),
        timeout_s: info.total_rto_time_ms.map(|ms| f64::from(ms) / 1e3),
        reordered: info.reord_seen.into(),
        out_of_order: info.rcv_ooopack.into(),
        ecn_marked: info.delivered_ce.into(),
    }
}
