//! Receive queues with RPS on: where they steer, in words, and the changes that steer them
//! elsewhere.

use crate::{Context, text};
use nearpath_model::{
    CpuSet, Nic, NicKind, ProposedChange, QueueFile, RxQueue, SettingFile, Sysctl,
};

/// A receive queue with RPS on.
#[derive(Debug, Clone)]
pub(crate) struct Steered<'a> {
    /// The interface.
    pub nic: &'a Nic,
    /// The queue.
    pub queue: &'a RxQueue,
    /// Its `rps_cpus` that are online.
    pub cpus: CpuSet,
}

impl<'a> Context<'a> {
    /// All receive queues that steer to some online CPU.
    pub(crate) fn steered(&self) -> Vec<Steered<'a>> {
        let online = &self.host.topology.online;
        let queues = self.nics().flat_map(|nic| nic.rx_queues.iter().map(move |q| (nic, q)));
        let steered = |(nic, queue): (&'a Nic, &'a RxQueue)| {
            let cpus = queue.rps_cpus.as_ref()?.intersection(online);
            (!cpus.is_empty()).then_some(Steered { nic, queue, cpus })
        };
        queues.filter_map(steered).collect()
    }
}

/// The NICs whose packets come to an OVS internal port and that have more receive queues than it.
/// RPS of the port steers packets of their queue 0 alone: see the check `ovs_port_rps`.
pub(crate) fn nics_below<'a>(context: &Context<'a>, port: &Nic) -> Vec<&'a Nic> {
    if port.kind != NicKind::OvsInternal {
        return Vec::new();
    }
    context
        .hardware_nics()
        .filter(|nic| is_in_ovs(context, nic) && nic.rx_queues.len() > port.rx_queues.len())
        .collect()
}

/// Whether a NIC is a port of an OVS datapath: its master is an OVS device.
fn is_in_ovs(context: &Context<'_>, nic: &Nic) -> bool {
    nic.master.as_deref().is_some_and(|master| {
        let is_it = |other: &&Nic| other.name == master && other.kind == NicKind::OvsInternal;
        // The datapath's own device is down as a rule.
        context.host.nics.iter().any(|other| is_it(&other))
    })
}

/// The interfaces, each once; of many the first, and how many there are.
pub(crate) fn nic_names(steered: &[Steered<'_>]) -> String {
    let mut names: Vec<&str> = steered.iter().map(|s| s.nic.name.as_str()).collect();
    names.dedup();
    match names.as_slice() {
        [first, _, _, ..] => format!("{first} and {} more", names.len() - 1),
        names => text::list(names),
    }
}

/// What each NIC's RPS is set to, queues of the same value together.
pub(crate) fn steering_evidence(steered: &[Steered<'_>]) -> Vec<String> {
    let mut groups: Vec<(&str, &CpuSet, u64)> = Vec::new();
    for s in steered {
        match groups.last_mut() {
            Some((name, cpus, n)) if *name == s.nic.name && **cpus == s.cpus => *n += 1,
            _ => groups.push((&s.nic.name, &s.cpus, 1)),
        }
    }
    let words = |(name, cpus, n): (&str, &CpuSet, u64)| {
        format!(
            "RPS of {} of {name} steers to {}.",
            text::count(n, "receive queue"),
            text::cpus(cpus)
        )
    };
    groups.into_iter().map(words).collect()
}

/// RFS steers each flow to the CPU of its reader, where plain RPS only hashes.
pub(crate) fn rfs_changes(context: &Context<'_>, guilty: &[Steered<'_>]) -> Vec<ProposedChange> {
    const ENTRIES: Sysctl = Sysctl::RpsSockFlowEntries;
    let entries = context.host.sysctls.get(ENTRIES.name()).map(|value| text::clean(value));
    let mut changes = Vec::new();
    if entries.as_deref().is_none_or(|value| value == "0") {
        let why = "RFS steers each flow to the CPU that reads it; RPS only spreads by hash.";
        changes.push(ProposedChange::new(ENTRIES, entries, "32768", why));
    }
    for s in guilty.iter().filter(|s| s.queue.rps_flow_cnt.unwrap_or(0) == 0) {
        changes.push(ProposedChange::new(
            SettingFile::queue(&s.nic.name, s.queue.queue, QueueFile::RpsFlowCnt),
            s.queue.rps_flow_cnt.map(|n| n.to_string()),
            "2048",
            "Gives this queue its table of flows for RFS.",
        ));
    }
    changes
}

/// Sets `rps_cpus` of a receive queue.
pub(crate) fn rps_change(nic: &Nic, queue: &RxQueue, after: &CpuSet, why: &str) -> ProposedChange {
    ProposedChange::new(
        SettingFile::queue(&nic.name, queue.queue, QueueFile::RpsCpus),
        queue.rps_cpus.as_ref().map(CpuSet::to_mask),
        after.to_mask(),
        why,
    )
}
