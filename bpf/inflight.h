/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is under way: packets, tasks, sockets and CPUs, each in an array indexed directly.
 *
 * A packet's slot is found from a hash of the address of its sk_buff and tagged with that
 * address. When two packets meet in a slot the newer takes it and the older is counted as lost,
 * so a stage costs one lookup and the table never fills up.
 */
#ifndef NEARPATH_INFLIGHT_H
#define NEARPATH_INFLIGHT_H

#include "histogram.h"
#include "stages.h"

#define PACKET_SLOT_BITS 16
#define TASK_SLOT_BITS 14
#define SOCKET_SLOT_BITS 12
/* Different pairs of adjacent stages that are kept apart. */
#define SPANS_MAX 128
/* A slot not touched for so long holds a packet whose end was not seen. */
#define PACKET_STALE_NS 1000000000ULL

enum packet_state {
	PACKET_FREE,
	PACKET_RX,
	PACKET_TX,
	PACKET_RX_IGNORED,
	PACKET_TX_IGNORED,
	/* Counted as completed: TCP put its data into an earlier packet, but it may wake its reader. */
	PACKET_RX_MERGED,
};

struct packet {
	u64 tag; /* address of the sk_buff */
	u64 last_ns; /* when the last stage was passed */
	u32 last_cpu;
	u8 last_stage;
	u8 state;
	u8 datagram; /* waits in a UDP socket, from which a receive call takes it whole */
	u8 unused;
	u64 unused2;
};

struct task {
	u32 pid;
	u32 send_cpu, tcp_cpu, copy_cpu;
	u64 send_ns; /* entry of the send call that the task is in, or 0 */
	u64 tcp_ns; /* tcp_sendmsg within it, or 0 */
	u64 copy_ns; /* the last packet copied in the receive call under way, or 0 */
	u64 woken_by; /* tag of the packet that woke the task, or 0 */
	u64 unused[2];
};

struct counters {
	u64 started, completed, dropped, collided, sampled_out, unexpected;
	u64 unused[2];
};

/* A UDP socket: its reader takes one packet a call, in order. */
struct socket {
	u64 sk;
	u64 next; /* tag of the packet that the next receive call takes, or 0 */
	u64 next_ns; /* when it was seen in the queue */
	u64 taken_ns; /* when a receive call last returned with a packet that was not known */
};

/* Per CPU, three cache lines, of which every stage needs the first. Times are 0 where there is none. */
struct cpu {
	u64 entry_ns; /* entry of the run of NET_RX under way */
	u64 poll_ns; /* its entry, or the end of the last NAPI poll in it */
	u64 serving; /* the softirq vector that runs, plus 1 */
	u64 packet; /* tag of the packet that the stack works on */
	u64 waker; /* tag of the packet whose socket calls its reader */
	u32 shard; /* which histograms and counters this CPU writes to; set by user space */
	u32 place; /* its row in the matrix of places; likewise */
	u64 irq_ns; /* the interrupt handler that runs */
	u64 gro_packet; /* tag of the packet handed to GRO */

	u64 next_raise_ns; /* first raise of NET_RX since its last entry */
	u64 next_irq_ns; /* the interrupt in which that was */
	u64 run_irq_ns; /* the same two of the run of NET_RX under way */
	u64 run_raise_ns;
	u32 node, llc; /* ~0: unknown; set by user space */
	u64 backlog_ns; /* entry of the last poll of the backlog */
	u64 unused[2];

	/* What the IP layer was given to send last: the sk_buff, when, by which function. */
	u64 ip_packet;
	u64 ip_ns;
	u64 ip_tcp_ns; /* tcp_transmit_skb() before it, or 0 */
	u64 tcp_ns; /* tcp_transmit_skb() whose segment is not with IP yet, or 0 */
	u64 ip_stage;
	u64 unused2[3];
};

/* max_entries of all but the first three are set by user space for this host. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << PACKET_SLOT_BITS);
	__type(key, u32);
	__type(value, struct packet);
} packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << TASK_SLOT_BITS);
	__type(key, u32);
	__type(value, struct task);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << SOCKET_SLOT_BITS);
	__type(key, u32);
	__type(value, struct socket);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* [shard][span] */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct histogram);
} histograms SEC(".maps");

/* [span][from place][to place], packets */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} places SEC(".maps");

/*
 * Number of a span, from 1, for a pair of stages; 0: no packet has passed them yet; ~0, set by user
 * space: no path joins them. Of all pairs few occur on a host, so each is given its number when
 * it first does, and memory is needed for as many as SPANS_MAX.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, STAGES_MAX * STAGES_MAX);
	__type(key, u32);
	__type(value, u32);
} span_of SEC(".maps");

/* Which numbers are taken, and by which pair: to enter a key that is there fails, so it is entered once. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SPANS_MAX);
	__type(key, u32);
	__type(value, u32);
} pair_of SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SPANS_MAX);
	__type(key, u32);
	__type(value, u32);
} number_of SEC(".maps");

u32 numbers_taken; /* about */

