//! Reads the sockets several times per interval, and the ends of connections more often, on a thread of its own.
//!
//! The time between two readings grows with what a reading costs, so that the limit on overhead is kept.

use super::Options;
use super::cpus::{Arrival, Arrivals};
use super::events::{Ended, Ends};
use super::pressure::{Pressure, Readers};
use super::track::Track;
use crate::InstrumentError;
use libbpf_rs::MapHandle;
use nearpath_host::{ConnectionOwner, Root, TcpDiag, TcpFilter, TcpSocket, connection_owners};
use nearpath_model::tcp::{TcpCost, TcpLimit, TcpListener, TcpState, TcpVerdict};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that have ended and are still listed; the oldest are dropped.
const CLOSED_MAX: usize = 10_000;

/// The thread; dropping it ends the readings.
pub(super) struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the thread; and whoever waits until it has received all ends so far.
    wake: Condvar,
    received: Condvar,
}

/// Interval between two looks for connections that have ended: their ring holds some 25,000.
const RECEIVE: Duration = Duration::from_millis(50);

/// What was read so far.
pub(super) struct State {
    diag: TcpDiag,
    arrivals: Result<Arrivals, InstrumentError>,
    pressure: Pressure,
    root: Root,
    filter: TcpFilter,
    tracks: Vec<Track>,
    by_cookie: HashMap<u64, usize>,
    /// Cookies of those that have ended, the oldest first.
    closed: VecDeque<u64>,
    /// How many of them are not listed any more.
    dropped: u64,
    listeners: BTreeMap<(IpAddr, u16, u64), Listening>,
    readings: u64,
    sockets: u64,
    spent: Duration,
    is_over: bool,
    /// Whether a caller waits for all ends so far; `false` if nothing receives them.
    wants_ends: bool,
    receives_ends: bool,
    /// Why the last reading ended early.
    error: Option<String>,
    /// Connections known by their end alone.
    unnumbered: u64,
}

/// Connections whose process is looked for before the first result: of so many, which reader is late matters little.
const OWNERS_MAX: usize = 4096;

/// Cookies of connections that sock_diag has never reported begin here.
const UNNUMBERED: u64 = 1 << 63;

/// A listening socket.
struct Listening {
    backlog: u32,
    limit: u32,
    highest: u32,
    full: u64,
    readings: u64,
    first_drops: Option<u32>,
    drops: Option<u32>,
}

/// Whether sockets can be read here.
///
/// # Errors
/// The kernel has no sock_diag.
pub(super) fn available() -> Result<(), InstrumentError> {
    TcpDiag::open().map(drop).map_err(|error| refused(&error))
}

fn refused(error: &io::Error) -> InstrumentError {
    InstrumentError::Unsupported(format!("reading TCP sockets (sock_diag): {error}"))
}

