//! Listeners and their workers. Input: the counts of the program. Output: the same, grouped.

use super::load::Key;
use nearpath_model::accepts::{DistanceCounts, Listener, Worker};
use nearpath_model::{CpuId, CpuSet, Topology};
use std::collections::BTreeMap;

/// Groups counts by listener and thread; `cpus_of` returns the affinity of a thread.
pub fn listeners(
    mut counts: Vec<(Key, u64, String)>,
    topology: &Topology,
    cpus_of: impl Fn(u32, u32) -> Option<CpuSet>,
) -> Vec<Listener> {
    let listener = |key: &Key| (key.local, key.netns);
    let thread = |key: &Key| (key.pid, key.tid);
    counts.sort_unstable_by_key(|(key, ..)| (listener(key), thread(key)));
    // A thread may serve ten thousand listeners.
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

fn places(counts: &[(Key, u64, String)], topology: &Topology) -> DistanceCounts {
    let mut places = DistanceCounts::default();
    for (key, accepts, _) in counts {
        let nearness = topology.nearness(CpuId(key.received_on), CpuId(key.accepted_on));
        places += DistanceCounts::of(nearness, *accepts);
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
        let whole = DistanceCounts {
            accepts: 16,
            same_cpu: 14,
            other_node: 2,
            ..DistanceCounts::default()
        };
        assert_eq!(first.places, whole);
        let shown: Vec<_> =
            first.workers.iter().map(|w| (w.tid, w.places.accepts, w.cpus.is_some())).collect();
        assert_eq!(shown, [(11, 9, false), (10, 7, true)]);
        // CPU 7 does not exist on this host.
        assert_eq!(
            second.places,
            DistanceCounts { accepts: 1, unknown: 1, ..DistanceCounts::default() }
        );
    }
}
