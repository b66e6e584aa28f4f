/* SPDX-License-Identifier: GPL-2.0-only */
/* The slot of a tracked sk_buff (skb_track.bpf.h): where it is, and the states of its packet. */
#ifndef NEARPATH_PACKET_SLOT_H
#define NEARPATH_PACKET_SLOT_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

#define PACKET_SLOT_BITS 16

enum packet_state {
	PACKET_FREE,
	PACKET_ALLOCATED, /* neither received nor sent yet */
	/* The filter did not match when it was last checked. */
	PACKET_RX_NO_MATCH,
	PACKET_TX_NO_MATCH,
	/* Ignored until it ends: not sampled, or the CPU that allocated it is unknown. */
	PACKET_RX_IGNORED,
	PACKET_TX_IGNORED,
	/* Counted as completed: TCP merged its data into an earlier packet, but it may wake its reader. */
	PACKET_RX_MERGED,
	/* Counted as completed: forwarded to a device whose packets do not match the filter. */
	PACKET_FORWARDED,
	/* States from here on are tracked. */
	PACKET_RX,
	PACKET_TX,
};

/* sk_buffs are at least 64 bytes apart; the high bits of the product mix all other bits. */
static __always_inline u32 packet_hash(u64 tag)
{
	return (tag >> 6) * 0x9e3779b97f4a7c15ULL >> (64 - PACKET_SLOT_BITS);
}

#endif
