//! Where the memory of the largest processes is.

use crate::metrics::Id;
use crate::store::{OTHERS, Store};
use nearpath_model::memory::{MemoryMeasurement, NodeBytes};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Names of processes with series of their own.
const PROCESSES_MAX: usize = 16;

#[derive(Debug, Default)]
struct Sum {
    nodes: BTreeMap<u32, u64>,
    remote: Option<u64>,
}

/// Sets the memory by name of the process and node.
pub fn memory(store: &mut Store, memory: &MemoryMeasurement) {
    let mut by_name: BTreeMap<&str, Sum> = BTreeMap::new();
    for process in &memory.processes {
        let sum = by_name.entry(&process.comm).or_default();
        for (node, bytes) in &process.nodes {
            *sum.nodes.entry(node.0).or_default() += NodeBytes::total(bytes);
        }
        if let Some(remote) = process.remote_bytes {
            *sum.remote.get_or_insert_default() += remote;
        }
    }
    let mut sums: Vec<_> = by_name.into_iter().collect();
    sums.sort_by_key(|(name, sum)| (Reverse(sum.nodes.values().sum::<u64>()), *name));
    let mut others = Sum::default();
    store.clear(Id::ProcessMemory);
    store.clear(Id::ProcessRemoteMemory);
    for (rank, (name, sum)) in sums.into_iter().enumerate() {
        if rank < PROCESSES_MAX {
            set(store, name, &sum);
            continue;
        }
        for (node, bytes) in sum.nodes {
            *others.nodes.entry(node).or_default() += bytes;
        }
    }
    set(store, OTHERS, &others);
}

fn set(store: &mut Store, name: &str, sum: &Sum) {
    for (node, bytes) in &sum.nodes {
        store.set(Id::ProcessMemory, &[name, &node.to_string()], *bytes as f64);
    }
    if let Some(remote) = sum.remote {
        store.set(Id::ProcessRemoteMemory, &[name], remote as f64);
    }
}
