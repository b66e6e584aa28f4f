/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which CPU receives the packets of each priority: counted where the stack takes a packet, which is behind RPS and
 * XDP, by device, receive queue and CPU. Attached on request only.
 */
#ifndef NEARPATH_PRIORITIES_H
#define NEARPATH_PRIORITIES_H

#include "probe.h"
#include "vlan.h"
#include <bpf/bpf_endian.h>

#define PRIORITIES_MAX 16384
/* Priorities of packets that have none. */
#define NO_PRIORITY 255

enum priority_field {
	BY_PCP = 1,
	BY_DSCP = 2,
};

/* Which of them; set by user space. */
const volatile u32 priority_field;

struct priority_on_cpu {
	u32 ifindex;
	u32 netns;
	u32 cpu;
	u16 queue; /* the receive queue, plus 1; 0 if the driver, or XDP, did not record it */
	u16 priority;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* PRIORITIES_MAX if priorities are counted */
	__type(key, struct priority_on_cpu);
	__type(value, u64);
} priorities SEC(".maps");

/* Packets without room in the map. */
volatile u64 priorities_lost;

/* The outermost tag, stripped by the device or in the packet, whose data begin with it. */
static __always_inline u16 pcp_of(struct sk_buff *skb, const bool direct)
{
	u16 tag;

	if (has_vlan_tag(skb))
		return GET(direct, skb, vlan_tci) >> 13;
	if (!is_vlan(bpf_ntohs(GET(direct, skb, protocol))))
		return NO_PRIORITY;
	if (bpf_probe_read_kernel(&tag, sizeof(tag), GET(direct, skb, data)))
		return NO_PRIORITY;
	return bpf_ntohs(tag) >> 13;
}

static __always_inline u16 dscp_of(struct sk_buff *skb, const bool direct)
{
	u32 protocol = bpf_ntohs(GET(direct, skb, protocol));
	u64 at = address_of((u64)GET(direct, skb, data));
	u16 tag[2], first;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (!is_vlan(protocol))
			break;
		if (bpf_probe_read_kernel(tag, sizeof(tag), (void *)at))
			return NO_PRIORITY;
		at += sizeof(tag);
		protocol = bpf_ntohs(tag[1]);
	}
	if (bpf_probe_read_kernel(&first, sizeof(first), (void *)at))
		return NO_PRIORITY;
	first = bpf_ntohs(first);
	/* The second byte of IPv4; in IPv6 the traffic class follows the four bits of the version. */
	if (protocol == ETH_P_IP)
		return (first & 0xff) >> 2;
	if (protocol == ETH_P_IPV6)
		return (first >> 4 & 0xff) >> 2;
	return NO_PRIORITY;
}

/* GRO has merged this many into one. */
static __always_inline u64 packets_of(struct sk_buff *skb)
{
	u64 end = (u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, end);
	struct skb_shared_info *info = (struct skb_shared_info *)end;
	u16 segments = BPF_CORE_READ(info, gso_segs);

	return segments ? segments : 1;
}

static __always_inline void count_priority(struct sk_buff *skb, const bool direct)
{
	struct net_device *dev = GET(direct, skb, dev);
	struct priority_on_cpu key = {
		.ifindex = GET(direct, dev, ifindex),
		.netns = BPF_CORE_READ(dev, nd_net.net, ns.inum),
		.cpu = bpf_get_smp_processor_id(),
		.queue = GET(direct, skb, queue_mapping),
	};
	u64 packets = packets_of(skb), *sum;

	key.priority = priority_field == BY_DSCP ? dscp_of(skb, direct) : pcp_of(skb, direct);
	sum = bpf_map_lookup_elem(&priorities, &key);
	if (sum) {
		/* Written by this CPU only: softirqs are off here. */
		*sum += packets;
		return;
	}
	if (bpf_map_update_elem(&priorities, &key, &packets, BPF_NOEXIST))
		__sync_fetch_and_add(&priorities_lost, packets);
}

#endif
