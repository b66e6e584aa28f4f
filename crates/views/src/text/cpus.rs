//! `show cpus`: each CPU's core, package, die, cluster, LLC and node; with `--layout` cores by socket. On a machine of
//! many CPUs those that share all but the core are one row.

use super::cpu_layout::cpu_layout;
use super::table::{Table, left, or_none, right};
use super::units::{bytes, ranges};
use super::unknown::{none_of, unknown};
use super::{heading, line};
use nearpath_model::{Cpu, CpuSet, Host, LlcId, NodeId, Topology};

/// A machine of more CPUs than this has its CPUs in groups.
const MANY_CPUS: usize = 32;

/// CPUs, cores, packages, LLCs and nodes, in columns as `lscpu -e` prints them.
pub fn cpus(host: &Host) -> String {
    let many = host.topology.cpus.len() > MANY_CPUS;
    with_counts(host, if many { grouped(&host.topology) } else { per_cpu(&host.topology) })
}

/// Cores by socket, as DPDK's `cpu_layout.py` prints them.
pub fn layout(host: &Host) -> String {
    with_counts(host, cpu_layout(&host.topology))
}

/// A table of CPUs, below how many of each there are and above what is unknown.
fn with_counts(host: &Host, table: String) -> String {
    let mut out = counts(host);
    if !table.is_empty() {
        line!(out);
        out.push_str(&table);
    }
    let unknown = unknown(&host.unknown, &["cpu", "cpus", "llc", "cache", "topology"]);
    if !unknown.is_empty() {
        line!(out);
        out.push_str(&unknown);
    }
    out
}

/// How many of each there are: `96 CPUs online (0-95), 48 cores, 2 packages, 16 LLCs, 8 nodes`.
fn counts(host: &Host) -> String {
    let topology = &host.topology;
    let mut out = String::new();
    if topology.cpus.is_empty() {
        line!(out, "{}", none_of(host, "CPUs", "cpus"));
        return out;
    }
    let mut text = format!("{} online ({})", count(topology.online.len(), "CPU"), topology.online);
    let offline = topology.present.difference(&topology.online);
    if !offline.is_empty() {
        text.push_str(&format!(", {} offline ({offline})", offline.len()));
    }
    let mut cores: Vec<&CpuSet> = topology.cpus.iter().map(|cpu| &cpu.siblings).collect();
    cores.retain(|siblings| !siblings.is_empty());
    cores.sort();
    cores.dedup();
    let mut packages: Vec<u32> = topology.cpus.iter().filter_map(|cpu| cpu.package).collect();
    packages.sort_unstable();
    packages.dedup();
    for (number, word) in [
        (cores.len(), "core"),
        (packages.len(), "package"),
        (topology.llcs.len(), "LLC"),
        (topology.nodes.len(), "node"),
    ] {
        if number > 0 {
            text.push_str(&format!(", {}", count(number, word)));
        }
    }
    heading(&mut out, &text);
    out
}

/// A number with its word: `1 node`, `2 nodes`.
pub(super) fn count(number: usize, word: &str) -> String {
    if number == 1 { format!("1 {word}") } else { format!("{number} {word}s") }
}

fn per_cpu(topology: &Topology) -> String {
    let mut table = Table::new(&[
        right("CPU"),
        right("CORE"),
        right("PACKAGE"),
        right("DIE"),
        right("CLUSTER").optional(),
        right("LLC"),
        left("CACHE").optional(),
        right("NODE"),
        left("SMT").optional(),
        left("KIND").optional(),
        right("CAPACITY").optional(),
        left("ONLINE"),
    ]);
    for cpu in &topology.cpus {
        let smt = if cpu.siblings.len() > 1 { cpu.siblings.to_string() } else { String::new() };
        table.row([
            cpu.cpu.to_string(),
            or_none(cpu.core),
            or_none(cpu.package),
            or_none(cpu.die),
            or_none(cpu.cluster),
            or_none(cpu.llc),
            cpu.llc.map_or_else(String::new, |llc| cache(topology, llc)),
            or_none(cpu.node),
            smt,
            or_none(cpu.kind.as_ref()),
            or_none(cpu.capacity),
            yes_no(cpu.online),
        ]);
    }
    table.render()
}

/// What the CPUs of a group share.
type Shared<'a> =
    (bool, Option<u32>, Option<u32>, Option<NodeId>, Option<LlcId>, Option<&'a str>, Option<u32>);

fn shared(cpu: &Cpu) -> Shared<'_> {
    (cpu.online, cpu.package, cpu.die, cpu.node, cpu.llc, cpu.kind.as_deref(), cpu.capacity)
}

fn grouped(topology: &Topology) -> String {
    let mut groups: Vec<(Shared, Vec<&Cpu>)> = Vec::new();
    for cpu in &topology.cpus {
        let key = shared(cpu);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, cpus)) => cpus.push(cpu),
            None => groups.push((key, vec![cpu])),
        }
    }
    let mut table = Table::new(&[
        left("CPUS"),
        left("CORES"),
        right("PACKAGE"),
        right("DIE"),
        right("LLC"),
        left("CACHE").optional(),
        right("NODE"),
        left("KIND").optional(),
        right("CAPACITY").optional(),
        left("ONLINE"),
    ]);
    for ((online, package, die, node, llc, kind, capacity), cpus) in groups {
        table.row([
            ranges(cpus.iter().map(|cpu| cpu.cpu.0)),
            ranges(cpus.iter().filter_map(|cpu| cpu.core)),
            or_none(package),
            or_none(die),
            or_none(llc),
            llc.map_or_else(String::new, |llc| cache(topology, llc)),
            or_none(node),
            or_none(kind),
            or_none(capacity),
            yes_no(online),
        ]);
    }
    table.render()
}

/// `L3 8 MiB`.
fn cache(topology: &Topology, llc: LlcId) -> String {
    let Some(llc) = topology.llcs.iter().find(|known| known.llc == llc) else {
        return String::new();
    };
    let level = llc.level.map(|level| format!("L{level}"));
    let size = llc.size_bytes.map(bytes);
    [level, size].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}
