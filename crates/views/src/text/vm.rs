//! `measure vm`: for each queue of a virtual machine, the spans from the NIC's interrupt into the guest.

use super::cpus::count;
use super::table::{Table, left, right};
use super::units::{digits, latency, percent, percentage, printable};
use super::vm_interrupts::{backend_interrupt, backend_kicks, device_interrupt};
use super::{heading, line};
use nearpath_model::histogram::{by_number, middle_ns};
use nearpath_model::vm::{
    MeasuredVm, VmLate, VmLatePart, VmMeasurement, VmPart, VmQueue, VmSpan, VmSpanKind, VmTransmit,
    VmTransmitSpanKind,
};
use std::collections::{BTreeMap, BTreeSet};

/// CPUs shown of a point, those with the most packets.
const CPUS: usize = 4;

/// The measurement.
pub fn vm(measurement: &VmMeasurement) -> String {
    let mut out = String::new();
    let queues: usize = measurement.vms.iter().map(|vm| vm.queues.len()).sum();
    let entered = |vm: &MeasuredVm| vm.queues.iter().map(VmQueue::entered).sum::<u64>();
    let packets: u64 = measurement.vms.iter().map(entered).sum();
    if let Some(late) = &measurement.guest {
        out.push_str(&super::vm_guest::guest(late));
        line!(out);
    }
    let with_packets = measurement.vms.iter().filter(|vm| !vm.queues.is_empty()).count();
    let devices = || measurement.vms.iter().flat_map(|vm| &vm.device_interrupts);
    let interrupts: u64 = devices().map(|one| one.interrupts).sum();
    let backends = || measurement.vms.iter().flat_map(|vm| &vm.backend_interrupts);
    let written: u64 = backends().map(|one| one.interrupts).sum();
    let seconds = digits(measurement.duration_s);
    let mut into = Vec::new();
    if queues > 0 || interrupts + written == 0 {
        let (machines, queues) = (count(with_packets, "virtual machine"), count(queues, "queue"));
        into.push(format!("{packets} packets into {machines}, {queues}"));
    }
    if interrupts > 0 {
        let each: BTreeSet<&str> =
            devices().filter_map(|one| one.source.device.as_deref()).collect();
        let of = count(each.len().max(1), "device");
        into.push(format!("{interrupts} interrupts of {of} passed through"));
    }
    if written > 0 {
        let each: BTreeSet<u32> = backends().map(|one| one.source.pid).collect();
        let by = match each.len() {
            1 => "1 process".to_owned(),
            several => format!("{several} processes"),
        };
        into.push(format!("{written} interrupts written by {by}"));
    }
    for line in answer(measurement) {
        heading(&mut out, &line);
    }
    line!(out, "{} in {seconds} s", into.join(", "));
    line!(
        out,
        "not followed: {} collided, {} not seen at the tap, {} lost; {} events lost",
        measurement.collided,
        measurement.unseen,
        measurement.lost,
        measurement.events_lost
    );
    out.push_str(&cost(measurement));
    out.push_str(&super::stamps::nic_stamps(measurement.nic_stamps.as_ref()));
    out.push_str(&queues_of(measurement));
    out
}

/// The steps of the path, which add up to the whole.
const STEPS: [VmSpanKind; 7] = [
    VmSpanKind::NicToInterrupt,
    VmSpanKind::InterruptToHandler,
    VmSpanKind::HandlerToVhost,
    VmSpanKind::VhostToKvm,
    VmSpanKind::InterruptToKvm,
    VmSpanKind::WriteToKvm,
    VmSpanKind::KvmToGuest,
];

