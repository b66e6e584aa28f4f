//! The instrument `tcp`: what each connection did in an interval, and what limited it. It reads the sockets
//! several times per interval (`sampler`), and divides the time between two readings among limits (`limit`). Programs
//! report what happens between two readings (`events`) and, with the detail `full`, what each packet shows
//! (`samples`).

/// Sets which connections a program observes; each has a type of its own for the same constants.
macro_rules! set_ports {
    ($constants:expr, $filter:expr) => {
        $constants.wanted_sport = $filter.sport.unwrap_or(0);
        $constants.wanted_dport = $filter.dport.unwrap_or(0);
        $constants.wanted_port = $filter.port.unwrap_or(0);
    };
}

mod compact;
mod connection;
mod cpus;
mod events;
mod groups;
mod limit;
#[cfg(test)]
mod limit_tests;
mod listeners;
mod notable;
mod owners;
mod pressure;
mod queues;
mod receiver;
mod sampler;
mod samples;
mod state;
mod track;

use crate::{Instrument, InstrumentError};
use connection::{Surroundings, connection, role};
use events::Events;
use groups::Groups;
use nearpath_host::{ReadError, Root, TcpFilter, TcpSocket, read_nstat};
use nearpath_model::tcp::{
    TCP_MEASUREMENT_SCHEMA, TcpConnection, TcpCost, TcpListener, TcpMeasurement, TcpPer, TcpRole,
};
use nearpath_model::{Detail, Unknown};
use owners::Owners;
use queues::Queues;
use sampler::Sampler;
use samples::Samples;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use track::Track;

/// Which connections are observed, and how they are shown.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// By addresses and ports.
    pub filter: TcpFilter,
    /// The filter as on the command line.
    pub filter_text: String,
    /// Of this end.
    pub role: Option<TcpRole>,
    /// Of these processes.
    pub pid: Option<u32>,
    /// Of processes in this cgroup and those below it.
    pub cgroup: Option<String>,
    /// Inode of the network namespace.
    pub netns: Option<u64>,
    /// Group the connections.
    pub per: Option<TcpPer>,
    /// How many connections and groups are listed; all if `None`.
    pub top: Option<usize>,
    /// List those that are notable, instead: so many by each sign of trouble, and those with the most bytes.
    pub notable: Option<usize>,
    /// Results before the last one have only the number of connections: for many, a result takes a second.
    pub last_result_only: bool,
    /// Time between readings.
    pub step: Duration,
    /// The kernel's BTF from a file, for a kernel without BTF.
    pub btf_file: Option<PathBuf>,
    /// The limit on overhead, as a share of a CPU: of reading, and of the programs that run for each packet.
    pub limit: Option<f64>,
    /// How much is observed: with [`Detail::Full`] also each packet.
    pub detail: Detail,
}

/// The instrument.
pub struct Tcp<'a> {
    root: &'a Root,
    options: Options,
    session: Option<Session>,
}

struct Session {
    sampler: Sampler,
    events: Result<Events, InstrumentError>,
    /// If each packet is observed.
    samples: Option<Result<Samples, InstrumentError>>,
    /// The CPUs of the devices' queues, read when they are first needed.
    queues: OnceCell<Queues>,
    owners: RefCell<Owners>,
    began: Instant,
    counters: Result<BTreeMap<String, u64>, ReadError>,
}

impl Session {
    /// What observes each packet, if anything does.
    fn samples(&mut self) -> Option<&mut Samples> {
        self.samples.as_mut()?.as_mut().ok()
    }
}

impl<'a> Tcp<'a> {
    /// Creates the instrument for the network namespace of the current thread.
    pub fn new(root: &'a Root, options: Options) -> Self {
        Self { root, options, session: None }
    }

