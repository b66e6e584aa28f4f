/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * VLAN tags of an sk_buff: in the packet, or stripped by the device into vlan_tci.
 */
#ifndef NEARPATH_VLAN_H
#define NEARPATH_VLAN_H

#include "probe.h"

static __always_inline bool is_vlan(u32 protocol)
{
	return protocol == ETH_P_8021Q || protocol == ETH_P_8021AD;
}

/* Separate functions: the compiler would otherwise read the field before checking that the kernel has it. */
static __noinline u32 vlan_all_of(struct sk_buff *skb)
{
	return BPF_CORE_READ(skb, vlan_all);
}

static __noinline u32 has_vlan_tag_before_6_2(struct sk_buff *skb)
{
	struct sk_buff___vlan_present *old = (struct sk_buff___vlan_present *)skb;

	return BPF_CORE_READ_BITFIELD_PROBED(old, vlan_present);
}

/* Whether the device has stripped a tag from the packet. */
static __always_inline bool has_vlan_tag(struct sk_buff *skb)
{
	if (bpf_core_field_exists(skb->vlan_all))
		return vlan_all_of(skb);
	return has_vlan_tag_before_6_2(skb);
}

#endif
