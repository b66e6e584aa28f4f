//! Reads all facts: runs each reader and collects the reasons of unknown facts.

use crate::{ReadError, Root};
use crate::{
    cgroups, clocks, counters, daemons, irqs, kernel, kubelet, memory, nfqueues, nics, pci, power,
    sockets, sysctls, topology, vms,
};
use nearpath_model::{HOST_SCHEMA, Host, Unknown};

/// Facts to read in addition to those that every command needs.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Sockets and the processes behind them: a walk over `/proc/*/fd`.
    pub sockets: bool,
    /// Memory by node of these processes (`numa_maps` walks their page tables).
    pub memory_of: Vec<u32>,
}

/// Collects the reasons of unknown facts.
#[derive(Debug, Default)]
pub struct Notes(Vec<Unknown>);

impl Notes {
    /// Returns the value, or notes the reason why there is none.
    pub fn take<T>(&mut self, subject: &str, fact: &str, value: Result<T, ReadError>) -> Option<T> {
        match value {
            Ok(value) => Some(value),
            Err(error) => {
                self.add(subject, fact, &error.to_string());
                None
            }
        }
    }

    /// Notes that a fact is unknown, with the reason.
    pub fn add(&mut self, subject: &str, fact: &str, reason: &str) {
        self.0.push(Unknown {
            subject: subject.to_owned(),
            fact: fact.to_owned(),
            reason: reason.to_owned(),
        });
    }

    /// The notes so far.
    pub fn unknown(&self) -> &[Unknown] {
        &self.0
    }
}

/// Reads the host behind a root.
///
/// # Errors
/// Only if there is nothing of a host: neither `/sys` nor `/proc`.
pub fn read(root: &Root, wanted: &Wanted) -> Result<Host, ReadError> {
    let mut notes = Notes::default();
    let mut host = Host { schema: HOST_SCHEMA, ..Host::default() };
    // One line per reader, in the order of the fields of `Host`.
    host.topology = topology::read(root, &mut notes);
    host.kernel = kernel::read(root, &host.topology.possible, &mut notes);
    (host.irqs, host.arch_irqs) = irqs::read(root, &mut notes);
    host.nics = nics::read(root, &host.irqs, &mut notes);
    host.devices = pci::read(root, &mut notes);
    host.softirqs = counters::softirqs(root, &mut notes);
    host.softnet = counters::softnet(root, &mut notes, &host.topology.online);
    host.cpu_time = counters::cpu_time(root, &mut notes);
    host.counters = counters::named(root, &mut notes);
    host.sysctls = sysctls::read(root, &mut notes);
    (host.daemons, host.net_threads) = daemons::read(root, &mut notes);
    host.kubelet = kubelet::read(root, &mut notes);
    host.nfqueues = nfqueues::read(root, &mut notes);
    host.power = power::read(root, &host.topology.online);
    if wanted.sockets {
        (host.sockets, host.owners) = sockets::read(root, &mut notes);
        host.cgroups = cgroups::read(root, &mut notes, &mut host.owners);
        host.vms = vms::read_all(root, &host.topology, &mut notes);
        host.kvm = (!host.vms.is_empty()).then(|| vms::parameters(root, &mut notes));
    }
    host.clocks = clocks::read(root, &host.nics, &mut notes);
    host.process_memory = memory::read(root, &mut notes, &wanted.memory_of);
    notes.0.sort();
    notes.0.dedup();
    host.unknown = std::mem::take(&mut notes.0);
    Ok(host)
}

/// The same host with its interrupts and these interfaces read again, and those that are new: what a device brings with
/// it. All else is as it was read before.
pub fn read_interfaces(root: &Root, host: &Host, names: &[String]) -> Host {
    let mut notes = Notes(host.unknown.clone());
    let mut host = host.clone();
    (host.irqs, host.arch_irqs) = irqs::read(root, &mut notes);
    host.nics = nics::read_again(root, &host.irqs, &mut notes, &host.nics, names);
    notes.0.sort();
    notes.0.dedup();
    host.unknown = notes.0;
    host
}
