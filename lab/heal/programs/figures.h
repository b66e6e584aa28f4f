/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The application's own figures: a file that sender and receiver map. It has a slot for each 100 ms of
 * intended send times, with what was sent then, what of that arrived, and how late: a base-2 histogram of
 * nanoseconds with 16 buckets for each power of two. lab/heal/figures.py reads it.
 */
#ifndef HEAL_FIGURES_H
#define HEAL_FIGURES_H

#include "../../faults/programs/common.h"
#include <fcntl.h>
#include <sys/mman.h>

#define SLOT_NS (100 * MS)
#define SLOTS 6000
#define BUCKETS 1024

struct slot {
	uint64_t sent, arrived;
	uint32_t buckets[BUCKETS];
};

struct figures {
	uint64_t start_ns;
	struct slot slots[SLOTS];
};

/* The first to open the file sets the start. */
static inline struct figures *figures_open(const char *path)
{
	int fd = check(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), path);
	uint64_t unset = 0;

	check(ftruncate(fd, sizeof(struct figures)), path);
	struct figures *figures =
		mmap(NULL, sizeof(*figures), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (figures == MAP_FAILED)
		fail(path);
	close(fd);
	__atomic_compare_exchange_n(&figures->start_ns, &unset, now_ns(), 0, __ATOMIC_SEQ_CST,
				    __ATOMIC_SEQ_CST);
	return figures;
}

static inline struct slot *slot_of(struct figures *figures, uint64_t intended)
{
	uint64_t number = (intended - figures->start_ns) / SLOT_NS;

	return &figures->slots[number < SLOTS ? number : SLOTS - 1];
}

static inline void count_sent(struct figures *figures, uint64_t intended)
{
	__atomic_fetch_add(&slot_of(figures, intended)->sent, 1, __ATOMIC_RELAXED);
}

static inline unsigned int bucket_of(uint64_t ns)
{
	if (ns < 16)
		return ns;
	unsigned int power = 63 - __builtin_clzll(ns);

	return (power - 3) * 16 + ((ns >> (power - 4)) & 15);
}

static inline void count_arrived(struct figures *figures, uint64_t intended, uint64_t now)
{
	struct slot *slot = slot_of(figures, intended);
	uint64_t late = now > intended ? now - intended : 0;

	__atomic_fetch_add(&slot->arrived, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&slot->buckets[bucket_of(late)], 1, __ATOMIC_RELAXED);
}

#endif
