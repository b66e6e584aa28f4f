/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Moves received packets of a class (VLAN priority, DSCP, source address) to a CPU: an XDP program with a CPUMAP, for
 * NICs that cannot steer them to a queue. Input: a table for each kind of class, which user space fills. All other
 * packets are received as without it.
 */
#include "vmlinux.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define TAGS_MAX 2

/* The CPUs that packets are moved to, each with the length of its queue. Sized before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} cpus SEC(".maps");

/* The CPU of each class, plus 1; 0: none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8);
	__type(key, u32);
	__type(value, u32);
} pcp_cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u32);
} dscp_cpus SEC(".maps");

struct address {
	u8 bytes[16]; /* IPv4 as ::ffff:a.b.c.d */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct address);
	__type(value, u32);
} source_cpus SEC(".maps");

/* Whether packets are looked at as deep as this. */
const volatile bool reads_ip;

struct tag {
	__be16 tci, protocol;
};

static __always_inline bool is_tag(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* The CPU of an IP packet, plus 1. */
static __always_inline u32 cpu_of_ip(u8 *at, void *end, __be16 protocol)
{
	struct address source = {};
	u32 dscp, *cpu;

	if (protocol == bpf_htons(ETH_P_IP)) {
		if (at + 20 > (u8 *)end)
			return 0;
		dscp = at[1] >> 2;
		source.bytes[10] = source.bytes[11] = 0xff;
		__builtin_memcpy(source.bytes + 12, at + 12, 4);
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (at + 40 > (u8 *)end)
			return 0;
		dscp = ((at[0] << 4 | at[1] >> 4) & 0xff) >> 2;
		__builtin_memcpy(source.bytes, at + 8, 16);
	} else {
		return 0;
	}
	cpu = bpf_map_lookup_elem(&dscp_cpus, &dscp);
	if (cpu && *cpu)
		return *cpu;
	cpu = bpf_map_lookup_elem(&source_cpus, &source);
	return cpu ? *cpu : 0;
}

SEC("xdp") int nearpath_prio(struct xdp_md *md)
{
	u8 *at = (u8 *)(long)md->data;
	void *end = (void *)(long)md->data_end;
	u32 found = 0, pcp, *cpu;
	__be16 protocol;

	if (at + 14 > (u8 *)end)
		return XDP_PASS;
	protocol = *(__be16 *)(at + 12);
	at += 14;
#pragma unroll
	for (int i = 0; i < TAGS_MAX; i++) {
		struct tag *tag = (struct tag *)at;

		if (!is_tag(protocol))
			break;
		if ((void *)(tag + 1) > end)
			return XDP_PASS;
		if (i == 0) {
			pcp = bpf_ntohs(tag->tci) >> 13;
			cpu = bpf_map_lookup_elem(&pcp_cpus, &pcp);
			if (cpu)
				found = *cpu;
		}
		protocol = tag->protocol;
		at += sizeof(*tag);
	}
	if (!found && reads_ip)
		found = cpu_of_ip(at, end, protocol);
	return found ? bpf_redirect_map(&cpus, found - 1, XDP_PASS) : XDP_PASS;
}

char _license[] SEC("license") = "GPL";
