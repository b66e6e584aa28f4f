/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A packet's fingerprint: the header fields that neither Open vSwitch's datapath nor ovs-vswitchd changes in
 * transit (checksums are filled in, VLAN tags inserted into the packet). It identifies a packet when its bytes
 * come back in another sk_buff.
 */
#ifndef NEARPATH_FINGERPRINT_H
#define NEARPATH_FINGERPRINT_H

#include "group.h"

struct fingerprint {
	u64 flow; /* common to all segments of the packet; 0: no fingerprint */
	u64 rest;
	u32 sequence; /* of TCP; else the length: for a datagram to be segmented, that of one segment */
	u32 length; /* of the data, for TCP and UDP */
	u32 id, protocol;
};

static __always_inline u64 words(u32 a, u32 b)
{
	return (u64)a << 32 | b;
}

static __always_inline u64 key_of(struct fingerprint *fingerprint)
{
	return mix(fingerprint->flow, words(fingerprint->sequence, fingerprint->id)) | 1;
}

/* Fields of the transport header: `at` is its address, `linear` the length of its contiguous part. */
static __always_inline void fingerprint_transport(u64 at, u32 linear, u32 length, u32 protocol, u32 id,
					    u32 segment, struct fingerprint *fingerprint)
{
	u32 h[4] = {};

	if (linear < 8 || bpf_probe_read_kernel(h, linear < 16 ? 8 : 16, (void *)at))
		return;
	if (protocol == IPPROTO_TCP) {
		if (linear < 16)
			return;
		/*
		 * All segments of a packet have the ports and the acknowledgement; the first one also has its
		 * id.
		 */
		fingerprint->flow = mix(fingerprint->flow, words(h[0], h[2]));
		fingerprint->sequence = bpf_ntohl(h[1]);
		fingerprint->length = length - (bpf_ntohl(h[3]) >> 28) * 4;
		fingerprint->id = id;
		return;
	}
	/* Without the checksum, which is at offset 2 in ICMPv6, and at offset 6 in UDP, after the length. */
	if (protocol == IPPROTO_ICMPV6)
		h[0] &= bpf_htonl(0xffff0000);
	if (protocol == IPPROTO_UDP) {
		h[1] = 0;
		fingerprint->length = length - 8;
		/* The first segment has the packet's id. */
		if (segment && length > 8 + segment)
			length = 8 + segment;
	}
	fingerprint->flow = mix(fingerprint->flow, words(h[0], h[1]));
	fingerprint->sequence = length;
	fingerprint->id = id;
	if (linear >= 16)
		fingerprint->rest = mix(h[2], h[3]) | 1;
}

/*
 * Computes the fingerprint: `at` is the address of the IP header, `linear` the contiguous length from there,
 * `length` the length of the packet, `segment` the amount of data per segment, or 0.
 */
static __noinline u32 fingerprint_packet(u64 at, u32 linear, u32 length, u32 segment, struct fingerprint *fingerprint)
{
	u32 h[10] = {}, header, total, protocol, id = 0;

	if (!fingerprint)
		return 0;
	fingerprint->flow = fingerprint->rest = 0;
	fingerprint->sequence = fingerprint->length = fingerprint->id = fingerprint->protocol = 0;
	if (linear < 20 || bpf_probe_read_kernel(h, 20, (void *)at))
		return 0;
	if (bpf_ntohl(h[0]) >> 28 == 4) {
		header = (bpf_ntohl(h[0]) >> 24 & 0xf) * 4;
		total = bpf_ntohl(h[0]) & 0xffff;
		id = h[1];
		protocol = bpf_ntohl(h[2]) >> 16 & 0xff;
		fingerprint->flow = mix(words(h[3], h[4]), protocol);
	} else {
		if (linear < 40 || bpf_probe_read_kernel(h, 40, (void *)at))
			return 0;
		header = 40;
		total = header + (bpf_ntohl(h[1]) >> 16);
		protocol = bpf_ntohl(h[1]) >> 8 & 0xff;
		fingerprint->flow = mix(mix(words(h[2], h[3]), words(h[4], h[5])), protocol);
		fingerprint->flow = mix(mix(fingerprint->flow, words(h[6], h[7])), words(h[8], h[9]));
	}
	/* A short frame has padding after the packet. */
	if (protocol != IPPROTO_TCP) {
		length = total;
		if (linear > total)
			linear = total;
	}
	if (linear < header || length < header)
		return 0;
	fingerprint->protocol = protocol;
	fingerprint_transport(at + header, linear - header, length - header, protocol, id, segment, fingerprint);
	return 0;
}

/* Amount of data per segment of a packet that is to be segmented or was merged; else 0. */
static __always_inline u32 segment_of(struct sk_buff *skb)
{
	struct skb_shared_info *shared =
		(struct skb_shared_info *)((u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, end));

	return BPF_CORE_READ(shared, gso_size);
}

/* Fingerprint of a packet in the datapath, which has located its headers. */
static __always_inline void fingerprint_known(u64 pointer, struct fingerprint *fingerprint)
{
	struct sk_buff *skb = (struct sk_buff *)pointer;
	u64 at = (u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header);
	u32 before = at - (u64)BPF_CORE_READ(skb, data);
	u32 length = BPF_CORE_READ(skb, len) - before;

	fingerprint_packet(at, length - BPF_CORE_READ(skb, data_len), length, segment_of(skb), fingerprint);
}

/* Fingerprint of a packet of which only the bytes are known, from the Ethernet header on. */
static __always_inline void fingerprint_frame(u64 pointer, struct fingerprint *fingerprint)
{
	struct sk_buff *skb = (struct sk_buff *)pointer;
	u64 at = (u64)BPF_CORE_READ(skb, data);
	u32 length = BPF_CORE_READ(skb, len);
	u16 type = 0;

	fingerprint->flow = 0;
#pragma unroll
	for (int tags = 0; tags < 3; tags++) {
		if (bpf_probe_read_kernel(&type, sizeof(type), (void *)(at + 12 + 4 * tags)))
			return;
		type = bpf_ntohs(type);
		if (type == ETH_P_IP || type == ETH_P_IPV6) {
			length -= 14 + 4 * tags;
			fingerprint_packet(at + 14 + 4 * tags, length, length, 0, fingerprint);
			return;
		}
		if (type != ETH_P_8021Q && type != ETH_P_8021AD)
			return;
	}
}

#endif
