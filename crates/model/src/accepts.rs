//! Results of the instrument `accepts`.

use crate::{CpuSet, Nearness, Unknown};
use crate::{EventCost, Protocol};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::AddAssign;

/// Version of the JSON form of [`AcceptMeasurement`].
pub const ACCEPT_MEASUREMENT_SCHEMA: u32 = 1;

/// Accepts in an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AcceptMeasurement {
    /// [`ACCEPT_MEASUREMENT_SCHEMA`].
    pub schema: u32,
    /// [`Protocol::Udp`] if datagrams read are counted instead of accepts; a listener is then any UDP socket.
    pub protocol: Protocol,
    /// Duration of the measurement.
    pub duration_s: f64,
    /// Listeners that accepted connections, by address and port.
    pub listeners: Vec<Listener>,
    /// Accepts that did not fit in the map and belong to no listener.
    pub lost: u64,
    /// Runs of the programs that the kernel skipped because the program was already running on that CPU: for
    /// any system call, so few of them can be accepts.
    pub skipped: u64,
    /// Accepts dropped from the individual list because the buffer was full; still counted.
    #[serde(rename = "not_told")]
    pub events_dropped: u64,
    /// The individual accepts since the last reading, if requested.
    #[serde(skip)]
    pub events: Vec<AcceptEvent>,
    /// Cost per run of a program: one run per system call of the machine, and per request and completion of
    /// io_uring; for datagrams per received packet, per socket that has data and per receive call. `None` if
    /// unknown.
    pub cost: Option<EventCost>,
    /// What could not be observed, with the reason.
    pub unknown: Vec<Unknown>,
}

/// Accepts of the sockets bound to one address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// Address and port.
    pub local: String,
    /// Inode of the network namespace.
    pub netns: u32,
    /// All accepts.
    #[serde(flatten)]
    pub places: DistanceCounts,
    /// Per thread, highest count first.
    pub workers: Vec<Worker>,
}

/// A thread that accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Its name.
    pub comm: String,
    /// The CPUs that it may run on; `None` if it has exited.
    pub cpus: Option<CpuSet>,
    /// Its accepts.
    #[serde(flatten)]
    pub places: DistanceCounts,
}

/// Distance between the receiving and the accepting CPU. Each accept is counted in the first category that
/// applies, so the categories add up to `accepts`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DistanceCounts {
    /// All.
    pub accepts: u64,
    /// On the same CPU.
    pub same_cpu: u64,
    /// Under the same last-level cache, SMT siblings included.
    pub same_llc: u64,
    /// On the same node, under another cache.
    pub same_node: u64,
    /// On another node.
    pub other_node: u64,
    /// The distance, or the receiving CPU, is unknown.
    pub unknown: u64,
}

impl AcceptMeasurement {
    /// The change since an earlier reading: the listeners and workers that have accepted. Cost and unknowns are
    /// those of the whole measurement.
    /// is unknown, is of the whole.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let known = |listener: &Listener| (listener.netns, listener.local.clone());
        // There may be ten thousand listeners.
        let before: BTreeMap<_, _> =
            earlier.listeners.iter().map(|old| (known(old), old)).collect();
        let listener = |now: &Listener| now.since(before.get(&known(now)).copied());
        Self {
            schema: self.schema,
            protocol: self.protocol,
            duration_s: self.duration_s - earlier.duration_s,
            listeners: self.listeners.iter().filter_map(listener).collect(),
            lost: self.lost.saturating_sub(earlier.lost),
            skipped: self.skipped.saturating_sub(earlier.skipped),
            events_dropped: self.events_dropped.saturating_sub(earlier.events_dropped),
            events: self.events.clone(),
            cost: self.cost,
            unknown: self.unknown.clone(),
        }
    }
}

impl Listener {
    /// `None` if there were none.
    fn since(&self, earlier: Option<&Self>) -> Option<Self> {
        let places = earlier.map_or(self.places, |old| self.places.since(&old.places));
        let before: BTreeMap<_, _> = earlier
            .into_iter()
            .flat_map(|old| &old.workers)
            .map(|worker| ((worker.pid, worker.tid), worker.places))
            .collect();
        let worker = |now: &Worker| {
            let old = before.get(&(now.pid, now.tid));
            let places = old.map_or(now.places, |old| now.places.since(old));
            (places.accepts > 0).then(|| Worker { places, ..now.clone() })
        };
        let mut workers: Vec<Worker> = self.workers.iter().filter_map(worker).collect();
        workers.sort_by_key(|w| (std::cmp::Reverse(w.places.accepts), w.pid, w.tid));
        (places.accepts > 0).then(|| Self { places, workers, ..self.clone() })
    }
}

