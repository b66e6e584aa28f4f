//! The readers: pinned processes with receiving sockets, and the CPUs on which measured hand-overs from softirq to
//! reader end.

use crate::spans::{Boundary, ENOUGH_PACKETS, rx_spans};
use crate::{Context, text};
use nearpath_model::{CpuId, CpuSet, Host, Outlier, Share, ShareKind, SocketOwner, Span};
use std::collections::BTreeSet;

/// Stages on the CPU that the softirq delivers on.
const DELIVERED: [&str; 4] =
    ["netif_receive_skb", "tcp_rcv_established", "sk_data_ready", "sched_waking"];

/// Where the kernel stamps a packet: the first stage of one that is watched.
pub(crate) const STAMP: &str = "skb_tstamp";

/// Stages on the CPU of the reader.
pub(crate) const READ: [&str; 3] = ["sched_switch", "skb_copy_datagram", "sock_recv"];

/// How long packets wait in a socket, at the median, from which its queue is a standing one: a reader that catches up
/// between bursts leaves it empty most of the time.
pub(crate) const STANDING_NS: u64 = 10_000_000;

/// A process that is pinned to fewer CPUs than there are, and reads from the network.
#[derive(Debug, Clone)]
pub(crate) struct PinnedReader<'a> {
    /// The process.
    pub owner: &'a SocketOwner,
    /// All CPUs that any of its threads may run on.
    pub cpus: CpuSet,
}

impl PinnedReader<'_> {
    /// `nginx (pid 4711) on CPUs 0-3`.
    pub(crate) fn words(&self) -> String {
        let comm = text::clean(&self.owner.comm);
        format!("{comm} (pid {}) on {}", self.owner.pid, text::cpus(&self.cpus))
    }
}

/// The processes whose memory by node can make a finding (`reader_memory`): the pinned readers, where
/// more than one node has CPUs. Reading it stalls a large process, so it is read of no other.
pub fn readers_with_nodes(host: &Host) -> Vec<u32> {
    let context = Context::new(host, None, None);
    if context.nodes_with_cpus() < 2 {
        return Vec::new();
    }
    context.pinned_readers().iter().map(|reader| reader.owner.pid).collect()
}

