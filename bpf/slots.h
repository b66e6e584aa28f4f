/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets under way and CPUs, each in an array indexed directly. In go the structures packet, cpu and
 * counters, which an instrument defines before it includes this; struct packet has a tag, struct cpu a
 * shard.
 *
 * A packet's slot is found from a hash of the address of its sk_buff and tagged with that
 * address. When two packets meet in a slot the newer takes it and the older is counted as lost,
 * so a stage costs one lookup and the table never fills up.
 */
#ifndef NEARPATH_SLOTS_H
#define NEARPATH_SLOTS_H

#include "probe.h"

#define PACKET_SLOT_BITS 16

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << PACKET_SLOT_BITS);
	__type(key, u32);
	__type(value, struct packet);
} packets SEC(".maps");

/* max_entries of the others are set by user space for this host. */
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

/* [what][from place][to place], packets; what: the span, or whether it is sent */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} places SEC(".maps");

static __always_inline struct cpu *this_cpu(void)
{
	u32 number = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &number);
}

/* sk_buffs are at least 64 bytes apart; the product's high bits mix all others. */
static __always_inline u32 packet_hash(u64 tag)
{
	return (tag >> 6) * 0x9e3779b97f4a7c15ULL >> (64 - PACKET_SLOT_BITS);
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

#endif
