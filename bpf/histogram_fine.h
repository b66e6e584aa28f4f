/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Each bucket of histogram.h from 1 us on divided into four, which are 1.1 % wide: for times whose percentiles must be
 * that exact. The user-space half is crates/model/src/histogram/fine.rs.
 */
#ifndef NEARPATH_HISTOGRAM_FINE_H
#define NEARPATH_HISTOGRAM_FINE_H

#include "histogram.h"

/* The quarters of bucket 97, which holds 1 us, and of all above it. */
#define FINE_FIRST (4 * 97)
#define FINE_BUCKETS (4 * HISTOGRAM_BUCKETS - FINE_FIRST)
#define FINE_CELLS 128

/* As histogram_cells, with 64 boundaries in 128 parts. */
const volatile u64 histogram_fine_cells[FINE_CELLS];

/* The quarter of a bucket that holds a time, counted from FINE_FIRST; 0 also for all times below it. */
static __always_inline u32 histogram_fine_bucket(u64 ns)
{
	u32 bucket;
	u64 cell;

	if (ns < 1000)
		return 0;
	if (ns >> HISTOGRAM_LONGEST_BITS)
		return FINE_BUCKETS - 1;
	bucket = 64 * histogram_octave(&ns) - 250 - FINE_FIRST;
	cell = histogram_fine_cells[ns >> 56 & (FINE_CELLS - 1)];
	bucket += (u8)cell + (ns > cell);
	return bucket < FINE_BUCKETS ? bucket : FINE_BUCKETS - 1;
}

#endif
