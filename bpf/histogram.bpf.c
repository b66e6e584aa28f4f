// SPDX-License-Identifier: GPL-2.0-only
/* The histograms alone, for the tests that run it. */
#include "histogram_fine.h"

char LICENSE[] SEC("license") = "GPL";

#define TIMES 256

u64 times_ns[TIMES];
u32 buckets[TIMES];
u32 fine_buckets[TIMES];

/* Computes the buckets of several times at once. */
SEC("raw_tp") int find_buckets(void *ctx)
{
	for (u32 i = 0; i < TIMES; i++) {
		buckets[i] = histogram_bucket(times_ns[i]);
		fine_buckets[i] = histogram_fine_bucket(times_ns[i]);
	}
	return 0;
}
