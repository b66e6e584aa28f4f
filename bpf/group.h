/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets by group (group_names.h). Each span is counted a second time, in the histogram of its packet's group:
 * its cell.
 *
 * Cells are created when first needed, in a hash map of fixed size, like groups. For CPU and node each span has
 * its own group. The receiving task is known only at the end of a path, so its spans are counted then, from the
 * recorded path.
 *
 * Functions here are not static, to save verification time (see packet_path.h). Older kernels verify such a
 * function even if nothing calls it, so each one first checks whether it is needed.
 */
#ifndef NEARPATH_GROUP_H
#define NEARPATH_GROUP_H

#include "packet_path.h"
#include "group_names.h"

#define CELLS_MAX 8192

/* [group << 8 | span], the span by its number from 1; max_entries are set by user space */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct histogram);
} cells SEC(".maps");

/* Initial value of a new cell. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct histogram);
} new_cell SEC(".maps");

/* Latencies whose cell did not fit. */
u64 ungrouped_spans;

/* Thresholds: paths longer than each are counted; unused ones hold the largest number. */
const volatile u64 above_ns[ABOVE_MAX];

static __always_inline void count_above(struct histogram *h, u64 ns)
{
#pragma unroll
	for (int i = 0; i < ABOVE_MAX; i++) {
		if (ns > above_ns[i])
			__sync_fetch_and_add(&h->above[i], 1);
	}
}

/* Counts a span that ended on `to` in the cell of its group; `span` is its number, or that of a path (path.h). */
__noinline int enter_cell(u64 group, u32 span, u32 from, u32 to, u64 ns)
{
	u64 key = group << 8 | span;
	struct histogram *h;
	struct cpu *a, *b;
	u32 zero = 0;

	if (!per)
		return 0;
	h = bpf_map_lookup_elem(&cells, &key);
	if (!h) {
		if (!bpf_map_lookup_elem(&groups, &group) && !make_group(group) &&
		    !bpf_map_lookup_elem(&groups, &group))
			return 0; /* counted as an ungrouped packet already */
		h = bpf_map_lookup_elem(&new_cell, &zero);
		if (h)
			bpf_map_update_elem(&cells, &key, h, BPF_NOEXIST);
		h = bpf_map_lookup_elem(&cells, &key);
	}
	if (!h) {
		__sync_fetch_and_add(&ungrouped_spans, 1);
		return 0;
	}
	histogram_add(h, ns);
	if (span > SPANS_MAX)
		count_above(h, ns);
	if (from == to)
		return 0;
	a = bpf_map_lookup_elem(&cpus, &from);
	b = bpf_map_lookup_elem(&cpus, &to);
	if (!a || !b)
		return 0;
	__sync_fetch_and_add(&h->other_cpu, 1);
	if (a->llc != b->llc)
		__sync_fetch_and_add(&h->other_llc, 1);
	if (a->node != b->node)
		__sync_fetch_and_add(&h->other_node, 1);
	return 0;
}

/* A span of a packet of this group (0: unknown) ends on this CPU. */
static __always_inline void enter_group(struct cpu *to, u64 group, u32 span, u32 from, u64 ns)
{
	u32 number = bpf_get_smp_processor_id();

	if (!per)
		return;
	if (per == PER_CPU)
		group = number + 1;
	else if (per == PER_NODE)
		group = (u64)to->node + 1;
	if (group)
		enter_cell(group, span, from, number, ns);
}

/* A packet starts. */
static __always_inline void begin_group(struct packet *p, struct cpu *cpu, bool transmit, u64 header)
{
	u64 group;

	if (!per)
		return;
	p->group = NO_GROUP;
	if (per == PER_CPU)
		group = bpf_get_smp_processor_id() + 1;
	else if (per == PER_NODE)
		group = (u64)cpu->node + 1;
	else
		group = p->group = group_at_begin(p->tag, transmit, cpu->serving != 0, header);
	if (group)
		count_packet(group);
}

#endif
