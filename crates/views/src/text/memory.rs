//! `show memory` and `measure memory`: where the memory of processes is, and where they ran.
//!
//! The first line is the answer: the process with the most remote memory.

use super::table::{Table, left, or_none, right};
use super::units::{bytes, digits, percent, percentage, printable};
use super::{heading, line};
use nearpath_model::NodeId;
use nearpath_model::memory::{
    MemoryMeasurement, MovedPages, NodeBytes, NodeMemory, PageMoves, ProcessPlacement, RanOnBasis,
};
use std::collections::BTreeMap;

/// Maximum number of processes, cgroups and moves shown, those with the most; the JSON has all.
const SHOWN: usize = 20;
/// Below this, remote memory is not the answer: libraries that all processes share.
const WORTH_BYTES: u64 = 1 << 20;

/// The whole measurement; `verbose` adds the kinds of memory, threads, cgroups and the meaning of the numbers.
pub fn memory(m: &MemoryMeasurement, verbose: bool) -> String {
    let mut out = String::new();
    line!(out, "{}", answer(m));
    let total = m.processes.iter().map(ProcessPlacement::total).fold(0, u64::saturating_add);
    let time = match m.duration_s {
        Some(seconds) => format!("for {seconds:.2}s"),
        None => "now".to_owned(),
    };
    let small = match m.small_processes {
        0 => String::new(),
        n => format!("; {n} with less than 16 MiB not read (--all)"),
    };
    line!(out, "memory of {} {time}, {}{small}", count(m.processes.len(), "process"), bytes(total));
    if !m.processes.is_empty() {
        line!(out);
        out.push_str(&processes(m));
    }
    if verbose {
        for process in m.processes.iter().take(SHOWN) {
            line!(out);
            out.push_str(&process_details(process));
        }
        if !m.cgroups.is_empty() {
            line!(out);
            heading(&mut out, "cgroups");
            out.push_str(&cgroups(m));
        }
    }
    line!(out);
    heading(&mut out, "nodes");
    out.push_str(&nodes(&m.nodes));
    if !m.moves.is_empty() || m.moves_lost > 0 {
        line!(out);
        heading(&mut out, "pages moved between nodes or within them");
        out.push_str(&moves(&m.moves));
        if m.moves_lost > 0 {
            line!(out, "not attributed: {} pages", m.moves_lost);
        }
    }
    if let Some(samples) = &m.loads {
        line!(out);
        out.push_str(&super::loads::loads(samples));
    }
    if let Some(estimates) = &m.accesses {
        line!(out);
        out.push_str(&super::accesses::accesses(estimates));
    }
    if verbose {
        line!(out);
        out.push_str(&counters(m));
    }
    line!(out);
    out.push_str(&cost(m));
    if !m.not_available.is_empty() {
        line!(out);
        heading(&mut out, "not available:");
        for missing in m.not_available.iter().take(SHOWN) {
            line!(out, "  {}: {}", printable(&missing.what), printable(&missing.reason));
        }
        let more = m.not_available.len().saturating_sub(SHOWN);
        if more > 0 {
            line!(out, "  and {more} more (--json)");
        }
    }
    out
}

