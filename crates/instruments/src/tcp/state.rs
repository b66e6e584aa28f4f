//! What was read of the sockets so far: a track per connection, the listening sockets, and what reading cost.

use super::compact::Moment;
use super::cpus::{Arrival, Arrivals};
use super::events::Ended;
use super::listeners::Listeners;
use super::pressure::{Pressure, Readers};
use super::track::Track;
use crate::InstrumentError;
use nearpath_host::{ConnectionOwner, Root, TcpDiag, TcpFilter, TcpSocket};
use nearpath_model::tcp::{TcpCost, TcpListener, TcpState};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// Connections that have ended and are still listed; the oldest are dropped.
const CLOSED_MAX: usize = 10_000;

/// Connections whose process is looked for before a result: of so many, which reader is late matters little.
pub(super) const OWNERS_MAX: usize = 4096;

/// What was read so far.
pub(super) struct State {
    diag: TcpDiag,
    arrivals: Result<Arrivals, InstrumentError>,
    pressure: Pressure,
    pub root: Root,
    filter: TcpFilter,
    began: Instant,
    tracks: Vec<Track>,
    by_cookie: HashMap<u64, u32>,
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
            pressure: Pressure::default(),
            root: Root::live(),
            filter,
            began: Instant::now(),
            tracks: Vec::new(),
            by_cookie: HashMap::new(),
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
        let began = thread_time();
        self.readings += 1;
        let is_first = self.readings == 1;
        if !is_first {
            self.look_at_cpus();
        }
        let Self {
            diag,
            filter,
            began: start,
            tracks,
            by_cookie,
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
            let at = *by_cookie.entry(cookie).or_insert_with(|| {
                tracks.push(Track::new(&socket, cookie, now, !is_first));
                place(tracks.len() - 1)
            });
            let Some(track) = tracks.get_mut(at as usize) else { return };
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
            for track in self.tracks.iter().filter(|track| track.closed) {
                each(track, None);
            }
        }
        self.spent += thread_time().saturating_sub(began);
        dumped
    }

    /// Looks where packets arrived, and which of these CPUs and which readers are late.
    pub fn look_at_cpus(&mut self) {
        let Self { arrivals, tracks, by_cookie, .. } = self;
        if let Ok(arrivals) = arrivals {
            let each = |cookie: u64, arrival: Arrival| {
                let at = by_cookie.get(&cookie).copied();
                let track =
                    at.and_then(|at| tracks.get_mut(at as usize)).filter(|track| !track.closed);
                track.into_iter().for_each(|track| track.arrival = arrival);
            };
            // What was known before holds if the kernel refuses this time.
            let _ = arrivals.read(each);
        }
        let live = || self.tracks.iter().filter(|track| !track.closed);
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
        for track in &mut self.tracks {
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
        for track in &mut self.tracks {
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
        for cookie in &oldest {
            self.by_cookie.remove(cookie);
        }
        let kept = &self.by_cookie;
        self.tracks.retain(|track| kept.contains_key(&track.cookie));
        let numbered = self.tracks.iter().enumerate();
        self.by_cookie = numbered.map(|(at, track)| (track.cookie, place(at))).collect();
    }

    /// Ends connections, whether they were read before or not.
    pub fn end(&mut self, ended: &[Ended]) {
        let now = self.now();
        for end in ended {
            let known = end.cookie.and_then(|cookie| self.by_cookie.get(&cookie).copied());
            if let Some(track) = known.and_then(|at| self.tracks.get_mut(at as usize)) {
                if !track.closed {
                    self.closed.push_back(track.cookie);
                }
                track.end(end);
                continue;
            }
            self.unnumbered += 1;
            let cookie = end.cookie.unwrap_or(UNNUMBERED | self.unnumbered);
            self.by_cookie.insert(cookie, place(self.tracks.len()));
            self.tracks.push(Track::of_end(end, cookie, now));
            self.closed.push_back(cookie);
        }
        self.forget();
    }

    /// Inodes of connections whose data waited for a process that is not known.
    pub fn waiting_for_unknown_readers(&self) -> impl Iterator<Item = u64> + '_ {
        let waits = |track: &&Track| {
            track.has_waited_for_reader && track.pid.is_none() && !track.closed && track.inode != 0
        };
        self.tracks.iter().filter(waits).map(|track| track.inode.into()).take(OWNERS_MAX)
    }

    /// Inodes of all connections known so far.
    pub fn inodes(&self) -> impl Iterator<Item = u64> + '_ {
        self.tracks.iter().map(|track| track.inode.into())
    }

    /// Connections seen so far.
    pub fn total(&self) -> u64 {
        self.tracks.len() as u64 + self.dropped
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

/// Of a track; a host has far fewer sockets than 2^32.
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// CPU time of the current thread.
pub(super) fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
