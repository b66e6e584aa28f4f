/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Log-linear histogram: 16 buckets for each power of two, so a bucket is at most 6.25 % wide and
 * its middle at most 3.2 % wrong. crates/instruments/src/histogram.rs is the other half.
 */
#ifndef NEARPATH_HISTOGRAM_H
#define NEARPATH_HISTOGRAM_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

#define HISTOGRAM_BUCKETS 512
#define HISTOGRAM_SUB_BITS 4
/* Latencies from here on (34 s) share the last bucket; max_ns stays exact. */
#define HISTOGRAM_MAX_BITS 35

struct histogram {
	u64 min_ns; /* set to the largest number by user space */
	u64 max_ns;
	u64 other_cpu;
	u64 other_llc;
	u64 other_node;
	u64 unused[3];
	u64 buckets[HISTOGRAM_BUCKETS];
};

static __always_inline u32 histogram_bucket(u64 ns)
{
	u32 bits = 0;
	u64 rest = ns;

	if (ns < (1 << HISTOGRAM_SUB_BITS))
		return ns;
	if (ns >= 1ULL << HISTOGRAM_MAX_BITS)
		return HISTOGRAM_BUCKETS - 1;
	if (rest >> 32) {
		bits += 32;
		rest >>= 32;
	}
	if (rest >> 16) {
		bits += 16;
		rest >>= 16;
	}
	if (rest >> 8) {
		bits += 8;
		rest >>= 8;
	}
	if (rest >> 4) {
		bits += 4;
		rest >>= 4;
	}
	if (rest >> 2) {
		bits += 2;
		rest >>= 2;
	}
	if (rest >> 1)
		bits += 1;
	return ((bits - HISTOGRAM_SUB_BITS + 1) << HISTOGRAM_SUB_BITS) +
	       ((ns >> (bits - HISTOGRAM_SUB_BITS)) & ((1 << HISTOGRAM_SUB_BITS) - 1));
}

/* The bucket is counted atomically, so the sum of all buckets is the exact count. */
static __always_inline void histogram_add(struct histogram *h, u64 ns)
{
	u32 bucket = histogram_bucket(ns) & (HISTOGRAM_BUCKETS - 1);

	__sync_fetch_and_add(&h->buckets[bucket], 1);
	if (ns > h->max_ns)
		h->max_ns = ns;
	if (ns < h->min_ns)
		h->min_ns = ns;
}

#endif
