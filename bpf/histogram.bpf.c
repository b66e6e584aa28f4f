// SPDX-License-Identifier: GPL-2.0-only
/* The histogram by itself, for the tests that run it. */
#include "histogram.h"

char LICENSE[] SEC("license") = "GPL";

#define TIMES 256

u64 times_ns[TIMES];
u32 buckets[TIMES];

/* The buckets of so many times. */
SEC("raw_tp") int find_buckets(void *ctx)
{
	for (u32 i = 0; i < TIMES; i++)
		buckets[i] = histogram_bucket(times_ns[i]);
	return 0;
}
