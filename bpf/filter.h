/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which packets are observed. Decided once per packet, at the start of its path. The settings are constants, so
 * the verifier removes the code of unused filters.
 */
#ifndef NEARPATH_FILTER_H
#define NEARPATH_FILTER_H

#include "probe.h"
#include "vlan.h"
#include <bpf/bpf_endian.h>

/* Limits for lower devices and nested VLANs, as in crates/instruments/src/filter.rs. */
#define LOWER_DEVICES_MAX 16
#define VLANS_MAX 2

enum filter_result { MATCH, NO_MATCH, NOT_SAMPLED };

struct address {
	u32 words[4]; /* IPv4 as ::ffff:a.b.c.d, in network order */
};

/* One address filter: matches when (address & mask) == value. An unused one has used = 0. */
struct prefix {
	struct address value;
	struct address mask;
	u32 used;
};

/*
 * A lower device through which packets reach the device of the filter (an upper, stacked device): the stack
 * sees them on the lower device only. They are recognized by their VLAN tags, outermost first, and their
 * destination address.
 */
struct lower_device {
	u32 ifindex;
	u16 vlans[VLANS_MAX];
	u8 vlan_count;
	u8 has_address;
	u8 address[6];
};

struct filter {
	u32 directions; /* bit 0 receive, bit 1 transmit */
	u32 ifindex; /* 0: any */
	u32 lower_count; /* number of lower devices, checked on receive */
	u32 netns; /* inode, 0: any */
	u32 protocol; /* IPPROTO_*, 0: any */
	u32 protocol6; /* the same for IPv6, where ICMP has another number */
	u32 sport, dport, port; /* host order, 0: any */
	u32 headers; /* whether headers must be read at all */
	u32 sample; /* keep one flow in this many; 1: all */
	u32 seed;
	struct prefix src, dst, host;
	struct lower_device lower[LOWER_DEVICES_MAX];
};

const volatile struct filter filter = { .directions = 3, .sample = 1 };

struct tuple {
	struct address src, dst;
	u16 sport, dport; /* host order, 0 if there are none */
	u8 protocol;
	u8 version;
};

#define IPPROTO_HOPOPTS 0
#define IPPROTO_ROUTING 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_DSTOPTS 60
#define IPV6_EXTENSIONS_MAX 6
#define IPV6_HEADER_BYTES 40

static __always_inline bool has_ports(struct tuple *t)
{
	return t->protocol == IPPROTO_TCP || t->protocol == IPPROTO_UDP;
}

static __always_inline void set_ports(struct tuple *t, u32 ports)
{
	t->sport = bpf_ntohl(ports) >> 16;
	t->dport = bpf_ntohl(ports);
}

static __always_inline bool read_ports(u64 at, struct tuple *t)
{
	u32 ports;

	if (!has_ports(t))
		return true;
	if (bpf_probe_read_kernel(&ports, sizeof(ports), (void *)at))
		return false;
	set_ports(t, ports);
	return true;
}

/* RFC 791 */
static __always_inline bool read_ipv4(u64 at, struct tuple *t)
{
	/* Read together with the ports, when there are no options: the number of reads is what costs. */
	u32 h[6];

	if (bpf_probe_read_kernel(h, sizeof(h), (void *)at))
		return false;
	t->version = 4;
	t->protocol = bpf_ntohl(h[2]) >> 16 & 0xff;
	t->src.words[2] = t->dst.words[2] = bpf_htonl(0xffff);
	t->src.words[3] = h[3];
	t->dst.words[3] = h[4];
	if (bpf_ntohl(h[1]) & 0x1fff)
		return true; /* a later fragment has no ports */
	if ((bpf_ntohl(h[0]) >> 24 & 0xf) == 5) {
		if (has_ports(t))
			set_ports(t, h[5]);
		return true;
	}
	return read_ports(at + (bpf_ntohl(h[0]) >> 24 & 0xf) * 4, t);
}

