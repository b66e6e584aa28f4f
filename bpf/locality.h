/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The instrument "locality": sk_buffs in flight with the CPU that each comes from, the counters, and the events
 * of a packet's life: first received or sent, and freed.
 *
 * Packets are tracked as in skb_track.bpf.h.
 */
#ifndef NEARPATH_LOCALITY_H
#define NEARPATH_LOCALITY_H

#include "group_names.h"

#define SOCKET_SLOT_BITS 12

enum progress { HANDED_IN, IN_STACK, IN_SOCKET };

struct packet {
	u64 tag; /* address of the sk_buff */
	u32 cpu; /* that allocated it; if that is not observed, where it was first seen */
	u8 state;
	u8 progress; /* of a received packet */
	u16 unused;
};

/* Distance between two CPUs; same order as in crates/instruments/src/locality/measurement.rs. */
enum distance { SAME_CPU, SAME_CORE, SAME_LLC, SAME_NODE, OTHER_NODE, UNKNOWN_DISTANCE, DISTANCES };

/* By shard; crates/instruments/src/locality/reading.rs finds them by offset. */
struct counters {
	u64 started, dropped, collided, sampled_out, not_allocated, returned, unused[2];
	u64 rx[8], tx[8]; /* packets freed, by enum distance */
};

struct cpu {
	/* Set by user space; ~0: unknown. */
	u32 core, llc, node;
	u32 shard, row;
	u32 serving; /* the softirq vector that runs, plus 1; known only if packets are split by process */
	u64 packet; /* tag of the packet that the stack is processing */
	u64 gro_packet; /* tag of the packet handed to GRO */
	u64 given_dev; /* the device of the last sk_buff passed to the stack; see skb_track.bpf.h */
	u32 given_first, given_next;
	u64 unused2[1]; /* pads to a cache line */
	u64 given[16];
};

/* State of a socket, used if kernel functions cannot be observed. */
struct socket {
	u64 sk;
	u64 next; /* tag of the datagram that the next receive call takes, or 0 */
	u32 send_cpu; /* the CPU, plus 1, that last gave it data to send, or 0 */
	u32 early_cpu; /* the CPU, plus 1, of a receive call that returned before its datagram was signalled, or 0 */
	u64 early_sk; /* its socket, which may not have a slot yet */
	u64 returned; /* receive calls that returned, and those of them that have looked for what was signalled meanwhile */
	u64 looked;
	u64 fence; /* see fence() */
};

#include "skb_track.bpf.h"

_Static_assert(sizeof(((struct cpu *)0)->given) == 8 * GIVEN_MAX, "size of given");

/* max_entries is set by user space for this host. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct socket);
} sockets SEC(".maps");

/* By slot of the packet; a single entry if packets are not split. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} packet_groups SEC(".maps");

/* By group: packets freed, by enum distance. */
struct group_counts {
	u64 rx[8], tx[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct group_counts);
} group_counts SEC(".maps");

/* Initial counts of a new group. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct group_counts);
} new_counts SEC(".maps");

/* Whether allocation and free are observed directly; else a packet starts where it is first seen. */
const volatile bool exact;
const volatile u32 socket_mask;
const volatile u32 row_count;
/* Whether packets that stay on their CPU are counted in the matrix; else they are the remainder. */
const volatile bool all_cpu_pairs;

static __always_inline u64 *packet_group(u64 tag)
{
	u32 slot = packet_hash(tag);

	return bpf_map_lookup_elem(&packet_groups, &slot);
}

static __always_inline struct socket *socket_slot(u64 sk)
{
	u32 slot = ((sk >> 6) * 0x9e3779b97f4a7c15ULL >> (64 - SOCKET_SLOT_BITS)) & socket_mask;

	return bpf_map_lookup_elem(&sockets, &slot);
}

/* Assigns the slot to an sk_buff; another one in it is lost. */
static __always_inline void claim_slot(struct packet *p, struct cpu *cpu, u64 tag, u32 number, u32 state)
{
	if (p->tag != tag && is_followed(p))
		COUNT(cpu, collided);
	p->tag = tag;
	p->cpu = number;
	p->state = state;
	p->progress = HANDED_IN;
}

