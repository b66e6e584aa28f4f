"""The equivalent of `nearpath measure vm` for BCC, as such scripts are written: the way of packets into one guest.

Output: the line `ready` when all programs are attached; when standard input ends, the number of packets of each span,
and of those that reached the guest.

Where a tracepoint tells enough, it is used instead of a function, which costs less. A packet is known by the address of
its sk_buff up to vhost, by vhost's thread until KVM has the interrupt, and by the vector from there on: exact for one
guest with one queue, and less than nearpath knows of several. Of packets that share an interrupt, it follows the last.
"""

import sys
from collections import Counter
from contextlib import suppress

from bcc_headers import load
from bcc_net_rx import NET_RX

PROGRAMS = r"""
struct packet { u64 irq_ns, handler_ns, tap_ns; };
struct worker { u64 runs_ns, packets; struct packet last; };
struct waiting { u64 start_ns, set_ns, packets; };

BPF_HASH(packets, u64, struct packet, 8192);
BPF_HASH(workers, u32, struct worker, 1024);
BPF_HASH(waiting, u32, struct waiting, 1024);
BPF_HISTOGRAM(ns_of, u32, 8 * 64);

static inline void count(u32 span, u64 ns, u64 n)
{
    u32 key = (span & 7) * 64 + (bpf_log2l(ns) & 63);

    ns_of.atomic_increment(key, n);
}

int kprobe__tun_net_xmit(struct pt_regs *ctx)
{
    u64 skb = ctx->di;
    struct packet packet = {};
    THIS_CPU;

    packet.irq_ns = cpu->run_irq_ns;
    packet.handler_ns = cpu->run_ns;
    packet.tap_ns = bpf_ktime_get_ns();
    packets.update(&skb, &packet);
    return 0;
}

int kprobe__handle_rx(struct pt_regs *ctx)
{
    u32 tid = bpf_get_current_pid_tgid();
    struct worker none = {}, *worker = workers.lookup_or_try_init(&tid, &none);

    if (worker)
        worker->runs_ns = bpf_ktime_get_ns();
    return 0;
}

/* In tun_recvmsg, by vhost. */
RAW_TRACEPOINT_PROBE(skb_copy_datagram_iovec)
{
    u64 skb = ctx->args[0];
    u32 tid = bpf_get_current_pid_tgid();
    struct packet *packet = packets.lookup(&skb);
    struct worker *worker;

    if (!packet)
        return 0;
    worker = workers.lookup(&tid);
    if (worker) {
        if (packet->handler_ns)
            count(1, packet->tap_ns - packet->handler_ns, 1);
        if (packet->irq_ns)
            count(0, packet->handler_ns - packet->irq_ns, 1);
        if (worker->runs_ns > packet->tap_ns)
            count(3, worker->runs_ns - packet->tap_ns, 1);
        worker->packets++;
        worker->last = *packet;
    }
    packets.delete(&skb);
    return 0;
}

/* By vhost, which signals the eventfd. */
RAW_TRACEPOINT_PROBE(kvm_apic_accept_irq)
{
    u32 tid = bpf_get_current_pid_tgid(), vector = ctx->args[3];
    struct worker *worker = workers.lookup(&tid);
    struct waiting next = {};

    if (!worker || !worker->packets)
        return 0;
    next.set_ns = bpf_ktime_get_ns();
    next.packets = worker->packets;
    next.start_ns = worker->last.irq_ns ? worker->last.irq_ns : worker->last.tap_ns;
    count(2, next.set_ns - worker->last.tap_ns, worker->packets);
    waiting.update(&vector, &next);
    worker->packets = 0;
    return 0;
}

/* The guest is entered with the interrupt. */
RAW_TRACEPOINT_PROBE(kvm_inj_virq)
{
    u32 vector = ctx->args[0];
    struct waiting *of = waiting.lookup(&vector);
    u64 now;

    if (!of)
        return 0;
    now = bpf_ktime_get_ns();
    count(4, now - of->set_ns, of->packets);
    count(5, now - of->start_ns, of->packets);
    waiting.delete(&vector);
    return 0;
}
"""


def main() -> None:
    """Attaches the programs, and detaches them on exit."""
    programs = load(NET_RX + PROGRAMS)
    print("ready", flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.read()
    counts: Counter[int] = Counter()
    for slot, packets in programs["ns_of"].items():
        counts[slot.value >> 6] += packets.value
    for span, packets in sorted(counts.items()):
        if packets:
            print(f"{span} {packets}")


main()
