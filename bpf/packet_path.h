/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The stages that each packet in flight has passed, in order: its recorded path. If a span of the packet was
 * slow, the recorded path is sent to user space when it ends, so that the whole of it can be shown.
 *
 * Recorded paths are kept in a separate array, indexed by the slot of the packet's hash, so that packets do not
 * grow when paths are not recorded.
 */
#ifndef NEARPATH_PACKET_PATH_H
#define NEARPATH_PACKET_PATH_H

#include "inflight.h"

/* Maximum recorded stages; later ones are not recorded. A power of two. */
#define PACKET_PATH_HOPS 32

/* ns << 24 | CPU << 8 | stage: the low 40 bits of the time, which user space extends. */
typedef u64 hop;

struct packet_path {
	/* The packet's identity: its tag at the start, and when it started. */
	u64 packet;
	u64 begin_ns;
	u32 passed; /* number of stages */
	u32 slow; /* whether a span was sent up */
	hop hops[PACKET_PATH_HOPS];
	u64 tag; /* of its current sk_buff, or 0 */
};

/* Layout shared with crates/instruments/src/stages/packet_path.rs. */
_Static_assert(__builtin_offsetof(struct packet_path, passed) == 16, "offset of passed");
_Static_assert(__builtin_offsetof(struct packet_path, hops) == 24, "offset of hops");
_Static_assert(STAGES_MAX <= 256, "a stage has eight bits");

/* As many as packet_path_mask plus one, set by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct packet_path);
} packet_paths SEC(".maps");

/* Of packets in user space (upcall.h); a single entry if paths are not recorded; set by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << UPCALL_BITS);
	__type(key, u32);
	__type(value, struct packet_path);
} packet_paths_away SEC(".maps");

/* Slow packets and their recorded paths; its size is set by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} outliers SEC(".maps");

/* Whether paths are recorded at all. */
const volatile bool has_packet_paths;
const volatile u32 packet_path_mask;

/* The packet's recorded path, or 0 if its slot was reused. */
static __always_inline struct packet_path *packet_path_slot(u64 tag)
{
	u32 slot = packet_hash(tag) & packet_path_mask;

	return bpf_map_lookup_elem(&packet_paths, &slot);
}

static __always_inline void send_packet_path(struct packet_path *t)
{
	struct cpu *cpu;

	t->slow = false;
	if (bpf_ringbuf_output(&outliers, t, sizeof(*t), BPF_RB_NO_WAKEUP)) {
		cpu = this_cpu();
		if (cpu)
			COUNT(cpu, packet_paths_lost);
	}
}

/*
 * The following functions are not static: the verifier then checks each one once instead of inlined at each
 * call, with the state known there, which would cost a fifth of its time.
 */

/* A packet starts. If a recorded path is still unsent in the slot, the end of the packet before was missed. */
__noinline int enter_begin(u64 tag, u64 now)
{
	struct packet_path *t = has_packet_paths ? packet_path_slot(tag) : 0;

	if (!t)
		return 0;
	if (t->slow)
		send_packet_path(t);
	t->packet = t->tag = tag;
	t->begin_ns = now;
	t->passed = 0;
	return 0;
}

__noinline int enter_end(u64 tag)
{
	struct packet_path *t = has_packet_paths ? packet_path_slot(tag) : 0;

	if (!t || t->tag != tag)
		return 0;
	if (t->slow)
		send_packet_path(t);
	t->packet = t->tag = 0;
	return 0;
}

/* Follows the packet to its new sk_buff. */
__noinline int enter_leave(u64 tag)
{
	struct packet_path *t = has_packet_paths ? packet_path_slot(tag) : 0;

	if (!t || t->tag != tag)
		return 0;
	t->slow = false;
	t->packet = t->tag = 0;
	return 0;
}

/* The packet continues as another sk_buff. */
__noinline int enter_transfer(u64 tag, u64 first_segment)
{
	struct packet_path *from, *to;

	if (!has_packet_paths)
		return 0;
	from = packet_path_slot(tag);
	to = packet_path_slot(first_segment);
	if (!from || !to || from->tag != tag)
		return 0;
	if ((packet_hash(tag) ^ packet_hash(first_segment)) & packet_path_mask) {
		if (to->slow)
			send_packet_path(to);
		bpf_probe_read_kernel(to, sizeof(*to), from);
		from->slow = false;
		from->packet = from->tag = 0;
	}
	to->tag = first_segment;
	return 0;
}

/* While the packet is in user space, a copy of its recorded path is kept separately. */
__noinline int enter_away(u64 tag, u32 index)
{
	struct packet_path *from, *to;

	if (!has_packet_paths)
		return 0;
	from = packet_path_slot(tag);
	to = bpf_map_lookup_elem(&packet_paths_away, &index);
	if (!from || !to)
		return 0;
	to->tag = 0;
	if (from->tag == tag)
		bpf_probe_read_kernel(to, sizeof(*to), from);
	return 0;
}

__noinline int enter_back(u32 index, u64 tag)
{
	struct packet_path *from, *to;

	if (!has_packet_paths)
		return 0;
	from = bpf_map_lookup_elem(&packet_paths_away, &index);
	to = packet_path_slot(tag);
	if (!from || !to || !from->tag)
		return 0;
	if (to->slow)
		send_packet_path(to);
	bpf_probe_read_kernel(to, sizeof(*to), from);
	to->tag = tag;
	return 0;
}

static __always_inline void begin_packet_path(u64 tag, u64 now)
{
	if (has_packet_paths)
		enter_begin(tag, now);
}

static __always_inline void add_hop(u64 tag, u32 cpu, u32 stage, u64 ns)
{
	struct packet_path *t = has_packet_paths ? packet_path_slot(tag) : 0;
	u32 passed;

	if (!t || t->tag != tag)
		return;
	passed = t->passed;
	if (passed < PACKET_PATH_HOPS)
		t->hops[passed] = ns << 24 | (u64)(cpu & 0xffff) << 8 | stage;
	t->passed = passed + 1;
}

static __always_inline void end_packet_path(u64 tag)
{
	if (has_packet_paths)
		enter_end(tag);
}

static __always_inline void forget_packet_path(u64 tag)
{
	if (has_packet_paths)
		enter_leave(tag);
}

static __always_inline void transfer_packet_path(u64 tag, u64 first_segment)
{
	if (has_packet_paths)
		enter_transfer(tag, first_segment);
}

static __always_inline void keep_packet_path(u64 tag, u32 index)
{
	if (has_packet_paths)
		enter_away(tag, index);
}

static __always_inline void resume_packet_path(u32 index, u64 tag)
{
	if (has_packet_paths)
		enter_back(index, tag);
}

/* The path recorded so far, for a packet that is sent now; it is sent again, complete, at its end. */
static __always_inline void copy_packet_path(u64 tag, struct packet_path *copy)
{
	struct packet_path *t = has_packet_paths && tag ? packet_path_slot(tag) : 0;

	copy->packet = 0;
	if (!t || t->tag != tag)
		return;
	t->slow = true;
	bpf_probe_read_kernel(copy, sizeof(*copy), t);
}

#endif
