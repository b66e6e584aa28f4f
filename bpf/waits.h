/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a packet waits for other than a CPU or its reader: the queueing discipline of a device, the device
 * itself, and missing TCP data.
 */
#ifndef NEARPATH_WAITS_H
#define NEARPATH_WAITS_H

#include "inflight.h"

/* Flags of a packet (struct packet). */
#define PACKET_STOPPED 1 /* its device was stopped when it was queued */
#define PACKET_EARLY 2 /* data before it is missing */

/* Flags of a slow packet (struct outlier). */
#define WAIT_ENDED_IN_TASK 1 /* the span does not end in a softirq */
#define WAIT_STOPPED 2
#define WAIT_EARLY 4
#define WAIT_RAISED_BY_TIMER 8 /* the timer raised NET_TX, which dequeued it */
#define WAIT_RAISED_BY_DEVICE 16

/* In the low bits of the time at which NET_TX was raised. */
enum raiser { RAISED_ELSEWHERE, RAISED_BY_TIMER, RAISED_BY_DEVICE, RAISERS = 4 };

/* x86's timer (arch/x86/include/asm/irq_vectors.h). */
#define LOCAL_TIMER_VECTOR 0xec
/* State of a device's queue: stopped by its driver, by its byte limit (BQL), or frozen. */
#define QUEUE_STATE_STOPPED 7

/* Whether the entry into a queueing discipline can be observed (not before 5.13). */
const volatile bool has_qdisc_enqueue = true;

struct queued {
	char qdisc[16]; /* its kind */
	char device[16];
	u64 raised_ns; /* when NET_TX was raised, which dequeued the packet, or 0 */
};

static __always_inline void note_tx_raise(struct cpu *cpu)
{
	u32 by = RAISED_ELSEWHERE;

	if (cpu->next_tx_raise)
		return;
	if (cpu->interrupt)
		by = cpu->interrupt == (0x80000000ULL | LOCAL_TIMER_VECTOR) + 1 ? RAISED_BY_TIMER : RAISED_BY_DEVICE;
	else if (cpu->serving == NET_RX_SOFTIRQ + 1)
		by = RAISED_BY_DEVICE;
	else if (cpu->serving == TIMER_SOFTIRQ + 1 || cpu->serving == HRTIMER_SOFTIRQ + 1)
		by = RAISED_BY_TIMER;
	cpu->next_tx_raise = (bpf_ktime_get_ns() & ~(u64)(RAISERS - 1)) | by;
}

/* The queue of the device that the packet is going to. */
static __always_inline struct netdev_queue *queue_of(struct sk_buff *skb)
{
	u64 first = (u64)BPF_CORE_READ(skb, dev, _tx);
	u32 index = BPF_CORE_READ(skb, queue_mapping);

	return (struct netdev_queue *)(first ? first + index * bpf_core_type_size(struct netdev_queue) : 0);
}

/* A packet is queued to be sent: is its device's queue stopped? */
static __always_inline void note_stopped(u64 pointer, struct netdev_queue *queue)
{
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);

	if (p && p->tag == tag && p->state == PACKET_TX && queue &&
	    BPF_CORE_READ(queue, state) & QUEUE_STATE_STOPPED)
		p->flags |= PACKET_STOPPED;
}

/* The queue from which a packet is dequeued; returns flags of the outlier. */
static __always_inline u32 read_queued(struct queued *queued, struct cpu *cpu, struct packet *p, struct sk_buff *skb)
{
	struct netdev_queue *queue = queue_of(skb);
	u64 raise = cpu->run_tx_raise;
	u32 flags = 0;

	BPF_CORE_READ_STR_INTO(&queued->qdisc, queue, qdisc, ops, id);
	BPF_CORE_READ_STR_INTO(&queued->device, skb, dev, name);
	if (p && p->tag == (u64)skb && p->flags & PACKET_STOPPED)
		flags |= WAIT_STOPPED;
	if (cpu->serving != NET_TX_SOFTIRQ + 1 || !raise)
		return flags;
	queued->raised_ns = raise & ~(u64)(RAISERS - 1);
	if (raise % RAISERS == RAISED_BY_TIMER)
		flags |= WAIT_RAISED_BY_TIMER;
	if (raise % RAISERS == RAISED_BY_DEVICE)
		flags |= WAIT_RAISED_BY_DEVICE;
	return flags;
}

#define GAP_SLOT_BITS 10
#define GAPS 4

/* A TCP socket that received out-of-order data: when the missing data arrived, the last few times. */
struct gaps {
	u64 sk;
	u32 next; /* index of the oldest */
	u32 unused;
	struct {
		u64 ns;
		u32 up_to; /* the sequence number from which data is still missing */
		u32 unused;
	} closed[GAPS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << GAP_SLOT_BITS);
	__type(key, u32);
	__type(value, struct gaps);
} gaps SEC(".maps");

static __always_inline struct gaps *gaps_slot(u64 sk)
{
	u32 slot = (sk >> 6) * 0x9e3779b97f4a7c15ULL >> (64 - GAP_SLOT_BITS);

	return bpf_map_lookup_elem(&gaps, &slot);
}

/* struct tcp_skb_cb (include/net/tcp.h) starts with the number of the segment's first byte. */
static __always_inline u32 sequence_of(struct sk_buff *skb)
{
	u32 sequence = 0;

	bpf_probe_read_kernel(&sequence, sizeof(sequence), &skb->cb);
	return sequence;
}

/* TCP starts processing a segment: is data before it missing? */
static __always_inline void note_gap(struct packet *p, struct sock *sk, struct sk_buff *skb)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	u64 address = address_of((u64)sk);
	struct gaps *g;

	if ((s32)(sequence_of(skb) - BPF_CORE_READ(tcp, rcv_nxt)) <= 0)
		return;
	p->flags |= PACKET_EARLY;
	g = gaps_slot(address);
	if (g && g->sk != address) {
		__builtin_memset(g, 0, sizeof(*g));
		g->sk = address;
	}
}

/* A TCP socket signals that it has data: what was missing before that data has arrived. */
static __always_inline void note_ready(struct sock *sk, u64 now)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	u64 address = address_of((u64)sk);
	struct gaps *g = gaps_slot(address);
	u32 last;

	if (!g || g->sk != address)
		return;
	last = g->next % GAPS;
	g->closed[last].ns = now;
	g->closed[last].up_to = BPF_CORE_READ(tcp, rcv_nxt);
	g->next++;
}

/* Whether a segment was out of order, and when the missing data arrived; returns flags of the outlier. */
static __always_inline u32 read_gap(u64 *end_ns, struct packet *p, struct sk_buff *skb, u64 begin_ns)
{
	u32 sequence = sequence_of(skb);
	struct gaps *g;
	u64 first = 0;

	if (!p || p->tag != (u64)skb || !(p->flags & PACKET_EARLY))
		return 0;
	g = gaps_slot((u64)BPF_CORE_READ(skb, sk));
	if (g && g->sk == (u64)BPF_CORE_READ(skb, sk)) {
#pragma unroll
		for (int i = 0; i < GAPS; i++) {
			u64 ns = g->closed[i].ns;

			if (ns > begin_ns && (s32)(g->closed[i].up_to - sequence) > 0 && (!first || ns < first))
				first = ns;
		}
	}
	*end_ns = first;
	return WAIT_EARLY;
}

#endif
