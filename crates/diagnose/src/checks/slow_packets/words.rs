//! What a cause of slow packets is called, what it did, and what to do about it.
//!
//! Input: a share of a budget. Output: parts of sentences.

use crate::text;
use nearpath_model::{Culprit, Share, ShareKind};

/// What a reader did, and what to do about it.
pub(super) const READER: (&str, &str) = (
    "ran and did not return to read while packets waited in its socket",
    "It takes longer for a packet than the next one takes to come: less work for each, several readers (SO_REUSEPORT, \
     threads), or more at once (recvmmsg). perf top -p shows what it does.",
);

/// The same of one that reads a device.
pub(super) const DEVICE_READER: (&str, &str) = (
    "ran, or slept, and did not return to read while packets waited in the ring of its device",
    "It reads a tun, a tap or an AF_XDP ring: less work for each packet, several queues with a thread each (IFF_MULTI_QUEUE), or \
     fewer packets. A longer ring (tx_queue_len) only makes them older.",
);

/// What to do about a reader that sleeps in poll or epoll although its socket has data.
pub(super) const ASLEEP_IN_POLL: &str = "Its socket had data meanwhile: it waits for other descriptors than this one, or was told of it once \
                              (EPOLLET) and did not read until EAGAIN; strace -p PID shows what it waits for.";
/// The same of one that sleeps for a time.
pub(super) const ASLEEP_ON_PURPOSE: &str =
    "It sleeps for a time that it has chosen itself, instead of waiting for its socket.";

/// What to do about the time that observing took.
pub(super) const OBSERVER: &str = "Measuring takes this time on busy CPUs: --measure stages alone, or a lower --max-overhead, takes less.";

/// What a cause did, and what to do about it; nothing for those that are no fault.
pub(super) fn words(cause: &Share) -> Option<(&'static str, &'static str)> {
    let had = |who: &Culprit| who.comm.is_some() || who.irq.is_some() || who.vector.is_some();
    Some(match cause.share {
        ShareKind::Migration if cause.who.as_ref().is_some_and(had) => (
            "ran on the reader's CPU until the reader was migrated",
            "Move it to other CPUs, or keep the reader off its CPU.",
        ),
        ShareKind::Task => (
            "ran while packets waited for ksoftirqd or another thread",
            "Move it to other CPUs, or packets away from its CPU.",
        ),
        ShareKind::Disabled => (
            "ran with softirqs or interrupts off while packets waited for NET_RX",
            "Move it to other CPUs, or packets away from its CPU.",
        ),
        ShareKind::Runqueue => (
            "ran while the reader was ready to",
            "Give the reader a CPU of its own, move what had its CPU to others, or give the reader more weight (nice, the \
             cpu.weight of its cgroup).",
        ),
        ShareKind::Irq => (
            "was served while packets waited",
            "Move the interrupt to a CPU without packets or readers.",
        ),
        ShareKind::Softirq => (
            "ran before packets or their readers could",
            "Look for the device or the timers behind it, and for NET_RX on the readers' CPUs.",
        ),
        ShareKind::Throttled => (
            "was ready, but its cgroup had used up its CPU quota",
            "Raise the quota of its cgroup (cpu.max, cpu.cfs_quota_us), or move other tasks out.",
        ),
        ShareKind::Asleep => (
            "was blocked while packets waited in its socket",
            "Look at what it waits for: a lock, storage, memory, or another process.",
        ),
        ShareKind::Qdisc => (
            "held the packets back",
            "Its rate, its pacing or the senders' transmit times cause this: look at tc -s qdisc show.",
        ),
        ShareKind::DeviceQueue => (
            "took no packets, as its ring or its byte limit was full",
            "Look at the link's load, and at the device's rings and byte limits (ethtool -g, byte_queue_limits).",
        ),
        ShareKind::Nic => (
            "had packets and did not interrupt yet, or the CPU had interrupts off",
            "Look at its interrupt moderation (ethtool -c), and at what keeps interrupts off on the CPU.",
        ),
        ShareKind::TcpGap => (
            "came later than the data behind them",
            "Packets are lost or reordered on the way: look at drops here, and in the network.",
        ),
        ShareKind::SocketLocked => (
            "had the socket locked while packets waited in its backlog",
            "Shorter calls, less data per call, or one thread per socket keep the lock for less time.",
        ),
        ShareKind::SocketFull => (
            "waited for room in its socket's send buffer",
            "The receiver or the device is slower than the sender: look at their rates, or raise the send buffer.",
        ),
        ShareKind::Upcall => (
            "had the packet in user space, as the kernel knew no flow for it",
            "Look at why flows are missing in the datapath (ovs-dpctl show: lookups missed; \
             other_config:flow-limit and max-idle), and at the CPUs of ovs-vswitchd.",
        ),
        ShareKind::Held => (
            "passed them on, and had them in a queue before",
            "Look at how long the program takes for a packet, and at its queue: of NFQUEUE, cat \
             /proc/net/netfilter/nfnetlink_queue has its length and its process; also reassembly, tunnels and encryption \
             hold packets.",
        ),
        ShareKind::Offline => (
            "was offline, or went offline, with packets in its backlog",
            "Take a CPU out of RPS and of the interrupts' affinity before it is set offline.",
        ),
        ShareKind::Stolen => {
            ("had the CPU", "Give this virtual machine dedicated CPUs, or fewer neighbours.")
        }
        ShareKind::NetRxAhead => (
            "were received before it",
            "Spread packets over more CPUs (RSS, RPS), or keep bursts short at their sender.",
        ),
        ShareKind::Own
        | ShareKind::Idle
        | ShareKind::Ipi
        | ShareKind::Migration
        | ShareKind::Unknown
        | ShareKind::RemoteMemoryBound => return None,
    })
}