/// `redis-server[812]: 97% of 1.2 GiB is on node 1, its threads ran on node 0`.
fn answer(m: &MemoryMeasurement) -> String {
    let nodes_with_cpus = m.nodes.iter().filter(|node| node.has_cpus).count();
    let worst = m.processes.iter().max_by_key(|process| process.remote_bytes);
    if let Some(process) = worst
        && process.remote_bytes.is_some_and(|bytes| bytes >= WORTH_BYTES)
    {
        return remote(process);
    }
    let off_device =
        m.processes.iter().filter(|p| p.device_remote_bytes.is_some_and(|b| b >= WORTH_BYTES));
    if m.processes.is_empty() {
        return "no process was read".to_owned();
    }
    if nodes_with_cpus < 2 {
        let apart = m.processes.iter().map(|p| p.cpuless_bytes).fold(0, u64::saturating_add);
        return match apart {
            0 => "one node has CPUs: no memory can be remote".to_owned(),
            apart => format!("one node has CPUs; {} are on nodes without CPUs", bytes(apart)),
        };
    }
    if let Some(process) = off_device.max_by_key(|process| process.device_remote_bytes) {
        return format!(
            "{}: {} of {} are on another node than its device ({}), where it ran",
            name(process),
            bytes(process.device_remote_bytes.unwrap_or(0)),
            bytes(process.total()),
            node_list(&process.device_nodes),
        );
    }
    if m.processes.iter().all(|process| process.remote_bytes.is_none()) {
        return "it is unknown where the processes ran".to_owned();
    }
    "no remote memory: every process has its memory on the nodes that it ran on".to_owned()
}

fn remote(process: &ProcessPlacement) -> String {
    let own = process.own_nodes();
    let away =
        process.nodes.iter().filter(|(node, bytes)| !own.contains(node) && bytes.total() > 0);
    let away: Vec<NodeId> = away.map(|(node, _)| *node).collect();
    format!(
        "{}: {} of {} is on {}, its threads ran on {}",
        name(process),
        percent(process.remote_share.unwrap_or(0.0)),
        bytes(process.total()),
        node_list(&away),
        node_list(&own),
    )
}

fn name(process: &ProcessPlacement) -> String {
    format!("{}[{}]", printable(&process.comm), process.pid)
}

fn node_list(nodes: &[NodeId]) -> String {
    let numbers = super::units::ranges(nodes.iter().map(|node| node.0));
    if nodes.len() == 1 { format!("node {numbers}") } else { format!("nodes {numbers}") }
}

fn count(number: usize, what: &str) -> String {
    let plural = if what.ends_with('s') { "es" } else { "s" };
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}{plural}") }
}

