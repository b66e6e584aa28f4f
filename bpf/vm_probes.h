/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Only the probes of a benchmark: UDP datagrams that begin as crates/trial/src/latency/message.rs describes, of one
 * session, with numbers within bounds. All other packets pass the tap without being followed.
 */
#ifndef NEARPATH_VM_PROBES_H
#define NEARPATH_VM_PROBES_H

#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PROBE_MAGIC 0x6e704c31 /* "npL1" */
#define PROBE_KIND 1

/* Set by user space, the session last. 0: all packets are followed; ~0: none. */
struct only {
	u64 session;
	u64 first, end; /* numbers of the first probe that counts, and after the last */
	u64 since_ns; /* packets that were at the tap before are not counted */
};

volatile struct only only;

#define ONLY_NONE (~0ULL)

/* The start of a message. */
struct probe_header {
	__be32 magic;
	u8 kind, flags;
	__be16 reserved;
	__be32 size, flow;
	u64 session;
	u64 sequence; /* big-endian, too, until it is compared */
};

/* `at` is the address of the IP header, `end` where the contiguous part ends. */
static __always_inline bool is_probe_at(u64 at, u64 end)
{
	u64 session = only.session;
	struct probe_header header;
	u8 ip[10], length;

	if (session == ONLY_NONE || bpf_probe_read_kernel(ip, sizeof(ip), (void *)at))
		return false;
	if (ip[0] >> 4 == 4 && ip[9] == IPPROTO_UDP)
		length = (ip[0] & 0xf) * 4;
	else if (ip[0] >> 4 == 6 && ip[6] == IPPROTO_UDP)
		length = 40;
	else
		return false;
	/* Drivers copy more of a packet than this into its contiguous part. */
	at += length + 8;
	if (at + sizeof(header) > end || bpf_probe_read_kernel(&header, sizeof(header), (void *)at))
		return false;
	header.sequence = bpf_be64_to_cpu(header.sequence);
	return header.magic == bpf_htonl(PROBE_MAGIC) && header.kind == PROBE_KIND &&
	       header.session == bpf_cpu_to_be64(session) && header.sequence >= only.first &&
	       header.sequence < only.end;
}

static __always_inline bool is_probe(struct sk_buff *skb)
{
	u64 end = (u64)BPF_CORE_READ(skb, data) + BPF_CORE_READ(skb, len) - BPF_CORE_READ(skb, data_len);

	return is_probe_at((u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header), end);
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* The length has 16 or 32 bits, of which these are the lower (little-endian). */
struct xdp_frame {
	void *data;
	u16 len;
};

#pragma clang attribute pop

/* The same of a frame of XDP, without a VLAN tag. */
static __always_inline bool is_probe_frame(struct xdp_frame *frame)
{
	u64 data = (u64)BPF_CORE_READ(frame, data);

	return is_probe_at(data + 14, data + BPF_CORE_READ(frame, len));
}

#endif
