// SPDX-License-Identifier: GPL-2.0-only
/*
 * For the instrument "tcp": on which CPU and queue each connection's packets arrived last, which sock_diag does not
 * report. An iterator, read several times per interval: nothing is attached to the path of packets. Input: the
 * network namespace of the reading thread. Output: one record per connection.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define NONE 0xffffffff
/* NO_QUEUE_MAPPING (include/net/sock.h) */
#define NO_QUEUE 0xffff

/* Layout shared with crates/instruments/src/tcp/cpus.rs. */
struct arrival {
	u64 cookie;
	u64 sk; /* its address, by which the other programs know it */
	u32 cpu; /* that processed the last packet */
	u32 queue; /* of the device that received it */
	s32 ifindex; /* of that device; 0: unknown */
	u32 unused;
};

/* Only connections of these ports; 0: all. Set by user space. */
const volatile u16 wanted_sport, wanted_dport, wanted_port;

static __always_inline bool is_wanted(struct sock_common *sk)
{
	u16 sport = sk->skc_num, dport = bpf_ntohs(sk->skc_dport);

	return (!wanted_sport || sport == wanted_sport) && (!wanted_dport || dport == wanted_dport) &&
	       (!wanted_port || sport == wanted_port || dport == wanted_port);
}

/* The device by which packets of a connection arrive (`sk_rx_dst_set`, include/net/sock.h). */
static __always_inline s32 device_of(struct sock *sk)
{
	struct sock___rx_dst_ifindex *indexed = (void *)sk;

	/* Since 5.16; before that in struct inet_sock. */
	if (bpf_core_field_exists(indexed->sk_rx_dst_ifindex))
		return BPF_CORE_READ(indexed, sk_rx_dst_ifindex);
	return BPF_CORE_READ((struct inet_sock___rx_dst_ifindex *)sk, rx_dst_ifindex);
}

SEC("iter/tcp") int connections(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct arrival to = { .cpu = NONE, .queue = NONE };

	if (!sk || sk->skc_state == TCP_LISTEN || !is_wanted(sk))
		return 0;
	to.cookie = sk->skc_cookie.counter;
	/* Without one, sock_diag has not reported it yet. Other states have no full socket. */
	if (!to.cookie || sk->skc_state == TCP_TIME_WAIT || sk->skc_state == TCP_NEW_SYN_RECV)
		return 0;
	to.cpu = sk->skc_incoming_cpu;
	if (bpf_core_field_exists(sk->skc_rx_queue_mapping) &&
	    sk->skc_rx_queue_mapping != NO_QUEUE)
		to.queue = sk->skc_rx_queue_mapping;
	to.sk = (u64)sk;
	to.ifindex = device_of((struct sock *)sk);
	bpf_seq_write(ctx->meta->seq, &to, sizeof(to));
	return 0;
}

char _license[] SEC("license") = "GPL";
