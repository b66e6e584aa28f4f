/* SPDX-License-Identifier: GPL-2.0-only */
/* Tracked packets that the kernel drops: why, by which function, on which device, after which stage. */
#ifndef NEARPATH_STAGE_DROPS_H
#define NEARPATH_STAGE_DROPS_H

#include "drops.h"

#define STAGE_DROPS_MAX 512

struct stage_drop {
	u64 location;
	u32 reason;
	u32 netns;
	u32 ifindex;
	u32 stage; /* the last one that it passed */
};

struct stage_drop_count {
	u64 packets;
	char dev[DEVICE_NAME];
};

/* Drops that do not fit are included in the total, which is counted separately. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STAGE_DROPS_MAX);
	__type(key, struct stage_drop);
	__type(value, struct stage_drop_count);
} stage_drops SEC(".maps");

/* Not static, to save verification time (see packet_path.h). */
__noinline int count_stage_drop(u64 pointer, u64 location, u32 reason, u64 rx_sk, u32 stage)
{
	struct stage_drop drop = { .location = location, .reason = reason, .stage = stage };
	struct stage_drop_count *count;
	struct drop_site site = {};

	find_drop_site(&site, (struct sk_buff *)pointer, (struct sock *)rx_sk);
	drop.netns = site.netns;
	drop.ifindex = site.ifindex;
	count = bpf_map_lookup_elem(&stage_drops, &drop);
	if (!count) {
		struct stage_drop_count first = {};

		name_drop_device(first.dev, &site);
		bpf_map_update_elem(&stage_drops, &drop, &first, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&stage_drops, &drop);
	}
	if (count)
		__sync_fetch_and_add(&count->packets, 1);
	return 0;
}

#endif
