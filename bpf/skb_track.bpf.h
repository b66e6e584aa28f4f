/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracks packets by the address of their sk_buff: start, the same packet or a new one at the same address, end.
 * Requires the structures packet, cpu and counters, which an instrument defines before it includes this; struct
 * packet has a tag and a state, struct cpu a shard and the fields given*, struct counters started, sampled_out
 * and collided.
 *
 * The slot of a packet is found from a hash of the address of its sk_buff and tagged with that address. If two
 * packets collide in a slot, the newer takes it and the older is counted as lost, so a stage costs one lookup
 * and the table never fills up.
 *
 * The kernel frees many packets without a tracepoint and reuses their addresses. So an incoming sk_buff is the
 * packet in the slot only if the stack can be processing that packet now; otherwise a new packet starts. This
 * applies to packets that are tracked and to those that are not sampled, which keep their slot so that they are
 * counted once.
 */
#ifndef NEARPATH_SKB_TRACK_BPF_H
#define NEARPATH_SKB_TRACK_BPF_H

#include "filter.h"
#include "packet_slot.h"

/* Packets that a driver passes to the stack before the first one is processed; others pass eight. */
#define GIVEN_MAX 16

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << PACKET_SLOT_BITS);
	__type(key, u32);
	__type(value, struct packet);
} packets SEC(".maps");

/* max_entries of the others is set by user space for this host. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* By shard. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* [what][from row][to row], packets; what: the span, or whether it is sent */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} cpu_pairs SEC(".maps");

/*
 * Packets start only while this is set: after all programs are attached and until the first is detached, so
 * that no path is partial.
 */
volatile u32 active;

static __always_inline struct cpu *this_cpu(void)
{
	u32 number = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &number);
}

static __always_inline struct packet *packet_slot(u64 tag)
{
	u32 slot = packet_hash(tag);

	return bpf_map_lookup_elem(&packets, &slot);
}

#define COUNT(cpu, what)                                                  \
	do {                                                                  \
		struct counters *counters_ = bpf_map_lookup_elem(&counters, &(cpu)->shard); \
		if (counters_)                                                    \
			__sync_fetch_and_add(&counters_->what, 1);                    \
	} while (0)

static __always_inline bool is_followed(struct packet *p)
{
	return p->state >= PACKET_RX;
}

/* Whether the slot holds this sk_buff, received and not sampled. */
static __always_inline bool is_ignored(struct packet *p, u64 tag)
{
	return p->tag == tag && p->state == PACKET_RX_IGNORED;
}

static __always_inline void free_slot(struct packet *p)
{
	p->tag = 0;
	p->state = PACKET_FREE;
}

/*
 * The state of a packet that is first received or sent: tracked, ignored, or PACKET_FREE if it does not match.
 * `header` is the address of its network header, or 0 to use that of the sk_buff.
 */
static __always_inline u32 begin_state(struct cpu *cpu, struct sk_buff *skb, bool transmit, u64 header,
				       const bool direct)
{
	switch (active ? filter_match(skb, transmit, header, direct) : NO_MATCH) {
	case MATCH:
		COUNT(cpu, started);
		return transmit ? PACKET_TX : PACKET_RX;
	case NOT_SAMPLED:
		COUNT(cpu, sampled_out);
		return transmit ? PACKET_TX_IGNORED : PACKET_RX_IGNORED;
	default:
		return PACKET_FREE;
	}
}

/* A device passes an sk_buff to the stack on this CPU. */
static __always_inline void give(struct cpu *cpu, u64 tag, u64 dev)
{
	cpu->given[cpu->given_next++ % GIVEN_MAX] = tag;
	cpu->given_dev = dev;
}

/* The sk_buffs passed so far have been delivered, or are gone. */
static __always_inline void forget_given(struct cpu *cpu)
{
	cpu->given_first = cpu->given_next;
}

/*
 * Whether an incoming sk_buff is the last one that was passed to the stack here, by another device on which
 * this one is stacked, such as a bridge or a tunnel. From the same device it is a new packet.
 */
static __always_inline bool is_given_on(struct cpu *cpu, u64 tag, u64 dev)
{
	return cpu->given[(cpu->given_next - 1) % GIVEN_MAX] == tag && cpu->given_dev != dev;
}

/* Whether an sk_buff holds a datagram for a port, in host order. */
static __always_inline bool is_datagram_to(u64 tag, u16 port)
{
	struct sk_buff *skb = (struct sk_buff *)tag;
	u64 head = (u64)BPF_CORE_READ(skb, head);
	u64 at = head + BPF_CORE_READ(skb, network_header);
	u8 version = 0, protocol = 0;
	u16 ports[2] = {};

	if (bpf_probe_read_kernel(&version, sizeof(version), (void *)at) ||
	    bpf_probe_read_kernel(&protocol, sizeof(protocol), (void *)(at + (version >> 4 == 4 ? 9 : 6))) ||
	    (version >> 4 == 4 && protocol != IPPROTO_UDP))
		return false;
	at = head + BPF_CORE_READ(skb, transport_header);
	return !bpf_probe_read_kernel(ports, sizeof(ports), (void *)at) && bpf_ntohs(ports[1]) == port;
}

/* Whether the slot of an sk_buff holds a packet that has not reached its socket yet, on a CPU. */
static __always_inline bool awaits_delivery(u64 tag, u32 number);

/*
 * The datagram whose arrival a socket signals here. That is the last one in its queue, unless another CPU has
 * queued one after it, or a fast reader has taken it: then it is the first one that was passed to the stack for
 * the port and is not delivered yet. (A driver passes several before the first one is processed.) 0: none of
 * this CPU.
 */
static __always_inline u64 delivered_datagram(struct cpu *cpu, u32 number, u64 last, u16 port)
{
	u32 at = cpu->given_first, next = cpu->given_next;

	if (awaits_delivery(last, number))
		return last;
	if (next - at > GIVEN_MAX)
		at = next - GIVEN_MAX;
	for (int i = 0; i < GIVEN_MAX; i++, at++) {
		u64 tag = cpu->given[at % GIVEN_MAX];

		if (at == next)
			break;
		if (awaits_delivery(tag, number) && is_datagram_to(tag, port)) {
			cpu->given_first = at;
			return tag;
		}
	}
	return 0;
}

#endif