/// The answer in a line or two: why packets were late, if they were, and how long they took and in which step. Where
/// the host sees no packet, of interrupts. Nothing if none reached a guest.
fn answer(measurement: &VmMeasurement) -> Vec<String> {
    type Seen<'a> = (&'a [VmSpan], Option<&'a VmLate>);
    let all = |of| -> Vec<Seen<'_>> {
        let vms = measurement.vms.iter();
        match of {
            Late::Packets => vms
                .flat_map(|vm| &vm.queues)
                .map(|one| (one.spans.as_slice(), one.late.as_ref()))
                .collect(),
            Late::Handled => vms
                .flat_map(|vm| &vm.device_interrupts)
                .map(|one| (one.spans.as_slice(), one.late.as_ref()))
                .collect(),
            Late::Written => vms
                .flat_map(|vm| &vm.backend_interrupts)
                .map(|one| (one.spans.as_slice(), one.late.as_ref()))
                .collect(),
        }
    };
    for of in [Late::Packets, Late::Handled, Late::Written] {
        let seen = all(of);
        let sum = |kind| {
            let spans = seen.iter().flat_map(|(spans, _)| *spans);
            VmSpan::sum(kind, spans.filter(move |span| span.span == kind))
        };
        let Some(whole) = sum(VmSpanKind::Whole) else { continue };
        let late = VmLate::sum(seen.iter().filter_map(|(_, late)| *late));
        let late = late.and_then(|late| late_in_a_line(&late, whole.count, of));
        let steps: Vec<VmSpan> = STEPS.into_iter().filter_map(sum).collect();
        return late.into_iter().chain([times_in_a_line(&whole, &steps)]).collect();
    }
    Vec::new()
}

/// `104 of 400 packets took 60.0ms or longer: 98.1% vhost waited for a CPU (171ms each), behind hog (102)`.
fn late_in_a_line(late: &VmLate, all: u64, of: Late) -> Option<String> {
    let most = late.parts.first()?;
    let (packets, limit) = (late.packets(), latency(late.slow_ns));
    #[allow(clippy::cast_precision_loss)]
    let share = percent(most.packets as f64 / packets.max(1) as f64);
    let why = part_in_words(most, of);
    let counted = of.counted();
    Some(format!("{packets} of {all} {counted} took {limit} or longer: {share} {why}"))
}

/// `into the guest: p50 1.60ms, p99 3.10ms, max 4.00ms; 55.0% of the time in (c) vhost to KVM`.
fn times_in_a_line(whole: &VmSpan, steps: &[VmSpan]) -> String {
    let quantile = |name: &str, ns: Option<u64>| ns.map(|ns| format!("{name} {}", latency(ns)));
    let times = [quantile("p50", whole.p50_ns), quantile("p99", whole.p99_ns)];
    let longest = Some(format!("max {}", latency(whole.max_ns)));
    let times: Vec<String> = times.into_iter().chain([longest]).flatten().collect();
    let mut text = format!("into the guest: {}", times.join(", "));
    #[allow(clippy::cast_precision_loss)]
    let time = |span: &VmSpan| {
        let buckets = by_number(&span.buckets).into_iter();
        buckets.map(|(bucket, n)| middle_ns(bucket) as f64 * n as f64).sum::<f64>()
    };
    let all: f64 = steps.iter().map(time).sum();
    if let Some(most) = steps.iter().max_by(|a, b| time(a).total_cmp(&time(b)))
        && all > 0.0
    {
        let share = percent(time(most) / all);
        text.push_str(&format!("; {share} of the time in {}", span_name(most.span)));
    }
    text
}

/// In `measure stages`: packets that went on from a tap into a guest.
pub(super) fn into_guests(measurement: &VmMeasurement) -> String {
    let mut out = String::new();
    let entered = |vm: &MeasuredVm| vm.queues.iter().map(VmQueue::entered).sum::<u64>();
    let packets: u64 = measurement.vms.iter().map(entered).sum();
    heading(&mut out, "into the guests");
    let started = measurement.started;
    line!(out, "packets:      {started} at a tap, {packets} reached a guest");
    let (collided, lost) = (measurement.collided, measurement.lost);
    let events = measurement.events_lost;
    line!(out, "not followed: {collided} collided, {lost} lost; {events} events lost");
    out.push_str(&cost(measurement));
    out.push_str(&queues_of(measurement));
    out
}

