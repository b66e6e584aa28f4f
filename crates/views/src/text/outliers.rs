//! Slow packets: the sum of their time by cause.
//!
//! Input: a measurement. Output: a table of the causes; empty if no packet was slow.

use super::table::{Table, left, right};
use super::units::{latency, percent};
use super::{heading, line};
use nearpath_model::{Culprit, Measurement, Share, ShareKind};

/// Causes in the table; the rest are summed up in one row.
const ROWS: usize = 12;

/// Where the time of slow packets went.
pub(super) fn totals(measurement: &Measurement, width: Option<usize>) -> String {
    let slow = measurement.slow;
    let mut out = String::new();
    if slow.seen == 0 {
        return out;
    }
    let lost = match slow.lost {
        0 => String::new(),
        lost => format!(", {lost} more not analysed"),
    };
    let lost = match slow.paths_lost {
        0 => lost,
        paths => format!("{lost}, {paths} incomplete paths"),
    };
    heading(&mut out, "where the time of slow packets went");
    line!(
        out,
        "{} slow packet{}, {} in all, {} explained{lost}",
        slow.seen,
        if slow.seen == 1 { "" } else { "s" },
        latency(slow.span_ns),
        percent(slow.complete as f64 / slow.seen as f64)
    );
    let mut table = Table::new(&[
        right("OF-ALL"),
        right("TIME"),
        left("SHARE"),
        left("WHO"),
        left("MEANS").gives_way(0),
    ]);
    let share = |ns: u64| percent(ns as f64 / slow.span_ns.max(1) as f64);
    for total in measurement.budget_totals.iter().take(ROWS) {
        let who = total.who.as_ref().map(name).unwrap_or_default();
        let (label, meaning) = (label(total.share).to_owned(), meaning(total.share).to_owned());
        table.row([share(total.ns), latency(total.ns), label, who, meaning]);
    }
    let rest = measurement.budget_totals.iter().skip(ROWS);
    let (count, ns) = rest.fold((0, 0), |(count, ns), total| (count + 1, ns + total.ns));
    if count > 0 {
        let others = format!("{count} others");
        table.row([share(ns), latency(ns), others, String::new(), String::new()]);
    }
    let lines = width.map_or_else(|| table.render(), |width| table.render_within(width).0);
    out.push_str(&lines);
    out
}

/// The task, interrupt or softirq that had the CPU: `backup/4711 SCHED_FIFO 50`, `irq 33`, `NET_RX`.
pub(super) fn name(who: &Culprit) -> String {
    let task = match (&who.comm, who.pid) {
        (Some(comm), Some(pid)) => Some(format!("{comm}/{pid}")),
        (comm, _) => comm.clone(),
    };
    let irq = who.irq.map(|irq| format!("irq {irq}"));
    let policy = match who.policy.as_deref() {
        None | Some("SCHED_OTHER") => None,
        Some(policy) => Some(match who.prio {
            Some(prio) if matches!(policy, "SCHED_FIFO" | "SCHED_RR") => format!("{policy} {prio}"),
            _ => policy.to_owned(),
        }),
    };
    let cpu = who.cpu.map(|cpu| format!("cpu {cpu}"));
    let on = who.on.as_ref().map(|on| format!("in {on}"));
    let woken_by = who.woken_by.as_deref().map(|by| format!("woken by {}", name(by)));
    let parts = [task, irq, cpu, who.vector.clone(), policy, who.cgroup.clone()];
    let parts = parts.into_iter().chain([who.qdisc.clone(), who.device.clone(), on, woken_by]);
    parts.flatten().collect::<Vec<_>>().join(" ")
}

/// What a share was: `runqueue stress-ng/4711`.
pub(crate) fn share_name(share: &Share) -> String {
    match share.who.as_ref().map(name).filter(|who| !who.is_empty()) {
        Some(who) if who.starts_with("irq ") => who,
        Some(who) => format!("{} {who}", label(share.share)),
        None => label(share.share).to_owned(),
    }
}

/// The share's name, as in the JSON.
pub(super) fn label(share: ShareKind) -> &'static str {
    match share {
        ShareKind::Own => "own",
        ShareKind::Irq => "irq",
        ShareKind::Softirq => "softirq",
        ShareKind::NetRxAhead => "net_rx_ahead",
        ShareKind::Task => "task",
        ShareKind::Disabled => "disabled",
        ShareKind::Idle => "idle",
        ShareKind::Ipi => "ipi",
        ShareKind::Runqueue => "runqueue",
        ShareKind::Throttled => "throttled",
        ShareKind::Migration => "migration",
        ShareKind::Asleep => "asleep",
        ShareKind::Qdisc => "qdisc",
        ShareKind::DeviceQueue => "device_queue",
        ShareKind::Nic => "nic",
        ShareKind::TcpGap => "tcp_gap",
        ShareKind::SocketLocked => "socket_locked",
        ShareKind::SocketFull => "socket_full",
        ShareKind::Upcall => "upcall",
        ShareKind::Held => "held",
        ShareKind::Offline => "offline",
        ShareKind::Stolen => "stolen",
        ShareKind::RemoteMemoryBound => "remote_memory_bound",
        ShareKind::Unknown => "unknown",
    }
}

/// What it means for the packet.
fn meaning(share: ShareKind) -> &'static str {
    match share {
        ShareKind::Own => "processing of the packet itself",
        ShareKind::Irq => "an interrupt handler ran",
        ShareKind::Softirq => "another softirq ran",
        ShareKind::NetRxAhead => "NET_RX processed packets ahead",
        ShareKind::Task => "CPU busy with another task",
        ShareKind::Disabled => "a task ran with softirqs disabled",
        ShareKind::Idle => "CPU idle, or waking up",
        ShareKind::Ipi => "CPU idle until an IPI arrived",
        ShareKind::Runqueue => "the reader waited in the run queue",
        ShareKind::Throttled => "the cgroup had used up its CPU quota",
        ShareKind::Migration => "the reader waited for a busy CPU, then migrated",
        ShareKind::Asleep => "the reader was blocked",
        ShareKind::Qdisc => "queued in a qdisc",
        ShareKind::DeviceQueue => "device queue full or stopped",
        ShareKind::Nic => "in the NIC, before the interrupt",
        ShareKind::TcpGap => "waiting for missing TCP data",
        ShareKind::SocketLocked => "socket locked",
        ShareKind::SocketFull => "send buffer full",
        ShareKind::Upcall => "in Open vSwitch user space (upcall)",
        ShareKind::Held => "held in a queue",
        ShareKind::Offline => "CPU offline",
        ShareKind::Stolen => "CPU stolen by the hypervisor",
        ShareKind::RemoteMemoryBound => "upper bound, included in the others",
        ShareKind::Unknown => "trace buffer overwritten, or not traced",
    }
}
