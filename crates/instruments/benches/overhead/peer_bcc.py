"""The equivalent of `peer.bt` in C for BCC: latency between adjacent stages of each packet, by pair of stages.

Input: `--functions` to include stages without a tracepoint. Output: the line `ready` when all programs
are attached; when standard input ends, the number of packets of each pair of stages.

Packets in flight are in a hash map by the address of their sk_buff; histograms and per-CPU state are
in arrays. The stages are numbered as in peer.bt.
"""

import sys
from collections import Counter
from contextlib import suppress

from bcc_headers import load

PROGRAMS = r"""
struct packet { u64 ns; u32 stage; u32 cpu; };
struct cpu {
    u64 raise_ns, run_raise_ns, entry_ns, poll_ns, irq_ns;
    u64 serving, packet, waker;
};
struct task { u64 send_ns, tcp_ns, copied_ns; };

BPF_HASH(packets, u64, struct packet, 65536);
BPF_HASH(woken, u64, u64, 16384);
BPF_HASH(tasks, u32, struct task, 16384);
BPF_PERCPU_ARRAY(cpus, struct cpu, 1);
BPF_HISTOGRAM(ns_of, u32, 32 * 32 * 64);
BPF_HISTOGRAM(other_cpu, u32, 32 * 32);

static inline void count(u32 from, u32 to, u64 ns)
{
    ns_of.atomic_increment(((from & 31) * 32 + (to & 31)) * 64 + (bpf_log2l(ns) & 63));
}

static inline void pass(struct packet *p, u32 stage, u64 now)
{
    u32 cpu = bpf_get_smp_processor_id();

    if (p->stage) {
        count(p->stage, stage, now - p->ns);
        if (p->cpu != cpu)
            other_cpu.atomic_increment((p->stage & 31) * 32 + (stage & 31));
    }
    p->ns = now;
    p->stage = stage;
    p->cpu = cpu;
}

/* Passes a stage if the packet is known, and was last seen at `after` or later. */
static inline int go_on(u64 skb, u32 stage, u32 after)
{
    struct packet *p = packets.lookup(&skb);

    if (!p || p->stage < after)
        return 0;
    pass(p, stage, bpf_ktime_get_ns());
    return 1;
}

static inline void end(u64 skb, u32 stage)
{
    if (go_on(skb, stage, 0))
        packets.delete(&skb);
}

static inline struct cpu *this_cpu(void)
{
    int zero = 0;

    return cpus.lookup(&zero);
}

#define THIS_CPU struct cpu *cpu = this_cpu(); if (!cpu) return 0

RAW_TRACEPOINT_PROBE(irq_handler_exit) { THIS_CPU; cpu->irq_ns = 0; return 0; }
RAW_TRACEPOINT_PROBE(irq_handler_entry) { THIS_CPU; cpu->irq_ns = bpf_ktime_get_ns(); return 0; }
RAW_TRACEPOINT_PROBE(softirq_raise)
{
    if (ctx->args[0] != 3)
        return 0;
    THIS_CPU;
    if (!cpu->raise_ns)
        cpu->raise_ns = bpf_ktime_get_ns();
    return 0;
}
RAW_TRACEPOINT_PROBE(softirq_exit) { THIS_CPU; cpu->serving = cpu->packet = 0; return 0; }
RAW_TRACEPOINT_PROBE(softirq_entry)
{
    THIS_CPU;
    cpu->serving = ctx->args[0] + 1;
    if (ctx->args[0] != 3)
        return 0;
    cpu->run_raise_ns = cpu->raise_ns;
    cpu->raise_ns = 0;
    cpu->entry_ns = cpu->poll_ns = bpf_ktime_get_ns();
    return 0;
}
RAW_TRACEPOINT_PROBE(napi_poll) { THIS_CPU; cpu->poll_ns = bpf_ktime_get_ns(); return 0; }

RAW_TRACEPOINT_PROBE(netif_rx)
{
    u64 skb = ctx->args[0], now = bpf_ktime_get_ns();
    struct packet *p = packets.lookup(&skb), first = { now, 6, bpf_get_smp_processor_id() };

    if (p && p->stage >= 19)
        pass(p, 24, now);
    packets.update(&skb, &first);
    return 0;
}
RAW_TRACEPOINT_PROBE(netif_receive_skb)
{
    u64 skb = ctx->args[0], now = bpf_ktime_get_ns();
    struct packet *p, first = { now, 7, bpf_get_smp_processor_id() };
    THIS_CPU;

    p = packets.lookup(&skb);
    if (!p) {
        packets.update(&skb, &first);
    } else {
        if (cpu->run_raise_ns > p->ns) {
            pass(p, 2, cpu->run_raise_ns);
            pass(p, 3, cpu->entry_ns);
            pass(p, 4, cpu->poll_ns);
        }
        pass(p, 7, now);
    }
    cpu->packet = skb;
    return 0;
}
RAW_TRACEPOINT_PROBE(tcp_probe)
{
    THIS_CPU;
    if (go_on(ctx->args[1], 9, 7))
        cpu->packet = ctx->args[1];
    return 0;
}
RAW_TRACEPOINT_PROBE(sk_data_ready)
{
    THIS_CPU;
    if (cpu->packet && go_on(cpu->packet, 10, 0)) {
        cpu->waker = cpu->packet;
        cpu->packet = 0;
    }
    return 0;
}
RAW_TRACEPOINT_PROBE(sched_waking)
{
    u64 task = ctx->args[0];
    THIS_CPU;

    if (cpu->waker && go_on(cpu->waker, 11, 0))
        woken.update(&task, &cpu->waker);
    cpu->waker = 0;
    return 0;
}
RAW_TRACEPOINT_PROBE(sched_switch)
{
    u64 task = ctx->args[2], *skb = woken.lookup(&task);

    if (skb) {
        go_on(*skb, 12, 0);
        woken.delete(&task);
    }
    return 0;
}
RAW_TRACEPOINT_PROBE(skb_copy_datagram_iovec)
{
    u64 skb = ctx->args[0];
    struct packet *p = packets.lookup(&skb);
    u32 tid = bpf_get_current_pid_tgid();
    struct task *t, none = {};

    if (!p)
        return 0;
    pass(p, 13, bpf_ktime_get_ns());
    t = tasks.lookup_or_try_init(&tid, &none);
    if (t)
        t->copied_ns = p->ns;
    packets.delete(&skb);
    return 0;
}
RAW_TRACEPOINT_PROBE(sock_recv_length)
{
    u32 tid = bpf_get_current_pid_tgid();
    struct task *t = tasks.lookup(&tid);

    if (t && t->copied_ns) {
        count(13, 14, bpf_ktime_get_ns() - t->copied_ns);
        t->copied_ns = 0;
    }
    return 0;
}
RAW_TRACEPOINT_PROBE(sys_enter)
{
    u64 call = ctx->args[1];
    u32 tid = bpf_get_current_pid_tgid();
    bool sends = call == 1 || call == 20 || call == 44 || call == 46 || call == 307;
    struct task *t, none = {};

    t = sends ? tasks.lookup_or_try_init(&tid, &none) : tasks.lookup(&tid);
    if (t)
        t->send_ns = sends ? bpf_ktime_get_ns() : 0;
    return 0;
}
RAW_TRACEPOINT_PROBE(tcp_sendmsg_locked)
{
    u32 tid = bpf_get_current_pid_tgid();
    struct task *t = tasks.lookup(&tid);

    if (t && t->send_ns)
        t->tcp_ns = bpf_ktime_get_ns();
    return 0;
}
RAW_TRACEPOINT_PROBE(net_dev_queue)
{
    u64 skb = ctx->args[0];
    u32 tid = bpf_get_current_pid_tgid();
    struct packet p = { bpf_ktime_get_ns(), 19, bpf_get_smp_processor_id() };
    struct task *t;
    THIS_CPU;

    t = cpu->serving ? 0 : tasks.lookup(&tid);
    if (t && t->send_ns) {
        if (t->tcp_ns > t->send_ns) {
            count(17, 18, t->tcp_ns - t->send_ns);
            count(18, 19, p.ns - t->tcp_ns);
        } else {
            count(17, 19, p.ns - t->send_ns);
        }
    }
    packets.update(&skb, &p);
    return 0;
}
RAW_TRACEPOINT_PROBE(qdisc_enqueue) { go_on(ctx->args[2], 20, 19); return 0; }
RAW_TRACEPOINT_PROBE(qdisc_dequeue) { go_on(ctx->args[3], 21, 20); return 0; }
RAW_TRACEPOINT_PROBE(net_dev_start_xmit) { go_on(ctx->args[0], 22, 19); return 0; }
RAW_TRACEPOINT_PROBE(net_dev_xmit) { go_on(ctx->args[0], 23, 22); return 0; }
RAW_TRACEPOINT_PROBE(consume_skb) { end(ctx->args[0], 15); return 0; }
RAW_TRACEPOINT_PROBE(kfree_skb) { end(ctx->args[0], 16); return 0; }
"""