/// What measuring cost, if that is known.
fn cost(measurement: &VmMeasurement) -> String {
    let mut out = String::new();
    if let Some(cost) = &measurement.cost {
        let (each, cpu) = (digits(cost.ns_per_packet), percentage(cost.cpu_percent));
        line!(out, "cost:         {each}ns per packet, {cpu} of one CPU");
    }
    out
}

/// The queues of all virtual machines, and what is not available.
fn queues_of(measurement: &VmMeasurement) -> String {
    let mut out = String::new();
    for vm in &measurement.vms {
        for queue in &vm.queues {
            line!(out);
            out.push_str(&one(vm, queue));
        }
        for interrupt in &vm.device_interrupts {
            line!(out);
            out.push_str(&device_interrupt(vm, interrupt));
        }
        for interrupt in &vm.backend_interrupts {
            line!(out);
            out.push_str(&backend_interrupt(vm, interrupt));
        }
        if let Some(kicks) = &vm.backend_kicks {
            line!(out);
            out.push_str(&backend_kicks(vm, kicks));
        }
    }
    if !measurement.not_available.is_empty() {
        line!(out);
        heading(&mut out, "not available:");
        for missing in &measurement.not_available {
            line!(out, "  {}: {}", missing.what, printable(&missing.reason));
        }
    }
    out
}

/// `web1 4711`.
pub(super) fn machine(vm: &MeasuredVm) -> String {
    let name = vm.name.as_ref().or(vm.comm.as_ref()).map_or("unknown", String::as_str);
    let pid = vm.pid.map(|pid| format!(" {pid}")).unwrap_or_default();
    format!("{name}{pid}")
}

pub(super) fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

pub(super) const POSTED: &str =
    "end at the notification: the interrupt is posted, which the host does not see";
pub(super) const LOST: &str = "could not be followed further";

/// Lines of packets or interrupts that were not followed to the guest, with what became of them.
pub(super) fn not_followed(counts: &[(u64, &str)]) -> String {
    let lines = counts.iter().filter(|(count, _)| *count > 0);
    lines.map(|(count, what)| format!("{count} {what}\n")).collect()
}

fn one(vm: &MeasuredVm, queue: &VmQueue) -> String {
    let mut out = String::new();
    let number = queue.queue.map_or(" all queues".to_owned(), |n| format!(" queue {n}"));
    heading(&mut out, &printable(&format!("{}, {}{number}", machine(vm), queue.tap)));
    let workers = list(&queue.workers);
    if queue.taken > 0 || queue.transmit.is_none() {
        line!(
            out,
            "{} packets taken by vhost {workers}, {} reached the guest",
            queue.taken,
            queue.entered()
        );
    }
    if queue.interrupts > 0 {
        #[allow(clippy::cast_precision_loss)]
        let each = digits(queue.interrupted as f64 / queue.interrupts as f64);
        let (interrupts, vcpus) = (queue.interrupts, list(&queue.vcpus));
        line!(out, "{interrupts} interrupts of vCPU {vcpus}, for {each} packets each");
    }
    out.push_str(&not_followed(&[
        (queue.without_interrupt, "without an interrupt: the guest polled its ring"),
        (queue.posted, POSTED),
        (queue.deferred, "whose interrupt KVM left to a kernel worker"),
        (queue.lost, LOST),
    ]));
    if !queue.spans.is_empty() || queue.transmit.is_none() {
        out.push_str(&spans(queue));
    }
    if let Some(late) = &queue.late {
        out.push_str(&late_packets(late, Late::Packets));
    }
    if let Some(sent) = &queue.transmit {
        out.push_str(&transmit(sent));
    }
    out
}

