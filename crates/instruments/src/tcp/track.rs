//! What is kept of a connection between two readings: little, as there may be a hundred thousand, most of which do
//! nothing.

use super::compact::{Counts, End, Moment};
use super::cpus::Arrival;
use super::events::Ended;
use super::limit::{Before, Late, ReaderLateness, SenderTimes, Times, divide, is_not_accepted};
use super::pressure::Pressure;
use nearpath_host::{TcpInfo, TcpSocket};
use nearpath_model::tcp::{TcpCounts, TcpLimit, TcpReset, TcpState};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

/// Whether the handshake of a connection in this state is not complete: there are no counts yet.
pub(super) fn is_request(state: TcpState) -> bool {
    matches!(state, TcpState::SynRecv | TcpState::NewSynRecv)
}

/// A connection.
#[derive(Debug, Clone)]
pub(super) struct Track {
    pub cookie: u64,
    pub v6: bool,
    pub local: End,
    pub remote: End,
    pub inode: u32,
    /// When it was first and last seen; it was established after the first if `is_new`.
    pub since: Moment,
    pub seen: Moment,
    pub is_new: bool,
    /// Number of the last reading that contained it.
    pub reading: u32,
    /// Whether its end was reported.
    pub closed: bool,
    pub state: TcpState,
    /// Counts at the last reading.
    last: Counts,
    kept: Kept,
    /// Where its last packet arrived.
    pub arrival: Arrival,
    /// The process that has it open, if it is known.
    pub pid: Option<NonZeroU32>,
    /// What it did, unless it was idle so far.
    activity: Option<Box<Activity>>,
    /// While there is none: the only limit, and the time of it, in seconds.
    idle_by: TcpLimit,
    idle_s: f32,
    /// What few connections have.
    rare: Option<Box<Rare>>,
    /// Whether data waited for its reader at any reading.
    pub has_waited_for_reader: bool,
    pub rtt_us: u32,
    pub min_rtt_us: u32,
}

/// Of a connection that is new, or whose counts or limits have changed.
#[derive(Debug, Clone, Default)]
struct Activity {
    /// Counts at the start.
    first: Counts,
    times: Times,
    sender: SenderTimes,
}

/// [`Before`] without what the counts have as well, and with the low 32 bits of times: there is less than half an hour
/// between two readings.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    is_known: bool,
    busy_us: u32,
    rwnd_us: u32,
    sndbuf_us: u32,
    widest_send_window: u32,
    widest_receive_window: u32,
    /// In hundredths of a second; `u8::MAX`: none.
    closed_cs: u8,
    was_full: bool,
    receive_rate: f32,
}

/// At most so much time is carried from one reading to the next, in microseconds.
const CARRIED_US: u64 = 1_000_000;

impl Kept {
    fn of(before: &Before) -> Self {
        let low = |us: u64| (us & u64::from(u32::MAX)) as u32;
        Self {
            is_known: true,
            busy_us: low(before.busy_us),
            rwnd_us: low(before.rwnd_us),
            sndbuf_us: low(before.sndbuf_us),
            widest_send_window: before.widest_send_window,
            widest_receive_window: before.widest_receive_window,
            closed_cs: before.closed_ms.map_or(u8::MAX, |ms| ms.div_ceil(10) as u8),
            was_full: before.was_full,
            receive_rate: before.receive_rate,
        }
    }

    /// The kernel's times may have risen by more than the time that has passed, as a reading takes a while, and they are
    /// counted in jiffies: the rest belongs to the next time.
    fn carry(&mut self, before: &Before, now: &TcpInfo, spent: &SenderTimes) {
        let later = |to: &mut u32, now: u64, old: u64, spent: f32| {
            let rest = now.saturating_sub(old).saturating_sub((f64::from(spent) * 1e6) as u64);
            *to = to.wrapping_sub(rest.min(CARRIED_US) as u32);
        };
        later(&mut self.busy_us, now.busy_time, before.busy_us, spent.busy);
        later(&mut self.rwnd_us, now.rwnd_limited, before.rwnd_us, spent.receive_window);
        later(&mut self.sndbuf_us, now.sndbuf_limited, before.sndbuf_us, spent.send_buffer);
    }

