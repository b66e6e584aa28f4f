// SPDX-License-Identifier: GPL-2.0-only
/*
 * For the instrument "tcp": on which CPU and queue each connection's packets arrived last, which sock_diag does not
 * report. An iterator, read several times per interval: nothing is attached to the path of packets. Input: the
 * network namespace of the reading thread. Output: one record per connection.
 *
 * And which thread read it last: a program that user space attaches for moments, while threads wait for a CPU.
 */
#include "pid_namespace.h"
#include <bpf/bpf_endian.h>

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
	u32 reader; /* the thread that read it last; 0: none was seen */
};

/* Threads that read, by the cookie of the connection. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, u32);
} readers SEC(".maps");

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

/* A receive call has copied data. */
SEC("raw_tp/tcp_rcv_space_adjust") int read(u64 *ctx)
{
	u64 cookie = BPF_CORE_READ((struct sock *)ctx[0], __sk_common.skc_cookie.counter);
	u32 thread = number_in_namespace(bpf_get_current_task());

	/* Without a cookie, sock_diag has not reported it yet. */
	if (cookie && thread)
		bpf_map_update_elem(&readers, &cookie, &thread, BPF_ANY);
	return 0;
}

SEC("iter/tcp") int connections(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct arrival to = { .cpu = NONE, .queue = NONE };
	u32 *reader;

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
	reader = bpf_map_lookup_elem(&readers, &to.cookie);
	if (reader)
		to.reader = *reader;
	bpf_seq_write(ctx->meta->seq, &to, sizeof(to));
	return 0;
}

char _license[] SEC("license") = "GPL";