/// `backup (pid 4711, SCHED_FIFO 50)`, `interrupt 33`, `the softirq TIMER`.
pub(super) fn name_of(who: &Culprit) -> String {
    if let Some(irq) = who.irq {
        return format!("interrupt {irq}");
    }
    if let Some(vector) = who.vector.as_deref().map(text::clean) {
        let is_softirq = vector.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_');
        return format!("the {} {vector}", if is_softirq { "softirq" } else { "interrupt" });
    }
    let mut parts = Vec::new();
    parts.extend(who.pid.map(|pid| format!("pid {pid}")));
    if let Some(policy) = who.policy.as_deref().filter(|policy| *policy != "SCHED_OTHER") {
        let prio = who.prio.filter(|_| matches!(policy, "SCHED_FIFO" | "SCHED_RR"));
        parts.push(prio.map_or_else(|| policy.to_owned(), |prio| format!("{policy} {prio}")));
    }
    let comm = who.comm.as_deref().unwrap_or("a task");
    text::clean(&format!("{comm} ({})", parts.join(", ")))
}

/// `the qdisc tbf of eth0`, `eth0`.
pub(super) fn queue(who: &Culprit, share: ShareKind) -> String {
    let device = text::clean(who.device.as_deref().unwrap_or("a device"));
    match share {
        ShareKind::Qdisc => {
            format!("the qdisc {} of {device}", text::clean(who.qdisc.as_deref().unwrap_or("?")))
        }
        _ => format!("the device {device}"),
    }
}

/// In what a reader was blocked, and what woke it.
pub(super) fn blocked(who: &Culprit) -> Option<String> {
    let on = who.on.as_deref().map(|on| format!("It was blocked in {}", text::clean(on)));
    let by = who.woken_by.as_deref().map(|by| format!("{} woke it", name_of(by)));
    match (on, by) {
        (Some(on), Some(by)) => Some(format!("{on}; {by}.")),
        (Some(one), None) | (None, Some(one)) => Some(format!("{one}.")),
        (None, None) => None,
    }
}
