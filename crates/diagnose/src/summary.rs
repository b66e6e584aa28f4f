//! The host in short: what a diagnosis was made of.

use crate::text;
use nearpath_model::{Host, HostSummary, Nic, NicKind};
use std::collections::BTreeSet;

/// Sums a host up.
pub fn summary(host: &Host) -> HostSummary {
    let topology = &host.topology;
    let packages: BTreeSet<u32> =
        topology.cpus.iter().filter(|cpu| cpu.online).filter_map(|cpu| cpu.package).collect();
    HostSummary {
        kernel: host.kernel.release.as_deref().map(text::clean),
        virtualisation: host.kernel.virtualisation.as_deref().map(text::clean),
        online_cpus: topology.online.len(),
        packages: packages.len(),
        nodes: topology.nodes.len(),
        llcs: topology.llcs.len(),
        nics: host.nics.iter().filter(|nic| nic.kind != NicKind::Loopback).map(nic).collect(),
    }
}

/// `eth0 virtio_net node 0, 2 rx queues`; `veth0 veth, 1 rx queue, down`.
fn nic(nic: &Nic) -> String {
    let mut words = text::clean(&nic.name);
    if let Some(driver) = &nic.driver {
        words = format!("{words} {}", text::clean(driver));
    }
    if let Some(node) = nic.numa_node {
        words = format!("{words} node {node}");
    }
    words = format!("{words}, {}", text::count(nic.rx_queues.len() as u64, "rx queue"));
    if nic.state.as_deref() == Some("down") {
        words.push_str(", down");
    }
    words
}
