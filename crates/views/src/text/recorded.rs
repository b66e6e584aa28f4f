//! `show --recording`: facts of a recorded time.

use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::units::{bytes, latency};
use super::{heading, line, printable, time_of_day};
use nearpath_model::recorded::{
    Counted, Pictured, RecordedFacts, RecordedIrq, RecordedMemory, RecordedNode, RecordedSetting,
    RecordedSoftnet, RecordedVm, RecordedWorker,
};

/// Rows of a table that are shown.
const SHOWN: usize = 30;
/// CPUs of an interrupt that are shown.
const CPUS_NAMED: usize = 4;
const NOTHING: &str = "nothing recorded: its source was off, or nothing changed";

/// All parts of the facts that are wanted, each under its heading. The first line says of which host and time.
pub fn recorded(facts: &RecordedFacts, parts: &[RecordedPart]) -> String {
    let mut out = String::new();
    let [from, to] = [facts.from_us, facts.to_us].map(time);
    line!(out, "{}, recorded from {from} to {to}", printable(&facts.host));
    for part in parts {
        line!(out);
        out.push_str(&match part {
            RecordedPart::Softnet => softnet(facts.softnet.as_ref()),
            RecordedPart::Irqs => irqs(facts.irqs.as_ref()),
            RecordedPart::Numa => numa(facts.numa.as_ref()),
            RecordedPart::Memory => memory(facts.memory.as_ref()),
            RecordedPart::Vms => vms(facts.vms.as_ref()),
            RecordedPart::Workers => workers(facts.workers.as_ref()),
            RecordedPart::Settings => settings(facts.settings.as_ref()),
        });
    }
    out
}

/// A part of recorded facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedPart {
    /// Packets by CPU.
    Softnet,
    /// Interrupts of queues.
    Irqs,
    /// Pages by node.
    Numa,
    /// Memory of processes.
    Memory,
    /// Packets into virtual machines.
    Vms,
    /// Threads that poll.
    Workers,
    /// Changes of the journal.
    Settings,
}

impl RecordedPart {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Settings,
        Self::Softnet,
        Self::Irqs,
        Self::Numa,
        Self::Memory,
        Self::Vms,
        Self::Workers,
    ];
}

fn time(us: i64) -> String {
    time_of_day(u64::try_from(us / 1_000_000).unwrap_or(0))
}

/// A table under its heading, cut to [`SHOWN`] rows.
fn part<R>(
    title: &str,
    columns: &[super::table::Column],
    rows: &[R],
    row: impl Fn(&R) -> Vec<String>,
) -> String {
    let mut out = String::new();
    heading(&mut out, title);
    let mut table = Table::new(columns);
    rows.iter().take(SHOWN).for_each(|of| table.row(row(of)));
    out.push_str(&table.render());
    let more = rows.len().saturating_sub(SHOWN);
    if more > 0 {
        line!(out, "and {more} more (--json)");
    }
    out
}

fn missing(title: &str) -> String {
    let mut out = String::new();
    heading(&mut out, title);
    line!(out, "{NOTHING}");
    out
}

fn softnet(counted: Option<&Counted<RecordedSoftnet>>) -> String {
    let Some(Counted { seconds, rows }) = counted else { return missing("packets by CPU") };
    let columns = [
        right("CPU"),
        right("NODE").optional(),
        right("PROCESSED"),
        right("DROPPED"),
        right("SQUEEZED"),
        right("RPS-IPIS"),
        right("FLOW-LIMIT"),
    ];
    let packets = rows.iter().fold(0u64, |sum, cpu| sum.saturating_add(cpu.processed));
    let cpus = count(rows.len(), "CPU");
    let title = match packets {
        0 if rows.is_empty() => format!("packets by CPU: none in {seconds:.1} s"),
        _ => format!("packets by CPU: {packets} in {seconds:.1} s on {cpus}"),
    };
    part(&title, &columns, rows, |cpu| {
        vec![
            cpu.cpu.to_string(),
            or_none(cpu.node),
            cpu.processed.to_string(),
            cpu.dropped.to_string(),
            cpu.squeezed.to_string(),
            cpu.received_rps.to_string(),
            cpu.flow_limited.to_string(),
        ]
    })
}

