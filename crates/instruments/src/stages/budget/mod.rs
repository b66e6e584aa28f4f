//! Where the time of a slow span went: the events of its CPU, mapped onto the span.
//!
//! At each moment the CPU is in a hard interrupt, else in a softirq, else in a task, including the idle task.
//! What each of these means for the packet depends on what the span waits for.

mod held;
mod stretches;
#[cfg(test)]
mod tests;
mod timeline;
mod who;

use super::record::{Change, CpuEvents, Record, Task, Waker};
use super::table::receive_stage;
use super::watch::SKB_TSTAMP;
use crate::stamps::NIC_RX;
use held::{Held, held};
use nearpath_model::{CpuId, Culprit, Share, ShareKind};
use std::collections::BTreeMap;
use stretches::{Reader, Runs, Stretch, stretches};
use timeline::{Phase, State, last_blocked_on, phases, took_another_s};

const NET_RX: u32 = 3;
/// Threads in which a kernel runs deferred softirqs (`kernel/softirq.c`) or, with PREEMPT_RT and `threadirqs`,
/// those of the interrupt itself (`kernel/irq/manage.c`).
const SOFTIRQ_THREADS: [&str; 2] = ["ksoftirqd/", "irq/"];

/// Maximum unknown share of a span in a complete budget.
const TOLERANCE: f64 = 0.05;

/// Cache lines that the kernel touches for a packet between two stages, besides those of its data: more than in
/// an sk_buff (4) with its shared info (5), a socket's hot fields (about 10), a flow and its actions, and a
/// device's queue.
const LINES: u64 = 64;
const LINE_BYTES: u64 = 64;
/// Nanoseconds of a load from a node's local memory, an upper value for current servers.
const LOCAL_NS: u64 = 100;
/// The distance of a node to itself (ACPI 6.5, 5.2.17: System Locality Information Table), the unit of other
/// distances.
const LOCAL_DISTANCE: u64 = 10;

/// A budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Its shares, largest first; they add up to the span.
    pub shares: Vec<Share>,
    /// Whether no more than a twentieth is unknown.
    pub complete: bool,
    /// Packets that the stack received in the meantime.
    pub packets: u16,
}

/// What a span waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// The CPU's NET_RX.
    Softirq,
    /// The reader, which was woken, to run.
    Scheduler,
    /// The reader to fetch the packet.
    Reader,
    /// The reader, which is already processing it: woken for it, or in its receive call.
    Reading,
    /// The sender, which is in its send call.
    Sending,
    /// Open vSwitch's user space.
    Upcall,
    /// A CPU to take over the queue of the one that went offline.
    Takeover,
    /// Nothing: the packet is being processed.
    Nothing,
    /// The device.
    Device,
    /// The NIC's interrupt.
    Nic,
}

impl Waits {
    /// Whether it waits for a task whose state is known at every moment.
    fn for_reader(self) -> bool {
        matches!(self, Self::Scheduler | Self::Reader | Self::Reading | Self::Sending)
    }
}

/// What a reader blocks on that waits for packets.
const FOR_PACKETS: [&str; 3] = ["socket", "poll", "io_uring"];

/// Maps the activity of the CPU and the reader onto the span.
pub fn budget(record: &Record) -> Budget {
    if record.from.name != SKB_TSTAMP {
        return of_span(record);
    }
    let Some((before, after)) = parts_of_watched(record) else {
        return of_span(&since_delivery(record, record.begin_ns()));
    };
    let (before, after) = (of_span(&before), of_span(&after));
    let mut shares = after.shares;
    before.shares.into_iter().for_each(|share| share.add_to(&mut shares));
    shares.sort_by_key(|share| std::cmp::Reverse(share.ns));
    let unknown: u64 = shares.iter().filter(|s| s.share == ShareKind::Unknown).map(|s| s.ns).sum();
    Budget {
        shares,
        complete: unknown as f64 <= record.span_ns as f64 * TOLERANCE,
        packets: before.packets,
    }
}

