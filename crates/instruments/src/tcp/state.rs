//! What was read of the sockets so far: a track per connection, the listening sockets, and what reading cost.

use super::compact::Moment;
use super::cpus::{Arrival, Arrivals};
use super::events::Ended;
use super::listeners::Listeners;
use super::pressure::{Pressure, Readers};
use super::track::{Track, is_request};
use crate::InstrumentError;
use crate::limited::own_time;
use nearpath_host::{ConnectionOwner, Root, TcpDiag, TcpFilter, TcpSocket};
use nearpath_model::tcp::{TcpCost, TcpListener, TcpState};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// Connections that have ended and are still listed; the oldest are dropped.
const CLOSED_MAX: usize = 10_000;

/// Reading where packets arrive walks the kernel's whole table of connections in one system call: 3 ms where that has
/// 262,144 buckets, in which a kernel without preemption gives the CPU to nobody. It may take one in so many parts of the
/// time.
const ARRIVALS_IN: u32 = 500;

/// Connections whose process is looked for before a result: of so many, which reader is late matters little.
pub(super) const OWNERS_MAX: usize = 4096;

/// What was read so far.
pub(super) struct State {
    diag: TcpDiag,
    arrivals: Result<Arrivals, InstrumentError>,
    /// Before that, where packets arrive is not read again.
    next_arrivals: Instant,
    pressure: Pressure,
    pub root: Root,
    filter: TcpFilter,
    began: Instant,
    connections: Connections,
    /// Cookies of those that have ended, the oldest first.
    closed: VecDeque<u64>,
    /// How many of them are not listed any more.
    dropped: u64,
    listeners: Listeners,
    pub readings: u32,
    sockets: u64,
    pub spent: Duration,
    pub is_over: bool,
    /// Whether a caller waits for all ends so far; `false` if nothing receives them.
    pub wants_ends: bool,
    pub receives_ends: bool,
    /// Why the last reading ended early.
    pub error: Option<String>,
    /// Connections known by their end alone.
    unnumbered: u64,
}

/// Cookies of connections that sock_diag has never reported begin here.
const UNNUMBERED: u64 = 1 << 63;

/// Whether sockets can be read here.
///
/// # Errors
/// The kernel has no sock_diag.
pub(super) fn available() -> Result<(), InstrumentError> {
    TcpDiag::open().map(drop).map_err(|error| refused(&error))
}

pub(super) fn refused(error: &io::Error) -> InstrumentError {
    InstrumentError::Unsupported(format!("reading TCP sockets (sock_diag): {error}"))
}

impl State {
    /// Nothing yet.
    ///
    /// # Errors
    /// The kernel has no sock_diag for TCP.
    pub fn new(filter: TcpFilter) -> Result<Self, InstrumentError> {
        Ok(Self {
            diag: TcpDiag::open().map_err(|error| refused(&error))?,
            arrivals: Arrivals::load(&filter),
            next_arrivals: Instant::now(),
            pressure: Pressure::default(),
            root: Root::live(),
            filter,
            began: Instant::now(),
            connections: Connections::default(),
            closed: VecDeque::new(),
            dropped: 0,
            listeners: Listeners::default(),
            readings: 0,
            sockets: 0,
            spent: Duration::ZERO,
            is_over: false,
            wants_ends: false,
            receives_ends: false,
            error: None,
            unnumbered: 0,
        })
    }

    fn now(&self) -> Moment {
        Moment::after_start(self.began.elapsed())
    }

    /// Reads all sockets, and passes each connection to `each` with what was kept of it. Those that have ended
    /// come last, without a socket.
    ///
    /// # Errors
    /// The kernel ended the dump early.
    pub fn read_all(&mut self, mut each: impl FnMut(&Track, Option<&TcpSocket>)) -> io::Result<()> {
        let began = own_time();
        self.readings += 1;
        let is_first = self.readings == 1;
        if !is_first {
            self.look_at_cpus();
        }
        let Self {
            diag,
            filter,
            began: start,
            connections,
            listeners,
            readings,
            sockets,
            pressure,
            ..
        } = self;
        let mut at_socket = |socket: TcpSocket| {
            *sockets += 1;
            if socket.state == TcpState::Listen {
                listeners.add(&socket);
                return;
            }
            // Without a cookie it cannot be recognized.
            let Some(cookie) = socket.cookie else { return };
            // A reading of many takes a while.
            let now = Moment::after_start(start.elapsed());
            let Some(track) = connections.of_socket(&socket, cookie, now, !is_first) else {
                return;
            };
            // A dump that is restarted has sockets twice.
            if track.reading == *readings {
                return;
            }
            track.reading = *readings;
            track.update(&socket, now, pressure);
            each(track, Some(&socket));
        };
        let dumped = diag.dump(TcpState::LIVE, filter, &mut at_socket).and_then(|()| {
            // Listening sockets have no remote end, and may have no address.
            let local = TcpFilter { sport: filter.sport.or(filter.port), ..TcpFilter::default() };
            diag.dump(&[TcpState::Listen], &local, &mut at_socket)
        });
        if dumped.is_ok() {
            self.close();
            self.connections.settle_before(self.readings);
            for track in self.connections.tracks.iter().filter(|track| track.closed) {
                each(track, None);
            }
        }
        self.spent += own_time().saturating_sub(began);
        dumped
    }

