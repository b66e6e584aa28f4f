//! Chooses CPUs of the demo that are far from each other. Input: the topology and the usable CPUs. Output: the
//! CPU of the readers, that of RPS, and those of the senders.

use nearpath_model::{CpuId, CpuSet, Nearness, Topology};

/// The chosen CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The CPU that all readers are pinned to.
    pub reader: CpuId,
    /// The CPU that RPS sends every packet to; `None` if there is no other.
    pub rps: Option<CpuId>,
    /// The CPUs of the senders: others than these two, if there are enough.
    pub senders: CpuSet,
    /// The distance between the reader's CPU and that of RPS, in words.
    pub distance: &'static str,
}

/// The distance between two CPUs, as far as the facts show it; the farthest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    OtherThread,
    Unknown,
    OtherCore,
    OtherLlc,
    /// With the firmware's NUMA distance.
    OtherNode(u32),
}

impl Distance {
    fn of(topology: &Topology, a: CpuId, b: CpuId) -> Self {
        match topology.nearness(a, b) {
            Some(Nearness::SameCpu | Nearness::SameCore) => Self::OtherThread,
            Some(Nearness::SameLlc) => Self::OtherCore,
            Some(Nearness::SameNode) => Self::OtherLlc,
            Some(Nearness::OtherNode) => {
                let nodes = topology.node_of(a).zip(topology.node_of(b));
                let distance = nodes
                    .and_then(|(a, b)| topology.node(a)?.distances.get(&b).copied())
                    .unwrap_or(0);
                Self::OtherNode(distance)
            }
            // Without NUMA support in the kernel the caches still show it.
            None if topology.llc_of(a).is_some() && topology.llc_of(b).is_some() => Self::OtherLlc,
            None => Self::Unknown,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::OtherThread => "an SMT sibling",
            Self::Unknown => "another CPU",
            Self::OtherCore => "another core, same LLC",
            Self::OtherLlc => "another LLC",
            Self::OtherNode(_) => "another node",
        }
    }
}

/// Puts the reader on the highest CPU (the lowest usually has the most other work) and RPS on the CPU that is
/// farthest from it. `None` without any CPU.
pub fn misplace(topology: &Topology, usable: &CpuSet) -> Option<Placement> {
    let reader = usable.iter().last()?;
    let others = || usable.iter().filter(|cpu| *cpu != reader);
    let farthest = others()
        .map(|cpu| (Distance::of(topology, reader, cpu), std::cmp::Reverse(cpu)))
        .max()
        .map(|(distance, std::cmp::Reverse(cpu))| (distance, cpu));
    let rps = farthest.map(|(_, cpu)| cpu);
    let senders: CpuSet = others().filter(|cpu| Some(*cpu) != rps).collect();
    Some(Placement {
        reader,
        rps,
        senders: if senders.is_empty() { usable.clone() } else { senders },
        distance: farthest.map_or("the same CPU", |(distance, _)| distance.words()),
    })
}

