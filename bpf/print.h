/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A packet's print: what its headers say in fields that neither Open vSwitch's datapath nor
 * ovs-vswitchd changes on the way (checksums are filled in, VLAN tags put into the packet). By it a
 * packet is known again when its bytes come back in another sk_buff.
 */
#ifndef NEARPATH_PRINT_H
#define NEARPATH_PRINT_H

#include "group.h"

struct print {
	u64 flow; /* all that the segments of a packet have in common; 0: not printed */
	u64 rest;
	u32 sequence; /* of TCP; else the length, of a datagram that is to be segmented that of a segment */
	u32 length; /* of the data, of TCP and UDP */
	u32 id, protocol;
};

static __always_inline u64 words(u32 a, u32 b)
{
	return (u64)a << 32 | b;
}

static __always_inline u64 key_of(struct print *print)
{
	return mix(print->flow, words(print->sequence, print->id)) | 1;
}

/* What the transport's header says: `at` is its address, `linear` how much of it is in one piece. */
static __always_inline void print_transport(u64 at, u32 linear, u32 length, u32 protocol, u32 id,
					    u32 segment, struct print *print)
{
	u32 h[4] = {};

	if (linear < 8 || bpf_probe_read_kernel(h, linear < 16 ? 8 : 16, (void *)at))
		return;
	if (protocol == IPPROTO_TCP) {
		if (linear < 16)
			return;
		/* All of a packet's segments have the ports and the acknowledgement; the first also its id. */
		print->flow = mix(print->flow, words(h[0], h[2]));
		print->sequence = bpf_ntohl(h[1]);
		print->length = length - (bpf_ntohl(h[3]) >> 28) * 4;
		print->id = id;
		return;
	}
	/* Without the checksum: it stands at 2 of ICMPv6 and at 6 of UDP, there behind the length. */
	if (protocol == IPPROTO_ICMPV6)
		h[0] &= bpf_htonl(0xffff0000);
	if (protocol == IPPROTO_UDP) {
		h[1] = 0;
		print->length = length - 8;
		/* Its first segment has its id. */
		if (segment && length > 8 + segment)
			length = 8 + segment;
	}
	print->flow = mix(print->flow, words(h[0], h[1]));
	print->sequence = length;
	print->id = id;
	if (linear >= 16)
		print->rest = mix(h[2], h[3]) | 1;
}

/*
 * Prints a packet: `at` is the address of its IP header, `linear` how much of it is in one piece
 * from there, `length` how long it is, `segment` how much data each of its segments has, or 0.
 */
static __noinline u32 print_packet(u64 at, u32 linear, u32 length, u32 segment, struct print *print)
{
	u32 h[10] = {}, header, total, protocol, id = 0;

	if (!print)
		return 0;
	print->flow = print->rest = 0;
	print->sequence = print->length = print->id = print->protocol = 0;
	if (linear < 20 || bpf_probe_read_kernel(h, 20, (void *)at))
		return 0;
	if (bpf_ntohl(h[0]) >> 28 == 4) {
		header = (bpf_ntohl(h[0]) >> 24 & 0xf) * 4;
		total = bpf_ntohl(h[0]) & 0xffff;
		id = h[1];
		protocol = bpf_ntohl(h[2]) >> 16 & 0xff;
		print->flow = mix(words(h[3], h[4]), protocol);
	} else {
		if (linear < 40 || bpf_probe_read_kernel(h, 40, (void *)at))
			return 0;
		header = 40;
		total = header + (bpf_ntohl(h[1]) >> 16);
		protocol = bpf_ntohl(h[1]) >> 8 & 0xff;
		print->flow = mix(mix(words(h[2], h[3]), words(h[4], h[5])), protocol);
		print->flow = mix(mix(print->flow, words(h[6], h[7])), words(h[8], h[9]));
	}
	/* A short frame is filled up behind the packet. */
	if (protocol != IPPROTO_TCP) {
		length = total;
		if (linear > total)
			linear = total;
	}
	if (linear < header || length < header)
		return 0;
	print->protocol = protocol;
	print_transport(at + header, linear - header, length - header, protocol, id, segment, print);
	return 0;
}

/* How much data each segment has of a packet that is to be segmented, or has been put together of some; or 0. */
static __always_inline u32 segment_of(struct sk_buff *skb)
{
	struct skb_shared_info *shared =
		(struct skb_shared_info *)((u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, end));

	return BPF_CORE_READ(shared, gso_size);
}

/* Prints a packet in the datapath, which has found its headers. */
static __always_inline void print_known(u64 pointer, struct print *print)
{
	struct sk_buff *skb = (struct sk_buff *)pointer;
	u64 at = (u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header);
	u32 before = at - (u64)BPF_CORE_READ(skb, data);
	u32 length = BPF_CORE_READ(skb, len) - before;

	print_packet(at, length - BPF_CORE_READ(skb, data_len), length, segment_of(skb), print);
}

/* Prints a packet of which only the bytes are known, from the Ethernet header on. */
static __always_inline void print_frame(u64 pointer, struct print *print)
{
	struct sk_buff *skb = (struct sk_buff *)pointer;
	u64 at = (u64)BPF_CORE_READ(skb, data);
	u32 length = BPF_CORE_READ(skb, len);
	u16 type = 0;

	print->flow = 0;
#pragma unroll
	for (int tags = 0; tags < 3; tags++) {
		if (bpf_probe_read_kernel(&type, sizeof(type), (void *)(at + 12 + 4 * tags)))
			return;
		type = bpf_ntohs(type);
		if (type == ETH_P_IP || type == ETH_P_IPV6) {
			length -= 14 + 4 * tags;
			print_packet(at + 14 + 4 * tags, length, length, 0, print);
			return;
		}
		if (type != ETH_P_8021Q && type != ETH_P_8021AD)
			return;
	}
}

#endif
