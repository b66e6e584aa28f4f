//! Where the time of a slow span went: the events of its CPU, laid over the span.
//!
//! The CPU is at each moment in a hard interrupt, else in a softirq, else in a task; the idle task
//! is one. What each of these means for the packet depends on what the span waits for.

mod stretches;
#[cfg(test)]
mod tests;
mod timeline;
mod who;

use super::record::{Queued, Raiser, Record};
use super::stamps::NIC_RX;
use nearpath_model::{CpuId, Share, ShareKind, Who};
use std::collections::BTreeMap;
use stretches::{Reader, Runs, Stretch, stretches};
use timeline::{Phase, State, last_blocked_on, phases, took_another_s};

const NET_RX: u32 = 3;
/// Threads in which a kernel runs softirqs that an interrupt has left over (`kernel/softirq.c`), or,
/// with PREEMPT_RT and `threadirqs`, those of the interrupt itself (`kernel/irq/manage.c`).
const SOFTIRQ_THREADS: [&str; 2] = ["ksoftirqd/", "irq/"];
/// Queueing disciplines that hold a packet back though the device would take it: they shape, pace or
/// delay (`net/sched`).
const SHAPERS: [&str; 11] =
    ["tbf", "htb", "hfsc", "cbq", "fq", "etf", "taprio", "netem", "cbs", "cake", "plug"];
/// Those whose classes may have such a one.
const CLASSFUL: [&str; 7] = ["prio", "drr", "ets", "qfq", "multiq", "mqprio", "mq"];
/// The share of a span that may be unknown in a complete budget.
const TOLERANCE: f64 = 0.05;

/// Cache lines that the kernel touches for a packet between two stages, beside those of its data:
/// more than there are in an sk_buff (4) with its shared info (5), a socket's hot fields (about
/// 10), a flow and its actions, and a device's queue.
const LINES: u64 = 64;
const LINE_BYTES: u64 = 64;
/// Nanoseconds of a load from a node's own memory, on the slow side of today's servers.
const LOCAL_NS: u64 = 100;
/// The distance of a node to itself (ACPI 6.5, 5.2.17: System Locality Information Table), to which
/// others are relative.
const LOCAL_DISTANCE: u64 = 10;

/// A budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Its shares, the largest first; they add up to the span.
    pub shares: Vec<Share>,
    /// Whether no more than a twentieth is unknown.
    pub complete: bool,
    /// Packets that the stack was given meanwhile.
    pub packets: u16,
}

/// What a span waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// The CPU's NET_RX.
    Softirq,
    /// The reader, which was woken, to run.
    Scheduler,
    /// The reader to come for the packet.
    Reader,
    /// The reader, which is at it: woken for it, or within its receive call.
    Reading,
    /// The sender, which is within its send call.
    Sending,
    /// The user space of Open vSwitch.
    Upcall,
    /// A CPU to take it over from the one that it was queued for, which went offline.
    Takeover,
    /// Nothing: the packet is being worked on.
    Nothing,
    /// The device.
    Device,
    /// The NIC, to interrupt.
    Nic,
}

impl Waits {
    /// Whether it waits for a task whose every moment is known.
    fn for_reader(self) -> bool {
        matches!(self, Self::Scheduler | Self::Reader | Self::Reading | Self::Sending)
    }
}

