//! DPVS's table of workers: which run, with which queues, and whether DPVS accepts it (src/netif.c: `config_lcores`,
//! `check_lcore_conf`, `lcore_index_init`, `lcore_role_init`, `get_configured_rss_queues`).
//!
//! The table holds the workers by ascending id, except masters. It ends at the first one without a port.

use super::config::{Config, Type, Worker, WorkerPort};
use super::ports::{Ports, quoted};
use super::problems::Problems;
use super::statements::{MAX_LCORE, power_of_two_below};
use nearpath_model::eal::Lcores;
use nearpath_model::{CpuSet, DpvsQueues, DpvsRole, DpvsWorker};
use std::collections::{BTreeMap, BTreeSet};

/// The largest ring of DPDK (`RTE_RING_SZ_MASK`, lib/ring/rte_ring_core.h), in entries.
const MAX_RING: i32 = 0x4000_0000;

/// A worker with its place in the table.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub worker: &'a Worker,
    pub lcore: u32,
    /// The line of its id, or of the worker.
    pub line: u32,
    pub role: DpvsRole,
}

/// All workers except masters, in the order of DPVS's table.
#[derive(Debug)]
pub(super) struct Table<'a> {
    pub entries: Vec<Entry<'a>>,
    /// How many of them are in the table.
    pub end: usize,
}

impl<'a> Table<'a> {
    /// Sorts the workers as DPVS does: of workers with the same id the one that is last in the file comes first.
    pub(super) fn new(config: &'a Config, problems: &mut Problems) -> Self {
        let mut entries = Vec::new();
        for worker in config.workers.iter().rev().filter(|worker| worker.kind != Type::Master) {
            let (lcore, line) = worker.lcore.unwrap_or((0, worker.line));
            let name = quoted(&worker.name);
            if worker.lcore.is_none() {
                problems.changed(
                    Some(worker.line),
                    "missing_cpu_id",
                    format!("worker {name} has no cpu_id: DPVS reads memory that it has not set, usually 0"),
                    "write its lcore id",
                );
            }
            let role = match worker.kind {
                Type::Slave => DpvsRole::Forwarding,
                Type::Kni => DpvsRole::Kni,
                Type::Master | Type::None => DpvsRole::Idle,
            };
            if worker.kind == Type::None {
                problems.changed(
                    Some(worker.line),
                    "missing_type",
                    format!("worker {name} has no type: DPVS runs nothing on it, and no worker serves its queues"),
                    "write type slave",
                );
            }
            match u32::try_from(lcore).ok().filter(|lcore| *lcore < MAX_LCORE) {
                Some(lcore) => entries.push(Entry { worker, lcore, line, role }),
                None => problems.refused(
                    Some(line),
                    "lcore_id_too_high",
                    format!("worker {name} has id {lcore}: DPVS has ids up to 63 only, and aborts"),
                    "map the CPU to a lower id with --lcores id@cpu",
                ),
            }
        }
        entries.sort_by_key(|entry| entry.lcore);
        let end = entries.iter().position(|entry| entry.worker.ports.is_empty());
        Self { end: end.unwrap_or(entries.len()), entries }
    }

    /// The workers that DPVS knows.
    pub(super) fn known(&self) -> &[Entry<'a>] {
        self.entries.get(..self.end).unwrap_or_default()
    }

    /// The worker that ends the table, and those that are lost behind it.
    pub(super) fn lost(&self) -> &[Entry<'a>] {
        self.entries.get(self.end..).unwrap_or_default()
    }