impl Placement {
    /// The same with the senders as near to the reader as possible, so that packets arrive near their reader
    /// and only RPS moves them away: on CPUs nearer to it than that of RPS, else on its own CPU.
    #[must_use]
    pub fn with_senders_near(self, topology: &Topology, usable: &CpuSet) -> Self {
        let Some(rps) = self.rps else { return self };
        let distance = |cpu| Distance::of(topology, self.reader, cpu);
        let is_near = |&cpu: &CpuId| cpu != self.reader && distance(cpu) < distance(rps);
        let near: CpuSet = usable.iter().filter(is_near).collect();
        let own = || [self.reader].into_iter().collect();
        Self { senders: if near.is_empty() { own() } else { near }, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{Cpu, LlcId, Node, NodeId};

    /// CPUs as (node, LLC, core); CPUs of one core are siblings.
    fn topology(cpus: &[(Option<u32>, Option<u32>, u32)]) -> Topology {
        let numbered = || (0..).map(CpuId).zip(cpus);
        let cpus: Vec<Cpu> = numbered()
            .map(|(cpu, &(node, llc, core))| Cpu {
                cpu,
                online: true,
                core: Some(core),
                package: None,
                die: None,
                cluster: None,
                llc: llc.map(LlcId),
                node: node.map(NodeId),
                siblings: numbered().filter(|(_, c)| c.2 == core).map(|(cpu, _)| cpu).collect(),
                kind: None,
                capacity: None,
            })
            .collect();
        Topology { online: cpus.iter().map(|c| c.cpu).collect(), cpus, ..Topology::default() }
    }

    fn placed(topology: &Topology) -> (u32, Option<u32>, String, &'static str) {
        let placement = misplace(topology, &topology.online).unwrap();
        let Placement { reader, rps, senders, distance } = placement;
        (reader.0, rps.map(|cpu| cpu.0), senders.to_string(), distance)
    }

    #[test]
    fn one_cpu_leaves_nothing_to_misplace() {
        let host = topology(&[(Some(0), Some(0), 0)]);
        assert_eq!(placed(&host), (0, None, "0".into(), "the same CPU"));
        assert_eq!(misplace(&host, &CpuSet::new()), None);
    }

    #[test]
    fn with_two_cpus_senders_share_them() {
        let host = topology(&[(Some(0), Some(0), 0), (Some(0), Some(0), 1)]);
        let distance = "another core, same LLC";
        assert_eq!(placed(&host), (1, Some(0), "0-1".into(), distance));
    }

    #[test]
    fn llc_is_farther_than_core_and_core_than_sibling() {
        let host = topology(&[
            (Some(0), Some(0), 0),
            (Some(0), Some(1), 1),
            (Some(0), Some(1), 2),
            (Some(0), Some(1), 2),
        ]);
        assert_eq!(placed(&host), (3, Some(0), "1-2".into(), "another LLC"));
        let host = topology(&[(None, Some(0), 0), (None, Some(0), 1), (None, Some(0), 0)]);
        let distance = "another core, same LLC";
        assert_eq!(placed(&host), (2, Some(1), "0".into(), distance));
    }

    #[test]
    fn the_farthest_node_is_chosen() {
        let mut host =
            topology(&[(Some(0), Some(0), 0), (Some(1), Some(1), 1), (Some(2), Some(2), 2)]);
        let distances = [(NodeId(0), 12), (NodeId(1), 32), (NodeId(2), 10)].into();
        host.nodes.push(Node {
            node: NodeId(2),
            cpus: CpuSet::from_list("2").unwrap(),
            memory_bytes: None,
            free_bytes: None,
            distances,
            hugepages: Default::default(),
            numastat: Default::default(),
        });
        assert_eq!(placed(&host), (2, Some(1), "0".into(), "another node"));
    }

    #[test]
    fn senders_may_be_near_the_reader() {
        let near = |host: &Topology| {
            let placement = misplace(host, &host.online).unwrap();
            placement.with_senders_near(host, &host.online).senders.to_string()
        };
        // The reader is on the last CPU, and RPS as far away as possible.
        assert_eq!(near(&topology(&[(Some(0), Some(0), 0)])), "0");
        assert_eq!(near(&topology(&[(Some(0), Some(0), 0), (Some(0), Some(0), 1)])), "1");
        let two_nodes = [(0, 0), (0, 1), (1, 2), (1, 3)];
        let two_nodes = two_nodes.map(|(node, core)| (Some(node), Some(node), core));
        assert_eq!(near(&topology(&two_nodes)), "2");
    }

    #[test]
    fn without_nodes_caches_decide_or_nothing_is_known() {
        let host = topology(&[(None, Some(0), 0), (None, Some(1), 1)]);
        assert_eq!(placed(&host).3, "another LLC");
        let host = topology(&[(None, None, 0), (None, None, 1)]);
        assert_eq!(placed(&host).3, "another CPU");
        let (nothing, cpus) = (Topology::default(), CpuSet::from_list("0-2").unwrap());
        assert_eq!(misplace(&nothing, &cpus).unwrap().rps, Some(CpuId(0)));
    }
}
