// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "accepts": for each connection that accept(2), accept4(2) or io_uring returns, the CPU
 * on which the kernel received it and the CPU that accepts, by listener and thread; or the same of the
 * datagrams that are read from sockets of UDP.
 *
 * An accept is seen where the system call returns, which every kernel lets programs see: there the descriptor says
 * which socket it is. Every system call of the machine passes here, so what is none of these is let go
 * first.
 */
#include "accepts.h"
#include "accepts_datagrams.h"
#include "accepts_uring.h"

char LICENSE[] SEC("license") = "GPL";

const volatile s64 accept_call, accept4_call;

#if defined(__TARGET_ARCH_x86)
#define CALL_OF(regs) BPF_CORE_READ(regs, orig_ax)
#define FIRST_OF(regs) BPF_CORE_READ(regs, di)
#elif defined(__TARGET_ARCH_arm64)
#define CALL_OF(regs) BPF_CORE_READ((struct pt_regs___call *)(regs), syscallno)
#define FIRST_OF(regs) BPF_CORE_READ((struct pt_regs___call *)(regs), orig_x0)
#endif

PROBE(sys_exit, "sys_exit")
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	struct sock *listener, *sk;
	struct key key = {};
	char comm[COMM] = {};
	s64 fd = ctx[1], call;
	s32 listener_fd;

	if (fd < 0 || !active)
		return;
	call = CALL_OF(regs);
	if (call != accept_call && call != accept4_call)
		return;
	if (!is_by_current(&key, comm))
		return;
	listener_fd = FIRST_OF(regs);
	listener = sock_at(listener_fd);
	sk = sock_at(fd);
	/* A thread that closes either meanwhile takes it out of our sight. */
	if (sk)
		accepts(&key, comm, listener ? listener : sk, sk, listener_fd, fd);
}

/* Run by hand, to learn what the kernel's run-time statistics add to every run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