/// A watched packet, of which only both ends are known, before and after it was delivered to its socket. A reader that
/// waits for packets was not given this one before it was last woken, by a softirq; the time before that it waited for
/// the CPU on which it was. `None` if its reader never waited meanwhile: then that was all it waited for.
fn parts_of_watched(record: &Record) -> Option<(Record, Record)> {
    let phases = phases(record);
    let is_wait = |phase: &&Phase| match &phase.state {
        State::Blocked { on, woken_by } => {
            let waits = on.as_deref().is_none_or(|on| FOR_PACKETS.contains(&on));
            waits && !matches!(woken_by, Some(Waker::Irq(_)))
        }
        _ => false,
    };
    let wait = phases.iter().rev().find(is_wait)?;
    let delivered = wait.end;
    let waker = match &wait.state {
        State::Blocked { on: Some(_), woken_by: Some(Waker::Task(pid, name)) } => Some((pid, name)),
        _ => None,
    };
    if delivered <= record.begin_ns() {
        return None;
    }
    let woken = record.reader.events.iter().rev().find_map(|event| match event.what {
        Change::Woken { on, .. } if event.ns <= delivered => Some(on),
        _ => None,
    });
    let cpu = woken.flatten().unwrap_or(record.from_cpu);
    let events = if cpu == record.to_cpu { Some(&record.cpu) } else { record.others.get(&cpu) };
    // That the reader was woken was not seen: neither is it known when.
    let events = events.filter(|_| delivered < record.at_ns);
    // What a task delivers, and no softirq, was not waiting for NET_RX: it was in a queue of that task's.
    let by_task = waker.filter(|(_, name)| {
        !SOFTIRQ_THREADS.iter().any(|prefix| name.starts_with(prefix)) && !name.starts_with("napi/")
    });
    let from = if by_task.is_some() { "netif_receive_skb" } else { "netif_rx" };
    let task = match by_task {
        Some((pid, comm)) => Task { pid: *pid, comm: comm.clone(), ..Task::default() },
        None => record.task.clone(),
    };
    let before = Record {
        at_ns: delivered,
        span_ns: delivered - record.begin_ns(),
        to_cpu: cpu,
        from: receive_stage(from)?,
        to: receive_stage("sk_data_ready")?,
        ended_in_task: by_task.is_some(),
        // Where it was received is not known.
        from_cpu: if by_task.is_some() { u32::MAX } else { record.from_cpu },
        task,
        cpu: events.cloned().unwrap_or_else(CpuEvents::unknown),
        ..record.clone()
    };
    Some((before, since_delivery(record, delivered)))
}

/// The part of a watched packet's time in which it was in its socket.
fn since_delivery(record: &Record, delivered: u64) -> Record {
    Record {
        span_ns: record.at_ns - delivered,
        from: receive_stage("sk_data_ready").unwrap_or(record.from),
        ..record.clone()
    }
}

fn of_span(record: &Record) -> Budget {
    let begin = record.begin_ns();
    let (of_cpu, received) = stretches(record, &record.cpu);
    let spanned: Vec<&Stretch> = of_cpu.iter().filter(|s| s.end > begin).collect();
    let view = View::new(record, &of_cpu);
    let mut sums: BTreeMap<(ShareKind, Option<Culprit>), u64> = BTreeMap::new();
    let mut broken_off = false;
    for (index, stretch) in spanned.iter().enumerate() {
        let mut stolen = stretch.stolen;
        let mut now = stretch.begin.max(begin);
        while now < stretch.end {
            let (share, end) = view.share(stretch, now, index == 0, broken_off);
            // A span that waits for something other than a CPU is not affected by that.
            let is_elsewhere = share.0.is_elsewhere();
            let taken = if is_elsewhere { 0 } else { stolen.min(end - now) };
            stolen -= taken;
            *sums.entry((ShareKind::Stolen, None)).or_default() += taken;
            *sums.entry(share).or_default() += end - now - taken;
            now = end;
        }
        broken_off |= stretch.runs == Runs::Softirq(NET_RX);
    }
    // (A span of length 0 has no stretches.)
    let unknown: u64 =
        sums.iter().filter(|((kind, _), _)| *kind == ShareKind::Unknown).map(|(_, ns)| ns).sum();
    let mut shares: Vec<Share> = sums
        .into_iter()
        .filter(|(_, ns)| *ns > 0)
        .map(|((share, who), ns)| Share { share, ns, who })
        .collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.ns));
    Budget {
        shares,
        complete: unknown as f64 <= record.span_ns as f64 * TOLERANCE,
        packets: received.map_or(0, |first| record.received.wrapping_sub(first)),
    }
}

/// Upper bound of what remote memory can have added to a span: each cache line touched for the packet is
/// fetched once from the farthest node. `distance` is the distance from the CPU's node to it.
pub fn remote_memory_bound(record: &Record, distance: u32) -> Option<Share> {
    let farther = u64::from(distance).checked_sub(LOCAL_DISTANCE).filter(|&more| more > 0)?;
    let lines = LINES + u64::from(record.bytes).div_ceil(LINE_BYTES);
    let ns = lines * LOCAL_NS * farther / LOCAL_DISTANCE;
    let ns = ns.min(record.span_ns);
    Some(Share { share: ShareKind::RemoteMemoryBound, ns, who: None })
}