    /// Looks where packets arrived, and which of these CPUs and which readers are late.
    pub fn look_at_cpus(&mut self) {
        let Self { arrivals, connections: Connections { tracks, by_cookie, .. }, .. } = self;
        let is_due =
            Instant::now() >= self.next_arrivals && tracks.iter().any(|track| !track.closed);
        if let (Ok(arrivals), true) = (arrivals, is_due) {
            let began = Instant::now();
            let each = |cookie: u64, arrival: Arrival| {
                let at = by_cookie.get(&cookie).copied();
                let track =
                    at.and_then(|at| tracks.get_mut(at as usize)).filter(|track| !track.closed);
                track.into_iter().for_each(|track| track.arrival = arrival);
            };
            // What was known before holds if the kernel refuses this time.
            let _ = arrivals.read(each);
            self.next_arrivals = Instant::now() + ARRIVALS_IN * began.elapsed();
        }
        let live = || self.connections.tracks.iter().filter(|track| !track.closed);
        let cpus: HashSet<u32> = live().filter_map(|track| track.arrival.cpu()).collect();
        let mut readers = Readers::new();
        for track in live().filter(|track| track.has_waited_for_reader) {
            if let Some(pid) = track.pid {
                readers
                    .entry(pid.get())
                    .or_default()
                    .extend(track.arrival.reader.map(NonZeroU32::get));
            }
        }
        self.pressure.look(&self.root, &cpus, &readers);
        if let Ok(arrivals) = &mut self.arrivals {
            let is_wanted = readers.keys().any(|&pid| self.pressure.is_divided(pid));
            arrivals.look_for_readers(is_wanted, Instant::now());
        }
    }

    /// Says which processes have these sockets open, by inode.
    pub fn set_owners(&mut self, owners: &HashMap<u64, ConnectionOwner>) {
        for track in &mut self.connections.tracks {
            let owner = owners.get(&track.inode.into());
            track.pid = owner.and_then(|owner| NonZeroU32::new(owner.pid)).or(track.pid);
        }
    }

    /// Why it is unknown on which CPUs packets arrive, if so.
    pub fn no_arrivals(&self) -> Option<String> {
        self.arrivals.as_ref().err().map(ToString::to_string)
    }

    /// Why it is unknown which threads read connections, if that mattered.
    pub fn no_readers(&self) -> Option<&str> {
        self.arrivals.as_ref().ok()?.no_readers()
    }

    /// Marks the connections that were not in the last reading as ended.
    fn close(&mut self) {
        for track in &mut self.connections.tracks {
            if !track.closed && track.reading != self.readings {
                track.closed = true;
                self.closed.push_back(track.cookie);
            }
        }
        self.forget();
    }

    /// Drops the oldest of those that have ended if there are too many.
    fn forget(&mut self) {
        // Half of them at once, so that the rest is renumbered rarely.
        if self.closed.len() <= CLOSED_MAX {
            return;
        }
        let keep = CLOSED_MAX / 2;
        let oldest: Vec<u64> = self.closed.drain(..self.closed.len() - keep).collect();
        self.dropped += oldest.len() as u64;
        self.connections.remove(&oldest);
    }

    /// Ends connections, whether they were read before or not.
    pub fn end(&mut self, ended: &[Ended]) {
        let now = self.now();
        for end in ended {
            if let Some(track) = self.connections.of_end(end) {
                if !track.closed {
                    self.closed.push_back(track.cookie);
                }
                track.end(end);
                continue;
            }
            self.unnumbered += 1;
            let cookie = end.cookie.unwrap_or(UNNUMBERED | self.unnumbered);
            self.connections.add(Track::of_end(end, cookie, now));
            self.closed.push_back(cookie);
        }
        self.forget();
    }

