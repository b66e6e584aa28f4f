/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Base-2 exponential histogram of times: the boundaries are 2^(k/16) seconds, so a bucket is 4.4 % wide. This
 * is schema 4 of Prometheus' native histograms and scale 4 of OpenTelemetry's. The user-space half is
 * crates/instruments/src/histogram.rs.
 */
#ifndef NEARPATH_HISTOGRAM_H
#define NEARPATH_HISTOGRAM_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

/*
 * Bucket 0 holds times up to 2^(-415/16) seconds (15.6 ns), bucket i times up to and including 2^((i - 415)/16)
 * seconds. The last one ends at 64 s and also holds everything longer; max_ns stays exact.
 */
#define HISTOGRAM_BUCKETS 512
#define HISTOGRAM_SHORTEST_NS 16
#define HISTOGRAM_LONGEST_BITS 36
#define HISTOGRAM_CELLS 32
/* Thresholds: paths longer than each of these times are counted. */
#define ABOVE_MAX 3

struct histogram {
	u64 min_ns; /* set to the largest number by user space */
	u64 max_ns;
	u64 other_cpu;
	u64 other_llc;
	u64 other_node;
	u64 above[ABOVE_MAX]; /* of whole paths: those longer than above_ns */
	u64 buckets[HISTOGRAM_BUCKETS];
};

/*
 * The boundaries within a power of two of nanoseconds; the same in every one. It is divided into 32 equal parts
 * with at most one boundary each: the 36 highest bits hold that boundary, the low byte the number of boundaries
 * in the parts before. Set by user space.
 */
const volatile u64 histogram_cells[HISTOGRAM_CELLS];

/* The octave of a time of at most 36 bits that is not 0; shifts its highest bit set to bit 63. */
static __always_inline u32 histogram_octave(u64 *ns)
{
	u32 octave = HISTOGRAM_LONGEST_BITS - 1;
	u64 shifted = *ns << (64 - HISTOGRAM_LONGEST_BITS);

	if (!(shifted >> 48)) {
		shifted <<= 16;
		octave -= 16;
	}
	if (!(shifted >> 56)) {
		shifted <<= 8;
		octave -= 8;
	}
	if (!(shifted >> 60)) {
		shifted <<= 4;
		octave -= 4;
	}
	if (!(shifted >> 62)) {
		shifted <<= 2;
		octave -= 2;
	}
	if (!(shifted >> 63)) {
		shifted <<= 1;
		octave -= 1;
	}
	*ns = shifted;
	return octave;
}

static __always_inline u32 histogram_bucket(u64 ns)
{
	u32 bucket;
	u64 cell;

	if (ns < HISTOGRAM_SHORTEST_NS)
		return 0;
	if (ns >> HISTOGRAM_LONGEST_BITS)
		return HISTOGRAM_BUCKETS - 1;
	bucket = 16 * histogram_octave(&ns) - 63;
	cell = histogram_cells[ns >> 58 & (HISTOGRAM_CELLS - 1)];
	bucket += (u8)cell + (ns > cell);
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

/* The bucket is incremented atomically, so the sum of all buckets is the exact count. */
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