    /// What was remembered, as `now` follows it; `None` if nothing was.
    fn before(&self, last: &Counts, now: &TcpInfo) -> Option<Before> {
        let earlier = |now: u64, low: u32| {
            let rise = (now as u32).wrapping_sub(low);
            // What decreases has not risen.
            now.saturating_sub(if rise > u32::MAX / 2 { 0 } else { rise.into() })
        };
        let (bytes_sent, bytes_received) = last.bytes();
        self.is_known.then(|| Before {
            busy_us: earlier(now.busy_time, self.busy_us),
            rwnd_us: earlier(now.rwnd_limited, self.rwnd_us),
            sndbuf_us: earlier(now.sndbuf_limited, self.sndbuf_us),
            timeout_ms: last.timeout_ms(),
            bytes_sent,
            bytes_received,
            widest_send_window: self.widest_send_window,
            widest_receive_window: self.widest_receive_window,
            closed_ms: (self.closed_cs < u8::MAX).then(|| u16::from(self.closed_cs) * 10),
            was_full: self.was_full,
            receive_rate: self.receive_rate,
        })
    }
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
    waits_for_accept: Option<Moment>,
    pub accept_wait: Option<Duration>,
}

impl Track {
    /// A connection of which only this is known.
    fn between(
        cookie: u64,
        v6: bool,
        (local, remote): (SocketAddr, SocketAddr),
        now: Moment,
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
            last: Counts::default(),
            kept: Kept::default(),
            arrival: Arrival::default(),
            pid: None,
            activity: None,
            idle_by: TcpLimit::Application,
            idle_s: 0.0,
            rare: None,
            has_waited_for_reader: false,
            rtt_us: 0,
            min_rtt_us: u32::MAX,
        }
    }

    /// A connection that is seen for the first time; `is_new` if it did not exist at the start.
    pub fn new(socket: &TcpSocket, cookie: u64, now: Moment, is_new: bool) -> Self {
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
            track.activity = is_new.then(Box::default);
            track.remember(info, socket, 0.0);
        }
        track.look_for_accept(socket, now);
        track
    }

    /// How long it waits for accept(2), to the time between two readings.
    fn look_for_accept(&mut self, socket: &TcpSocket, now: Moment) {
        let waits = is_not_accepted(socket);
        if !waits && self.rare.is_none() {
            return;
        }
        let rare = self.rare.get_or_insert_default();
        let since = rare.waits_for_accept.or(waits.then_some(now));
        if let Some(since) = since {
            rare.accept_wait = Some(now.since(since));
        }
        rare.waits_for_accept = since.filter(|_| waits);
    }

    /// What few connections have.
    pub fn rare(&self) -> Option<&Rare> {
        self.rare.as_deref()
    }

    /// A connection of which nothing but its end was seen.
    pub fn of_end(end: &Ended, cookie: u64, now: Moment) -> Self {
        let mut track = Self {
            since: now.before(end.age.unwrap_or_default()),
            is_new: end.age.is_some(),
            state: end.state,
            ..Self::between(cookie, end.v6, (end.local, end.remote), now)
        };
        track.end(end);
        track
    }

    /// Ends it, with all that it did.
    pub fn end(&mut self, end: &Ended) {
        self.activity();
        self.last = Counts::of_end(&end.counts, &self.last);
        (self.rtt_us, self.min_rtt_us) = (end.rtt_us, end.min_rtt_us);
        self.pid = end.pid.and_then(NonZeroU32::new).or(self.pid);
        let rare = self.rare.get_or_insert_default();
        rare.comm = (!end.comm.is_empty()).then(|| end.comm.clone());
        (rare.age, rare.connect, rare.reset) = (end.age, end.connect, end.reset);
        self.closed = true;
    }

    /// Its activity from now on.
    fn activity(&mut self) -> &mut Activity {
        self.activity.get_or_insert_with(|| {
            Box::new(Activity {
                first: self.last.clone(),
                times: Times::of(self.idle_by, self.idle_s),
                sender: SenderTimes::idle(self.idle_by, self.idle_s),
            })
        })
    }

    /// Continues it with a later reading.
    pub fn update(&mut self, socket: &TcpSocket, now: Moment, pressure: &Pressure) {
        let seconds = now.since(self.seen).as_secs_f64();
        self.seen = now;
        let was_request = is_request(self.state);
        self.state = socket.state;
        self.inode = socket.inode;
        self.has_waited_for_reader |= socket.receive_queue > 0;
        self.look_for_accept(socket, now);
        let Some(info) = &socket.info else { return };
        if let Some(before) = self.kept.before(&self.last, info).filter(|_| seconds > 0.0) {
            let pid = self.pid.map(NonZeroU32::get);
            let thread = self.arrival.reader.map(NonZeroU32::get);
            let reader = pressure.reader_lateness(pid, thread).filter(|how| {
                // A saturated reader may have read everything at this moment.
                let has_received = info.bytes_received > before.bytes_received;
                socket.receive_queue > 0 || (*how == ReaderLateness::Saturated && has_received)
            });
            let late = Late { softirq: pressure.lateness(self.arrival.cpu()), reader };
            let mut times = Times::default();
            let sender = divide(&before, socket, info, seconds, late, &mut times);
            self.spend(&times, &sender);
            self.remember(info, socket, seconds);
            self.kept.carry(&before, info, &sender);
            return;
        }
        // All that it has done was since it was first seen.
        if was_request && self.activity.is_none() {
            self.activity = Some(Box::default());
        }
        self.remember(info, socket, seconds);
    }

    /// Adds the time between two readings.
    fn spend(&mut self, times: &Times, sender: &SenderTimes) {
        if self.activity.is_none()
            && let Some((limit, seconds)) = times.only()
            && *sender == SenderTimes::idle(limit, seconds)
            && (limit == self.idle_by || self.idle_s <= 0.0)
        {
            (self.idle_by, self.idle_s) = (limit, self.idle_s + seconds);
            return;
        }
        let activity = self.activity();
        activity.times.add_all(times);
        activity.sender.add(sender);
    }

    fn remember(&mut self, info: &TcpInfo, socket: &TcpSocket, seconds: f64) {
        let counts = Counts::of(info);
        let before = self.kept.before(&self.last, info);
        if before.is_some() && counts != self.last {
            self.activity();
        }
        self.kept = Kept::of(&Before::of(info, socket, before.as_ref(), seconds));
        self.last = counts;
        (self.rtt_us, self.min_rtt_us) = (info.rtt, info.min_rtt);
    }

    /// Counts since the connection began.
    pub fn totals(&self) -> TcpCounts {
        self.last.get()
    }

    /// What has happened since it was first seen, or since its start if it is new.
    pub fn counts(&self) -> TcpCounts {
        let first = self.activity.as_ref().map_or(&self.last, |activity| &activity.first);
        self.last.get().since(&first.get())
    }

    /// Time per limit.
    pub fn times(&self) -> Times {
        let idle = || Times::of(self.idle_by, self.idle_s);
        self.activity.as_ref().map_or_else(idle, |activity| activity.times)
    }

    /// How the time was spent by the sender.
    pub fn sender(&self) -> SenderTimes {
        let idle = || SenderTimes::idle(self.idle_by, self.idle_s);
        self.activity.as_ref().map_or_else(idle, |activity| activity.sender)
    }

    /// How long it was observed, in seconds.
    pub fn observed_s(&self) -> f64 {
        self.seen.since(self.since).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be a hundred thousand, in 50 MB with the program.
    #[test]
    fn an_idle_connection_takes_little_memory() {
        assert!(size_of::<Track>() <= 208, "{}", size_of::<Track>());
    }

    #[test]
    fn times_beyond_32_bits_are_continued() {
        let info = |us: u64| TcpInfo { busy_time: us, ..TcpInfo::default() };
        let at = (1 << 33) - 300;
        let kept = Kept::of(&Before { busy_us: at, ..Before::default() });
        for rise in [0, 200, 500] {
            let before = kept.before(&Counts::default(), &info(at + rise)).unwrap();
            assert_eq!(before.busy_us, at, "{rise}");
        }
        // It has not risen.
        let before = kept.before(&Counts::default(), &info(at - 1)).unwrap();
        assert_eq!(before.busy_us, at - 1);
        assert!(Kept::default().before(&Counts::default(), &info(5)).is_none());
    }

    /// Readings that are late and early again, of a sender that is always busy.
    #[test]
    fn a_busy_sender_is_never_idle() {
        let mut kept = Kept::of(&Before::default());
        let (mut read_s, mut busy) = (0.0, 0.0);
        for (at_s, taken_s) in [(0.1, 0.13), (0.2, 0.2), (0.3, 0.39), (0.4, 0.4)] {
            let now = TcpInfo { busy_time: (taken_s * 1e6) as u64, ..TcpInfo::default() };
            let before = kept.before(&Counts::default(), &now).unwrap();
            let rise = (now.busy_time - before.busy_us) as f64 / 1e6;
            let spent = SenderTimes { busy: rise.min(at_s - read_s) as f32, ..Default::default() };
            kept = Kept::of(&Before { busy_us: now.busy_time, ..before });
            kept.carry(&before, &now, &spent);
            (read_s, busy) = (at_s, busy + spent.busy);
        }
        assert!((busy - 0.4).abs() < 1e-4, "{busy}");
    }
}