impl<'a> Context<'a> {
    /// The pinned readers, by process id. Processes whose sockets only hear the loopback address
    /// are none: no NIC's packets reach them.
    pub(crate) fn pinned_readers(&self) -> Vec<PinnedReader<'a>> {
        let heard: BTreeSet<u32> = self
            .host
            .sockets
            .iter()
            .filter(|socket| !socket.address.is_loopback())
            .flat_map(|socket| socket.pids.iter().copied())
            .collect();
        let online = &self.host.topology.online;
        let pinned = |owner: &'a SocketOwner| {
            let threads = owner.threads.values().fold(CpuSet::new(), |all, cpus| all.union(cpus));
            let cpus = if threads.is_empty() { owner.affinity.clone()? } else { threads };
            let cpus = cpus.intersection(online);
            (heard.contains(&owner.pid) && !cpus.is_empty() && cpus != *online)
                .then_some(PinnedReader { owner, cpus })
        };
        self.host.owners.iter().filter_map(pinned).collect()
    }

    /// The local ports of slow packets that waited for their reader: of the packet's own flow where its headers could be
    /// read, else those that the reader in its budget has sockets on.
    pub(crate) fn ports_read_of(&self, outlier: &Outlier) -> Vec<u16> {
        if !READ.contains(&outlier.to.as_str()) {
            return Vec::new();
        }
        let port = |flow: &str| flow.split_once(" > ")?.1.rsplit_once(':')?.1.parse().ok();
        if let Some(port) = outlier.flow.as_deref().and_then(port) {
            return vec![port];
        }
        let is_reader = |part: &&Share| {
            matches!(part.share, ShareKind::Asleep | ShareKind::Task | ShareKind::Throttled)
        };
        let readers = outlier.budget.iter().filter(is_reader);
        let tids = readers.filter_map(|part| part.who.as_ref()?.pid);
        let mut ports: Vec<u16> = tids.flat_map(|tid| self.ports_of_thread(tid)).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// The local ports of the sockets of a thread's process.
    fn ports_of_thread(&self, tid: u32) -> Vec<u16> {
        let is_its = |owner: &&SocketOwner| owner.pid == tid || owner.threads.contains_key(&tid);
        let Some(owner) = self.host.owners.iter().find(is_its) else { return Vec::new() };
        let sockets = self.host.sockets.iter().filter(|socket| socket.pids.contains(&owner.pid));
        sockets.map(|socket| socket.port).collect()
    }

    /// Whether packets to this local port wait in a queue that never empties: half of all packets wait for long in their
    /// sockets, and some of the slow ones are to this port; or hardly any was read as long as it was followed. More room
    /// only makes them older.
    pub(crate) fn has_standing_queue(&self, port: u16) -> bool {
        let Some(measurement) = self.measurement else { return false };
        let packets = measurement.packets;
        // A slice waits for up to 100 ms for the packets of its end.
        if packets.started >= ENOUGH_PACKETS
            && packets.completed < packets.started / 10
            && packets.abandoned >= packets.started / 2
        {
            return true;
        }
        let is_long = |span: &&Span| span.p50_ns.is_some_and(|ns| ns >= STANDING_NS);
        self.hand_overs().iter().any(is_long)
            && measurement.outliers.iter().any(|outlier| {
                outlier.span_ns >= STANDING_NS && self.ports_read_of(outlier).contains(&port)
            })
    }

    /// Whether a process used a hundredth of a CPU in the interval, or since boot; `None` when its time is unknown. One
    /// that hardly runs reads hardly any packets.
    pub(crate) fn is_busy(&self, owner: &SocketOwner) -> Option<bool> {
        let ticks = owner.cpu_ticks?;
        let before = self.earlier.and_then(|host| {
            let then = host.owners.iter().find(|o| o.pid == owner.pid && o.comm == owner.comm)?;
            then.cpu_ticks
        });
        let used = self.rate(ticks.saturating_sub(before.unwrap_or(0)))?;
        Some(used >= 1.0)
    }

    /// The measured spans from the softirq's CPU to the reader's.
    pub(crate) fn hand_overs(&self) -> Vec<&'a Span> {
        self.measurement.map(|m| rx_spans(m, &DELIVERED, &READ)).unwrap_or_default()
    }

    /// Of the packets that softirqs delivered on these CPUs the share whose reader was beyond the
    /// boundary; `None` when too few were measured.
    pub(crate) fn read_beyond(&self, delivered_on: &CpuSet, boundary: Boundary) -> Option<f64> {
        let topology = &self.host.topology;
        let places: CpuSet = delivered_on.iter().map(|cpu| self.place(cpu)).collect();
        let beyond = |a: CpuId, b: CpuId| match boundary {
            Boundary::Cpu => a != b,
            Boundary::Llc => topology.llc_of(a) != topology.llc_of(b),
            Boundary::Node => topology.node_of(a) != topology.node_of(b),
        };
        let (mut all, mut far) = (0u64, 0u64);
        for place in self.hand_overs().iter().flat_map(|span| &span.places) {
            if places.contains(place.from_cpu) {
                all = all.saturating_add(place.count);
                if beyond(place.from_cpu, place.to_cpu) {
                    far = far.saturating_add(place.count);
                }
            }
        }
        if all < ENOUGH_PACKETS { None } else { crate::counters::ratio(far, all) }
    }

    /// The CPUs that at least a tenth of the measured packets were read on.
    pub(crate) fn measured_reader_cpus(&self) -> CpuSet {
        let mut counts = std::collections::BTreeMap::<CpuId, u64>::new();
        for place in self.hand_overs().iter().flat_map(|span| &span.places) {
            let count = counts.entry(place.to_cpu).or_default();
            *count = count.saturating_add(place.count);
        }
        let all = crate::counters::total(counts.values().copied());
        counts.into_iter().filter(|(_, n)| *n >= all.div_ceil(10)).map(|(cpu, _)| cpu).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{Cpu, Node, NodeId, Socket, SocketProtocol};
    use std::collections::BTreeMap;

    fn host(nodes: u32, affinity: &str) -> Host {
        let mut host = Host::default();
        host.topology.online = CpuSet::from_list("0-3").unwrap();
        host.topology.cpus = (0..4)
            .map(|cpu| Cpu {
                cpu: CpuId(cpu),
                online: true,
                core: None,
                package: None,
                die: None,
                cluster: None,
                llc: None,
                node: Some(NodeId(cpu * nodes / 4)),
                siblings: CpuSet::new(),
                kind: None,
                capacity: None,
            })
            .collect();
        let node = |node: u32| Node {
            node: NodeId(node),
            cpus: (0..4).filter(|cpu| cpu * nodes / 4 == node).map(CpuId).collect(),
            memory_bytes: None,
            free_bytes: None,
            distances: BTreeMap::new(),
            hugepages: BTreeMap::new(),
            numastat: BTreeMap::new(),
        };
        host.topology.nodes = (0..nodes).map(node).collect();
        host.sockets = vec![Socket {
            protocol: SocketProtocol::Tcp,
            address: "0.0.0.0".parse().unwrap(),
            port: 5432,
            connected: false,
            inode: 1,
            pids: vec![7],
            drops: None,
            receive_queue_bytes: None,
        }];
        host.owners = vec![SocketOwner {
            pid: 7,
            comm: "postgres".to_owned(),
            affinity: Some(CpuSet::from_list(affinity).unwrap()),
            ..SocketOwner::default()
        }];
        host
    }

    #[test]
    fn memory_is_read_only_where_it_can_be_on_the_wrong_node() {
        assert_eq!(readers_with_nodes(&host(2, "0-1")), [7]);
        assert_eq!(readers_with_nodes(&host(1, "0-1")), [0; 0], "one node");
        assert_eq!(readers_with_nodes(&host(2, "0-3")), [0; 0], "not pinned");
    }
}
