//! Where the time of a slow span went: the events of its CPU, laid over the span.
//!
//! The CPU is at each moment in a hard interrupt, else in a softirq, else in a task; the idle task
//! is one. What each of these means for the packet depends on what the span waits for.

mod stretches;
#[cfg(test)]
mod tests;
mod who;

use super::record::Record;
use crate::{Share, ShareKind, Who};
use nearpath_host::CpuId;
use std::collections::BTreeMap;
use stretches::{Reader, Runs, Stretch, stretches};

const NET_RX: u32 = 3;
/// Threads in which a kernel runs softirqs that an interrupt has left over (`kernel/softirq.c`), or,
/// with PREEMPT_RT and `threadirqs`, those of the interrupt itself (`kernel/irq/manage.c`).
const SOFTIRQ_THREADS: [&str; 2] = ["ksoftirqd/", "irq/"];
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
    /// The reader, which is awake, to come for the packet.
    Reader,
    /// The user space of Open vSwitch.
    Upcall,
    /// A CPU to take it over from the one that it was queued for, which went offline.
    Takeover,
    /// Nothing: the packet is being worked on.
    Nothing,
    /// The device.
    Device,
}

/// Lays the CPU's events over the span.
pub fn budget(record: &Record) -> Budget {
    let begin = record.begin_ns();
    let (of_cpu, received) = stretches(record);
    let spanned: Vec<&Stretch> = of_cpu.iter().filter(|s| s.end > begin).collect();
    let mut view = View {
        record,
        softirq: of_cpu.iter().rev().find_map(|s| match s.runs {
            Runs::Softirq(vector) => Some(Some(vector)),
            Runs::Task(_) => Some(None),
            Runs::Irq(_) | Runs::Unknown | Runs::Offline => None,
        }),
        waits: waits(record),
        by_thread: None,
        left: record.as_left().map_or_else(Vec::new, |left| stretches(&left).0),
    };
    view.by_thread = view.thread(&of_cpu);
    let mut sums: BTreeMap<(ShareKind, Option<Who>), u64> = BTreeMap::new();
    let mut broken_off = false;
    for (index, stretch) in spanned.iter().enumerate() {
        let mut stolen = stretch.stolen;
        let mut now = stretch.begin.max(begin);
        while now < stretch.end {
            let (share, end) = view.share(stretch, now, index == 0, broken_off);
            let taken = stolen.min(end - now);
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
        // Only dev_cpu_dead() hands a packet to netif_rx() that is in a backlog.
        ("netif_rx" | "enqueue_to_backlog", "netif_rx") => Waits::Takeover,
        (
            "irq_handler" | "net_rx_raise" | "net_rx_entry" | "napi_poll" | "napi_gro_receive"
            | "netif_rx" | "gro_cells_receive" | "enqueue_to_backlog" | "process_backlog",
            _,
        ) => Waits::Softirq,
        ("sched_waking", _) => Waits::Scheduler,
        ("ovs_dp_upcall", _) => Waits::Upcall,
        (_, "skb_copy_datagram" | "sock_recv" | "sched_switch")
            if record.from.name != "sched_switch" =>
        {
            Waits::Reader
        }
        ("net_dev_xmit" | "net_dev_start_xmit", "consume_skb" | "kfree_skb") => Waits::Device,
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
    /// What the CPU did that the reader was moved from; empty where that is not known.
    left: Vec<Stretch>,
}

impl View<'_> {
    /// What had the CPU at a moment that the reader was moved from, and until when.
    fn had_left(&self, now: u64) -> (Who, u64) {
        let Some(stretch) = self.left.iter().find(|s| s.begin <= now && now < s.end) else {
            return (Who::default(), u64::MAX);
        };
        let who = match &stretch.runs {
            Runs::Irq(irq) => who::interrupt(*irq),
            Runs::Softirq(vector) => who::softirq(*vector),
            Runs::Task(task) if task.pid != 0 && task.pid != self.record.task.pid => {
                who::task(task)
            }
            Runs::Task(_) | Runs::Unknown | Runs::Offline => Who::default(),
        };
        (who, stretch.end)
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
    fn share(
        &self,
        stretch: &Stretch,
        now: u64,
        first: bool,
        broken_off: bool,
    ) -> ((ShareKind, Option<Who>), u64) {
        let kind = |kind, who| ((kind, who), stretch.end);
        let for_task = matches!(self.waits, Waits::Scheduler | Waits::Reader | Waits::Upcall);
        if let Some((until, from)) = self.record.moved
            && for_task
            && now < until
        {
            let (had, end) = self.had_left(now);
            let who = Who { cpu: Some(CpuId(from)), ..had };
            return ((ShareKind::Migration, Some(who)), until.min(stretch.end).min(end));
        }
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
            Waits::Reader if !own && stretch.reader == Reader::Asleep => {
                (ShareKind::Asleep, reader())
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
            Waits::Nothing if own => (ShareKind::Own, None),
            Waits::Reader if own => (ShareKind::Task, Some(who::task(task))),
            Waits::Device => (ShareKind::Task, Some(who::task(task))),
            _ => (ShareKind::Runqueue, Some(who::task(task))),
        };
        (share, end)
    }
}