impl DistanceCounts {
    /// The counts by distance, each with the name of its field.
    pub fn by_name(&self) -> [(&'static str, u64); 5] {
        [
            ("same_cpu", self.same_cpu),
            ("same_llc", self.same_llc),
            ("same_node", self.same_node),
            ("other_node", self.other_node),
            ("unknown", self.unknown),
        ]
    }

    /// All accepts so far.
    pub fn of(nearness: Option<Nearness>, accepts: u64) -> Self {
        let mut places = Self { accepts, ..Self::default() };
        let place = match nearness {
            Some(Nearness::SameCpu) => &mut places.same_cpu,
            Some(Nearness::SameCore | Nearness::SameLlc) => &mut places.same_llc,
            Some(Nearness::SameNode) => &mut places.same_node,
            Some(Nearness::OtherNode) => &mut places.other_node,
            None => &mut places.unknown,
        };
        *place = accepts;
        places
    }

    /// The change since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            accepts: self.accepts.saturating_sub(earlier.accepts),
            same_cpu: self.same_cpu.saturating_sub(earlier.same_cpu),
            same_llc: self.same_llc.saturating_sub(earlier.same_llc),
            same_node: self.same_node.saturating_sub(earlier.same_node),
            other_node: self.other_node.saturating_sub(earlier.other_node),
            unknown: self.unknown.saturating_sub(earlier.unknown),
        }
    }

    /// The share that was accepted on the CPU that received it, 0 to 1; `None` without accepts.
    pub fn local(&self) -> Option<f64> {
        (self.accepts > 0).then(|| self.same_cpu as f64 / self.accepts as f64)
    }
}

impl AddAssign for DistanceCounts {
    fn add_assign(&mut self, other: Self) {
        self.accepts += other.accepts;
        self.same_cpu += other.same_cpu;
        self.same_llc += other.same_llc;
        self.same_node += other.same_node;
        self.other_node += other.other_node;
        self.unknown += other.unknown;
    }
}

/// One accept, or one datagram, in the output format `cpu=#12 pid=29333 accept(3) -> fd=30 rxcpu=#12`. io_uring
/// has no descriptor of the listener: `accept(io_uring)`. Unknown values are `-`. For a datagram: `cpu=#12
/// pid=29333 recv(10.0.0.1:53) -> length=40 rxcpu=#12`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptEvent {
    /// Local address of the listener, or of the socket.
    pub local: SocketAddr,
    /// The process that accepted it.
    pub pid: u32,
    /// The CPU on which it was received, if known.
    pub received_on: Option<u32>,
    /// The CPU on which it was accepted.
    pub accepted_on: u32,
    /// Whether it is a connection or a datagram.
    pub protocol: Protocol,
    /// The listener's descriptor; `None` for an accept of io_uring, and for a datagram.
    pub listener_fd: Option<i32>,
    /// The descriptor of the connection, `None` if it is in io_uring's own file table; for a datagram, its
    /// length.
    pub fd: Option<i32>,
    /// The thread's name.
    pub comm: String,
}

impl AcceptEvent {
    /// The CPU on which it was received, if known, and the CPU on which it was accepted.
    pub fn cpus(&self) -> (Option<u32>, u32) {
        (self.received_on, self.accepted_on)
    }
}

impl fmt::Display for AcceptEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (received_on, accepted_on) = self.cpus();
        let of = |number: Option<i32>, other: &str| {
            number.map_or_else(|| other.to_owned(), |number| number.to_string())
        };
        let (listener, fd) = (of(self.listener_fd, "io_uring"), of(self.fd, "-"));
        let rxcpu = received_on.map_or_else(|| "-".to_owned(), |cpu| format!("#{cpu}"));
        let pid = self.pid;
        if self.protocol == Protocol::Udp {
            let local = self.local;
            return write!(
                f,
                "cpu=#{accepted_on} pid={pid} recv({local}) -> length={fd} rxcpu={rxcpu}"
            );
        }
        write!(f, "cpu=#{accepted_on} pid={pid} accept({listener}) -> fd={fd} rxcpu={rxcpu}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_contains_its_accepts_only() {
        let places =
            |accepts, same_cpu| DistanceCounts { accepts, same_cpu, ..DistanceCounts::default() };
        let listener = |port: u16, accepts: &[(u32, u64)]| Listener {
            local: format!("0.0.0.0:{port}"),
            netns: 1,
            places: places(accepts.iter().map(|(_, n)| n).sum(), 0),
            workers: accepts
                .iter()
                .map(|&(tid, accepts)| Worker {
                    pid: 9,
                    tid,
                    comm: "a".to_owned(),
                    cpus: None,
                    places: places(accepts, accepts),
                })
                .collect(),
        };
        let reading = |duration_s, lost, listeners: &[Listener]| AcceptMeasurement {
            duration_s,
            lost,
            listeners: listeners.to_vec(),
            ..AcceptMeasurement::default()
        };
        let before =
            reading(1.0, 1, &[listener(80, &[(10, 5), (11, 4)]), listener(81, &[(10, 1)])]);
        let now = reading(
            2.5,
            3,
            &[
                listener(80, &[(11, 6), (10, 5), (12, 3)]),
                listener(81, &[(10, 1)]),
                listener(82, &[(12, 2)]),
            ],
        );
        let interval = now.since(&before);
        assert_eq!((interval.duration_s, interval.lost), (1.5, 2));
        let [first, second] = interval.listeners.as_slice() else { panic!("{interval:?}") };
        assert_eq!((&*first.local, first.places.accepts), ("0.0.0.0:80", 5));
        let shown: Vec<_> = first.workers.iter().map(|w| (w.tid, w.places.same_cpu)).collect();
        assert_eq!(shown, [(12, 3), (11, 2)]);
        assert_eq!(second, &listener(82, &[(12, 2)]));
    }
}