/// What is late.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    Packets,
    /// Interrupts that a handler handled.
    Handled,
    /// Those that a process wrote.
    Written,
}

impl Late {
    /// What is counted.
    fn counted(self) -> &'static str {
        if self == Self::Packets { "packets" } else { "interrupts" }
    }
}

/// What most of the time of packets was that were late for vhost.
fn vhost(part: VmPart) -> &'static str {
    match part {
        VmPart::VhostWaited => "vhost waited for a CPU",
        VmPart::VhostThrottled => "vhost waited for its cgroup's quota (cpu.max)",
        _ => "vhost was woken or copied packets",
    }
}

/// Why packets, or interrupts of a device, were late: what most of their time was.
pub(super) fn late_packets(late: &VmLate, of: Late) -> String {
    let mut out = String::new();
    let what = of.counted();
    line!(out, "late: {} {what} took {} or longer", late.packets(), latency(late.slow_ns));
    for part in &late.parts {
        line!(out, "{:>6} {}", part.packets, part_in_words(part, of));
    }
    out
}

/// `vhost waited for a CPU (171ms each), behind hog (102)`.
fn part_in_words(part: &VmLatePart, of: Late) -> String {
    let what = match part.part {
        VmPart::Nic => {
            "at the NIC before its interrupt: its moderation (ethtool -c), or interrupts off"
        }
        VmPart::Interrupt => "NET_RX began late after the interrupt",
        VmPart::Handler => "in NET_RX, before the tap",
        VmPart::VhostWaited | VmPart::VhostThrottled | VmPart::Vhost => match of {
            Late::Handled => "in the handler of the interrupt",
            Late::Written => "in the write to the eventfd",
            Late::Packets => vhost(part.part),
        },
        VmPart::VcpuWaited => "the vCPU waited for a CPU",
        VmPart::VcpuThrottled => "the vCPU waited for its cgroup's quota (cpu.max)",
        VmPart::Vcpu => "the vCPU was woken, kicked, or in the host",
    };
    let each = latency(part.time_ns / part.packets.max(1));
    format!("{what} ({each} each){}", behind(part))
}

/// `, behind spin (12), other (3)`.
fn behind(part: &VmLatePart) -> String {
    let mut tasks: Vec<(&String, &u64)> = part.behind.iter().collect();
    tasks.sort_by_key(|(comm, packets)| (u64::MAX - **packets, (*comm).clone()));
    let shown: Vec<String> = tasks
        .iter()
        .take(CPUS)
        .map(|(comm, packets)| format!("{} ({packets})", printable(comm)))
        .collect();
    if shown.is_empty() { String::new() } else { format!(", behind {}", shown.join(", ")) }
}

/// The transmit direction.
fn transmit(sent: &VmTransmit) -> String {
    let mut out = String::new();
    let workers = sent.workers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let (packets, nic) = (sent.sent, sent.reached_nic);
    line!(out, "transmit: {packets} packets sent by vhost {workers}, {nic} reached a NIC");
    let (kicks, kicked) = (sent.kicks, sent.kicked);
    line!(
        out,
        "{kicks} kicks announced {kicked} of them; the guest added the others while the worker ran"
    );
    if sent.collided > 0 {
        line!(out, "{} could not be followed to a NIC", sent.collided);
    }
    let mut table = table("PACKETS");
    let cpus = &sent.cpus;
    for span in &sent.spans {
        let (name, from, to) = match span.span {
            VmTransmitSpanKind::KickToVhost => ("kick to vhost", &cpus.kick, &cpus.vhost),
            VmTransmitSpanKind::VhostToTap => ("vhost to tap", &cpus.vhost, &cpus.vhost),
            VmTransmitSpanKind::TapToNic => ("tap to NIC", &cpus.vhost, &cpus.nic),
            VmTransmitSpanKind::Whole => ("kick to NIC", &cpus.kick, &cpus.nic),
        };
        row(&mut table, name, span, from, to);
    }
    out.push_str(&table.render());
    out
}

