//! All facts at once: runs each reader and gathers what could not be read.

use crate::{ReadError, Root};
use crate::{counters, daemons, irqs, kernel, memory, nics, sockets, sysctls, topology};
use nearpath_model::{HOST_SCHEMA, Host, Unknown};

/// What to read beside the facts that every command needs.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Sockets and the processes behind them: a walk over `/proc/*/fd`.
    pub sockets: bool,
    /// Memory by node of these processes (`numa_maps` walks their page tables).
    pub memory_of: Vec<u32>,
}

/// Gathers why facts are unknown, while they are read.
#[derive(Debug, Default)]
pub struct Notes(Vec<Unknown>);

impl Notes {
    /// Takes the value, or notes why there is none.
    pub fn take<T>(&mut self, subject: &str, fact: &str, value: Result<T, ReadError>) -> Option<T> {
        match value {
            Ok(value) => Some(value),
            Err(error) => {
                self.add(subject, fact, &error.to_string());
                None
            }
        }
    }

    /// Notes that a fact is unknown, and why.
    pub fn add(&mut self, subject: &str, fact: &str, reason: &str) {
        self.0.push(Unknown {
            subject: subject.to_owned(),
            fact: fact.to_owned(),
            reason: reason.to_owned(),
        });
    }

    /// What has been noted so far.
    pub fn unknown(&self) -> &[Unknown] {
        &self.0
    }
}

/// Reads the host behind a root.
///
/// # Errors
/// Only when there is nothing of a host at all: neither `/sys` nor `/proc`.
pub fn read(root: &Root, wanted: &Wanted) -> Result<Host, ReadError> {
    let mut notes = Notes::default();
    let mut host = Host { schema: HOST_SCHEMA, ..Host::default() };
    // One line for each reader, in the order of the fields of `Host`.
    host.topology = topology::read(root, &mut notes);
    host.kernel = kernel::read(root, &host.topology.possible, &mut notes);
    (host.irqs, host.arch_irqs) = irqs::read(root, &mut notes);
    host.nics = nics::read(root, &host.irqs, &mut notes);
    host.softirqs = counters::softirqs(root, &mut notes);
    host.softnet = counters::softnet(root, &mut notes, &host.topology.online);
    host.cpu_time = counters::cpu_time(root, &mut notes);
    host.counters = counters::named(root, &mut notes);
    host.sysctls = sysctls::read(root, &mut notes);
    host.daemons = daemons::read(root, &mut notes);
    if wanted.sockets {
        (host.sockets, host.owners) = sockets::read(root, &mut notes);
    }
    host.process_memory = memory::read(root, &mut notes, &wanted.memory_of);
    notes.0.sort();
    notes.0.dedup();
    host.unknown = std::mem::take(&mut notes.0);
    Ok(host)
}
