//! The instrument `answers`: how long servers take from reading a request to sending the first packet of their answer, by the
//! port that they listen on. The method is described in `docs/measuring.md`.
//!
//! It stops by itself once its programs have run as often as the overhead limit allows: the times until then are those of
//! all requests.

mod load;

use crate::kernel::{Kernel, Mapped, Meter};
use crate::{Instrument, InstrumentError};
use libbpf_rs::skel::Skel;
use load::{Loaded, PROBES};
use nearpath_model::answers::{ANSWER_MEASUREMENT_SCHEMA, AnswerMeasurement, ServerAnswers};
use nearpath_model::histogram::interpolated_ns;
use nearpath_model::{Host, Protocol, SocketProtocol, Unknown};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A port that a server listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its port.
    pub port: u16,
    /// A process that has it open, if one is known, and its name.
    pub pid: Option<u32>,
    /// The name.
    pub comm: Option<String>,
}

/// Options of the instrument.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whose answers are observed: the first [`SERVERS_MAX`].
    pub servers: Vec<Server>,
    /// The network namespace that they listen in.
    pub netns: Option<u32>,
    /// CPU time that the programs may take altogether; any if `None`.
    pub budget: Option<Duration>,
    /// The kernel's BTF from a file, for a kernel without BTF.
    pub btf_file: Option<PathBuf>,
}

/// The number of a server has eight bits, and 0 is none.
pub const SERVERS_MAX: usize = 255;
/// CPU time of a run of a program, on average (docs/measuring.md, "Answers").
const RUN_NS: u64 = 150;
/// First port that programs get which do not ask for one, where `ip_local_port_range` is unknown.
const FIRST_LOCAL_PORT: u16 = 32_768;

/// The servers of a host: ports that are listened on, and UDP sockets that are bound to a port below those of clients.
pub fn servers(host: &Host) -> Vec<Server> {
    let range = host.sysctls.get("net.ipv4.ip_local_port_range");
    let first = range.and_then(|range| range.split_ascii_whitespace().next()?.parse().ok());
    let first: u16 = first.unwrap_or(FIRST_LOCAL_PORT);
    let mut by_port = BTreeMap::new();
    for socket in host.sockets.iter().filter(|socket| !socket.connected) {
        let protocol = match socket.protocol {
            SocketProtocol::Tcp => Protocol::Tcp,
            SocketProtocol::Udp if socket.port < first => Protocol::Udp,
            SocketProtocol::Udp => continue,
        };
        let owner = host.owners.iter().find(|owner| socket.pids.contains(&owner.pid));
        let server = Server {
            protocol,
            port: socket.port,
            pid: socket.pids.first().copied(),
            comm: owner.map(|owner| owner.comm.clone()),
        };
        by_port.entry((socket.protocol, socket.port)).or_insert(server);
    }
    by_port.into_values().collect()
}

/// The instrument.
pub struct Answers {
    options: Options,
    /// Servers beyond those that are observed.
    left_out: usize,
    session: Option<Session>,
    /// The previous session, whose programs are still attached.
    ended: Option<Session>,
}

/// State between `start` and `stop`. The fields are dropped in this order.
struct Session {
    histograms: Mapped,
    meter: Meter,
    loaded: Loaded,
    began: Instant,
}

impl Answers {
    /// Creates the instrument; nothing is loaded yet.
    pub fn new(mut options: Options) -> Self {
        let left_out = options.servers.len().saturating_sub(SERVERS_MAX);
        options.servers.truncate(SERVERS_MAX);
        Self { options, left_out, session: None, ended: None }
    }

    fn measurement(&self, session: &Session) -> AnswerMeasurement {
        let duration_s = session.began.elapsed().as_secs_f64();
        let servers = self.options.servers.iter().zip(1..);
        let mut servers: Vec<ServerAnswers> = servers
            .filter_map(|(server, number)| answers_of(server, &session.histograms, number))
            .collect();
        servers.sort_by_key(|server| std::cmp::Reverse(server.answers));
        let not_udp = session.loaded.no_datagrams.as_ref().map(|reason| Unknown {
            subject: "host".to_owned(),
            fact: "answers of UDP servers".to_owned(),
            reason: reason.clone(),
        });
        let left_out = (self.left_out > 0).then(|| Unknown {
            subject: "host".to_owned(),
            fact: format!("answers of {} servers", self.left_out),
            reason: format!("no more than {SERVERS_MAX} are observed: --port selects one"),
        });
        AnswerMeasurement {
            schema: ANSWER_MEASUREMENT_SCHEMA,
            duration_s,
            observed_s: session.loaded.observed_s().map_or(duration_s, |s| s.min(duration_s)),
            servers,
            cost: session.meter.event_cost(),
            unknown: not_udp.into_iter().chain(left_out).collect(),
        }
    }
}

