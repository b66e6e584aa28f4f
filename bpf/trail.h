/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The stages that each packet under way has passed, in order: its trail. A packet with a slow span
 * has its trail sent up when its path ends, so that user space can tell the whole of it.
 *
 * A trail lies in an array of its own, in the slot that the packet's hash gives, so that packets
 * do not grow where no trails are kept.
 */
#ifndef NEARPATH_TRAIL_H
#define NEARPATH_TRAIL_H

#include "inflight.h"

/* Stages of a path that are kept; what it passes after them is not. A power of two. */
#define TRAIL_STEPS 32

/* ns << 24 | CPU << 8 | stage: the low 40 bits of the time, which user space completes. */
typedef u64 step;

struct trail {
	/* The packet's identity: its tag when it began, and when that was. */
	u64 packet;
	u64 begin_ns;
	u32 passed; /* how many stages */
	u32 slow; /* whether a span was sent up */
	step steps[TRAIL_STEPS];
	u64 tag; /* of the sk_buff that it is in now, or 0 */
};

/* Where crates/instruments/src/stages/trail.rs looks for them. */
_Static_assert(__builtin_offsetof(struct trail, passed) == 16, "offset of passed");
_Static_assert(__builtin_offsetof(struct trail, steps) == 24, "offset of steps");
_Static_assert(STAGES_MAX <= 256, "a stage has eight bits");

/* As many as trail_mask plus one, set by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct trail);
} trails SEC(".maps");

/* Of packets in user space (upcall.h); one where no trails are kept, set by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << UPCALL_BITS);
	__type(key, u32);
	__type(value, struct trail);
} trails_away SEC(".maps");

/* Slow packets and their trails. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} outliers SEC(".maps");

/* Whether trails are kept at all. */
const volatile bool has_trails;
const volatile u32 trail_mask;

/* The packet's trail, or 0 where a later one took its slot. */
static __always_inline struct trail *trail_slot(u64 tag)
{
	u32 slot = packet_hash(tag) & trail_mask;

	return bpf_map_lookup_elem(&trails, &slot);
}

static __always_inline void send_trail(struct trail *t)
{
	struct cpu *cpu;

	t->slow = false;
	if (bpf_ringbuf_output(&outliers, t, sizeof(*t), BPF_RB_NO_WAKEUP)) {
		cpu = this_cpu();
		if (cpu)
			COUNT(cpu, trails_lost);
	}
}

/*
 * The functions that follow are not static: so the verifier looks at each once, not at every call
 * with all that is known there, which would cost it a fifth of its time.
 */

/* A packet begins. The end of the one before it was not seen, if its trail is still to be sent. */
__noinline int enter_begin(u64 tag, u64 now)
{
	struct trail *t = has_trails ? trail_slot(tag) : 0;

	if (!t)
		return 0;
	if (t->slow)
		send_trail(t);
	t->packet = t->tag = tag;
	t->begin_ns = now;
	t->passed = 0;
	return 0;
}

__noinline int enter_end(u64 tag)
{
	struct trail *t = has_trails ? trail_slot(tag) : 0;

	if (!t || t->tag != tag)
		return 0;
	if (t->slow)
		send_trail(t);
	t->packet = t->tag = 0;
	return 0;
}

/* The trail is where the packet has gone. */
__noinline int enter_leave(u64 tag)
{
	struct trail *t = has_trails ? trail_slot(tag) : 0;

	if (!t || t->tag != tag)
		return 0;
	t->slow = false;
	t->packet = t->tag = 0;
	return 0;
}

/* The packet goes on as another sk_buff. */
__noinline int enter_transfer(u64 tag, u64 first_segment)
{
	struct trail *from, *to;

	if (!has_trails)
		return 0;
	from = trail_slot(tag);
	to = trail_slot(first_segment);
	if (!from || !to || from->tag != tag)
		return 0;
	if ((packet_hash(tag) ^ packet_hash(first_segment)) & trail_mask) {
		if (to->slow)
			send_trail(to);
		bpf_probe_read_kernel(to, sizeof(*to), from);
		from->slow = false;
		from->packet = from->tag = 0;
	}
	to->tag = first_segment;
	return 0;
}

/* A copy of the trail is kept while the packet is in user space, in a place of its own. */
__noinline int enter_away(u64 tag, u32 place)
{
	struct trail *from, *to;

	if (!has_trails)
		return 0;
	from = trail_slot(tag);
	to = bpf_map_lookup_elem(&trails_away, &place);
	if (!from || !to)
		return 0;
	to->tag = 0;
	if (from->tag == tag)
		bpf_probe_read_kernel(to, sizeof(*to), from);
	return 0;
}

__noinline int enter_back(u32 place, u64 tag)
{
	struct trail *from, *to;

	if (!has_trails)
		return 0;
	from = bpf_map_lookup_elem(&trails_away, &place);
	to = trail_slot(tag);
	if (!from || !to || !from->tag)
		return 0;
	if (to->slow)
		send_trail(to);
	bpf_probe_read_kernel(to, sizeof(*to), from);
	to->tag = tag;
	return 0;
}

static __always_inline void begin_trail(u64 tag, u64 now)
{
	if (has_trails)
		enter_begin(tag, now);
}

static __always_inline void add_step(u64 tag, u32 cpu, u32 stage, u64 ns)
{
	struct trail *t = has_trails ? trail_slot(tag) : 0;
	u32 passed;

	if (!t || t->tag != tag)
		return;
	passed = t->passed;
	if (passed < TRAIL_STEPS)
		t->steps[passed] = ns << 24 | (u64)(cpu & 0xffff) << 8 | stage;
	t->passed = passed + 1;
}

static __always_inline void end_trail(u64 tag)
{
	if (has_trails)
		enter_end(tag);
}

static __always_inline void forget_trail(u64 tag)
{
	if (has_trails)
		enter_leave(tag);
}

static __always_inline void transfer_trail(u64 tag, u64 first_segment)
{
	if (has_trails)
		enter_transfer(tag, first_segment);
}

static __always_inline void keep_trail(u64 tag, u32 place)
{
	if (has_trails)
		enter_away(tag, place);
}

static __always_inline void resume_trail(u32 place, u64 tag)
{
	if (has_trails)
		enter_back(place, tag);
}

/* The trail so far, for a packet that is sent up; at its end it will be sent up whole. */
static __always_inline void copy_trail(u64 tag, struct trail *copy)
{
	struct trail *t = has_trails && tag ? trail_slot(tag) : 0;

	copy->packet = 0;
	if (!t || t->tag != tag)
		return;
	t->slow = true;
	bpf_probe_read_kernel(copy, sizeof(*copy), t);
}

#endif