    /// Isolated receivers of all workers, also of lost ones: id, the worker's port, queue.
    pub(super) fn receivers(&self) -> impl Iterator<Item = (u32, &'a WorkerPort, u32)> + '_ {
        let ports = self.entries.iter().flat_map(|entry| entry.worker.ports.iter());
        ports.flat_map(|port| port.receivers().map(move |(id, queue)| (id, port, queue)))
    }

    /// Reports workers that never run.
    pub(super) fn check_end(&self, problems: &mut Problems) {
        let Some((end, behind)) = self.lost().split_first() else { return };
        let name = quoted(&end.worker.name);
        problems.changed(
            Some(end.worker.line),
            "worker_without_port",
            format!(
                "worker {name} (id {}) has no port: DPVS's table ends there, so that it{} never {}",
                end.lcore,
                match behind.len() {
                    0 => String::new(),
                    1 => " and the one with a higher id".to_owned(),
                    count => format!(" and {count} with higher ids"),
                },
                if behind.is_empty() { "runs" } else { "run" }
            ),
            "give it a port with queues, or remove it",
        );
        for entry in behind {
            problems.changed(
                Some(entry.worker.line),
                "worker_lost",
                format!(
                    "worker {} (id {}) never runs: worker {name} (id {}) has no port and ends the table",
                    quoted(&entry.worker.name),
                    entry.lcore,
                    end.lcore
                ),
                "give that worker a port, or remove it",
            );
        }
    }

    /// Ports and queues of each worker.
    pub(super) fn check_queues(
        &self,
        config: &Config,
        ports: &Ports,
        max_queues: u32,
        problems: &mut Problems,
    ) {
        let mut used: BTreeSet<&str> = BTreeSet::new();
        for port in self.known().iter().flat_map(|entry| &entry.worker.ports) {
            used.insert(&port.name);
            if ports.id(&port.name).is_none() {
                problems.refused(
                    Some(port.line),
                    "unknown_port",
                    format!("there is no port {}: DPVS crashes", quoted(&port.name)),
                    "name a device or bond of netif_defs for which there is a port",
                );
            }
        }
        for entry in self.known() {
            check_ports(entry, &used, ports, problems);
        }
        for (id, (name, line)) in ports.names.iter().enumerate() {
            let is_found = ports.ids.get(name) == Some(&id);
            if is_found && used.contains(name.as_str()) {
                let queues = PortQueues { table: self, config, name, max_queues };
                let is_valid = queues.check(true, problems) & queues.check(false, problems);
                if is_valid {
                    check_rss(self.known(), name, problems);
                }
                if ports.slaves.contains(&id) {
                    let mut of_workers = self.known().iter().flat_map(|e| &e.worker.ports);
                    let named = of_workers.find(|port| port.name == *name);
                    problems.changed(
                        named.map(|port| port.line).or(*line),
                        "bond_slave_in_worker",
                        format!("{} is the slave of a bond: workers serve the bond", quoted(name)),
                        "name the bond in the workers",
                    );
                }
            } else if !ports.slaves.contains(&id) {
                problems.changed(
                    *line,
                    "port_unused",
                    format!("no worker has queues of {}: DPVS does not start it", quoted(name)),
                    "give each forwarding worker queues of it, or remove the device",
                );
            }
        }
    }

    /// Lcores: enabled, distinct, not the main one.
    pub(super) fn check_lcores(&self, lcores: &Lcores, main: u32, problems: &mut Problems) {
        let mut taken: BTreeMap<u32, String> = BTreeMap::new();
        taken.insert(main, "the main lcore, the master".to_owned());
        for entry in self.known() {
            let (name, line) = (quoted(&entry.worker.name), Some(entry.line));
            let Entry { lcore, .. } = *entry;
            if !lcores.contains_key(&lcore) {
                problems.refused(
                    line,
                    "lcore_not_enabled",
                    format!("worker {name} has id {lcore}, which is not in --lcores: DPVS exits"),
                    "add id@cpu to --lcores, or use an id that is there",
                );
            } else if lcore == main {
                problems.refused(
                    line,
                    "lcore_is_main",
                    format!("worker {name} has id {lcore}, the main lcore: DPVS aborts"),
                    "use another id, or make another lcore the main one (--main-lcore)",
                );
            } else if let Some(other) = taken.get(&lcore) {
                problems.refused(
                    line,
                    "lcore_repeated",
                    format!("worker {name} has id {lcore}, as {other}: DPVS aborts"),
                    "give each worker its own id",
                );
            }
            taken.entry(lcore).or_insert_with(|| format!("worker {name}"));
        }
        let mut seen = BTreeSet::new();
        for (id, port, _) in self.receivers() {
            let line = port.isolated_line;
            if !seen.insert((id, line)) {
                continue;
            }
            if !lcores.contains_key(&id) {
                problems.refused(
                    line,
                    "isolated_not_enabled",
                    format!("isolated receiver {id} is not in --lcores: DPVS aborts"),
                    "add id@cpu to --lcores",
                );
            } else if let Some(other) = taken.get(&id) {
                problems.refused(
                    line,
                    "isolated_in_use",
                    format!("isolated receiver {id} is {other}: DPVS aborts"),
                    "use an lcore that is no worker",
                );
            }
        }
        self.check_rings(problems);
    }

    fn check_rings(&self, problems: &mut Problems) {
        for port in self.entries.iter().flat_map(|entry| &entry.worker.ports) {
            let extra = port.isolated.iter().skip(port.rx.len()).any(Option::is_some);
            if extra {
                problems.changed(
                    port.isolated_line,
                    "isolated_id_unused",
                    "there are more isolated receivers than receive queues: DPVS ignores the others".to_owned(),
                    "write one id for each receive queue",
                );
            }
            let Some((size, line)) = port.ring.filter(|_| port.receivers().next().is_some()) else {
                continue;
            };
            let taken = power_of_two_below(size);
            if !(2..=MAX_RING).contains(&taken) {
                problems.changed(
                    Some(line),
                    "ring_size_invalid",
                    format!("a ring of {size} entries holds no packet, or cannot be created: the isolated receiver does not work"),
                    "write a power of two from 1024 to 1073741824",
                );
            } else if taken != size {
                problems.changed(
                    Some(line),
                    "ring_size_rounded",
                    format!("isol_rxq_ring_sz {size} is in entries and no power of two: DPVS takes {taken}"),
                    "write the power of two that you want, in entries (8 bytes each)",
                );
            }
        }
    }

    /// The workers that run.
    pub(super) fn workers(&self, ports: &Ports, lcores: &Lcores, main: u32) -> Vec<DpvsWorker> {
        let mut workers: BTreeMap<u32, DpvsWorker> = BTreeMap::new();
        let new = |lcore: u32, role: DpvsRole| {
            let cpus = lcores.get(&lcore);
            let single = cpus.filter(|cpus| cpus.len() == 1).and_then(CpuSet::first);
            let cpus = cpus.filter(|cpus| cpus.len() > 1).map(CpuSet::to_string);
            let cpu = single.map(|cpu| cpu.0);
            DpvsWorker { lcore, cpu, cpus, role, ports: BTreeMap::new() }
        };
        workers.insert(main, new(main, DpvsRole::Master));
        for entry in self.known() {
            let worker = workers.entry(entry.lcore).or_insert_with(|| new(entry.lcore, entry.role));
            for port in &entry.worker.ports {
                let queues = worker.ports.entry(port.name.clone()).or_default();
                queues.rx.clone_from(&port.rx);
                queues.tx.clone_from(&port.tx);
                queues.isolated_rx.clear();
                if port.receivers().next().is_some() {
                    let at = |at: usize| port.isolated.get(at).copied().flatten();
                    queues.isolated_rx = (0..port.rx.len()).map(at).collect();
                }
            }
        }
        for (id, port, queue) in
            self.receivers().filter(|(_, port, _)| ports.id(&port.name).is_some())
        {
            let worker = workers.entry(id).or_insert_with(|| new(id, DpvsRole::IsolatedRx));
            if worker.role == DpvsRole::IsolatedRx {
                let queues: &mut DpvsQueues = worker.ports.entry(port.name.clone()).or_default();
                queues.rx.push(queue);
                queues.rx.sort_unstable();
            }
        }
        workers.into_values().collect()
    }
}

/// `LCONFCHK_PORT_NOT_ENOUGH` and `LCONFCHK_INCORRECT_TX_QUEUE_NUM`: all workers must have all ports that any has, with
/// a transmit queue.
fn check_ports(entry: &Entry<'_>, used: &BTreeSet<&str>, ports: &Ports, problems: &mut Problems) {
    let (worker, name) = (entry.worker, quoted(&entry.worker.name));
    let own: BTreeSet<&str> = worker.ports.iter().map(|port| port.name.as_str()).collect();
    if own.len() < worker.ports.len() {
        let message = format!("worker {name} has a port twice");
        let line = Some(worker.line);
        if worker.ports.len() > ports.names.len() || worker.ports.len() != used.len() {
            let code = "port_repeated";
            problems.refused(line, code, message + ": DPVS exits", "write one block for each port");
        } else {
            let message = message
                + ": DPVS sends by the last block, and gives up the RSS table of the port that is missing";
            problems.changed(line, "port_repeated", message, "write one block for each port");
        }
    } else if let Some(missing) = used.difference(&own).next() {
        problems.refused(
            Some(worker.line),
            "port_missing",
            format!(
                "worker {name} has no queues of port {}, which other workers have: DPVS exits",
                quoted(missing)
            ),
            "give each worker a block for each port, with a transmit queue at least",
        );
    }
    for port in worker.ports.iter().filter(|port| port.tx.is_empty()) {
        problems.refused(
            Some(port.tx_line.unwrap_or(port.line)),
            "no_tx_queue",
            format!(
                "worker {name} has no transmit queue of port {}: DPVS exits",
                quoted(&port.name)
            ),
            "write tx_queue_ids with an id that no other worker has",
        );
    }
}

/// The queues of one port in all workers.
struct PortQueues<'a, 'b> {
    table: &'b Table<'a>,
    config: &'b Config,
    name: &'b str,
    max_queues: u32,
}

impl PortQueues<'_, '_> {
    /// Ids once each, from 0 without a gap, no more than the NIC has, and a transmit queue in each worker. Whether all
    /// is so.
    fn check(&self, is_rx: bool, problems: &mut Problems) -> bool {
        let (direction, name) = (if is_rx { "rx" } else { "tx" }, quoted(self.name));
        let mut owner: BTreeMap<u32, String> = BTreeMap::new();
        let mut count = 0u32;
        let mut is_repeated = false;
        let mut is_valid = true;
        let mut first_line = None;
        for entry in self.table.known() {
            for port in entry.worker.ports.iter().filter(|port| port.name == self.name) {
                let (ids, line) =
                    if is_rx { (&port.rx, port.rx_line) } else { (&port.tx, port.tx_line) };
                first_line = first_line.or(line);
                is_valid &= is_rx || !ids.is_empty();
                for id in ids {
                    count = count.saturating_add(1);
                    let worker = quoted(&entry.worker.name);
                    if let Some(other) = owner.insert(*id, worker) {
                        (is_repeated, is_valid) = (true, false);
                        problems.refused(
                            Some(line.unwrap_or(port.line)),
                            &format!("{direction}_queue_repeated"),
                            format!("{direction} queue {id} of port {name} is already used by worker {other}: DPVS exits"),
                            "give each queue to one worker",
                        );
                    }
                }
            }
        }
        if let (Some(missing), false) = ((0..count).find(|id| !owner.contains_key(id)), is_repeated)
        {
            is_valid = false;
            problems.refused(
                first_line,
                &format!("{direction}_queue_gap"),
                format!("the {count} {direction} queues of port {name} are not 0 to {}: {missing} is missing, DPVS exits", count - 1),
                "number the queues of each port from 0, without a gap over all workers",
            );
        }
        if count > self.max_queues {
            is_valid = false;
            problems.refused(
                first_line,
                "too_many_queues",
                format!(
                    "port {name} has {count} {direction} queues, and may have {}: DPVS exits",
                    self.max_queues
                ),
                "use fewer workers, or fewer queues in each",
            );
        }
        if is_rx && count == 0 {
            is_valid = false;
            problems.refused(
                None,
                "no_rx_queue",
                format!(
                    "port {name} has no receive queue: DPVS divides by their number, and crashes"
                ),
                "write rx_queue_ids",
            );
        }
        if is_valid {
            self.check_number(is_rx, count, problems);
        }
        is_valid
    }

