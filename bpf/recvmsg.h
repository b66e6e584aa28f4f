/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The return of a receive call on kernels without a tracepoint for it. Requires sock_recv(), the program of the
 * tracepoint sock_recv_length, to be defined by the instrument before this is included.
 */
#ifndef NEARPATH_RECVMSG_H
#define NEARPATH_RECVMSG_H

#include "probe.h"

/* Before 6.3: the return of inet_recvmsg(socket, message, size, flags). */
static __always_inline int recvmsg_returns(u64 *ctx)
{
	struct socket___kernel *socket = (struct socket___kernel *)ctx[0];
	u64 arguments[3] = { (u64)socket->sk, ctx[4], ctx[3] };

	sock_recv(arguments, true);
	return 0;
}

SEC("fexit/inet_recvmsg") int sock_recv_exit(u64 *ctx)
{
	return measuring ? recvmsg_returns(ctx) : 0;
}

SEC("fexit/inet6_recvmsg") int sock_recv_exit6(u64 *ctx)
{
	return measuring ? recvmsg_returns(ctx) : 0;
}

#endif
