/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Chooses the socket of a REUSEPORT group that is nearest to the CPU on which a connection (or a
 * datagram) is received. In go two tables that user space fills, out comes a socket; where there is
 * none any more, the kernel chooses as it would without a program.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

/* The sockets. One that is closed leaves its slot empty. The sizes are set before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} sockets SEC(".maps");

/* Which part of `nearest` is that of a CPU. */
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

/* Slots of `sockets`, those that are equally near one after another. */
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
	/* The hash of addresses and ports: a flow stays with one of several that are as near. */
	at = part->first + (((u64)md->hash * part->count) >> 32);
	slot = bpf_map_lookup_elem(&nearest, &at);
	if (slot)
		bpf_sk_select_reuseport(md, &sockets, slot, 0);
	/* Without a socket selected SK_PASS leaves the choice to the kernel. */
	return SK_PASS;
}

char _license[] SEC("license") = "GPL";