impl Sampler {
    /// Reads the sockets once, and from then on again and again; and the ends of connections from a ring, if there is
    /// one.
    ///
    /// # Errors
    /// The kernel has no sock_diag for TCP.
    pub fn start(options: &Options, ring: Option<MapHandle>) -> Result<Self, InstrumentError> {
        let mut state = State::new(options.filter.clone())?;
        state.read_all(|_, _| {}).map_err(|error| refused(&error))?;
        let inodes: HashSet<u64> =
            state.inodes().filter(|&inode| inode != 0).take(OWNERS_MAX).collect();
        // Without privilege some are unknown, which each result says.
        state.set_owners(&connection_owners(&state.root, &inodes).0);
        state.look_at_cpus();
        state.receives_ends = ring.is_some();
        let (wake, received) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { state: Mutex::new(state), wake, received });
        let (theirs, step, limit) = (Arc::clone(&shared), options.step, options.limit);
        let thread = std::thread::Builder::new()
            .name("tcp-sampler".to_owned())
            .spawn(move || theirs.run(step, limit, ring.as_ref()))
            .map_err(|error| refused(&error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The state with all ends so far, without the thread reading meanwhile.
    pub fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.shared.lock();
        state.wants_ends = state.receives_ends;
        self.shared.wake.notify_all();
        while state.wants_ends && state.receives_ends {
            let waited = self.shared.received.wait(state);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed; there is nothing to undo.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn run(&self, step: Duration, limit: Option<f64>, ring: Option<&MapHandle>) {
        // Dropped last, also by a panic: nobody may wait for this thread any longer.
        let _over = Over(self);
        let ends = ring.map(Ends::listen);
        let mut state = self.lock();
        if let Some(Err(error)) = &ends {
            state.error = Some(error.to_string());
        }
        let ends = ends.and_then(Result::ok);
        let mut next = Instant::now() + step;
        while !state.is_over {
            let due = next.saturating_duration_since(Instant::now());
            let wait = if ends.is_some() { due.min(RECEIVE) } else { due };
            if !wait.is_zero() && !state.wants_ends {
                let waited = self.wake.wait_timeout(state, wait);
                state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            }
            if let Some(ends) = &ends {
                let began = thread_time();
                state.end(&ends.take());
                state.spent += thread_time().saturating_sub(began);
            }
            // The thread that waits may lock only when this one waits again.
            if std::mem::take(&mut state.wants_ends) {
                self.received.notify_all();
                let waited = self.wake.wait_timeout(state, Duration::from_millis(1));
                state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            }
            if Instant::now() < next {
                continue;
            }
            let before = state.spent;
            state.error = state.read_all(|_, _| {}).err().map(|error| error.to_string());
            let cost = state.spent.saturating_sub(before);
            let pause = limit.map_or(Duration::ZERO, |share| cost.div_f64(share.max(1e-3)));
            next = Instant::now() + spread(step.max(pause), state.readings);
        }
    }
}

/// The time until the next reading: on average `step`, but not always the same, as what a connection does often
/// repeats itself in equal times, of which the readings would always meet the same part. The fractions of multiples of
/// the golden ratio are spread evenly.
fn spread(step: Duration, reading: u64) -> Duration {
    let fraction = (reading as f64 * 0.618_033_988_749_895).fract();
    step.mul_f64(0.5 + fraction)
}

/// Reports that the thread has ended.
struct Over<'a>(&'a Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.lock().receives_ends = false;
        self.0.received.notify_all();
    }
}

impl State {
    fn new(filter: TcpFilter) -> Result<Self, InstrumentError> {
        Ok(Self {
            diag: TcpDiag::open().map_err(|error| refused(&error))?,
            arrivals: Arrivals::load(&filter),
            pressure: Pressure::default(),
            root: Root::live(),
            filter,
            tracks: Vec::new(),
            by_cookie: HashMap::new(),
            closed: VecDeque::new(),
            dropped: 0,
            listeners: BTreeMap::new(),
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

    /// Reads all sockets, and passes each connection to `each` with what was kept of it. Those that have ended
    /// come last, without a socket.
    ///
    /// # Errors
    /// The kernel ended the dump early.
    pub fn read_all(&mut self, mut each: impl FnMut(&Track, Option<&TcpSocket>)) -> io::Result<()> {
        let began = thread_time();
        let now = Instant::now();
        self.readings += 1;
        let is_first = self.readings == 1;
        if !is_first {
            self.look_at_cpus();
        }
        let Self {
            diag, filter, tracks, by_cookie, listeners, readings, sockets, pressure, ..
        } = self;
        let mut at_socket = |socket: TcpSocket| {
            *sockets += 1;
            if socket.state == TcpState::Listen {
                listening(listeners, &socket);
                return;
            }
            // Without a cookie it cannot be recognized.
            let Some(cookie) = socket.cookie else { return };
            let at = *by_cookie.entry(cookie).or_insert_with(|| {
                tracks.push(Track::new(&socket, cookie, now, !is_first));
                tracks.len() - 1
            });
            let Some(track) = tracks.get_mut(at) else { return };
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
    fn look_at_cpus(&mut self) {
        let Self { arrivals, tracks, by_cookie, .. } = self;
        if let Ok(arrivals) = arrivals {
            let each = |cookie: u64, arrival: Arrival| {
                let at = by_cookie.get(&cookie).copied();
                let track = at.and_then(|at| tracks.get_mut(at)).filter(|track| !track.closed);
                track.into_iter().for_each(|track| track.arrival = arrival);
            };
            // What was known before holds if the kernel refuses this time.
            let _ = arrivals.read(each);
        }
        let live = || self.tracks.iter().filter(|track| !track.closed);
        let cpus: HashSet<u32> = live().filter_map(|track| track.arrival.cpu).collect();
        let mut readers = Readers::new();
        for track in live().filter(|track| track.has_waited_for_reader) {
            if let Some(pid) = track.pid {
                readers.entry(pid).or_default().extend(track.arrival.reader);
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
            track.pid = owners.get(&track.inode.into()).map(|owner| owner.pid).or(track.pid);
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
        self.by_cookie = self.tracks.iter().enumerate().map(|(at, t)| (t.cookie, at)).collect();
    }

    /// Ends connections, whether they were read before or not.
    pub fn end(&mut self, ended: &[Ended]) {
        let now = Instant::now();
        for end in ended {
            let known = end.cookie.and_then(|cookie| self.by_cookie.get(&cookie).copied());
            if let Some(track) = known.and_then(|at| self.tracks.get_mut(at)) {
                if !track.closed {
                    self.closed.push_back(track.cookie);
                }
                track.end(end);
                continue;
            }
            self.unnumbered += 1;
            let cookie = end.cookie.unwrap_or(UNNUMBERED | self.unnumbered);
            self.by_cookie.insert(cookie, self.tracks.len());
            self.tracks.push(Track::of_end(end, cookie, now));
            self.closed.push_back(cookie);
        }
        self.forget();
    }

    /// Inodes of all connections known so far.
    pub fn inodes(&self) -> impl Iterator<Item = u64> + '_ {
        self.tracks.iter().map(|track| track.inode.into())
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
            dumps: self.readings,
            sockets: self.sockets,
            ns_per_socket: (self.sockets > 0).then(|| spent * 1e9 / self.sockets as f64),
            cpu_percent: if duration_s > 0.0 { 100.0 * spent / duration_s } else { 0.0 },
            programs: None,
            sampling: None,
        }
    }

    /// The listening sockets, each with its inode.
    pub fn listeners(&self) -> Vec<(u64, TcpListener)> {
        let listener = |((src, sport, inode), l): (&(IpAddr, u16, u64), &Listening)| {
            let full_share = l.full as f64 / l.readings.max(1) as f64;
            let drops =
                l.drops.zip(l.first_drops).map(|(now, first)| now.wrapping_sub(first).into());
            let verdict = (full_share > 0.0).then(|| TcpVerdict {
                limit: TcpLimit::Backlog,
                share: full_share,
                evidence: vec![format!(
                    "{} of {} connections wait for accept()",
                    l.highest, l.limit
                )],
            });
            let listener = TcpListener {
                src: *src,
                sport: *sport,
                pid: None,
                comm: None,
                backlog: l.backlog,
                backlog_max_seen: l.highest,
                backlog_limit: l.limit,
                full_share,
                drops,
                verdict,
            };
            (*inode, listener)
        };
        self.listeners.iter().map(listener).collect()
    }
}

/// A reading of a listening socket: the queue is full if it holds more than its limit (`sk_acceptq_is_full`,
/// include/net/sock.h).
fn listening(listeners: &mut BTreeMap<(IpAddr, u16, u64), Listening>, socket: &TcpSocket) {
    let key = (socket.local.ip(), socket.local.port(), u64::from(socket.inode));
    let drops = socket.memory.map(|memory| memory.drops);
    let entry = listeners.entry(key).or_insert(Listening {
        backlog: 0,
        limit: 0,
        highest: 0,
        full: 0,
        readings: 0,
        first_drops: drops,
        drops,
    });
    entry.backlog = socket.receive_queue;
    entry.limit = socket.send_queue;
    entry.highest = entry.highest.max(entry.backlog);
    entry.full += u64::from(entry.backlog > entry.limit);
    entry.readings += 1;
    entry.drops = drops;
}

/// CPU time of the current thread.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
