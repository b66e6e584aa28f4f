//! `show vms`: each virtual machine with its devices, and a table of its threads.

use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::units::{bytes, digits, latency, printable};
use super::unknown::unknown;
use super::{heading, line};
use nearpath_model::{NodeId, TapKind, Vm, VmThread, Vms};
use std::collections::BTreeMap;

/// Emulator threads shown individually; the others are counted.
const EMULATOR_THREADS: usize = 8;

/// The virtual machines of a host.
pub fn vms(vms: &Vms) -> String {
    let mut out = String::new();
    let sum = |of: fn(&Vm) -> usize| vms.vms.iter().map(of).sum::<usize>();
    heading(
        &mut out,
        &format!(
            "{}, {}, {}",
            count(vms.vms.len(), "virtual machine"),
            count(sum(|vm| vm.vcpus.len()), "vCPU"),
            count(sum(|vm| vm.vhost_workers.len()), "vhost worker")
        ),
    );
    for vm in &vms.vms {
        line!(out);
        out.push_str(&one(vm));
    }
    if !vms.unknown.is_empty() {
        line!(out);
        out.push_str(&unknown(&vms.unknown, &[]));
    }
    out
}

fn one(vm: &Vm) -> String {
    let mut out = String::new();
    let program = vm.name.as_ref().map(|_| format!(" ({})", vm.comm)).unwrap_or_default();
    heading(&mut out, &printable(&format!("{}{program}", vm.label())));
    if vm.machines > 1 {
        line!(out, "machines: {} in one process", vm.machines);
    }
    if let Some(memory) = &vm.memory {
        line!(out, "memory: {}", by_node(memory));
    }
    if let Some(huge) = vm.huge_memory.as_ref().filter(|huge| !huge.is_empty()) {
        line!(out, "hugetlb: {}", by_node(huge));
    }
    let devices = devices(vm);
    if !devices.is_empty() {
        line!(out, "devices: {}", printable(&devices.join(", ")));
    }
    out.push_str(&threads(vm));
    out
}

fn by_node(memory: &BTreeMap<NodeId, u64>) -> String {
    let of = |(node, size): (&NodeId, &u64)| format!("node {node} {}", bytes(*size));
    let nodes: Vec<String> = memory.iter().map(of).collect();
    if nodes.is_empty() { "none".to_owned() } else { nodes.join(", ") }
}

fn devices(vm: &Vm) -> Vec<String> {
    let taps = vm.taps.iter().map(|tap| {
        let kind = match tap.kind {
            TapKind::Tap => "tap",
            TapKind::Macvtap => "macvtap",
        };
        format!("{kind} {} ({})", tap.name, count(tap.queues as usize, "queue"))
    });
    let net = (vm.vhost_net > 0).then(|| format!("vhost-net x{}", vm.vhost_net));
    let others = vm.vhost_others.iter().map(|(kind, count)| format!("vhost-{kind} x{count}"));
    let passed = vm.devices.iter().map(|device| {
        let name = device.name.as_ref().unwrap_or(&device.device);
        let node = device.node.map(|node| format!(" on node {node}")).unwrap_or_default();
        format!("VFIO {name}{node}")
    });
    let served = vm.backends.iter().map(|backend| {
        let events = count(backend.eventfds.len(), "eventfd");
        format!("vhost-user by {} {} ({events})", backend.comm, backend.pid)
    });
    taps.chain(net).chain(others).chain(served).chain(passed).collect()
}

fn threads(vm: &Vm) -> String {
    let mut table = Table::new(&[
        left("THREAD"),
        right("TID"),
        left("NAME"),
        left("CPUS"),
        right("NODE"),
        right("LAST"),
        right("RAN").optional(),
        right("WAITED").optional(),
    ]);
    for vcpu in &vm.vcpus {
        row(&mut table, &format!("vCPU {}", vcpu.number), vcpu.thread.as_ref());
    }
    for worker in &vm.vhost_workers {
        row(&mut table, "vhost", Some(worker));
    }
    for thread in vm.emulator.iter().take(EMULATOR_THREADS) {
        row(&mut table, "emulator", Some(thread));
    }
    let mut out = table.render();
    let more = vm.emulator.len().saturating_sub(EMULATOR_THREADS);
    if more > 0 {
        line!(out, "and {}", count(more, "emulator thread"));
    }
    out
}

fn row(table: &mut Table, role: &str, thread: Option<&VmThread>) {
    let nodes = |thread: &VmThread| {
        thread.nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    };
    let share = |thread: &VmThread| {
        let (ran, waited) = (thread.run_ns?, thread.wait_ns?);
        let total = ran.saturating_add(waited);
        #[allow(clippy::cast_precision_loss)]
        let share = (total > 0).then(|| waited as f64 * 100.0 / total as f64)?;
        Some(format!("{}%", digits(share)))
    };
    table.row([
        role.to_owned(),
        or_none(thread.map(|thread| thread.tid)),
        thread.map(|thread| thread.comm.clone()).unwrap_or_default(),
        thread.and_then(|thread| Some(thread.cpus.as_ref()?.brief())).unwrap_or_default(),
        thread.map(nodes).unwrap_or_default(),
        or_none(thread.and_then(|thread| thread.last_cpu)),
        thread.and_then(|thread| Some(latency(thread.run_ns?))).unwrap_or_default(),
        thread.and_then(share).unwrap_or_default(),
    ]);
}
