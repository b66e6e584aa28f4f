// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "accepts". For each connection returned by accept(2), accept4(2) or io_uring, it counts the
 * CPU that received it and the CPU that accepted it, by listener and thread. It counts the same for datagrams
 * read from UDP sockets.
 *
 * Accepts are observed at the return of the system call, which every kernel allows: the descriptor then
 * identifies the socket. Every system call of the machine passes here, so the programs return early for all
 * others.
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
	/* Another thread may close either one in the meantime; the event is then lost. */
	if (sk)
		accepts(&key, comm, listener ? listener : sk, sk, listener_fd, fd);
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