const volatile u32 place_count;
/* Whether samples that stay on their CPU are entered there as well; else they are what is left. */
const volatile bool place_all;

static __always_inline struct cpu *this_cpu(void)
{
	u32 number = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &number);
}

static __always_inline struct packet *packet_slot(u64 tag)
{
	/* sk_buffs are at least 64 bytes apart; the product's high bits mix all others. */
	u32 slot = (tag >> 6) * 0x9e3779b97f4a7c15ULL >> (64 - PACKET_SLOT_BITS);

	return bpf_map_lookup_elem(&packets, &slot);
}

static __always_inline struct socket *socket_slot(u64 sk)
{
	u32 slot = (sk >> 6) * 0x9e3779b97f4a7c15ULL >> (64 - SOCKET_SLOT_BITS);

	return bpf_map_lookup_elem(&sockets, &slot);
}

static __always_inline struct task *task_slot(u32 pid)
{
	u32 slot = pid & ((1 << TASK_SLOT_BITS) - 1);

	return bpf_map_lookup_elem(&tasks, &slot);
}

#define COUNT(cpu, what)                                                  \
	do {                                                                  \
		struct counters *counters_ = bpf_map_lookup_elem(&counters, &(cpu)->shard); \
		if (counters_)                                                    \
			__sync_fetch_and_add(&counters_->what, 1);                    \
	} while (0)

/*
 * Gives a pair a number, while other CPUs may do the same. 0: there is none left, or others were
 * quicker, and the next packet tries again.
 */
static __noinline u32 number_pair(u32 stages)
{
	u32 number, *known;

#pragma unroll
	for (int try = 0; try < 4; try++) {
		number = numbers_taken + 1;
		if (number > SPANS_MAX)
			return 0;
		numbers_taken = number;
		if (bpf_map_update_elem(&pair_of, &number, &stages, BPF_NOEXIST))
			continue;
		if (bpf_map_update_elem(&number_of, &stages, &number, BPF_NOEXIST)) {
			known = bpf_map_lookup_elem(&number_of, &stages);
			if (!known)
				return 0;
			number = *known;
		}
		known = bpf_map_lookup_elem(&span_of, &stages);
		if (known)
			*known = number;
		return number;
	}
	return 0;
}

/* Adds one latency to the span between two stages. `to` is the CPU that the program runs on. */
static __always_inline void add_span(struct cpu *to, u32 stages, u32 from_cpu, u64 ns)
{
	u32 span, index, *number;
	struct histogram *h;
	struct cpu *from;
	u64 *place;

	number = bpf_map_lookup_elem(&span_of, &stages);
	if (!number)
		return;
	span = *number;
	if (!span)
		span = number_pair(stages);
	if (--span >= SPANS_MAX) {
		COUNT(to, unexpected);
		return;
	}
	/* Clocks of two CPUs may differ by some nanoseconds. */
	if ((s64)ns < 0)
		ns = 0;
	index = to->shard * SPANS_MAX + span;
	h = bpf_map_lookup_elem(&histograms, &index);
	if (!h)
		return;
	histogram_add(h, ns);
	from = to;
	if (from_cpu == bpf_get_smp_processor_id()) {
		if (!place_all)
			return;
	} else {
		from = bpf_map_lookup_elem(&cpus, &from_cpu);
		if (!from)
			return;
		__sync_fetch_and_add(&h->other_cpu, 1);
		if (from->llc != to->llc)
			__sync_fetch_and_add(&h->other_llc, 1);
		if (from->node != to->node)
			__sync_fetch_and_add(&h->other_node, 1);
	}
	index = (span * place_count + from->place) * place_count + to->place;
	place = bpf_map_lookup_elem(&places, &index);
	if (place)
		__sync_fetch_and_add(place, 1);
}

static __always_inline u32 pair(u32 from, u32 to)
{
	return from * STAGES_MAX + to;
}

/* The same for rarer use, where a call costs less than the code. */
static __noinline void add_span_by_call(struct cpu *to, u32 stages, u32 from_cpu, u64 ns)
{
	add_span(to, stages, from_cpu, ns);
}

/* The packet passes a stage that lies back, on this CPU or on that of its sender. */
static __always_inline void pass_before(struct packet *p, struct cpu *cpu, u32 cpu_number, u32 stage,
					u64 ns)
{
	if (p->last_stage)
		add_span_by_call(cpu, pair(p->last_stage, stage), p->last_cpu, ns - p->last_ns);
	p->last_ns = ns;
	p->last_cpu = cpu_number;
	p->last_stage = stage;
}

/* The packet passes a stage now, on this CPU. */
static __always_inline void pass(struct packet *p, struct cpu *cpu, u32 cpu_number, u32 stage, u64 ns)
{
	if (p->last_stage)
		add_span(cpu, pair(p->last_stage, stage), p->last_cpu, ns - p->last_ns);
	p->last_ns = ns;
	p->last_cpu = cpu_number;
	p->last_stage = stage;
}

#endif
