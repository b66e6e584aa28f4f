/* SPDX-License-Identifier: GPL-2.0-only */
/* A packet passes a stage: the span since the previous stage is counted, and sent to user space if it was slow. */
#ifndef NEARPATH_SPAN_H
#define NEARPATH_SPAN_H

#include "history.h"
#include "group.h"

/*
 * Number of a span, from 1, for a pair of stages; 0: no packet has passed the pair yet; ~0, set by user space:
 * impossible. Few of all pairs occur on a host, so each gets its number when it first occurs, and memory is
 * needed for SPANS_MAX only.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, STAGES_MAX * STAGES_MAX);
	__type(key, u32);
	__type(value, u32);
} span_of SEC(".maps");

/* Which pair has which number: inserting an existing key fails, so each number is assigned once. */
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

u32 numbers_taken; /* approximate */

/*
 * Spans longer than `ns` are sent to user space, `left` of them at most, by number minus one; both are set by user space
 * during a measurement.
 */
struct slow {
	u64 ns;
	s64 left; /* approximate: two CPUs may send the last one */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SPANS_MAX);
	__type(key, u32);
	__type(value, struct slow);
} slow_spans SEC(".maps");

const volatile u32 row_count;
/* Whether samples that stay on their CPU are counted in the matrix as well; else they are the remainder. */
const volatile bool all_cpu_pairs;

/*
 * Assigns a number to a pair, possibly in competition with other CPUs. 0: none is free, or another CPU was
 * faster, and the next packet tries again.
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

/* Adds a latency to the span between two stages, which ends at end_ns. `to` is the current CPU. */
static __always_inline void add_span(struct cpu *to, u64 packet, u64 group, u32 stages, u32 from_cpu,
				     u64 end_ns, u64 ns)
{
	u32 span, index, *number;
	struct slow *slow;
	struct histogram *h;
	struct cpu *from;
	u64 *pair;

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
	enter_group(to, group, span + 1, from_cpu, ns);
	if (budgets) {
		slow = bpf_map_lookup_elem(&slow_spans, &span);
		if (slow && ns >= slow->ns && slow->left > 0) {
			slow->left--;
			send_outlier(packet, (u64)from_cpu << 32 | stages, end_ns, ns);
		}
	}
	from = to;
	if (from_cpu == bpf_get_smp_processor_id()) {
		if (!all_cpu_pairs)
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
	index = (span * row_count + from->row) * row_count + to->row;
	pair = bpf_map_lookup_elem(&cpu_pairs, &index);
	if (pair)
		__sync_fetch_and_add(pair, 1);
}

static __always_inline u32 pair(u32 from, u32 to)
{
	return from * STAGES_MAX + to;
}

/*
 * The same for rare use, where a call costs less than inlined code; not static, so that the verifier checks it
 * once. `from` is a CPU and two stages.
 */
__noinline int add_span_by_call(u64 packet, u64 group, u64 from, u64 end_ns, u64 ns)
{
	struct cpu *to = this_cpu();

	if (to)
		add_span(to, packet, group, from, from >> 32, end_ns, ns);
	return 0;
}

/* The path starts with its first stage. */
static __always_inline void begin_path(struct packet *p, u32 cpu_number, u32 stage, u64 ns)
{
	p->begin_ns = ns;
	p->begin_cpu = cpu_number;
	p->begin_stage = stage;
}

/* The packet passed a stage in the past, on this CPU or on that of its sender. */
static __always_inline void pass_before(struct packet *p, struct cpu *cpu, u32 cpu_number, u32 stage,
					u64 ns)
{
	add_hop(p->tag, cpu_number, stage, ns);
	if (p->last_stage)
		add_span_by_call(p->tag, p->group, (u64)p->last_cpu << 32 | pair(p->last_stage, stage), ns,
				 ns - p->last_ns);
	else
		begin_path(p, cpu_number, stage, ns);
	p->last_ns = ns;
	p->last_cpu = cpu_number;
	p->last_stage = stage;
}

/*
 * The packet passes a stage now, on this CPU. The packet is updated before the span is counted: another CPU may
 * be about to process the packet, and would count the span from the previous stage again.
 */
static __always_inline void pass(struct packet *p, struct cpu *cpu, u32 cpu_number, u32 stage, u64 ns)
{
	u32 from = p->last_stage, from_cpu = p->last_cpu;
	u64 span_ns = ns - p->last_ns;

	p->last_ns = ns;
	p->last_cpu = cpu_number;
	p->last_stage = stage;
	barrier();
	add_hop(p->tag, cpu_number, stage, ns);
	if (from)
		add_span(cpu, p->tag, p->group, pair(from, stage), from_cpu, ns, span_ns);
	else
		begin_path(p, cpu_number, stage, ns);
}

/* Counts all spans of a path that has ended in its group. */
__noinline int enter_path(u64 tag, u64 group)
{
	struct packet_path *t = BY_PROCESS ? packet_path_slot(tag) : 0;
	u32 passed;

	if (!t || t->tag != tag)
		return 0;
	passed = t->passed;
	/* Its address already belongs to another packet, which starts. */
	if (passed < 2)
		return 0;
	for (u32 i = 1; i < PACKET_PATH_HOPS; i++) {
		u32 stages, *number;
		hop before, s;
		s64 ns;

		if (i >= passed)
			break;
		before = t->hops[i - 1];
		s = t->hops[i];
		stages = pair(before & (STAGES_MAX - 1), s & (STAGES_MAX - 1));
		number = bpf_map_lookup_elem(&span_of, &stages);
		if (!number || !*number || *number > SPANS_MAX)
			continue;
		/* The low 40 bits of each time. */
		ns = (s64)((s & ~0xffffffULL) - (before & ~0xffffffULL)) >> 24;
		enter_cell(group, *number, before >> 8 & 0xffff, s >> 8 & 0xffff, ns < 0 ? 0 : ns);
	}
	count_packet(group);
	return 0;
}

/* The packet's path ends, or the relevant part of it, with the task that took it. */
static __always_inline void take(struct packet *p, u64 group)
{
	p->group = group;
	enter_path(p->tag, group);
}

/* At each end of a received packet's path: does the task that took it have to be recorded? */
#define TAKEN_BY(p, whose)                          \
	do {                                        \
		if (BY_PROCESS && !(p)->group)      \
			take(p, whose);             \
	} while (0)

#endif