/* RFC 8200 */
static __always_inline bool read_ipv6(u64 at, struct tuple *t)
{
	u32 h[10];
	u8 next;

	if (bpf_probe_read_kernel(h, sizeof(h), (void *)at))
		return false;
	t->version = 6;
	__builtin_memcpy(&t->src, &h[2], 16);
	__builtin_memcpy(&t->dst, &h[6], 16);
	next = bpf_ntohl(h[1]) >> 8 & 0xff;
	at += sizeof(h);
#pragma unroll
	for (int i = 0; i < IPV6_EXTENSIONS_MAX; i++) {
		u8 extension[4];

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_FRAGMENT)
			break;
		if (bpf_probe_read_kernel(extension, sizeof(extension), (void *)at))
			return false;
		if (next == IPPROTO_FRAGMENT) {
			at += 8;
			if (extension[2] || extension[3] & 0xf8) {
				t->protocol = extension[0];
				return true;
			}
		} else {
			at += (extension[1] + 1) * 8;
		}
		next = extension[0];
	}
	t->protocol = next;
	return read_ports(at, t);
}

static __always_inline bool in_prefix(const volatile struct prefix *p, struct address *a)
{
	u32 differs = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		differs |= (a->words[i] & p->mask.words[i]) ^ p->value.words[i];
	return !differs;
}

/* Symmetric, so that both directions of a sampled flow are observed. */
static __always_inline u32 flow_hash(struct tuple *t)
{
	u32 hash = filter.seed ^ t->protocol;

#pragma unroll
	for (int i = 0; i < 4; i++)
		hash = (hash ^ t->src.words[i] ^ t->dst.words[i]) * 0x9e3779b1;
	hash = (hash ^ t->sport ^ t->dport) * 0x9e3779b1;
	hash ^= hash >> 15;
	hash *= 0x85ebca6b;
	return hash ^ hash >> 13;
}

static __noinline u32 match_headers(u64 network_header, u32 version)
{
	struct tuple t = {};

	if (!(version == 4 ? read_ipv4(network_header, &t) : read_ipv6(network_header, &t)))
		return NO_MATCH;
	if (filter.protocol && t.protocol != (version == 4 ? filter.protocol : filter.protocol6))
		return NO_MATCH;
	if (filter.sport && t.sport != filter.sport)
		return NO_MATCH;
	if (filter.dport && t.dport != filter.dport)
		return NO_MATCH;
	if (filter.port && t.sport != filter.port && t.dport != filter.port)
		return NO_MATCH;
	if (filter.src.used && !in_prefix(&filter.src, &t.src))
		return NO_MATCH;
	if (filter.dst.used && !in_prefix(&filter.dst, &t.dst))
		return NO_MATCH;
	if (filter.host.used && !in_prefix(&filter.host, &t.src) && !in_prefix(&filter.host, &t.dst))
		return NO_MATCH;
	if (filter.sample > 1 && flow_hash(&t) % filter.sample)
		return NOT_SAMPLED;
	return MATCH;
}

/*
 * The protocol after the VLAN tags in the packet. On receive *at is the first tag; on transmit network_header
 * is already behind the tags, and the IP version gives the protocol.
 */
static __always_inline u32 behind_vlan_tags(u64 *at, u32 protocol, bool transmit)
{
	u16 tag[2];
	u8 version;

	if (is_vlan(protocol) && transmit) {
		if (bpf_probe_read_kernel(&version, sizeof(version), (void *)*at))
			return 0;
		return version >> 4 == 4 ? ETH_P_IP : version >> 4 == 6 ? ETH_P_IPV6 : 0;
	}
#pragma unroll
	for (int i = 0; i < VLANS_MAX; i++) {
		if (!is_vlan(protocol))
			break;
		if (bpf_probe_read_kernel(tag, sizeof(tag), (void *)*at))
			return 0;
		*at += sizeof(tag);
		protocol = bpf_ntohs(tag[1]);
	}
	return protocol;
}

/* VLAN ids of a received packet, outermost first. Returns their number. */
static __always_inline u32 read_vlans(struct sk_buff *skb, u16 *vlans)
{
	u32 protocol = bpf_ntohs(BPF_CORE_READ(skb, protocol)), count = 0;
	u64 at = (u64)BPF_CORE_READ(skb, data);
	u16 tag[2];

	if (has_vlan_tag(skb))
		vlans[count++] = BPF_CORE_READ(skb, vlan_tci) & 0xfff;
	for (int i = 0; i < VLANS_MAX; i++) {
		if (count >= VLANS_MAX || !is_vlan(protocol) || bpf_probe_read_kernel(tag, sizeof(tag), (void *)at))
			break;
		vlans[count++ & (VLANS_MAX - 1)] = bpf_ntohs(tag[0]) & 0xfff;
		protocol = bpf_ntohs(tag[1]);
		at += sizeof(tag);
	}
	return count;
}