/// The times of a server; `None` if it did not answer.
fn answers_of(server: &Server, histograms: &Mapped, number: usize) -> Option<ServerAnswers> {
    let (buckets, max_ns) = load::histogram(histograms, number);
    let answers = buckets.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
    let quantile = |q| interpolated_ns(&buckets, q).map(|ns| (ns as u64).min(max_ns));
    (answers > 0).then(|| ServerAnswers {
        protocol: server.protocol,
        port: server.port,
        pid: server.pid,
        comm: server.comm.clone(),
        answers,
        p50_ns: quantile(0.5).unwrap_or(max_ns),
        p99_ns: quantile(0.99).unwrap_or(max_ns),
        max_ns,
    })
}

impl Instrument for Answers {
    type Measurement = AnswerMeasurement;

    fn available(&self) -> Result<(), InstrumentError> {
        Kernel::to_load_into(PROBES, self.options.btf_file.as_deref()).map(drop)
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.ended = None;
        let kernel = Kernel::to_load_into(PROBES, self.options.btf_file.as_deref())?;
        let mut loaded = load::load(&kernel, &self.options)?;
        let histograms = Mapped::new(&loaded.skeleton.maps.answers)?;
        load::prepare(&histograms);
        let meter = Meter::new(loaded.skeleton.object());
        loaded.begin();
        self.session = Some(Session { histograms, meter, loaded, began: Instant::now() });
        Ok(())
    }

    fn begin_cost_window(&mut self) {
        if let Some(session) = &mut self.session {
            session.meter.begin(session.loaded.skeleton.object(), 0);
        }
    }

    fn end_cost_window(&mut self) {
        if let Some(session) = &mut self.session {
            session.meter.end(session.loaded.skeleton.object(), 0);
        }
    }

    fn read(&mut self) -> Result<AnswerMeasurement, InstrumentError> {
        let session = self.session.as_mut().ok_or(InstrumentError::NotStarted)?;
        session.loaded.detach_if_ended();
        let session = self.session.as_ref().ok_or(InstrumentError::NotStarted)?;
        Ok(self.measurement(session))
    }

    fn stop(&mut self) -> Result<AnswerMeasurement, InstrumentError> {
        self.end_cost_window();
        let mut session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        session.loaded.end();
        let measurement = self.measurement(&session);
        self.ended = Some(session);
        Ok(measurement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Socket;

    #[test]
    fn servers_are_who_listens_below_the_ports_of_clients() {
        let socket = |protocol, port, connected| Socket {
            protocol,
            address: std::net::IpAddr::from([0, 0, 0, 0]),
            port,
            connected,
            inode: 1,
            pids: vec![7],
            drops: None,
            receive_queue_bytes: None,
        };
        let (tcp, udp) = (SocketProtocol::Tcp, SocketProtocol::Udp);
        let mut host = Host::default();
        host.sysctls.insert("net.ipv4.ip_local_port_range".to_owned(), "20000\t60999".to_owned());
        host.sockets = vec![
            socket(tcp, 443, false),
            socket(tcp, 443, false),
            socket(tcp, 50_000, false),
            socket(udp, 53, false),
            socket(udp, 5353, true),
            socket(udp, 20_001, false),
        ];
        let found = servers(&host);
        let found: Vec<_> = found.iter().map(|server| (server.protocol, server.port)).collect();
        assert_eq!(found, [(Protocol::Tcp, 443), (Protocol::Tcp, 50_000), (Protocol::Udp, 53)]);
    }

    #[test]
    fn an_instrument_that_was_not_started_reports_it() {
        let mut answers = Answers::new(Options::default());
        assert!(answers.read().is_err() && answers.stop().is_err());
    }
}