/// A table of spans, with what they count.
pub(super) fn table(counted: &'static str) -> Table {
    Table::new(&[
        left("SPAN"),
        right(counted),
        right("P50"),
        right("P99"),
        right("MAX"),
        left("FROM CPU"),
        left("TO CPU"),
    ])
}

/// The times of a span, with the CPUs at its ends.
pub(super) fn row<K>(
    table: &mut Table,
    name: &str,
    span: &VmSpan<K>,
    from: &BTreeMap<u32, u64>,
    to: &BTreeMap<u32, u64>,
) {
    let time = |ns: Option<u64>| ns.map(latency).unwrap_or_default();
    table.row([
        name.to_owned(),
        span.count.to_string(),
        time(span.p50_ns),
        time(span.p99_ns),
        latency(span.max_ns),
        shares(from),
        shares(to),
    ]);
}

fn spans(queue: &VmQueue) -> String {
    let mut table = table("PACKETS");
    let cpus = &queue.cpus;
    for span in &queue.spans {
        let (from, to) = match span.span {
            VmSpanKind::NicToInterrupt
            | VmSpanKind::InterruptToHandler
            | VmSpanKind::InterruptToKvm
            | VmSpanKind::WriteToKvm
            | VmSpanKind::HandlerToVhost => (&cpus.handler, &cpus.handler),
            VmSpanKind::VhostToKvm | VmSpanKind::VhostWakeup => (&cpus.handler, &cpus.vhost),
            VmSpanKind::KvmToGuest
            | VmSpanKind::Halted
            | VmSpanKind::Polling
            | VmSpanKind::Running
            | VmSpanKind::InHost => (&cpus.vhost, &cpus.vcpu),
            VmSpanKind::Whole => (&cpus.handler, &cpus.vcpu),
        };
        row(&mut table, span_name(span.span), span, from, to);
    }
    table.render()
}

/// What a span is called.
pub(super) fn span_name(span: VmSpanKind) -> &'static str {
    match span {
        VmSpanKind::NicToInterrupt => "NIC to interrupt",
        VmSpanKind::InterruptToHandler => "(a) interrupt to handler",
        VmSpanKind::HandlerToVhost => "(b) handler to vhost",
        VmSpanKind::VhostToKvm => "(c) vhost to KVM",
        VmSpanKind::VhostWakeup => "    wake-up of vhost",
        VmSpanKind::InterruptToKvm => "(c) interrupt to KVM",
        VmSpanKind::WriteToKvm => "(c) write to KVM",
        VmSpanKind::KvmToGuest => "(d) KVM to guest",
        VmSpanKind::Halted => "    vCPU was halted",
        VmSpanKind::Polling => "    vCPU was polling",
        VmSpanKind::Running => "    vCPU was running",
        VmSpanKind::InHost => "    vCPU was in the host",
        VmSpanKind::Whole => "whole",
    }
}

/// `2 98%, 3 2%`; without the share for a single CPU.
fn shares(cpus: &BTreeMap<u32, u64>) -> String {
    let total: u64 = cpus.values().sum();
    if let (1, Some(cpu)) = (cpus.len(), cpus.keys().next()) {
        return cpu.to_string();
    }
    let mut sorted: Vec<(&u32, &u64)> = cpus.iter().collect();
    sorted.sort_by_key(|(cpu, packets)| (u64::MAX - **packets, **cpu));
    #[allow(clippy::cast_precision_loss)]
    let of = |(cpu, packets): &(&u32, &u64)| {
        format!("{cpu} {}", percent(**packets as f64 / total.max(1) as f64))
    };
    let mut shown: Vec<String> = sorted.iter().take(CPUS).map(of).collect();
    if sorted.len() > CPUS {
        shown.push(format!("{} more", sorted.len() - CPUS));
    }
    shown.join(", ")
}
