"""The same way of packets into a guest as `peer_bcc.py`, as tools for BCC follow it that print each packet: functions
by kprobes, an event at each of them with the time, the thread and its name, and a join of the events in user space (as
tun_tx_to_kvm_irq.py and vm_network_latency_details.py of github.com/everoute/troubleshooting-tools do).

Output: the line `ready` when all programs are attached, then a line for each packet that reached the guest; on SIGINT
the number of events lost, and the number of these packets under the number of the span "whole".
"""

import bisect
import signal
import threading
import time
from typing import NamedTuple

from bcc_headers import load
from bcc_net_rx import NET_RX

WHOLE = 5

PROGRAMS = r"""
BPF_PERF_OUTPUT(events);

enum stage { TAP, WORKER, TAKEN, USED, SIGNALLED, SET, ENTERED };

struct event {
    u64 ns, skb, irq_ns, handler_ns;
    u32 stage, cpu, tid, vector;
    char comm[16];
};

/* What is known at every stage, and the event is on its way. */
static inline int report(void *ctx, struct event *event, u32 stage)
{
    event->ns = bpf_ktime_get_ns();
    event->stage = stage;
    event->cpu = bpf_get_smp_processor_id();
    event->tid = bpf_get_current_pid_tgid();
    bpf_get_current_comm(&event->comm, sizeof(event->comm));
    events.perf_submit(ctx, event, sizeof(*event));
    return 0;
}

static inline int report_stage(void *ctx, u32 stage)
{
    struct event event = {};

    return report(ctx, &event, stage);
}

static inline int report_packet(void *ctx, u32 stage, u64 skb)
{
    struct event event = { .skb = skb };
    THIS_CPU;

    event.irq_ns = cpu->run_irq_ns;
    event.handler_ns = cpu->run_ns;
    return report(ctx, &event, stage);
}

static inline int report_interrupt(void *ctx, u32 stage, u32 vector)
{
    struct event event = { .vector = vector };

    return report(ctx, &event, stage);
}

int kprobe__tun_net_xmit(struct pt_regs *ctx) { return report_packet(ctx, TAP, ctx->di); }
int kprobe__handle_rx(struct pt_regs *ctx) { return report_stage(ctx, WORKER); }
/* In tun_recvmsg, by vhost: its sk_buff is an argument of no function that a kprobe has. */
RAW_TRACEPOINT_PROBE(skb_copy_datagram_iovec) { return report_packet(ctx, TAKEN, ctx->args[0]); }
int kprobe__vhost_add_used_and_signal_n(struct pt_regs *ctx) { return report_stage(ctx, USED); }
int kprobe__irqfd_wakeup(struct pt_regs *ctx) { return report_stage(ctx, SIGNALLED); }
int kprobe____apic_accept_irq(struct pt_regs *ctx) { return report_interrupt(ctx, SET, ctx->dx); }
/* The guest is entered with the interrupt. */
RAW_TRACEPOINT_PROBE(kvm_inj_virq) { return report_interrupt(ctx, ENTERED, ctx->args[0]); }
"""

TAP, WORKER, TAKEN, USED, SIGNALLED, SET, ENTERED = range(7)


class Event(NamedTuple):
    """What is kept of an event: its memory is the buffer's."""

    stage: int
    ns: int
    cpu: int
    tid: int
    vector: int
    skb: int
    irq_ns: int
    handler_ns: int
    comm: bytes


def us(ns: int) -> str:
    """Of a span, as such tools print it."""
    return f"{ns / 1e3:10.3f}"


class Join:
    """Joins the events of a packet, and prints it when it is in the guest."""

    def __init__(self) -> None:
        self.at_tap: dict[int, Event] = {}
        self.woken: dict[int, int] = {}
        self.taken: dict[int, list[tuple[Event, Event]]] = {}
        self.waiting: dict[int, tuple[list[tuple[Event, Event]], Event]] = {}
        self.reached = 0

    def add(self, event: Event) -> None:
        """The next event."""
        if event.stage == TAP:
            self.at_tap[event.skb] = event
        elif event.stage == WORKER:
            self.woken[event.tid] = event.ns
        elif event.stage == TAKEN:
            tap = self.at_tap.pop(event.skb, None)
            if tap:
                self.taken.setdefault(event.tid, []).append((tap, event))
        elif event.stage == SET:
            packets = self.taken.pop(event.tid, None)
            if packets:
                self.waiting[event.vector] = (packets, event)
        elif event.stage == ENTERED:
            packets, kvm = self.waiting.pop(event.vector, ([], event))
            for tap, taken in packets:
                self.reached += 1
                worker = self.woken.get(taken.tid, 0)
                print(
                    f"{event.ns / 1e9:16.6f} {event.comm.decode():16} CPU {tap.cpu:3} {taken.cpu:3} {event.cpu:3}"
                    f" irq {us(tap.handler_ns - tap.irq_ns) if tap.irq_ns else '-':>10}"
                    f" handler {us(tap.ns - tap.handler_ns) if tap.handler_ns else '-':>10}"
                    f" wakeup {us(max(worker - tap.ns, 0))} vhost {us(kvm.ns - tap.ns)} kvm {us(event.ns - kvm.ns)}"
                )


def main() -> None:
    """Attaches the programs, and detaches them on exit."""
    programs = load(NET_RX + PROGRAMS)
    events, join = programs["events"], Join()
    read: list[Event] = []
    lost: list[int] = []

    def has_come(_cpu: int, data: int, _size: int) -> None:
        event = events.event(data)
        read.append(Event(*(getattr(event, name) for name in Event._fields)))

    events.open_perf_buffer(has_come, page_cnt=256, lost_cb=lost.append)
    # An exception of a callback would be lost.
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    print("ready", flush=True)
    # Each CPU has a buffer of its own: what came before a poll began has been read when it ends.
    while not ended.is_set():
        began_ns = time.monotonic_ns()
        programs.perf_buffer_poll(timeout=100)
        read.sort(key=lambda event: event.ns)
        complete = bisect.bisect(read, began_ns, key=lambda event: event.ns)
        for event in read[:complete]:
            join.add(event)
        del read[:complete]
    print(f"lost {sum(lost)}")
    print(f"{WHOLE} {join.reached}")


main()