    /// Inodes of connections whose data waited for a process that is not known.
    pub fn waiting_for_unknown_readers(&self) -> impl Iterator<Item = u64> + '_ {
        let waits = |track: &&Track| {
            track.has_waited_for_reader && track.pid.is_none() && !track.closed && track.inode != 0
        };
        self.connections
            .tracks
            .iter()
            .filter(waits)
            .map(|track| track.inode.into())
            .take(OWNERS_MAX)
    }

    /// Inodes of all connections known so far.
    pub fn inodes(&self) -> impl Iterator<Item = u64> + '_ {
        self.connections.tracks.iter().map(|track| track.inode.into())
    }

    /// Connections seen so far.
    pub fn total(&self) -> u64 {
        self.connections.tracks.len() as u64 + self.dropped
    }

    /// Connections that have ended and are not listed any more.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Why the last reading ended early, if so.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// What reading has cost.
    pub fn cost(&self, duration_s: f64) -> TcpCost {
        let spent = self.spent.as_secs_f64();
        TcpCost {
            dumps: self.readings.into(),
            sockets: self.sockets,
            ns_per_socket: (self.sockets > 0).then(|| spent * 1e9 / self.sockets as f64),
            cpu_percent: if duration_s > 0.0 { 100.0 * spent / duration_s } else { 0.0 },
            programs: None,
            sampling: None,
        }
    }

    /// The listening sockets, each with its inode.
    pub fn listeners(&self) -> Vec<(u64, TcpListener)> {
        self.listeners.get()
    }
}

/// The connections that were seen.
///
/// A connection has the cookie of its request if that had one when the handshake ended; but a dump that holds the request at
/// that moment gives it one afterwards, and the connection gets another (`inet_diag_dump_icsk` of net/ipv4/inet_diag.c fills
/// in after it has released the lock; `inet_csk_clone_lock` of net/ipv4/inet_connection_sock.c). In the same way a
/// connection that closes while a dump holds it gets its first cookie when its end has been reported without one. So both
/// are also recognised by their ends.
#[derive(Debug, Default)]
struct Connections {
    tracks: Vec<Track>,
    by_cookie: HashMap<u64, u32>,
    /// Those whose handshake was not complete at the last reading, or which closed meanwhile.
    unsettled: HashMap<(SocketAddr, SocketAddr), u32>,
}

impl Connections {
    fn add(&mut self, track: Track) -> u32 {
        let at = place(self.tracks.len());
        self.by_cookie.insert(track.cookie, at);
        self.tracks.push(track);
        at
    }

    /// The connection of a socket, a new one if it is unknown.
    fn of_socket(
        &mut self,
        socket: &TcpSocket,
        cookie: u64,
        now: Moment,
        is_new: bool,
    ) -> Option<&mut Track> {
        let ends = (socket.local, socket.remote);
        let known = self.by_cookie.get(&cookie).copied();
        let known = known.or_else(|| self.of_ends(ends, Some(cookie)));
        let at = known.unwrap_or_else(|| self.add(Track::new(socket, cookie, now, is_new)));
        if is_unsettled(socket.state) {
            self.unsettled.insert(ends, at);
        }
        self.tracks.get_mut(at as usize)
    }

    /// The connection that has ended, if it was seen before.
    fn of_end(&mut self, end: &Ended) -> Option<&mut Track> {
        let known = end.cookie.and_then(|cookie| self.by_cookie.get(&cookie).copied());
        let known = known.or_else(|| self.of_ends((end.local, end.remote), end.cookie));
        self.tracks.get_mut(known? as usize)
    }

    /// The request that has become a connection with this cookie, or with one that is not known; or what has closed.
    fn of_ends(&mut self, ends: (SocketAddr, SocketAddr), cookie: Option<u64>) -> Option<u32> {
        let at = self.unsettled.remove(&ends)?;
        let track = self.tracks.get_mut(at as usize)?;
        // What had a cookie when it ended is another connection than what had closed without one.
        let is_other = track.state == TcpState::Close && cookie.is_some();
        if track.closed || !is_unsettled(track.state) || is_other {
            return None;
        }
        if let Some(cookie) = cookie {
            self.by_cookie.remove(&track.cookie);
            self.by_cookie.insert(cookie, at);
            track.cookie = cookie;
        }
        Some(at)
    }

