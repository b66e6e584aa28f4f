/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Beside the instrument "stages": only the packets that it tracks are followed from the tap on. Both read the same
 * slots, so the packets are the same sk_buffs, and all filters of the stages apply.
 */
#ifndef NEARPATH_VM_STAGES_H
#define NEARPATH_VM_STAGES_H

#include "stage_packet.h"

const volatile bool beside_stages;
/* The stages are paused: what they track may be gone. */
volatile u32 stages_paused;

/* That of the stages, if beside_stages. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << PACKET_SLOT_BITS);
	__type(key, u32);
	__type(value, struct packet);
} packets SEC(".maps");

/*
 * Whether the stages track this sk_buff, at a tap. It is being sent, or received by a macvtap. If the packets that the
 * tap is given do not match their filter, it was forwarded: its path ended at the tap's queue.
 */
static __always_inline bool is_tracked(u64 skb)
{
	u32 slot = packet_hash(skb);
	struct packet *packet = bpf_map_lookup_elem(&packets, &slot);

	return packet && packet->tag == skb && packet->state >= PACKET_FORWARDED && !stages_paused;
}

#endif