fn by_node(nodes: &BTreeMap<NodeId, NodeBytes>) -> String {
    let of = |(node, of): (&NodeId, &NodeBytes)| format!("{node}: {}", bytes(of.total()));
    nodes.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn ran_on(process: &ProcessPlacement) -> String {
    let of = |(node, share): (&NodeId, &f64)| format!("{node}: {}", percent(*share));
    let all = process.ran_on_nodes.iter().map(of).collect::<Vec<_>>().join(", ");
    match process.ran_on_basis {
        Some(RanOnBasis::LastCpu) => format!("{all} (last CPU)"),
        _ => all,
    }
}

fn processes(m: &MemoryMeasurement) -> String {
    let mut table = Table::new(&[
        left("PROCESS"),
        right("BYTES"),
        left("BY-NODE"),
        right("REMOTE"),
        left("RAN-ON"),
        left("POLICY"),
        left("DEVICE-NODE").optional(),
        left("DMA"),
        right("MOVED").optional(),
        right("HINT-FAULTS").optional(),
    ]);
    for process in m.processes.iter().take(SHOWN) {
        let moved = process.moved_pages.values().map(|pages| pages.moved).sum::<u64>();
        let dma = match process.dma_mapped {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        let device_nodes = process.device_nodes.iter().map(|node| node.0);
        table.row([
            format!("{}/{}", printable(&process.comm), process.pid),
            bytes(process.total()),
            by_node(&process.nodes),
            or_none(process.remote_share.map(percent)),
            ran_on(process),
            or_none(process.policy.as_deref().map(printable)),
            super::units::ranges(device_nodes),
            dma.to_owned(),
            if moved > 0 { moved.to_string() } else { String::new() },
            or_none(process.hint_faults.filter(|f| f.pages > 0).map(|faults| faults.pages)),
        ]);
    }
    let mut out = table.render();
    let hidden = m.processes.len().saturating_sub(SHOWN);
    if hidden > 0 {
        line!(out, "{} more (--json)", count(hidden, "process"));
    }
    out
}

/// Kinds of memory by node, devices, threads, and what else is known of a process.
fn process_details(process: &ProcessPlacement) -> String {
    let mut out = String::new();
    heading(&mut out, &name(process));
    let mut table = Table::new(&[
        right("NODE"),
        right("ANON"),
        right("FILE"),
        right("SHARED"),
        right("HUGETLB"),
        left("RAN").optional(),
    ]);
    for (node, of) in &process.nodes {
        table.row([
            node.to_string(),
            bytes(of.anon_bytes),
            bytes(of.file_bytes),
            bytes(of.shared_bytes),
            bytes(of.hugetlb_bytes),
            process.ran_on_nodes.get(node).map(|share| percent(*share)).unwrap_or_default(),
        ]);
    }
    out.push_str(&table.render());
    let mut fact = |what: &str, value: String| {
        if !value.is_empty() {
            line!(out, "  {what}: {value}");
        }
    };
    let sizes = process.hugetlb.iter().map(|(size, nodes)| {
        format!("{size} {}", bytes(nodes.values().copied().fold(0, u64::saturating_add)))
    });
    fact("hugetlb pages", sizes.collect::<Vec<_>>().join(", "));
    fact("transparent hugepages", process.thp_bytes.map(bytes).unwrap_or_default());
    if process.estimated_bytes > 0 {
        let estimated = bytes(process.estimated_bytes);
        fact("kinds by node estimated for", estimated);
    }
    if process.cpuless_bytes > 0 {
        fact("on nodes without CPUs", bytes(process.cpuless_bytes));
    }
    let policies = process.mapping_policies.iter();
    let policies = policies.map(|(policy, of)| format!("{} {}", printable(policy), bytes(*of)));
    fact("mappings by policy", policies.collect::<Vec<_>>().join(", "));
    let threads = process.threads.iter().take(5).map(|group| {
        let nodes = group.ran_on_nodes.iter();
        let nodes = nodes.map(|(node, share)| format!("node {node} {}", percent(*share)));
        let nodes = nodes.collect::<Vec<_>>().join(", ");
        format!("{} ({}) {nodes}", printable(&group.comm), group.threads)
    });
    fact("threads", threads.collect::<Vec<_>>().join("; "));
    let devices = process.devices.iter().map(|device| {
        let name = device.name.as_deref().map(printable);
        let node = device.node.map_or("node unknown".to_owned(), |node| format!("node {node}"));
        format!("{} {} {node}", printable(&device.device), name.unwrap_or_default())
    });
    fact("devices", devices.collect::<Vec<_>>().join(", "));
    fact("DMA", process.dma_reason.as_deref().map(printable).unwrap_or_default());
    let moved = process.moved_pages.iter();
    let moved = moved.map(|(reason, MovedPages { moved, failed })| {
        format!("{reason} {moved} pages, {failed} failed")
    });
    fact("moved", moved.collect::<Vec<_>>().join("; "));
    if let Some(faults) = process.hint_faults {
        fact("hint faults", format!("{} pages, {} of them local", faults.pages, faults.local));
    }
    let mut sizes = Vec::new();
    for (what, of) in [
        ("page tables", process.page_table_bytes),
        ("pinned", process.pinned_bytes),
        ("locked", process.locked_bytes),
        ("swapped out", process.swap_bytes),
    ] {
        sizes.extend(of.filter(|of| *of > 0).map(|of| format!("{what} {}", bytes(of))));
    }
    fact("also", sizes.join(", "));
    out
}

fn cgroups(m: &MemoryMeasurement) -> String {
    let mut table = Table::new(&[
        left("CGROUP"),
        right("PROCESSES"),
        left("BY-NODE"),
        right("REMOTE"),
        left("THP").optional(),
        left("PAGE-TABLES").optional(),
    ]);
    let sums = |nodes: &Option<BTreeMap<NodeId, u64>>| {
        let nodes = nodes.iter().flatten().filter(|(_, bytes)| **bytes > 0);
        nodes.map(|(node, of)| format!("{node}: {}", bytes(*of))).collect::<Vec<_>>().join(", ")
    };
    for cgroup in m.cgroups.iter().take(SHOWN) {
        table.row([
            printable(&cgroup.cgroup),
            cgroup.processes.to_string(),
            by_node(&cgroup.nodes),
            bytes(cgroup.remote_bytes),
            sums(&cgroup.thp),
            sums(&cgroup.page_tables),
        ]);
    }
    table.render()
}

fn nodes(nodes: &[NodeMemory]) -> String {
    let mut table = Table::new(&[
        right("NODE"),
        left("CPUS"),
        right("MEMORY"),
        right("FREE"),
        right("RECLAIMABLE").optional(),
        right("PAGE-TABLES").optional(),
        left("HUGEPAGES").optional(),
        right("FELL-BACK-TO"),
        right("FELL-BACK-FROM"),
    ]);
    for node in nodes {
        let pools = node.hugepages.iter().filter(|(_, pool)| pool.total > 0);
        let pools =
            pools.map(|(size, pool)| format!("{size}: {} of {} free", pool.free, pool.total));
        table.row([
            node.node.to_string(),
            if node.has_cpus { "yes" } else { "no" }.to_owned(),
            or_none(node.memory_bytes.map(bytes)),
            or_none(node.free_bytes.map(bytes)),
            or_none(node.reclaimable_bytes.map(bytes)),
            or_none(node.page_table_bytes.map(bytes)),
            pools.collect::<Vec<_>>().join(", "),
            or_none(node.numa_miss),
            or_none(node.numa_foreign),
        ]);
    }
    table.render()
}

fn moves(moves: &[PageMoves]) -> String {
    let mut table =
        Table::new(&[left("REASON"), right("PAGES"), right("FAILED"), left("OF"), left("BY")]);
    for of in moves.iter().take(SHOWN) {
        table.row([
            of.reason.clone(),
            of.pages.moved.to_string(),
            of.pages.failed.to_string(),
            or_none(of.pid),
            format!("{}/{}", printable(&of.by_comm), of.by_pid),
        ]);
    }
    table.render()
}

/// What the counters mean: none of them counts accesses.
fn counters(m: &MemoryMeasurement) -> String {
    let mut out = String::new();
    let since = if m.duration_s.is_some() { "in the interval" } else { "since boot" };
    heading(&mut out, &format!("counters {since}"));
    for (name, value) in &m.vmstat {
        line!(out, "  {name} {value}");
    }
    let of = |what: Option<u64>| what.map_or("unknown".to_owned(), bytes);
    let (tcp, udp) = (of(m.sockets.tcp_bytes), of(m.sockets.udp_bytes));
    line!(out, "  kernel memory of sockets: TCP {tcp}, UDP {udp}");
    line!(
        out,
        "FELL-BACK-TO (numa_miss) counts pages allocated on this node because the intended one was full,\n\
         FELL-BACK-FROM (numa_foreign) those intended for this node and allocated on another. Like all counters of\n\
         numastat they count allocations of pages, not accesses to them. REMOTE is the share of a process's bytes on\n\
         nodes where its threads ran for less than 5% of their time; memory on nodes without CPUs is not part of it."
    );
    out
}

fn cost(m: &MemoryMeasurement) -> String {
    let mut out = String::new();
    // Reading a snapshot costs its host nothing.
    if m.cost.numa_maps_ns == 0 && m.cost.other_ns == 0 {
        return out;
    }
    let ms = |ns: u64| format!("{}ms", digits(ns as f64 / 1e6));
    let slowest = m.cost.slowest_pid.map_or(String::new(), |pid| {
        format!(", {} of them for process {pid}", ms(m.cost.slowest_ns))
    });
    line!(
        out,
        "cost: {} to read {}{slowest}; {} for all else",
        ms(m.cost.numa_maps_ns),
        count(usize::try_from(m.cost.mappings).unwrap_or(usize::MAX), "mapping"),
        ms(m.cost.other_ns)
    );
    if let Some(events) = m.cost.events {
        let (each, share) = (digits(events.ns_per_event), percentage(events.cpu_percent));
        line!(out, "cost of programs: {each}ns per event, {share} of one CPU");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u32, has_cpus: bool) -> NodeMemory {
        NodeMemory {
            node: NodeId(number),
            has_cpus,
            memory_bytes: Some(4 << 30),
            free_bytes: Some(1 << 30),
            reclaimable_bytes: None,
            page_table_bytes: None,
            slab_bytes: None,
            hugepages: BTreeMap::new(),
            numa_miss: Some(7),
            numa_foreign: Some(0),
            numa_hit: None,
            other_node: None,
        }
    }

    fn process(pid: u32, bytes: [u64; 2], remote: Option<u64>) -> ProcessPlacement {
        let of = |anon_bytes| NodeBytes { anon_bytes, ..NodeBytes::default() };
        ProcessPlacement {
            pid,
            comm: "redis-server".to_owned(),
            nodes: BTreeMap::from([(NodeId(0), of(bytes[0])), (NodeId(1), of(bytes[1]))]),
            ran_on_nodes: BTreeMap::from([(NodeId(0), 1.0)]),
            ran_on_basis: Some(RanOnBasis::Interval),
            remote_bytes: remote,
            remote_share: remote.map(|remote| remote as f64 / (bytes[0] + bytes[1]) as f64),
            dma_mapped: Some(false),
            policy: Some("default".to_owned()),
            ..ProcessPlacement::default()
        }
    }

    fn plain(m: &MemoryMeasurement) -> String {
        anstream::adapter::strip_str(&memory(m, true)).to_string()
    }

    fn first(m: &MemoryMeasurement) -> String {
        plain(m).lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn the_first_line_is_the_answer() {
        let mib = 1u64 << 20;
        let nodes = vec![node(0, true), node(1, true)];
        let of = |processes: Vec<ProcessPlacement>| MemoryMeasurement {
            processes,
            nodes: nodes.clone(),
            duration_s: Some(2.0),
            ..MemoryMeasurement::default()
        };
        let m = of(vec![
            process(812, [30 * mib, 970 * mib], Some(970 * mib)),
            process(7, [mib, mib], Some(mib)),
        ]);
        assert_eq!(
            first(&m),
            "redis-server[812]: 97.0% of 0.977 GiB is on node 1, its threads ran on node 0"
        );
        let m = of(vec![process(7, [mib, 4096], Some(4096))]);
        assert!(first(&m).starts_with("no remote memory"), "{}", first(&m));
        let mut off = process(7, [9 * mib, 0], Some(0));
        (off.device_nodes, off.device_remote_bytes) = (vec![NodeId(1)], Some(9 * mib));
        assert!(first(&of(vec![off])).contains("than its device (node 1)"));
        assert!(first(&of(vec![process(7, [mib, 0], None)])).contains("unknown where"));
        assert_eq!(first(&of(Vec::new())), "no process was read");
        let one = MemoryMeasurement { nodes: vec![node(0, true)], ..m };
        assert!(first(&one).starts_with("one node has CPUs: no memory"), "{}", first(&one));
    }

    #[test]
    fn names_cannot_reach_the_terminal() {
        let mut of = process(7, [1 << 30, 1 << 30], Some(1 << 30));
        of.comm = "a\u{1b}[2J".to_owned();
        of.cgroup = Some("/\u{1b}x".to_owned());
        let mut m = MemoryMeasurement { processes: vec![of], ..MemoryMeasurement::default() };
        m.nodes = vec![node(0, true), node(1, true)];
        m.finish();
        assert!(!plain(&m).contains('\u{1b}'));
        assert!(plain(&m).contains("FELL-BACK-TO") && plain(&m).contains("not accesses"));
    }
}
