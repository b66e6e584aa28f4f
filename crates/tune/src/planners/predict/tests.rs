//! Predictions for synthetic hosts: the weights of queues, and the effect of each change.

use super::super::draft::{Draft, DraftChange};
use super::super::tests::{TWO_NODES, eth0, host, nic, planned_for, set, workload};
use super::super::{Request, Traffic};
use super::*;
use nearpath_model::{NicKind, SettingFile};
use nearpath_testing::trees::{Machine, Nic as MadeNic};

/// What `measure stages --per queue` saw of these queues.
fn by_queue(packets: &[(&str, u64)]) -> Traffic {
    let group = |&(name, packets): &(&str, u64)| serde_json::json!({ "per": "queue", "name": name, "packets": packets, "spans": [] });
    let groups: Vec<_> = packets.iter().map(group).collect();
    let measured = nearpath_model::Measurement {
        groups: serde_json::from_value(groups.into()).unwrap(),
        ..Default::default()
    };
    Traffic::of_measurement(&measured, &nearpath_model::Topology::default())
}

#[test]
fn queues_are_weighted_by_measured_packets() {
    // Queue 0 is on the other node and has had all interrupts since boot.
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[5]])));
    let now = |traffic| {
        let request = Request { traffic, ..Request::default() };
        planned_for(&host, &request, &[]).unwrap().now.other_node
    };
    assert_eq!(now(Traffic::default()), Some(0.5));
    assert_eq!(now(by_queue(&[("eth0 rx-0", 900), ("eth0 rx-1", 100)])), Some(0.9));
    // A queue without packets counts as one.
    assert_eq!(now(by_queue(&[("eth0 rx-1", 999), ("eth0 tx-0", 5)])), Some(0.001));
    // Another interface has no effect.
    assert_eq!(now(by_queue(&[("eth9 rx-0", 900)])), Some(0.5));
    // Not by queue: by the CPUs that polled them.
    let polled = BTreeMap::from([(CpuId(0), 300), (CpuId(5), 100)]);
    assert_eq!(now(Traffic { polled, ..Traffic::default() }), Some(0.75));
}

#[test]
fn queues_on_one_cpu_share_the_packets_polled_there() {
    // Two of eth0 and one of eth1 on CPU 0; eth0 has one more, near it.
    let eth1 = nic("eth1", "0000:5f:00.0", 1, 200, &[&[0]]);
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[0], &[5]])).nic(eth1));
    let polled = BTreeMap::from([(CpuId(0), 300), (CpuId(5), 300)]);
    let traffic = Traffic { polled, ..Traffic::default() };
    let request = Request { nics: vec!["eth0".to_owned()], traffic, ..Request::default() };
    let now = planned_for(&host, &request, &[]).unwrap().now;
    // 100 each, and 300.
    assert_eq!(now.other_node, Some(0.4));
}

#[test]
fn the_effect_of_a_change_is_that_of_the_plan_up_to_it() {
    let far: &[u32] = &[0];
    let nic = eth0(&[far; 3]).queue(1, |queue| queue.rps_cpus = vec![1, 5]);
    let host = host(Machine::regular(TWO_NODES).nic(nic));
    let plan = planned_for(&host, &Request::default(), &[workload(&["0-3", "1", "0-15"])]).unwrap();
    let kinds: Vec<&str> = plan.changes.iter().map(|change| change.kind()).collect();
    assert!(kinds.contains(&"thread_affinity") && kinds.contains(&"rps_cpus"), "{kinds:?}");
    let last = plan.changes.last().unwrap().predicted;
    assert_eq!(last, Some(plan.predicted));
    let node = |change: &PlannedChange| change.predicted.unwrap().other_node.unwrap();
    let mut before = plan.now.other_node.unwrap();
    for change in &plan.changes {
        // Queues, threads and RPS only; transmit settings have no effect.
        assert!(change.kind() != "xps_cpus" || node(change) == before, "{change:?}");
        before = node(change);
    }
    assert_eq!((plan.now.other_node, before), (Some(1.0), 0.0));
    // The order of the changes does not affect the result.
    let mut turned = plan.changes.clone();
    turned.reverse();
    let request = Request::default();
    let workloads = [workload(&["0-3", "1", "0-15"])];
    let situation = Situation::new(&host, &[], &request, &workloads).unwrap();
    assert_eq!(effects(&situation, &turned).last(), Some(&plan.predicted));
}

#[test]
fn a_veth_is_predicted_from_measured_arrivals() {
    let veth = MadeNic::software("veth0").queue(0, |queue| queue.rps_cpus = vec![1]);
    let mut host = host(Machine::regular(TWO_NODES).nic(veth));
    host.nics[0].kind = NicKind::Veth;
    let traffic = Traffic {
        arrivals: BTreeMap::from([(CpuId(4), 300), (CpuId(5), 100)]),
        ..Traffic::default()
    };
    let request = Request { traffic, ..Request::default() };
    let workloads = [workload(&["4"])];
    let situation = Situation::new(&host, &[], &request, &workloads).unwrap();
    let now = crossings(&situation);
    assert_eq!((now.other_cpu, now.other_node), (Some(1.0), Some(1.0)));
    let queue = &host.nics[0].rx_queues[0];
    let mut draft = Draft::default();
    draft.add(DraftChange {
        id: "rps".to_owned(),
        target: SettingFile::queue("veth0", queue.queue, QueueFile::RpsCpus).into(),
        before: set("1").to_mask().into(),
        after: CpuSet::new().to_mask().into(),
        why: String::new(),
        finding: None,
    });
    let after = effects(&situation, &draft.finish().0)[0];
    assert_eq!((after.other_cpu, after.other_node), (Some(0.25), Some(0.0)));
}
