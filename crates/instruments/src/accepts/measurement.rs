//! What the instrument `accepts` returns: plain data, and putting it together from what the program
//! has counted.

use super::One;
use super::load::Key;
use crate::{EventCost, Protocol};
use nearpath_host::{CpuId, CpuSet, Nearness, Topology, Unknown};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Version of the JSON form of [`AcceptMeasurement`].
pub const ACCEPT_MEASUREMENT_SCHEMA: u32 = 1;

/// Accepts of an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AcceptMeasurement {
    /// [`ACCEPT_MEASUREMENT_SCHEMA`].
    pub schema: u32,
    /// [`Protocol::Udp`] where what is counted as accepts is datagrams that are read, and a listener any
    /// socket of UDP.
    pub protocol: Protocol,
    /// How long was measured.
    pub duration_s: f64,
    /// The listeners of which connections were accepted, by address and port.
    pub listeners: Vec<Listener>,
    /// Accepts that there was no room to count, and that no listener has.
    pub lost: u64,
    /// Runs of the programs that the kernel skipped, as the program was under way on that CPU: of any system
    /// call, so few of them can be accepts.
    pub skipped: u64,
    /// Accepts that there was no room to tell one by one; counted all the same.
    pub not_told: u64,
    /// The accepts one by one since the last reading, when each is asked for.
    #[serde(skip)]
    pub told: Vec<One>,
    /// What observing cost, by run of a program: for every system call of the machine, every request and
    /// completion of io_uring; of datagrams for every packet that is received, every socket that has data
    /// and every receive call. `None` when it is unknown.
    pub cost: Option<EventCost>,
    /// What could not be observed, and why.
    pub unknown: Vec<Unknown>,
}

/// The accepts from sockets that are bound to the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// Address and port.
    pub local: String,
    /// Inode of the network namespace.
    pub netns: u32,
    /// All of them.
    #[serde(flatten)]
    pub places: Places,
    /// Those of each thread, most first.
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
    /// The CPUs that it may run on; `None` when it has ended.
    pub cpus: Option<CpuSet>,
    /// Its accepts.
    #[serde(flatten)]
    pub places: Places,
}

/// How far the CPU that received is from the CPU that accepts; each counts only what the ones before
/// it do not, so that they add up to `accepts`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// All.
    pub accepts: u64,
    /// On the same CPU.
    pub same_cpu: u64,
    /// Under the same last-level cache, SMT siblings included.
    pub same_llc: u64,
    /// On the same node.
    pub same_node: u64,
    /// On another node.
    pub other_node: u64,
    /// The facts of the host do not tell how far, or the CPU that received is not known.
    pub unknown: u64,
}

impl AcceptMeasurement {
    /// What came since an earlier reading: the listeners and workers that have accepted. What it cost, and what
    /// is unknown, is of the whole.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let known = |listener: &Listener| (listener.netns, listener.local.clone());
        // There may be ten thousand.
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
            not_told: self.not_told.saturating_sub(earlier.not_told),
            told: self.told.clone(),
            cost: self.cost,
            unknown: self.unknown.clone(),
        }
    }
}

impl Listener {
    /// `None` when nothing came.
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

impl Places {
    fn of(nearness: Option<Nearness>, accepts: u64) -> Self {
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

    /// What came since an earlier reading.
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

impl AddAssign for Places {
    fn add_assign(&mut self, other: Self) {
        self.accepts += other.accepts;
        self.same_cpu += other.same_cpu;
        self.same_llc += other.same_llc;
        self.same_node += other.same_node;
        self.other_node += other.other_node;
        self.unknown += other.unknown;
    }
}

/// Puts counts together by listener and thread; `cpus_of` tells where a thread may run.
pub fn listeners(
    mut counts: Vec<(Key, u64, String)>,
    topology: &Topology,
    cpus_of: impl Fn(u32, u32) -> Option<CpuSet>,
) -> Vec<Listener> {
    let listener = |key: &Key| (key.local, key.netns);
    let thread = |key: &Key| (key.pid, key.tid);
    counts.sort_unstable_by_key(|(key, ..)| (listener(key), thread(key)));
    // A thread may be a worker of ten thousand listeners.
    let mut known = BTreeMap::new();
    let mut listeners = Vec::new();
    for of_listener in counts.chunk_by(|(a, ..), (b, ..)| listener(a) == listener(b)) {
        let mut workers = Vec::new();
        for of_thread in of_listener.chunk_by(|(a, ..), (b, ..)| thread(a) == thread(b)) {
            let Some((Key { pid, tid, .. }, _, comm)) = of_thread.first() else { continue };
            let cpus = known.entry((*pid, *tid)).or_insert_with(|| cpus_of(*pid, *tid));
            let (comm, cpus) = (comm.clone(), cpus.clone());
            let places = places(of_thread, topology);
            workers.push(Worker { pid: *pid, tid: *tid, comm, cpus, places });
        }
        workers.sort_by_key(|w| (std::cmp::Reverse(w.places.accepts), w.pid, w.tid));
        let Some((Key { local, netns, .. }, ..)) = of_listener.first() else { continue };
        let (local, netns) = (local.to_string(), *netns);
        listeners.push(Listener { local, netns, places: places(of_listener, topology), workers });
    }
    listeners
}

fn places(counts: &[(Key, u64, String)], topology: &Topology) -> Places {
    let mut places = Places::default();
    for (key, accepts, _) in counts {
        let nearness = topology.nearness(CpuId(key.received_on), CpuId(key.accepted_on));
        places += Places::of(nearness, *accepts);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_by_listener_and_thread() {
        let cpus: CpuSet = [CpuId(0), CpuId(1)].into_iter().collect();
        let mut cpu = serde_json::json!({"cpu": 0, "online": true, "siblings": "0", "node": 0});
        let mut topology = Topology { online: cpus, ..Topology::default() };
        for node in 0..2 {
            cpu["cpu"] = node.into();
            cpu["siblings"] = node.to_string().into();
            cpu["node"] = node.into();
            topology.cpus.push(serde_json::from_value(cpu.clone()).unwrap());
        }
        let key = |port: u16, tid, received_on, accepted_on| Key {
            local: ([0, 0, 0, 0], port).into(),
            netns: 1,
            pid: 9,
            tid,
            received_on,
            accepted_on,
        };
        let counts = vec![
            (key(80, 10, 0, 0), 5, "a".to_owned()),
            (key(80, 10, 1, 0), 2, "a".to_owned()),
            (key(80, 11, 1, 1), 9, "b".to_owned()),
            (key(81, 10, 7, 0), 1, "a".to_owned()),
        ];
        let found = listeners(counts, &topology, |_, tid| {
            (tid == 10).then(|| CpuSet::from_list("0").unwrap())
        });
        let [first, second] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(first.local, "0.0.0.0:80");
        let whole = Places { accepts: 16, same_cpu: 14, other_node: 2, ..Places::default() };
        assert_eq!(first.places, whole);
        let shown: Vec<_> =
            first.workers.iter().map(|w| (w.tid, w.places.accepts, w.cpus.is_some())).collect();
        assert_eq!(shown, [(11, 9, false), (10, 7, true)]);
        // CPU 7 is none of this host.
        assert_eq!(second.places, Places { accepts: 1, unknown: 1, ..Places::default() });
    }

    #[test]
    fn an_interval_has_those_that_accepted_in_it() {
        let places = |accepts, same_cpu| Places { accepts, same_cpu, ..Places::default() };
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
