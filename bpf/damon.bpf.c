// SPDX-License-Identifier: GPL-2.0-only
/*
 * What DAMON has found, where it runs: the regions of each target's last aggregation interval, from the tracepoint
 * that kdamond_reset_aggregated() of mm/damon/core.c calls for each of them, in the order of their addresses.
 */
#include "probe.h"

char LICENSE[] SEC("license") = "GPL";

/* Targets of all kdamonds. */
#define TARGETS_MAX 256
/* Regions that are kept of an aggregation interval, of all targets. */
#define REGIONS_MAX 32768
/* include/uapi/linux/bpf.h: entries are allocated when they are needed. */
#define NO_PREALLOC 1

struct target_key {
	u32 kdamond; /* its thread */
	u32 target; /* as numbered in its context */
};

struct target {
	u32 next; /* index of the region that comes next in the current interval */
	u32 regions; /* regions of the last complete interval */
	u64 intervals; /* complete intervals: the parity selects the regions that are being written */
	u64 last; /* start of the region before */
};

struct region_key {
	struct target_key of;
	u32 index;
	u32 parity;
};

struct region {
	u64 start;
	u64 end;
	u32 accesses; /* checks that found an access */
	u32 age; /* intervals for which that has been so */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TARGETS_MAX);
	__type(key, struct target_key);
	__type(value, struct target);
} targets SEC(".maps");

/* Of two intervals: the last complete one, and the current one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * REGIONS_MAX);
	__uint(map_flags, NO_PREALLOC);
	__type(key, struct region_key);
	__type(value, struct region);
} regions SEC(".maps");

volatile u32 active;
/* Regions that did not fit. */
u64 lost;
/* Regions of targets without a number (before 5.16). */
u64 unnumbered;

/* Arguments before the region: (target, number) from 5.16, (number) from 6.7. */
const volatile bool has_target;

/* In the kdamond's own thread: only it writes the entries of its targets. */
PROBE(damon_aggregated, "damon_aggregated")
{
	struct damon_region *from;
	struct region_key key = {};
	struct region region;
	struct target *target;
	u64 number;
	u32 count;

	if (!active)
		return;
	number = address_of(has_target ? ARGUMENT(ctx, 1) : ARGUMENT(ctx, 0));
	from = (struct damon_region *)address_of(has_target ? ARGUMENT(ctx, 2) : ARGUMENT(ctx, 1));
	count = has_target ? ARGUMENT(ctx, 3) : ARGUMENT(ctx, 2);
	if (number >> 32) {
		__sync_fetch_and_add(&unnumbered, 1);
		return;
	}
	key.of.kdamond = (u32)bpf_get_current_pid_tgid();
	key.of.target = number;
	target = bpf_map_lookup_elem(&targets, &key.of);
	if (!target) {
		struct target first = {};

		bpf_map_update_elem(&targets, &key.of, &first, BPF_NOEXIST);
		target = bpf_map_lookup_elem(&targets, &key.of);
	}
	if (!target) {
		__sync_fetch_and_add(&lost, 1);
		return;
	}
	region.start = BPF_CORE_READ(from, ar.start);
	/* Counting began within an interval. */
	if (region.start <= target->last)
		target->next = 0;
	target->last = region.start;
	key.index = target->next;
	key.parity = target->intervals & 1;
	region.end = BPF_CORE_READ(from, ar.end);
	region.accesses = BPF_CORE_READ(from, nr_accesses);
	region.age = BPF_CORE_READ(from, age);
	if (bpf_map_update_elem(&regions, &key, &region, BPF_ANY))
		__sync_fetch_and_add(&lost, 1);
	target->next++;
	if (target->next < count)
		return;
	target->regions = target->next;
	target->next = 0;
	target->last = 0;
	target->intervals++;
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
