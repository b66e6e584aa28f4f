/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whole paths: the time from the first observed stage of a packet to its end, once per packet, by kind of path.
 * Only a path that was followed to its end counts: not that of a packet that is dropped, merged into another,
 * or that nobody reads (a bare acknowledgement).
 */
#ifndef NEARPATH_PATH_H
#define NEARPATH_PATH_H

#include "span.h"

/* Same order as in crates/instruments/src/stages/path.rs. */
enum path_kind {
	PATH_RECEIVE_FROM_NIC, /* from the NIC's timestamp to its reader */
	PATH_RECEIVE, /* to its reader */
	PATH_FORWARD_FROM_NIC,
	PATH_FORWARD, /* to the queue of the device that forwards it */
	PATH_TRANSMIT, /* from the send call until it is sent */
	PATH_KERNEL_TRANSMIT, /* sent outside of a send call, until it is sent */
	PATH_WATCH, /* from the kernel's receive stamp to its reader, of every packet: watch.h */
	PATHS,
};

/* In a group's cells (group.h), whole paths come after the spans. */
#define PATH_CELLS (SPANS_MAX + 1)

/* Whether send calls can be observed; if not, every packet sent is PATH_TRANSMIT. */
const volatile bool has_sock_send = true;

/* [shard][path]; max_entries set by user space */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct histogram);
} path_histograms SEC(".maps");

/* A path of this many nanoseconds ends on this CPU. Not static, to save verification time (see packet_path.h). */
__noinline int count_path(u64 group, u32 path, u32 begin_cpu, u64 ns)
{
	u32 number = bpf_get_smp_processor_id(), index;
	struct cpu *to = this_cpu(), *from;
	struct histogram *h;

	if (!to || path >= PATHS)
		return 0;
	/* Clocks of two CPUs may differ by some nanoseconds. */
	if ((s64)ns < 0)
		ns = 0;
	index = to->shard * PATHS + path;
	h = bpf_map_lookup_elem(&path_histograms, &index);
	if (!h)
		return 0;
	histogram_add(h, ns);
	count_above(h, ns);
	enter_group(to, group, PATH_CELLS + path, begin_cpu, ns);
	if (begin_cpu == number)
		return 0;
	from = bpf_map_lookup_elem(&cpus, &begin_cpu);
	if (!from)
		return 0;
	__sync_fetch_and_add(&h->other_cpu, 1);
	if (from->llc != to->llc)
		__sync_fetch_and_add(&h->other_llc, 1);
	if (from->node != to->node)
		__sync_fetch_and_add(&h->other_node, 1);
	return 0;
}

/* The packet's path has ended at its last stage, as a path of its kind must. */
static __always_inline void end_path(struct packet *p, u32 path)
{
	/* Paths with a NIC timestamp are longer by one part than those without: they are counted separately. */
	if (p->begin_stage == RX_NIC_RX)
		path = path == PATH_RECEIVE ? PATH_RECEIVE_FROM_NIC : PATH_FORWARD_FROM_NIC;
	count_path(p->group, path, p->begin_cpu, p->last_ns - p->begin_ns);
}

/* The same for a packet that is sent. */
static __always_inline void end_transmit(struct packet *p)
{
	bool by_call = p->begin_stage == TX_SOCK_SEND || p->begin_stage == TX_TCP_SENDMSG;

	end_path(p, by_call || !has_sock_send ? PATH_TRANSMIT : PATH_KERNEL_TRANSMIT);
}

#endif