    fn check_number(&self, is_rx: bool, count: u32, problems: &mut Problems) {
        let device = self.config.devices.iter().find(|device| device.name == self.name);
        let number =
            device.and_then(|device| if is_rx { device.rx_queues } else { device.tx_queues });
        if let Some((number, line)) =
            number.filter(|(n, _)| *n > 0 && i64::from(*n) < i64::from(count))
        {
            problems.changed(
                Some(line),
                "queue_number_ignored",
                format!("queue_number {number} is less than the {count} queues of the workers: DPVS sets up {count}"),
                "write the number of queues that the workers have",
            );
        }
    }
}

/// The RSS table of a port is filled from the transmit ids, as many as there are receive queues.
fn check_rss(known: &[Entry<'_>], name: &str, problems: &mut Problems) {
    let mut receive = BTreeSet::new();
    let mut filled = BTreeSet::new();
    let mut unequal = None;
    for entry in known.iter().filter(|entry| entry.role == DpvsRole::Forwarding) {
        for port in entry.worker.ports.iter().filter(|port| port.name == name) {
            receive.extend(&port.rx);
            // Ids beyond the transmit queues are those of a zeroed array.
            let ids = (0..port.rx.len()).map(|at| port.tx.get(at).copied().unwrap_or(0));
            let ids: Vec<u32> = ids.collect();
            if ids != port.rx {
                unequal = unequal.or(Some(port.tx_line.unwrap_or(port.line)));
            }
            filled.extend(ids);
        }
    }
    if receive != filled {
        let list =
            |ids: &BTreeSet<u32>| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        problems.changed(
            unequal,
            "rss_from_tx_ids",
            format!(
                "DPVS fills the RSS table of port {} from the transmit ids: packets go to queues {}, workers receive \
                 from {}",
                quoted(name),
                list(&filled),
                list(&receive)
            ),
            "write the same ids as rx_queue_ids and tx_queue_ids",
        );
    }
}
