/* SPDX-License-Identifier: Apache-2.0 */
/* Minimal io_uring by system calls, for the reader: one ring, requests, completions. */
#ifndef FAULTS_URING_H
#define FAULTS_URING_H

#include "common.h"
#include <linux/io_uring.h>
#include <sys/mman.h>

#ifndef IORING_RECV_MULTISHOT
#define IORING_RECV_MULTISHOT (1U << 1)
#endif

struct uring {
	int fd;
	unsigned *sq_head, *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
	unsigned to_submit;
};

static void *uring_map(int fd, size_t size, off_t at)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, at);

	if (memory == MAP_FAILED)
		fail("io_uring's rings");
	return memory;
}

static void uring_open(struct uring *u, unsigned entries)
{
	struct io_uring_params p = { 0 };

	u->fd = syscall(__NR_io_uring_setup, entries, &p);
	if (u->fd < 0) {
		perror("io_uring_setup");
		exit(77);
	}
	char *sq = uring_map(u->fd, p.sq_off.array + p.sq_entries * 4, IORING_OFF_SQ_RING);
	char *cq = uring_map(u->fd, p.cq_off.cqes + p.cq_entries * sizeof(*u->cqes), IORING_OFF_CQ_RING);

	u->sqes = uring_map(u->fd, p.sq_entries * sizeof(*u->sqes), IORING_OFF_SQES);
	u->sq_head = (void *)(sq + p.sq_off.head);
	u->sq_tail = (void *)(sq + p.sq_off.tail);
	u->sq_mask = (void *)(sq + p.sq_off.ring_mask);
	u->sq_array = (void *)(sq + p.sq_off.array);
	u->cq_head = (void *)(cq + p.cq_off.head);
	u->cq_tail = (void *)(cq + p.cq_off.tail);
	u->cq_mask = (void *)(cq + p.cq_off.ring_mask);
	u->cqes = (void *)(cq + p.cq_off.cqes);
	u->to_submit = 0;
}

/* An empty request, which the next uring_enter submits. */
static struct io_uring_sqe *uring_sqe(struct uring *u)
{
	unsigned tail = *u->sq_tail, index = tail & *u->sq_mask;
	struct io_uring_sqe *sqe = &u->sqes[index];

	memset(sqe, 0, sizeof(*sqe));
	u->sq_array[index] = index;
	__atomic_store_n(u->sq_tail, tail + 1, __ATOMIC_RELEASE);
	u->to_submit++;
	return sqe;
}

/* Submits, and waits for `wait` completions. */
static void uring_enter(struct uring *u, unsigned wait)
{
	long n = syscall(__NR_io_uring_enter, u->fd, u->to_submit, wait, IORING_ENTER_GETEVENTS, NULL, 0);

	if (n < 0 && errno != EINTR)
		fail("io_uring_enter");
	if (n > 0)
		u->to_submit -= n;
}

static struct io_uring_cqe *uring_cqe(struct uring *u)
{
	unsigned head = *u->cq_head;

	if (head == __atomic_load_n(u->cq_tail, __ATOMIC_ACQUIRE))
		return NULL;
	return &u->cqes[head & *u->cq_mask];
}

static void uring_seen(struct uring *u)
{
	__atomic_store_n(u->cq_head, *u->cq_head + 1, __ATOMIC_RELEASE);
}

/* Provides buffers to the kernel; the completion has user_data 1. */
static inline void uring_provide(struct uring *u, void *memory, int size, int count, int first, int group)
{
	struct io_uring_sqe *sqe = uring_sqe(u);

	sqe->opcode = IORING_OP_PROVIDE_BUFFERS;
	sqe->addr = (unsigned long)memory;
	sqe->len = size;
	sqe->fd = count;
	sqe->off = first;
	sqe->buf_group = group;
	sqe->user_data = 1;
	/* On success there is no completion (5.17), or it is skipped. */
}

#endif