    fn measurement(&self, session: &Session) -> Result<TcpMeasurement, InstrumentError> {
        let mut state = session.sampler.state();
        let events = session.events.as_ref();
        let losses = events.map(Events::losses).ok();
        let samples = session.samples.as_ref().and_then(|samples| samples.as_ref().ok());
        let sampled = samples.map(Samples::read);
        let connect_time = |sock: u64| events.ok()?.connect_time(sock);
        let arrived_on = |ifindex: u32, queue: u32| {
            session.queues.get_or_init(|| Queues::read(self.root)).cpu(ifindex, queue)
        };
        let mut unknown: Vec<Unknown> = state
            .error()
            .map(|reason| note("some readings of the sockets", reason))
            .into_iter()
            .collect();
        let listeners = state.listeners();
        let listening: HashSet<u16> =
            listeners.iter().map(|(_, listener)| listener.sport).collect();
        let look_for_owners = |inodes: HashSet<u64>| {
            session.owners.borrow_mut().look(self.root, &inodes, self.options.limit);
        };
        if self.needs_owners() {
            // Read again at once, so that the second reading has no connections without an owner.
            state.read_all(|_, _| {}).map_err(ended)?;
            let inodes = state.inodes().filter(|&inode| inode != 0).collect();
            // Meanwhile ends of connections are received.
            drop(state);
            look_for_owners(inodes);
            state = session.sampler.state();
        }
        let owners = session.owners.borrow();
        let around = Surroundings {
            losses: losses.as_ref(),
            knows_reductions: events.is_ok_and(Events::knows_reductions),
            samples: sampled.as_ref(),
            connect_time: &connect_time,
            arrived_on: &arrived_on,
            netns: self.options.netns,
            owners: owners.get(),
            listening: &|port| listening.contains(&port),
        };
        let mut groups = self.options.per.map(Groups::new);
        let mut listed: Vec<(u64, TcpConnection)> = Vec::new();
        let mut total = 0;
        let top = self.options.top;
        let add = |track: &Track, socket: Option<&TcpSocket>| {
            if self.options.role.is_some_and(|wanted| wanted != role(track, &around)) {
                return;
            }
            let one = connection(track, socket, &around);
            if !self.is_wanted(&one) {
                return;
            }
            total += 1;
            if let Some(groups) = &mut groups {
                groups.add(&one);
            }
            listed.push((track.inode.into(), one));
            // Several times the number listed is kept, so that sorting is rare.
            if self.options.limit_of_list().is_some_and(|most| listed.len() >= 2 * most.max(64)) {
                self.options.shorten(&mut listed);
            }
        };
        state.read_all(add).map_err(ended)?;
        let dropped = state.dropped();
        self.options.shorten(&mut listed);
        drop(owners);
        if !self.needs_owners() {
            let connected = listed.iter().map(|(inode, _)| *inode);
            let inodes = connected.chain(listeners.iter().map(|(inode, _)| *inode));
            let inodes = inodes.filter(|&inode| inode != 0).collect();
            drop(state);
            look_for_owners(inodes);
            state = session.sampler.state();
        }
        let owners = session.owners.borrow();
        state.set_owners(owners.get());
        unknown.extend(owners.reason().map(|reason| note("sockets' processes", reason)));
        unknown
            .extend(events.err().map(|e| note("connections between two readings", &e.to_string())));
        if let Some(Err(error)) = &session.samples {
            unknown.push(note("samples of each packet", &error.to_string()));
        }
        unknown.extend(
            state.no_arrivals().map(|reason| note("CPUs on which packets are processed", &reason)),
        );
        unknown.extend(state.no_readers().map(|reason| note("threads that read", reason)));
        let named = |(inode, mut connection): (u64, TcpConnection)| {
            if let Some(owner) = owners.get().get(&inode) {
                connection.pid = Some(owner.pid);
                connection.comm = Some(owner.comm.clone());
                connection.cgroup.clone_from(&owner.cgroup);
            }
            connection
        };
        let listener = |(inode, mut listener): (u64, TcpListener)| {
            if let Some(owner) = owners.get().get(&inode) {
                listener.pid = Some(owner.pid);
                listener.comm = Some(owner.comm.clone());
            }
            listener
        };
        let now = read_nstat(self.root);
        let counters = match (&session.counters, now) {
            (Ok(before), Ok(now)) => rises(before, &now),
            (Err(error), _) => {
                unknown.push(note("counters", &error.to_string()));
                BTreeMap::new()
            }
            (_, Err(error)) => {
                unknown.push(note("counters", &error.to_string()));
                BTreeMap::new()
            }
        };
        let duration_s = session.began.elapsed().as_secs_f64();
        Ok(TcpMeasurement {
            schema: TCP_MEASUREMENT_SCHEMA,
            duration_s,
            filter: self.options.filter_text.clone(),
            total: total + dropped,
            connections: listed.into_iter().map(named).collect(),
            listeners: listeners.into_iter().map(listener).collect(),
            groups: groups.map(|groups| groups.finish(top)).unwrap_or_default(),
            counters,
            events_lost: events.map_or(0, Events::lost),
            sampling: samples.map(Samples::sampling),
            cost: TcpCost {
                programs: events.ok().and_then(Events::cost),
                sampling: samples.and_then(Samples::cost),
                ..state.cost(duration_s)
            },
            unknown,
        })
    }

    /// The number of connections. Those whose data waits are assigned to their processes, which may be late.
    fn progress(&self, session: &Session) -> TcpMeasurement {
        let state = session.sampler.state();
        let total = state.total();
        let unknown: HashSet<u64> = state.waiting_for_unknown_readers().collect();
        drop(state);
        if !unknown.is_empty() {
            let mut owners = session.owners.borrow_mut();
            owners.look(self.root, &unknown, self.options.limit);
            session.sampler.state().set_owners(owners.get());
        }
        TcpMeasurement { total, ..TcpMeasurement::default() }
    }