fn irqs(counted: Option<&Counted<RecordedIrq>>) -> String {
    let Some(Counted { seconds, rows }) = counted else { return missing("interrupts of queues") };
    let columns = [left("DEVICE"), left("QUEUE"), right("IRQ"), right("COUNT"), left("TAKEN-BY")];
    let all = rows.iter().fold(0u64, |sum, irq| sum.saturating_add(irq.total()));
    let title = format!("interrupts of queues: {all} in {seconds:.1} s");
    part(&title, &columns, rows, |irq| {
        let mut cpus: Vec<_> = irq.cpus.iter().collect();
        cpus.sort_by_key(|(cpu, count)| (std::cmp::Reverse(**count), **cpu));
        let named = cpus.iter().take(CPUS_NAMED).map(|(cpu, count)| format!("CPU {cpu}: {count}"));
        let mut named: Vec<String> = named.collect();
        let more = cpus.len().saturating_sub(CPUS_NAMED);
        named.extend((more > 0).then(|| format!("{more} more")));
        vec![
            irq.device.clone(),
            irq.queue.clone(),
            irq.irq.to_string(),
            irq.total().to_string(),
            named.join(", "),
        ]
    })
}

fn numa(counted: Option<&Counted<RecordedNode>>) -> String {
    let Some(Counted { seconds, rows }) = counted else { return missing("pages by node") };
    let columns = [
        right("NODE"),
        right("HIT"),
        right("MISS"),
        right("FOREIGN"),
        right("INTERLEAVE-HIT"),
        right("LOCAL"),
        right("OTHER"),
    ];
    part(&format!("pages by node in {seconds:.1} s"), &columns, rows, |node| {
        let pages = |name: &str| node.pages.get(name).copied().unwrap_or(0).to_string();
        let mut cells = vec![node.node.to_string()];
        let names = ["numa_hit", "numa_miss", "numa_foreign", "interleave_hit"];
        cells.extend(names.into_iter().chain(["local_node", "other_node"]).map(pages));
        cells
    })
}

fn memory(pictured: Option<&Pictured<RecordedMemory>>) -> String {
    let Some(Pictured { time_us, rows }) = pictured else {
        return missing("memory of processes");
    };
    let title = format!("memory of processes: {} at {}", rows.len(), time(*time_us));
    part(&title, &[left("PROCESS"), right("BYTES"), left("BY-NODE")], rows, |process| {
        let by_node = process.nodes.iter().map(|(node, of)| format!("{node}: {}", bytes(*of)));
        vec![
            format!("{}/{}", process.comm, process.pid),
            bytes(process.total()),
            by_node.collect::<Vec<_>>().join(", "),
        ]
    })
}

fn vms(counted: Option<&Counted<RecordedVm>>) -> String {
    let Some(Counted { seconds, rows }) = counted else {
        return missing("packets into virtual machines");
    };
    let columns = [left("VM"), left("SPAN"), right("PACKETS"), right("P50"), right("P99")];
    let title = format!("packets into virtual machines in {seconds:.1} s");
    part(&title, &columns, rows, |vm| {
        vec![
            vm.vm.clone(),
            vm.span.replace('_', " "),
            vm.packets.to_string(),
            or_none(vm.p50_ns.map(latency)),
            or_none(vm.p99_ns.map(latency)),
        ]
    })
}

fn workers(pictured: Option<&Pictured<RecordedWorker>>) -> String {
    let Some(Pictured { time_us, rows }) = pictured else {
        return missing("threads that poll");
    };
    let columns =
        [left("PROCESS"), right("LCORE"), right("BUSY"), right("PACKETS/S"), right("DELAYED")];
    let share = |share: Option<f64>| or_none(share.map(|share| format!("{:.1}%", 100.0 * share)));
    let title = format!("threads that poll: {} at {}", rows.len(), time(*time_us));
    part(&title, &columns, rows, |worker| {
        vec![
            format!("{}/{}", worker.app, worker.pid),
            or_none(worker.lcore),
            share(worker.busy),
            or_none(worker.packets.map(|rate| format!("{rate:.0}"))),
            share(worker.delayed),
        ]
    })
}

fn settings(pictured: Option<&Pictured<RecordedSetting>>) -> String {
    let Some(Pictured { time_us, rows }) = pictured else {
        return missing("changes in nearpath's journal");
    };
    let title = format!("changes in nearpath's journal: {} at {}", rows.len(), time(*time_us));
    part(&title, &[right("ID"), left("STATE"), left("TARGET")], rows, |setting| {
        let state = setting.state.clone().unwrap_or_else(|| "unknown".to_owned());
        vec![setting.id.to_string(), state, setting.target.clone()]
    })
}
