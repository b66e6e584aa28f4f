/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accepts of io_uring. They return from no system call, so they are observed where their completion is posted,
 * in the thread that has accepted.
 *
 * A single-shot request is reported with its completion. A multishot request is not: it is identified by its
 * ring and user_data, as the process itself does. It is recorded when it is submitted and each time that it is
 * queued because a connection waits.
 */
#ifndef NEARPATH_ACCEPTS_URING_H
#define NEARPATH_ACCEPTS_URING_H

#include "accepts.h"

#define IORING_OP_ACCEPT 13
/* Multishot accept requests; the least recently used one is evicted, and recorded again later. */
#define URING_ACCEPTS_MAX 8192

/* Whether a completion is passed as a structure; on older kernels field by field. */
const volatile bool completion_is_cqe;

struct uring_request {
	u64 ring;
	u64 user_data;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, URING_ACCEPTS_MAX);
	__type(key, struct uring_request);
	__type(value, u64); /* address of its io_kiocb */
} uring_accepts SEC(".maps");

static __always_inline struct uring_request name_of(struct io_kiocb *req)
{
	struct uring_request name = {
		.ring = (u64)BPF_CORE_READ(req, ctx),
		.user_data = BPF_CORE_READ(req, cqe.user_data),
	};

	return name;
}

static __always_inline void remember(u64 *ctx, const bool direct)
{
	struct io_kiocb *req = (struct io_kiocb *)ctx[0];
	struct uring_request name;
	u64 address, *known;

	if (!active || GET(direct, req, opcode) != IORING_OP_ACCEPT)
		return;
	name = name_of(req);
	address = address_of(ctx[0]);
	known = bpf_map_lookup_elem(&uring_accepts, &name);
	if (!known || *known != address)
		bpf_map_update_elem(&uring_accepts, &name, &address, 0);
}

PROBE(uring_submit_req, "io_uring_submit_req")
{
	remember(ctx, direct);
}

/* Before 6.4 */
PROBE(uring_submit_sqe, "io_uring_submit_sqe")
{
	remember(ctx, direct);
}

/* A connection waits: the thread of the request is scheduled to continue. */
PROBE(uring_task_add, "io_uring_task_add")
{
	remember(ctx, direct);
}

/* The request of a completion if it is multishot; its memory may have been reused. */
static __always_inline struct io_kiocb *multishot(const struct uring_request *name)
{
	u64 *known = bpf_map_lookup_elem(&uring_accepts, name);
	struct io_kiocb *req = known ? (struct io_kiocb *)*known : 0;
	struct uring_request now;

	if (!req || BPF_CORE_READ(req, opcode) != IORING_OP_ACCEPT)
		return 0;
	now = name_of(req);
	return now.ring == name->ring && now.user_data == name->user_data ? req : 0;
}

/* ctx: the ring; the request, or none if the request continues; the completion. */
PROBE(uring_complete, "io_uring_complete")
{
	struct io_kiocb *req = (struct io_kiocb *)address_of(ctx[1]);
	struct sock *listener, *sk;
	struct key key = {};
	char comm[COMM] = {};
	struct uring_request name;
	s32 fd;

	if (!active)
		return;
	if (req) {
		if (BPF_CORE_READ(req, opcode) != IORING_OP_ACCEPT)
			return;
		name = name_of(req);
		fd = BPF_CORE_READ(req, cqe.res);
		bpf_map_delete_elem(&uring_accepts, &name);
	} else {
		name.ring = address_of(ctx[0]);
		if (completion_is_cqe) {
			struct io_uring_cqe *cqe = (struct io_uring_cqe *)address_of(ctx[2]);

			name.user_data = BPF_CORE_READ(cqe, user_data);
			fd = BPF_CORE_READ(cqe, res);
		} else {
			name.user_data = ctx[2];
			fd = ctx[3];
		}
		req = multishot(&name);
	}
	if (!req || fd < 0 || !is_by_current(&key, comm))
		return;
	listener = sock_of(BPF_CORE_READ(req, file));
	/* A connection that goes to the ring's own file table has no descriptor. */
	if (BPF_CORE_READ((struct io_accept *)req, file_slot)) {
		sk = 0;
		fd = -1;
	} else {
		sk = sock_at(fd);
	}
	if (listener)
		accepts(&key, comm, listener, sk, -1, fd);
}

#endif