/// What a span waits for, from its two stages.
fn waits(record: &Record) -> Waits {
    match (record.from.name, record.to.name) {
        (NIC_RX, "irq_handler" | "net_rx_raise") => Waits::Nic,
        // Only dev_cpu_dead() passes a packet from a backlog to netif_rx().
        ("netif_rx" | "enqueue_to_backlog", "netif_rx") => Waits::Takeover,
        (
            NIC_RX | "irq_handler" | "net_rx_raise" | "net_rx_entry" | "napi_poll"
            | "napi_gro_receive" | "netif_rx" | "gro_cells_receive" | "enqueue_to_backlog"
            | "process_backlog",
            _,
        ) => Waits::Softirq,
        ("sched_waking", "sched_switch") => Waits::Scheduler,
        ("ovs_dp_upcall", _) => Waits::Upcall,
        ("sched_switch" | "skb_copy_datagram", "skb_copy_datagram" | "sock_recv") => Waits::Reading,
        (_, "skb_copy_datagram" | "sock_recv" | "sched_switch") => Waits::Reader,
        ("sock_send" | "tcp_sendmsg", _) => Waits::Sending,
        ("net_dev_xmit" | "net_dev_start_xmit", "consume_skb" | "kfree_skb") => Waits::Device,
        ("net_dev_queue" | "qdisc_enqueue", "qdisc_dequeue" | "net_dev_start_xmit") => {
            Waits::Device
        }
        ("qdisc_enqueue", _) => Waits::Device,
        _ => Waits::Nothing,
    }
}

/// Interprets the activity of the CPU for one record.
struct View<'a> {
    record: &'a Record,
    waits: Waits,
    /// The context in which the span ends: a softirq, or a task (`Some(None)`).
    softirq: Option<Option<u32>>,
    /// The thread that finally did the work of NET_RX, if it was deferred to one: ksoftirqd, a thread that
    /// polls a device or a backlog, or that of an interrupt.
    by_thread: Option<u32>,
    /// The reader's phases; empty if the span does not wait for a reader.
    phases: Vec<Phase>,
    /// Whether another task than the one that took the packet was woken for it.
    took_another_s: bool,
    /// The activity of other CPUs that the reader was on, if known.
    others: BTreeMap<u32, Vec<Stretch>>,
    /// The time in which the packet did not wait for a CPU, and what it waited for.
    held: Option<Held>,
}

type Part = (ShareKind, Option<Culprit>);

impl<'a> View<'a> {
    fn new(record: &'a Record, of_cpu: &[Stretch]) -> Self {
        let waits = waits(record);
        let others = |(&cpu, events)| (cpu, stretches(record, events).0);
        let mut view = View {
            record,
            softirq: of_cpu.iter().rev().find_map(|s| match s.runs {
                Runs::Softirq(vector) => Some(Some(vector)),
                Runs::Task(_) => Some(None),
                Runs::Irq(_) | Runs::Unknown | Runs::Offline => None,
            }),
            waits,
            by_thread: None,
            phases: if waits.for_reader() { phases(record) } else { Vec::new() },
            took_another_s: waits.for_reader() && took_another_s(record),
            others: record.others.iter().map(others).collect(),
            held: held(record, waits, of_cpu),
        };
        view.by_thread = view.thread(of_cpu);
        view
    }

    fn thread(&self, stretches: &[Stretch]) -> Option<u32> {
        let last = stretches.iter().rev().find_map(|s| match &s.runs {
            Runs::Task(task) => Some(task),
            _ => None,
        })?;
        // A thread that polls is not in a softirq. (For other threads the softirq has yet to start.)
        let polled = !matches!(self.record.to.name, "net_rx_raise" | "net_rx_entry");
        let polls = polled && self.softirq == Some(None) && last.pid != 0;
        let is_left_to = SOFTIRQ_THREADS.iter().any(|prefix| last.comm.starts_with(prefix));
        (polls || is_left_to).then_some(last.pid)
    }