/* Distance of two different CPUs. */
static __always_inline u32 distance(struct cpu *a, struct cpu *b)
{
	if (a->core == b->core && a->core != ~0U)
		return SAME_CORE;
	if (a->llc == b->llc && a->llc != ~0U)
		return SAME_LLC;
	if (a->node == ~0U || b->node == ~0U)
		return UNKNOWN_DISTANCE;
	return a->node == b->node ? SAME_NODE : OTHER_NODE;
}

/* A packet of a group is freed. */
__noinline int count_in_group(u64 group, u32 transmit, u32 index)
{
	struct group_counts *c;
	u32 zero = 0;

	if (!per || !group)
		return 0;
	c = bpf_map_lookup_elem(&group_counts, &group);
	if (!c) {
		if (!bpf_map_lookup_elem(&groups, &group))
			make_group(group); /* no name: no process */
		c = bpf_map_lookup_elem(&new_counts, &zero);
		if (c)
			bpf_map_update_elem(&group_counts, &group, c, BPF_NOEXIST);
		c = bpf_map_lookup_elem(&group_counts, &group);
	}
	if (!c)
		return 0;
	if (transmit)
		__sync_fetch_and_add(&c->tx[index & 7], 1);
	else
		__sync_fetch_and_add(&c->rx[index & 7], 1);
	return 0;
}

/* The group of a packet: known since its start or, if it was received, the process that takes it. */
static __always_inline void end_in_group(struct packet *p, u64 process, u32 transmit, u32 index)
{
	u64 *group;

	if (BY_PROCESS && !transmit) {
		count_in_group(process, transmit, index);
		return;
	}
	group = packet_group(p->tag);
	if (group)
		count_in_group(*group, transmit, index);
}

/* A counted packet is freed on a CPU; `process` is the group of what takes it, if packets are split by process. */
static __always_inline void end_packet_on(struct packet *p, struct cpu *cpu, u32 on, u64 process, bool drop)
{
	u32 transmit = p->state == PACKET_TX, number = p->cpu, index;
	struct cpu *from = bpf_map_lookup_elem(&cpus, &number);
	struct counters *c = bpf_map_lookup_elem(&counters, &cpu->shard);
	u64 *pair;

	if (!from || !c)
		return;
	index = number == on ? SAME_CPU : distance(from, cpu);
	if (transmit)
		__sync_fetch_and_add(&c->tx[index], 1);
	else
		__sync_fetch_and_add(&c->rx[index], 1);
	if (drop)
		__sync_fetch_and_add(&c->dropped, 1);
	if (per)
		end_in_group(p, process, transmit, index);
	free_slot(p);
	if (index == SAME_CPU && !all_cpu_pairs)
		return;
	index = (transmit * row_count + from->row) * row_count + cpu->row;
	pair = bpf_map_lookup_elem(&cpu_pairs, &index);
	if (pair)
		__sync_fetch_and_add(pair, 1);
}

/* A counted packet is freed here. */
static __always_inline void end_packet(struct packet *p, struct cpu *cpu, bool drop)
{
	u64 process = NO_PROCESS;

	if (BY_PROCESS && p->state != PACKET_TX && !drop && !cpu->serving)
		process = group_of_current();
	end_packet_on(p, cpu, bpf_get_smp_processor_id(), process, drop);
}

/*
 * A packet is received or sent for the first time: is it observed? `number` is the CPU that it comes from,
 * `skb` the sk_buff with the headers, `header` as for begin_state().
 */
static __always_inline void begin(struct packet *p, struct cpu *cpu, u64 tag, struct sk_buff *skb, u32 number,
				  bool transmit, bool not_allocated, u64 header, const bool direct)
{
	u32 state = begin_state(cpu, skb, transmit, header, direct);

	if (state == PACKET_FREE) {
		/* It may still match on another device. No state is kept for unknown packets. */
		if (exact && p->tag == tag)
			claim_slot(p, cpu, tag, number, transmit ? PACKET_TX_NO_MATCH : PACKET_RX_NO_MATCH);
		else if (p->tag == tag)
			free_slot(p);
		return;
	}
	if (not_allocated && state >= PACKET_RX) {
		COUNT(cpu, not_allocated);
		state = transmit ? PACKET_TX_IGNORED : PACKET_RX_IGNORED;
	}
	claim_slot(p, cpu, tag, number, state);
	if (per && is_followed(p)) {
		u64 *group = packet_group(tag);

		if (group)
			*group = group_at_begin(address_of((u64)skb), transmit, cpu->serving, header);
	}
}

#endif