/* Whether a packet received on a lower device is for the device of the filter, which is stacked on it. */
__noinline int comes_from_below(u64 packet, u32 ifindex)
{
	struct sk_buff *skb = (struct sk_buff *)packet;
	u16 vlans[VLANS_MAX] = {};
	u8 address[8] = {};
	bool known = false;
	u32 count = 0;

	for (u32 i = 0; i < LOWER_DEVICES_MAX; i++) {
		const volatile struct lower_device *lower = &filter.lower[i];
		u32 differs = 0;

		if (i >= filter.lower_count)
			break;
		if (lower->ifindex != ifindex)
			continue;
		if (!known) {
			count = read_vlans(skb, vlans);
			bpf_probe_read_kernel(address, 6,
					      (void *)((u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, mac_header)));
			known = true;
		}
		if (count < lower->vlan_count)
			continue;
#pragma unroll
		for (u32 v = 0; v < VLANS_MAX; v++)
			differs |= v < lower->vlan_count && vlans[v] != lower->vlans[v];
#pragma unroll
		for (u32 byte = 0; byte < 6; byte++)
			differs |= lower->has_address && address[byte] != lower->address[byte];
		if (!differs)
			return 1;
	}
	return 0;
}

/*
 * Address at which GRO finds the network header of a packet that a driver passes in pages (napi_frags_skb):
 * only the Ethernet header has been pulled. Returns false if GRO has not located it yet; it can then be read
 * when the stack receives the packet.
 */
static __always_inline bool find_header_of_frags(struct sk_buff *skb, u64 *header)
{
	struct napi_gro_cb *cb = (struct napi_gro_cb *)skb->cb;

	*header = 0;
	if (BPF_CORE_READ(skb, len) - BPF_CORE_READ(skb, data_len) >= IPV6_HEADER_BYTES)
		return true;
	if (BPF_CORE_READ(cb, frag0_len) < IPV6_HEADER_BYTES)
		return false;
	*header = (u64)BPF_CORE_READ(cb, frag0);
	return *header;
}

/*
 * Matches a packet at its first stage. On receive the data starts with the network header (the driver has
 * called eth_type_trans), unless that is at `header`; on transmit network_header is set.
 */
static __always_inline u32 filter_match(struct sk_buff *skb, bool transmit, u64 header, const bool direct)
{
	u32 protocol = bpf_ntohs(GET(direct, skb, protocol));
	u64 at = header;

	if (!(filter.directions & (transmit ? 2 : 1)))
		return NO_MATCH;
	if (filter.ifindex || filter.netns) {
		struct net_device *dev = GET(direct, skb, dev);
		struct net *net = GET(direct, dev, nd_net.net);

		if (filter.ifindex && (u32)GET(direct, dev, ifindex) != filter.ifindex &&
		    (transmit || !filter.lower_count ||
		     !comes_from_below(address_of((u64)skb), GET(direct, dev, ifindex))))
			return NO_MATCH;
		if (filter.netns && GET(direct, net, ns.inum) != filter.netns)
			return NO_MATCH;
	}
	if (!filter.headers && (protocol == ETH_P_IP || protocol == ETH_P_IPV6))
		return MATCH;
	if (transmit)
		at = address_of((u64)GET(direct, skb, head)) + GET(direct, skb, network_header);
	else if (!header)
		at = address_of((u64)GET(direct, skb, data));
	if (is_vlan(protocol))
		protocol = behind_vlan_tags(&at, protocol, transmit);
	if (protocol != ETH_P_IP && protocol != ETH_P_IPV6)
		return NO_MATCH;
	if (!filter.headers)
		return MATCH;
	return match_headers(at, protocol == ETH_P_IP ? 4 : 6);
}

#endif