    /// What a stretch means for the packet from a moment on, and until when. `first` stretch of the span or
    /// not, and whether NET_RX ran before it in the span and was interrupted.
    fn share(&self, stretch: &Stretch, now: u64, first: bool, broken_off: bool) -> (Part, u64) {
        if let Some(held) = self.held.as_ref().filter(|held| now < held.until) {
            if now >= held.since {
                return ((held.kind, held.who.clone()), stretch.end.min(held.until));
            }
            // The run that had it first.
            let part = match &stretch.runs {
                Runs::Irq(irq) => (ShareKind::Irq, Some(who::interrupt(*irq))),
                _ => (ShareKind::Own, None),
            };
            return (part, stretch.end.min(held.since));
        }
        let phase = self.phases.get(self.phases.partition_point(|phase| phase.end <= now));
        let phase = phase.filter(|phase| now < phase.end);
        let end = stretch.end.min(phase.map_or(u64::MAX, |phase| phase.end));
        match phase.map_or(&State::Unknown, |phase| &phase.state) {
            State::Unknown => {
                self.by_cpu(&Stretch { end, ..stretch.clone() }, now, first, broken_off)
            }
            // The task woken for it was runnable; which one that is is unknown, but what ran instead is known.
            State::Blocked { .. } if self.took_another_s => {
                self.while_ready(self.record.to_cpu, false, &stretch.runs, now, end)
            }
            State::Blocked { on, woken_by } => {
                let on = on.as_deref();
                let kind = match on {
                    Some("send_buffer") => ShareKind::SocketFull,
                    Some("socket_lock") => ShareKind::SocketLocked,
                    _ => ShareKind::Asleep,
                };
                let woken_by = woken_by.as_ref().map(who::waker).map(Box::new);
                let on = on.map(str::to_owned);
                ((kind, Some(Culprit { on, woken_by, ..who::named(&self.record.task) })), end)
            }
            State::Runs(cpu) => {
                let (runs, end) = self.runs_at(*cpu, stretch, now, end);
                (self.while_running(runs), end)
            }
            State::Ready { cpu, throttled } => {
                let (runs, end) = self.runs_at(*cpu, stretch, now, end);
                self.while_ready(*cpu, *throttled, runs, now, end)
            }
        }
    }

