/* SPDX-License-Identifier: GPL-2.0-only */
/* Fields of a socket and its queue. */
#ifndef NEARPATH_SOCKETS_H
#define NEARPATH_SOCKETS_H

#include "probe.h"

/* struct tcp_skb_cb (include/net/tcp.h) begins with seq and end_seq. */
static __always_inline bool has_tcp_data(struct sk_buff *skb, const bool direct)
{
	u32 seq[2] = {};

	if (direct) {
		u32 *cb = (u32 *)skb->cb;

		return cb[0] != cb[1];
	}
	return bpf_probe_read_kernel(seq, sizeof(seq), &skb->cb) || seq[0] != seq[1];
}

/*
 * What the next receive call takes: the head of the reader's queue, else of the shared one. A reader moves what is
 * shared to its own queue meanwhile: the shared one is looked at first, so that it is seen in one of the two.
 */
static __always_inline u64 next_datagram(struct sock *sk, const bool direct)
{
	struct udp_sock *udp = (struct udp_sock *)sk;
	u64 address = address_of((u64)sk);
	u64 shared = address_of((u64)GET(direct, sk, sk_receive_queue.next));
	u64 own = address_of((u64)BPF_CORE_READ(udp, reader_queue.next));

	/* An empty queue points to itself. */
	if (own != address + bpf_core_field_offset(udp->reader_queue))
		return own;
	return shared == address + bpf_core_field_offset(sk->sk_receive_queue) ? 0 : shared;
}

/*
 * Whether an sk_buff is in a socket's queue, which is a ring (__skb_unlink). Does not use its next pointer,
 * which the list of deferred frees reuses (skb_attempt_defer_free).
 */
static __always_inline bool is_queued(u64 tag)
{
	struct sk_buff *skb = (struct sk_buff *)tag;

	return BPF_CORE_READ(skb, prev);
}

/*
 * Full barrier on x86: stores before it are visible to other CPUs before the loads after it. (Not on arm64, where
 * the end of a datagram may be missed.) The word is only added to; its value has no meaning.
 */
static __always_inline void fence(u64 *word)
{
	__sync_fetch_and_add(word, 1);
}

/* Reads of two words, at most; with one of the clock after each, some 15 microseconds. */
#define LOOKS_MAX 512

/*
 * A receive call that returns on another CPU looks, some instructions later, whether the datagram that it took has
 * been signalled. (Without an atomic exchange, which Linux has for programs from 5.12 on, two CPUs cannot agree on
 * which of them ends it without waiting.) Both words only grow, and are equal when it has looked. An interrupt may come
 * before that, or the hypervisor takes the CPU. Returns whether it has looked.
 */
static __always_inline bool await_look(volatile u64 *returned, volatile u64 *looked)
{
	for (u32 i = 0; i < LOOKS_MAX; i++) {
		if (*looked >= *returned)
			return true;
		bpf_ktime_get_ns();
	}
	return false;
}

/* A socket of a protocol in which packets end; not that of a tap or of an OVS upcall. */
static __always_inline bool is_internet(struct sock *sk, const bool direct)
{
	u16 family = GET(direct, sk, __sk_common.skc_family);

	return family == AF_INET || family == AF_INET6;
}

static __always_inline bool is_udp(struct sock *sk, const bool direct)
{
	return is_internet(sk, direct) && GET(direct, sk, sk_protocol) == IPPROTO_UDP;
}

/* Whether its sk_buffs are no packets: netlink and Unix sockets. Those of a tap or a packet socket are. */
static __always_inline bool is_of_messages(struct sock *sk, const bool direct)
{
	u16 family = GET(direct, sk, __sk_common.skc_family);

	return family == AF_NETLINK || family == AF_UNIX;
}

#endif
