/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Selects the socket of a REUSEPORT group nearest to the CPU on which a connection (or a datagram) is received.
 * Input: two tables that user space fills. Output: a socket; if it is gone, the kernel selects one as without a
 * program.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

/* The sockets. A closed one leaves its slot empty. Sizes are set before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} sockets SEC(".maps");

/* Each CPU's range in `nearest`. */
struct part {
	u32 first;
	u32 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct part);
} parts SEC(".maps");

/* Slots of `sockets`, equally near ones next to each other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} nearest SEC(".maps");

SEC("sk_reuseport") int nearpath_steer(struct sk_reuseport_md *md)
{
	u32 at = bpf_get_smp_processor_id();
	struct part *part = bpf_map_lookup_elem(&parts, &at);
	u32 *slot;

	if (!part)
		return SK_PASS;
	/* The hash of addresses and ports keeps a flow on the same one of several equally near sockets. */
	at = part->first + (((u64)md->hash * part->count) >> 32);
	slot = bpf_map_lookup_elem(&nearest, &at);
	if (slot)
		bpf_sk_select_reuseport(md, &sockets, slot, 0);
	/* If no socket is selected, SK_PASS leaves the choice to the kernel. */
	return SK_PASS;
}

char _license[] SEC("license") = "GPL";