# As in peer_functions.bt.
FUNCTIONS = r"""
int kprobe__enqueue_to_backlog(struct pt_regs *ctx) { go_on(ctx->di, 8, 0); return 0; }
int kprobe__ip_rcv(struct pt_regs *ctx) { go_on(ctx->di, 25, 0); return 0; }
int kprobe__udp_rcv(struct pt_regs *ctx) { go_on(ctx->di, 26, 0); return 0; }
int kprobe__tcp_v4_rcv(struct pt_regs *ctx) { go_on(ctx->di, 27, 0); return 0; }
int kprobe__internal_dev_xmit(struct pt_regs *ctx) { go_on(ctx->di, 5, 0); return 0; }
int kprobe__ovs_vport_receive(struct pt_regs *ctx) { go_on(ctx->si, 28, 0); return 0; }
int kprobe__ovs_dp_process_packet(struct pt_regs *ctx) { go_on(ctx->di, 29, 0); return 0; }
int kprobe__ovs_vport_send(struct pt_regs *ctx) { go_on(ctx->si, 30, 0); return 0; }
int kprobe__internal_dev_recv(struct pt_regs *ctx) { go_on(ctx->di, 31, 0); return 0; }
"""


def main() -> None:
    """Attaches the programs, and detaches them on exit."""
    programs = load(PROGRAMS + (FUNCTIONS if "--functions" in sys.argv else ""))
    print("ready", flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.read()
    counts: Counter[tuple[int, int]] = Counter()
    for slot, packets in programs["ns_of"].items():
        span = slot.value >> 6
        counts[span >> 5, span & 31] += packets.value
    for (begin, end), packets in sorted(counts.items()):
        if packets:
            print(f"{begin} -> {end}: {packets}")


main()