    /// Only requests that the last reading contained may become connections, and only what it contained may have closed.
    fn settle_before(&mut self, reading: u32) {
        let tracks = &self.tracks;
        self.unsettled.retain(|_, at| {
            let track = tracks.get(*at as usize);
            track.is_some_and(|track| track.reading == reading && is_unsettled(track.state))
        });
    }

    /// Forgets connections, by their cookies.
    fn remove(&mut self, cookies: &[u64]) {
        for cookie in cookies {
            self.by_cookie.remove(cookie);
        }
        let kept = &self.by_cookie;
        self.tracks.retain(|track| kept.contains_key(&track.cookie));
        let numbered = self.tracks.iter().enumerate();
        self.by_cookie = numbered.map(|(at, track)| (track.cookie, place(at))).collect();
        self.unsettled.clear();
    }
}

/// Whether the cookie that a dump gives to a socket in this state may not be that of its end.
fn is_unsettled(state: TcpState) -> bool {
    is_request(state) || state == TcpState::Close
}

/// Of a track; a host has far fewer sockets than 2^32.
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::limit_tests;
    use super::*;
    use nearpath_host::TcpInfo;
    use nearpath_model::tcp::TcpCounts;

    fn socket(state: TcpState, port: u16, received: Option<u64>) -> TcpSocket {
        let info = |bytes| TcpInfo { bytes_received: bytes, ..TcpInfo::default() };
        TcpSocket {
            state,
            remote: ([10, 0, 0, 2], port).into(),
            info: received.map(info),
            ..limit_tests::socket()
        }
    }

    fn see(connections: &mut Connections, socket: &TcpSocket, cookie: u64, reading: u32) {
        let now = Moment::after_start(Duration::from_millis(u64::from(reading) * 100));
        let track = connections.of_socket(socket, cookie, now, true).unwrap();
        track.reading = reading;
        track.update(socket, now, &Pressure::default());
    }

    #[test]
    fn a_request_and_its_connection_are_one() {
        for cookie in [7, 8] {
            let mut seen = Connections::default();
            see(&mut seen, &socket(TcpState::NewSynRecv, 1000, None), 7, 1);
            seen.settle_before(1);
            see(&mut seen, &socket(TcpState::Established, 1000, Some(300)), cookie, 2);
            see(&mut seen, &socket(TcpState::Established, 2000, Some(5)), 9, 2);
            let received = seen.tracks.iter().map(|track| track.counts().bytes_received);
            assert_eq!(received.collect::<Vec<_>>(), [300, 5]);
            assert_eq!((seen.tracks[0].cookie, seen.by_cookie[&cookie]), (cookie, 0));
            assert_eq!(seen.by_cookie.len(), 2);
        }
    }

    fn ended(socket: &TcpSocket, cookie: Option<u64>) -> Ended {
        Ended {
            cookie,
            v6: false,
            local: socket.local,
            remote: socket.remote,
            state: TcpState::Established,
            age: None,
            connect: None,
            pid: None,
            comm: String::new(),
            reset: None,
            counts: TcpCounts::default(),
            rtt_us: 0,
            min_rtt_us: 0,
        }
    }

    #[test]
    fn a_connection_that_closes_while_it_is_read_has_one_end() {
        let closed = socket(TcpState::Close, 1000, Some(10));
        for (cookie, is_its) in [(None, true), (Some(7), true), (Some(8), false)] {
            let mut seen = Connections::default();
            see(&mut seen, &closed, 7, 1);
            seen.settle_before(1);
            let end = ended(&closed, cookie);
            assert_eq!(seen.of_end(&end).is_some(), is_its, "{cookie:?}");
            // The same port again, later.
            seen.settle_before(2);
            assert!(seen.of_end(&Ended { cookie: None, ..end }).is_none());
        }
        // What was open had its cookie before it ended.
        let mut seen = Connections::default();
        see(&mut seen, &socket(TcpState::Established, 1000, Some(10)), 7, 1);
        let end = ended(&closed, None);
        assert!(seen.of_end(&end).is_none());
    }

    #[test]
    fn a_request_that_has_expired_is_another_connection() {
        let mut seen = Connections::default();
        see(&mut seen, &socket(TcpState::SynRecv, 1000, None), 7, 1);
        seen.settle_before(2);
        see(&mut seen, &socket(TcpState::Established, 1000, Some(300)), 8, 3);
        assert_eq!(seen.tracks.len(), 2);
    }
}