    /// What a CPU runs at a moment, and how long.
    fn runs_at<'s>(
        &'s self,
        cpu: u32,
        stretch: &'s Stretch,
        now: u64,
        end: u64,
    ) -> (&'s Runs, u64) {
        if cpu == self.record.to_cpu {
            return (&stretch.runs, end);
        }
        let there = self.others.get(&cpu).map_or(&[][..], Vec::as_slice);
        match there.get(there.partition_point(|other| other.end <= now)) {
            Some(other) if other.begin <= now => (&other.runs, end.min(other.end)),
            _ => (&Runs::Unknown, end),
        }
    }

    /// The reader has its CPU, unless that is interrupted.
    fn while_running(&self, runs: &Runs) -> Part {
        let reader = &self.record.task;
        match runs {
            Runs::Irq(irq) => (ShareKind::Irq, Some(who::interrupt(*irq))),
            Runs::Softirq(vector) => (ShareKind::Softirq, Some(who::softirq(*vector))),
            Runs::Task(task) if task.pid == reader.pid && !self.is_at_it() => {
                (ShareKind::Task, Some(who::task(task)))
            }
            _ if !self.is_at_it() => (ShareKind::Task, Some(who::named(reader))),
            _ => (ShareKind::Own, None),
        }
    }

    /// Whether the running reader processes this packet, as opposed to something else before it fetches the
    /// packet. A reader that was woken in its receive call continues with that.
    fn is_at_it(&self) -> bool {
        match (self.waits, self.record.from.name) {
            (Waits::Reading, "sched_switch") => {
                let on = last_blocked_on(self.record, self.record.begin_ns());
                on.is_none_or(|on| on == "socket")
            }
            (waits, _) => waits != Waits::Reader,
        }
    }

    /// The reader is queued on a CPU, which runs something else.
    fn while_ready(
        &self,
        cpu: u32,
        throttled: bool,
        runs: &Runs,
        now: u64,
        mut end: u64,
    ) -> (Part, u64) {
        let reader = Some(who::named(&self.record.task));
        for known in &self.record.throttled {
            if known.contains(&now) {
                return ((ShareKind::Throttled, reader), end.min(known.end));
            } else if now < known.start {
                end = end.min(known.start);
            }
        }
        if throttled && self.record.throttled.is_empty() {
            return ((ShareKind::Throttled, reader), end);
        }
        let part = match runs {
            Runs::Irq(irq) => (ShareKind::Irq, Some(who::interrupt(*irq))),
            Runs::Softirq(vector) => (ShareKind::Softirq, Some(who::softirq(*vector))),
            Runs::Task(task) if task.pid == 0 => (ShareKind::Idle, None),
            Runs::Task(task) if task.pid != self.record.task.pid => {
                (ShareKind::Runqueue, Some(who::task(task)))
            }
            Runs::Offline => (ShareKind::Offline, None),
            Runs::Task(_) | Runs::Unknown => (ShareKind::Unknown, None),
        };
        if cpu == self.record.to_cpu {
            return (part, end);
        }
        // It was migrated later.
        let who = Culprit { cpu: Some(CpuId(cpu)), ..part.1.unwrap_or_default() };
        ((ShareKind::Migration, Some(who)), end)
    }

    /// Whether a task took the packet from its device, instead of the device's interrupt.
    fn is_taken_by_task(&self) -> bool {
        let record = self.record;
        let is_sent = matches!(record.from.name, "net_dev_xmit" | "net_dev_start_xmit");
        let polls = record.task.comm.starts_with("napi/");
        is_sent && record.ended_in_task && record.task.pid != 0 && !polls
    }

    /// The activity of the CPU, if the packet waits for a CPU or the reader's state is unknown.
    fn by_cpu(&self, stretch: &Stretch, now: u64, first: bool, broken_off: bool) -> (Part, u64) {
        let kind = |kind, who| ((kind, who), stretch.end);
        if self.waits == Waits::Takeover {
            return kind(ShareKind::Offline, None);
        }
        let task = match &stretch.runs {
            Runs::Unknown => return kind(ShareKind::Unknown, None),
            Runs::Offline => return kind(ShareKind::Offline, None),
            Runs::Irq(irq) => return kind(ShareKind::Irq, Some(who::interrupt(*irq))),
            Runs::Softirq(NET_RX) if self.waits == Waits::Softirq => {
                return kind(ShareKind::NetRxAhead, None);
            }
            // It is the packet's own work if it is still in progress at the end.
            Runs::Softirq(vector)
                if self.waits == Waits::Nothing && self.softirq == Some(Some(*vector)) =>
            {
                return kind(ShareKind::Own, None);
            }
            Runs::Softirq(vector) => return kind(ShareKind::Softirq, Some(who::softirq(*vector))),
            Runs::Task(task) => task,
        };
        let for_task = self.waits.for_reader() || self.waits == Waits::Upcall;
        let reader = || Some(who::named(&self.record.task));
        let mut end = stretch.end;
        if for_task && task.pid != self.record.task.pid {
            for throttled in &self.record.throttled {
                if throttled.contains(&now) {
                    return ((ShareKind::Throttled, reader()), end.min(throttled.end));
                } else if now < throttled.start {
                    end = end.min(throttled.start);
                }
            }
        }
        let idle = task.pid == 0;
        let own = task.pid == self.record.task.pid;
        let share = match self.waits {
            Waits::Softirq if idle && first && self.record.from_cpu != self.record.to_cpu => {
                (ShareKind::Ipi, None)
            }
            Waits::Upcall if own || stretch.reader != Reader::Ready => {
                (ShareKind::Upcall, reader())
            }
            // It has left the CPU, or was not seen here, and whether it was runnable is unknown.
            Waits::Reader | Waits::Reading if !own && stretch.reader != Reader::Ready => {
                (ShareKind::Unknown, None)
            }
            // The task that takes packets from the device is their reader: of a tun, a tap, an AF_XDP ring.
            Waits::Device if (own || idle) && self.is_taken_by_task() => {
                (ShareKind::Held, reader())
            }
            _ if idle => (ShareKind::Idle, None),
            Waits::Softirq if self.by_thread == Some(task.pid) => match self.softirq {
                // A polling thread does nothing but receive.
                Some(None) => (ShareKind::NetRxAhead, None),
                _ => (ShareKind::Own, None),
            },
            Waits::Softirq if self.by_thread.is_some() || broken_off => {
                (ShareKind::Task, Some(who::task(task)))
            }
            Waits::Softirq => (ShareKind::Disabled, Some(who::task(task))),
            Waits::Nothing | Waits::Sending | Waits::Reading if own => (ShareKind::Own, None),
            Waits::Reader if own => (ShareKind::Task, Some(who::task(task))),
            Waits::Device | Waits::Nic => (ShareKind::Task, Some(who::task(task))),
            _ => (ShareKind::Runqueue, Some(who::task(task))),
        };
        (share, end)
    }
}