    /// Whether the process of each connection must be known, not only of those that are listed.
    fn needs_owners(&self) -> bool {
        self.options.pid.is_some()
            || self.options.cgroup.is_some()
            || matches!(self.options.per, Some(TcpPer::Process | TcpPer::Cgroup))
    }

    fn is_wanted(&self, connection: &TcpConnection) -> bool {
        let options = &self.options;
        let is_below = |wanted: &String| {
            let rest =
                connection.cgroup.as_ref().and_then(|path| path.strip_prefix(wanted.as_str()));
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('/') || wanted.ends_with('/')
            })
        };
        options.pid.is_none_or(|pid| connection.pid == Some(pid))
            && options.cgroup.as_ref().is_none_or(is_below)
    }
}

impl Options {
    /// At most so many connections are listed.
    fn limit_of_list(&self) -> Option<usize> {
        self.notable.map(notable::most).or(self.top)
    }

    fn shorten(&self, connections: &mut Vec<(u64, TcpConnection)>) {
        match self.notable {
            Some(count) => notable::keep(connections, count),
            None => shorten(connections, self.top),
        }
    }
}

/// Those that stand first and those that were closed last, by bytes, then by retransmissions; keeps the first.
fn shorten(connections: &mut Vec<(u64, TcpConnection)>, top: Option<usize>) {
    connections.sort_by_key(|(_, connection)| {
        let counts = &connection.interval;
        let queued = connection.send_queue_bytes.saturating_add(connection.receive_queue_bytes);
        let moved = (counts.bytes(), counts.retransmits, queued);
        (connection.closed, std::cmp::Reverse((connection.is_stuck(), moved)))
    });
    connections.truncate(top.unwrap_or(usize::MAX));
}

fn ended(error: io::Error) -> InstrumentError {
    InstrumentError::Refused { step: "reading TCP sockets".to_owned(), reason: error.to_string() }
}

fn note(fact: &str, reason: &str) -> Unknown {
    Unknown { subject: "host".to_owned(), fact: fact.to_owned(), reason: reason.to_owned() }
}

/// The counters that have increased, with their increase. The kernel shows some only once they are not 0
/// (`IcmpMsgOutType8`).
fn rises(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let rise = |(name, now): (&String, &u64)| {
        let increase = now.checked_sub(before.get(name).copied().unwrap_or(0))?;
        (increase > 0).then(|| (name.clone(), increase))
    };
    now.iter().filter_map(rise).collect()
}

impl Instrument for Tcp<'_> {
    type Measurement = TcpMeasurement;

    fn available(&self) -> Result<(), InstrumentError> {
        state::available()
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.session = None;
        let counters = read_nstat(self.root);
        let options = &self.options;
        let events = Events::start(&options.filter, options.netns, options.btf_file.as_deref());
        let ring = events.as_ref().ok().map(Events::ring).transpose()?;
        let sampler = Sampler::start(options, ring)?;
        let samples = (options.detail == Detail::Full)
            .then(|| Samples::start(&options.filter, options.netns, options.btf_file.as_deref()));
        self.session = Some(Session {
            sampler,
            events,
            samples,
            queues: OnceCell::new(),
            owners: RefCell::default(),
            began: Instant::now(),
            counters,
        });
        Ok(())
    }

    fn begin_cost_window(&mut self) {
        let Some(session) = &mut self.session else { return };
        if let Ok(events) = &mut session.events {
            events.begin_cost_window();
        }
        session.samples().into_iter().for_each(Samples::begin_cost_window);
    }

    fn end_cost_window(&mut self) {
        let Some(session) = &mut self.session else { return };
        if let Ok(events) = &mut session.events {
            events.end_cost_window();
        }
        session.samples().into_iter().for_each(Samples::end_cost_window);
    }

    fn limit(&self) -> Option<f64> {
        // Readings keep the limit by themselves.
        self.options.limit.filter(|_| self.options.detail == Detail::Full)
    }

    fn spent(&mut self) -> Duration {
        let samples = self.session.as_mut().and_then(Session::samples);
        samples.map_or(Duration::ZERO, Samples::spent)
    }

    fn pause(
        &mut self,
        _patience: Duration,
        _longest: Duration,
        _goes_on: &dyn Fn(Duration) -> bool,
    ) {
        self.session.as_mut().and_then(Session::samples).into_iter().for_each(Samples::pause);
    }

    fn resume(&mut self) {
        self.session.as_mut().and_then(Session::samples).into_iter().for_each(Samples::resume);
    }

    fn read(&mut self) -> Result<TcpMeasurement, InstrumentError> {
        let session = self.session.as_ref().ok_or(InstrumentError::NotStarted)?;
        if self.options.last_result_only {
            return Ok(self.progress(session));
        }
        self.measurement(session)
    }

    fn stop(&mut self) -> Result<TcpMeasurement, InstrumentError> {
        let session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        // The last result has the processes of all, as they are now.
        session.owners.take();
        self.measurement(&session)
    }
}
