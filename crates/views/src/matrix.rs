//! The places that packets of one direction come from and go to, as rows and columns: CPUs, or nodes
//! if there are too many CPUs to show individually.

use nearpath_model::locality::Locality;
use nearpath_model::{CpuId, Direction, NodeId};
use std::collections::BTreeMap;

/// A place in the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// A CPU, of its node.
    Cpu(Option<NodeId>, CpuId),
    /// All CPUs of a node.
    Node(NodeId),
    /// All CPUs of no known node.
    NoNode,
}

impl Place {
    /// `cpu 3`, `node 0`.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Cpu(_, cpu) => format!("cpu {cpu}"),
            Self::Node(node) => format!("node {node}"),
            Self::NoNode => "no node".to_owned(),
        }
    }

    /// What is drawn together.
    pub(crate) fn node(self) -> Option<NodeId> {
        match self {
            Self::Cpu(node, _) => node,
            Self::Node(node) => Some(node),
            Self::NoNode => None,
        }
    }
}

/// Packets from each place to each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// Places with packets, those of a node together.
    pub places: Vec<Place>,
    /// By position of both places.
    pub counts: BTreeMap<(usize, usize), u64>,
    /// Sum of all.
    pub packets: u64,
}

impl Matrix {
    /// The matrix of a direction, with a maximum number of CPUs.
    pub(crate) fn of(locality: &Locality, direction: Direction, most: usize) -> Self {
        let cpus = Self::by(locality, direction, Place::Cpu);
        if cpus.places.len() <= most {
            return cpus;
        }
        Self::by(locality, direction, |node, _| node.map_or(Place::NoNode, Place::Node))
    }

    fn by(
        locality: &Locality,
        direction: Direction,
        place: impl Fn(Option<NodeId>, CpuId) -> Place,
    ) -> Self {
        let mut found: BTreeMap<(Place, Place), u64> = BTreeMap::new();
        for one in locality.places.iter().filter(|one| one.direction == direction) {
            let one = one.place;
            let pair = (place(one.from_node, one.from_cpu), place(one.to_node, one.to_cpu));
            let sum = found.entry(pair).or_default();
            *sum = sum.saturating_add(one.count);
        }
        let mut places: Vec<Place> = found.keys().flat_map(|&(from, to)| [from, to]).collect();
        places.sort_unstable();
        places.dedup();
        let position = |place: &Place| places.binary_search(place).unwrap_or_default();
        let counts: BTreeMap<_, _> =
            found.iter().map(|((from, to), &n)| ((position(from), position(to)), n)).collect();
        let packets = counts.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
        Self { places, counts, packets }
    }
}