/// Lays what the CPU and the reader did over the span.
pub fn budget(record: &Record) -> Budget {
    let begin = record.begin_ns();
    let (of_cpu, received) = stretches(record, &record.cpu);
    let spanned: Vec<&Stretch> = of_cpu.iter().filter(|s| s.end > begin).collect();
    let view = View::new(record, &of_cpu);
    let mut sums: BTreeMap<(ShareKind, Option<Who>), u64> = BTreeMap::new();
    let mut broken_off = false;
    for (index, stretch) in spanned.iter().enumerate() {
        let mut stolen = stretch.stolen;
        let mut now = stretch.begin.max(begin);
        while now < stretch.end {
            let (share, end) = view.share(stretch, now, index == 0, broken_off);
            // What waits for something else than a CPU loses nothing by that.
            let is_elsewhere = share.0.is_elsewhere();
            let taken = if is_elsewhere { 0 } else { stolen.min(end - now) };
            stolen -= taken;
            *sums.entry((ShareKind::Stolen, None)).or_default() += taken;
            *sums.entry(share).or_default() += end - now - taken;
            now = end;
        }
        broken_off |= stretch.runs == Runs::Softirq(NET_RX);
    }
    // (A span of no time at all has no stretch.)
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

/// The most that remote memory can have added to a span: each line that the packet's work touches
/// is fetched once from the farthest node. `distance` is that of the CPU's node to it.
pub fn remote_memory_bound(record: &Record, distance: u32) -> Option<Share> {
    let farther = u64::from(distance).checked_sub(LOCAL_DISTANCE).filter(|&more| more > 0)?;
    let lines = LINES + u64::from(record.bytes).div_ceil(LINE_BYTES);
    let ns = lines * LOCAL_NS * farther / LOCAL_DISTANCE;
    let ns = ns.min(record.span_ns);
    Some(Share { share: ShareKind::RemoteMemoryBound, ns, who: None })
}

/// What the two stages of a span have between them.
fn waits(record: &Record) -> Waits {
    match (record.from.name, record.to.name) {
        (NIC_RX, "irq_handler" | "net_rx_raise") => Waits::Nic,
        // Only dev_cpu_dead() hands a packet to netif_rx() that is in a backlog.
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

/// How the CPU's doing is to be seen for one record.
struct View<'a> {
    record: &'a Record,
    waits: Waits,
    /// What the span ends in: a softirq, or a task (`Some(None)`).
    softirq: Option<Option<u32>>,
    /// The thread that did the work of NET_RX in the end, where it was left to one: ksoftirqd, a
    /// thread that polls a device or a backlog, or that of an interrupt.
    by_thread: Option<u32>,
    /// What the reader did; empty where the span does not wait for one.
    phases: Vec<Phase>,
    /// Whether another task than the one that took the packet was woken for it.
    took_another_s: bool,
    /// What other CPUs did that the reader was on, where that is known.
    others: BTreeMap<u32, Vec<Stretch>>,
    /// The time from its begin on in which the packet waited for no CPU at all, and for what.
    held: Option<(u64, ShareKind, Option<Who>)>,
}

type Part = (ShareKind, Option<Who>);

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
            held: held(record),
        };
        view.by_thread = view.thread(of_cpu);
        view
    }

    fn thread(&self, stretches: &[Stretch]) -> Option<u32> {
        let last = stretches.iter().rev().find_map(|s| match &s.runs {
            Runs::Task(task) => Some(task),
            _ => None,
        })?;
        // A thread that polls does so in no softirq. (Before these the softirq has yet to begin.)
        let polled = !matches!(self.record.to.name, "net_rx_raise" | "net_rx_entry");
        let polls = polled && self.softirq == Some(None) && last.pid != 0;
        let is_left_to = SOFTIRQ_THREADS.iter().any(|prefix| last.comm.starts_with(prefix));
        (polls || is_left_to).then_some(last.pid)
    }

    /// What a stretch means for the packet from a moment on, and until when. Whether it is the
    /// first of the span, and whether NET_RX ran before it in the span and was broken off.
    fn share(&self, stretch: &Stretch, now: u64, first: bool, broken_off: bool) -> (Part, u64) {
        if let Some((until, kind, who)) = &self.held
            && now < *until
        {
            return ((*kind, who.clone()), stretch.end.min(*until));
        }
        let phase = self.phases.iter().find(|phase| now < phase.end);
        let end = stretch.end.min(phase.map_or(u64::MAX, |phase| phase.end));
        match phase.map_or(&State::Unknown, |phase| &phase.state) {
            State::Unknown => {
                self.by_cpu(&Stretch { end, ..stretch.clone() }, now, first, broken_off)
            }
            // The one that was woken for it could have run; who that is is not known, but what ran is.
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
                ((kind, Some(Who { on, woken_by, ..who::named(&self.record.task) })), end)
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

    /// What a CPU runs at a moment, and until when it is the same.
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
        let there = self.others.get(&cpu).into_iter().flatten();
        match there.into_iter().find(|other| other.begin <= now && now < other.end) {
            Some(other) => (&other.runs, end.min(other.end)),
            None => (&Runs::Unknown, end),
        }
    }

    /// The reader is at its CPU, unless that is interrupted.
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

    /// Whether the reader, where it runs, works on this packet, and not on something else before it
    /// comes for it. A reader that was woken in its receive call goes on with that.
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
        // It was taken from there later.
        let who = Who { cpu: Some(CpuId(cpu)), ..part.1.unwrap_or_default() };
        ((ShareKind::Migration, Some(who)), end)
    }

    /// What the CPU does, where the packet waits for a CPU or what its reader does is not known.
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
            // It is the packet's own if it is still worked on there at the end.
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
            // It has left the CPU, or was not seen here, and nothing says whether it could have run.
            Waits::Reader | Waits::Reading if !own && stretch.reader != Reader::Ready => {
                (ShareKind::Unknown, None)
            }
            _ if idle => (ShareKind::Idle, None),
            Waits::Softirq if self.by_thread == Some(task.pid) => match self.softirq {
                // All that a thread does that polls is to receive.
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

/// What a packet waited for that no CPU could have given it, and until when.
fn held(record: &Record) -> Option<(u64, ShareKind, Option<Who>)> {
    if waits(record) == Waits::Nic {
        return Some((record.at_ns, ShareKind::Nic, None));
    }
    if let Some(until) = record.early {
        // Where that is not known it is not later than when the socket said that it had data.
        let told = record.to.name == "sk_data_ready";
        let until = until.filter(|_| !told).or(told.then_some(record.at_ns))?;
        return Some((until, ShareKind::TcpGap, None));
    }
    // Where NET_RX leaves a segment to the task that has the socket locked, that task processes it.
    if record.to.name == "tcp_rcv_established" && record.ended_in_task {
        let in_stack = matches!(
            record.from.name,
            "netif_receive_skb" | "ip_rcv" | "ipv6_rcv" | "tcp_v4_rcv" | "tcp_v6_rcv"
        );
        return in_stack
            .then(|| (record.at_ns, ShareKind::SocketLocked, Some(who::named(&record.task))));
    }
    held_in_queue(record, record.queued.as_ref()?)
}

/// By the queueing discipline, or by the device.
fn held_in_queue(record: &Record, queued: &Queued) -> Option<(u64, ShareKind, Option<Who>)> {
    let is_one_of = |kinds: &[&str]| kinds.contains(&queued.qdisc.as_str());
    let raised_by = queued.raised.map(|(_, raiser)| raiser);
    let kind = if queued.stopped {
        ShareKind::DeviceQueue
    } else if is_one_of(&SHAPERS) || is_one_of(&CLASSFUL) && raised_by == Some(Raiser::Timer) {
        ShareKind::Qdisc
    } else if raised_by == Some(Raiser::Device) {
        ShareKind::DeviceQueue
    } else {
        return None;
    };
    // From then on it waited for NET_TX, on this CPU.
    let until = queued.raised.map_or(record.at_ns, |(ns, _)| ns.max(record.begin_ns()));
    let who = Who {
        qdisc: Some(queued.qdisc.clone()),
        device: Some(queued.device.clone()),
        ..Who::default()
    };
    Some((until, kind, Some(who)))
}
