/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A packet that the kernel drops: why, by which function, on which device and in which network namespace.
 *
 * A dropped sk_buff may be anywhere in the kernel, so its fields must be validated: in a socket's queue the
 * device pointer is reused (udp_set_dev_scratch(), TCP's out-of-order tree), and TCP clears it.
 */
#ifndef NEARPATH_DROPS_H
#define NEARPATH_DROPS_H

#include "filter.h"

/* Whether kfree_skb has the reason (since 5.17) and the receiving socket (since 6.11). */
const volatile bool has_drop_reason, has_rx_sk;

/* Inode numbers of network namespaces start here (include/uapi/linux/nsfs.h, PROC_DYNAMIC_FIRST). */
#define NETNS_MIN 0xefff0000U
#define DEVICE_NAME 16
/* NETDEV_HASHENTRIES of include/linux/netdevice.h */
#define DEVICE_HASH 256
#define DEVICE_CHAIN 8

/* Where a packet was dropped, as far as that is known. */
struct drop_site {
	struct net_device *dev; /* validated, or 0 */
	struct net *net; /* likewise */
	u32 ifindex; /* 0: unknown */
	u32 netns; /* 0: unknown */
};

static __always_inline u32 drop_reason(u64 *ctx)
{
	return has_drop_reason ? (u32)ctx[2] : 0;
}

static __always_inline struct sock *drop_rx_sk(u64 *ctx)
{
	return has_rx_sk ? (struct sock *)address_of(ctx[3]) : 0;
}

/* Records a network namespace, if that is what the pointer points to. */
static __always_inline bool is_netns(struct drop_site *site, struct net *net)
{
	u32 inum = net ? BPF_CORE_READ(net, ns.inum) : 0;

	if (inum < NETNS_MIN)
		return false;
	site->net = net;
	site->netns = inum;
	return true;
}

/* The namespace of a packet that no longer has a device. */
static __always_inline void netns_of_socket(struct drop_site *site, struct sk_buff *skb, struct sock *rx_sk)
{
	struct dst_entry *dst;
	struct sock *sk;

	if (rx_sk && is_netns(site, BPF_CORE_READ(rx_sk, __sk_common.skc_net.net)))
		return;
	sk = BPF_CORE_READ(skb, sk);
	if (sk && is_netns(site, BPF_CORE_READ(sk, __sk_common.skc_net.net)))
		return;
	/* The low bit says whether it is reference counted (SKB_DST_NOREF). */
	dst = (struct dst_entry *)(BPF_CORE_READ(skb, _skb_refdst) & ~1UL);
	if (dst)
		is_netns(site, BPF_CORE_READ(dst, dev, nd_net.net));
}

static __always_inline void find_drop_site(struct drop_site *site, struct sk_buff *skb, struct sock *rx_sk)
{
	struct net_device *dev = BPF_CORE_READ(skb, dev);

	if (dev && is_netns(site, BPF_CORE_READ(dev, nd_net.net))) {
		site->dev = dev;
		site->ifindex = BPF_CORE_READ(dev, ifindex);
		return;
	}
	/* The device that it came from, recorded by the stack (skb_iif). */
	site->ifindex = BPF_CORE_READ(skb, skb_iif);
	netns_of_socket(site, skb, rx_sk);
}

/* The device with that index in the namespace, or 0. */
static __always_inline struct net_device *device_by_index(struct net *net, u32 ifindex)
{
	struct hlist_head *heads = BPF_CORE_READ(net, dev_index_head);
	struct hlist_node *node = 0;

	if (!heads ||
	    bpf_probe_read_kernel(&node, sizeof(node), heads + (ifindex & (DEVICE_HASH - 1))))
		return 0;
#pragma unroll
	for (int i = 0; i < DEVICE_CHAIN; i++) {
		struct net_device *dev;

		if (!node)
			return 0;
		dev = (struct net_device *)((u64)node -
					    bpf_core_field_offset(struct net_device, index_hlist));
		if ((u32)BPF_CORE_READ(dev, ifindex) == ifindex)
			return dev;
		node = BPF_CORE_READ(node, next);
	}
	return 0;
}

static __always_inline void name_drop_device(char *name, struct drop_site *site)
{
	struct net_device *dev = site->dev;

	if (!dev && site->net && site->ifindex)
		dev = device_by_index(site->net, site->ifindex);
	if (dev)
		bpf_probe_read_kernel_str(name, DEVICE_NAME, &dev->name);
}

/* The IP version at an address if it agrees with the packet's protocol; else 0. */
static __always_inline u32 ip_version_at(u64 at, u32 ethertype)
{
	u8 first = 0;

	if (bpf_probe_read_kernel(&first, sizeof(first), (void *)at))
		return 0;
	first >>= 4;
	if (first == 4)
		return ethertype == ETH_P_IPV6 ? 0 : 4;
	return first == 6 && ethertype != ETH_P_IP ? 6 : 0;
}

/*
 * The address of the IP header and its version; 0 if there is none. A packet that has not reached the stack yet
 * has no network header: its data starts with it.
 */
static __always_inline u32 find_ip_header(struct sk_buff *skb, u32 ethertype, u64 *at)
{
	u32 offset = BPF_CORE_READ(skb, network_header), version = 0;

	if (ethertype != ETH_P_IP && ethertype != ETH_P_IPV6 && ethertype != ETH_P_8021Q &&
	    ethertype != ETH_P_8021AD)
		return 0;
	if (offset) {
		*at = (u64)BPF_CORE_READ(skb, head) + offset;
		version = ip_version_at(*at, ethertype);
	}
	if (!version) {
		*at = (u64)BPF_CORE_READ(skb, data);
		version = ip_version_at(*at, ethertype);
	}
	return version;
}

#endif
