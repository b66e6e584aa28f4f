/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * UDP datagrams: the CPU on which each was received and the CPU on which it is read.
 *
 * The kernel stores no CPU with a datagram, so the CPU is recorded when the stack receives it. If UDP's release
 * of a copied datagram can be observed (skb_consume_udp), the datagram and its reader are both known there.
 * Otherwise nothing identifies the datagram that a receive call has read. Datagrams are read in queue order, so
 * it is the one that was at the head of the queue after the previous call, or when the socket signalled data. A
 * fast reader may take a datagram before it was seen in the queue. Reader and CPU are then matched by whichever
 * comes later: the return of the call or the signal of the socket.
 */
#ifndef NEARPATH_ACCEPTS_DATAGRAMS_H
#define NEARPATH_ACCEPTS_DATAGRAMS_H

#include "accepts.h"
#include "sockets.h"
#include <bpf/bpf_endian.h>

#define DATAGRAM_SLOT_BITS 15
#define WAYS 4
#define RECEIVER_SLOT_BITS 16
#define RCV_SHUTDOWN 1
/* Datagrams of a socket that may still wait for the CPU that signals them. */
#define WAITING_MAX 8
/* A socket may have signalled this many more, or fewer, than were read before the count is reset. */
#define DRIFT_MAX 4096

/*
 * Datagrams by a hash of their sk_buffs' addresses, as many per slot as share a cache line: thousands may wait
 * in sockets, and with one per slot they would evict each other.
 */
struct datagrams {
	u64 skb[WAYS];
	u32 cpu[WAYS];
	u8 used[WAYS]; /* whether the CPU was looked up: the address may since hold another datagram */
	u32 turn; /* the way to evict next when all are in use */
	u64 unused;
};

/* The thread that has read a datagram. */
struct reader {
	struct key key;
	char comm[COMM];
	s32 length;
	u32 counts; /* whether it matches */
};

/* A socket, by a hash of its address. */
struct receiver {
	u64 sk;
	u64 next; /* address of the sk_buff to be read next, or 0 */
	u32 next_cpu; /* where it was received */
	u32 signalled_on; /* the CPU, plus 1, that signalled a datagram after it had been taken, or 0 */
	u32 waiting; /* how many `reader` has read that no CPU has signalled yet */
	u32 reads, signals; /* datagrams that were read, and that the socket signalled */
	u32 unused;
	struct reader reader;
};

/* Whether UDP's release of a datagram can be observed. */
const volatile bool has_consume_udp;

/* max_entries of these are 1 unless datagrams are observed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << DATAGRAM_SLOT_BITS);
	__type(key, u32);
	__type(value, struct datagrams);
} datagrams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << RECEIVER_SLOT_BITS);
	__type(key, u32);
	__type(value, struct receiver);
} receivers SEC(".maps");

static __always_inline u32 slot_of(u64 address, u32 bits)
{
	return (address >> 6) * 0x9e3779b97f4a7c15ULL >> (64 - bits);
}

static __always_inline struct datagrams *datagrams_slot(u64 skb)
{
	u32 slot = slot_of(skb, DATAGRAM_SLOT_BITS);

	return bpf_map_lookup_elem(&datagrams, &slot);
}

/* The way that holds the sk_buff; WAYS: none. */
static __always_inline u32 way_of(struct datagrams *d, u64 skb)
{
#pragma unroll
	for (u32 way = 0; way < WAYS; way++)
		if (d->skb[way] == skb)
			return way;
	return WAYS;
}

static __always_inline struct receiver *receiver_slot(u64 sk)
{
	u32 slot = slot_of(sk, RECEIVER_SLOT_BITS);

	return bpf_map_lookup_elem(&receivers, &slot);
}

/* An sk_buff is received on this CPU. */
static __always_inline void note(struct datagrams *d, u64 skb)
{
	u32 way = way_of(d, skb);

#pragma unroll
	for (u32 other = 0; other < WAYS; other++)
		if (way == WAYS && (d->used[other] || !d->skb[other]))
			way = other;
	if (way == WAYS)
		way = d->turn++;
	way &= WAYS - 1;
	d->skb[way] = skb;
	d->cpu[way] = bpf_get_smp_processor_id();
	d->used[way] = 0;
}

/* Records which datagram is read next, if any. It is in the queue now, and may not be later. */
static __always_inline void look_at_queue(struct receiver *r, struct sock *sk, const bool direct)
{
	struct datagrams *d;
	u32 way;

	r->next = next_datagram(sk, direct);
	r->next_cpu = NO_CPU;
	if (!r->next)
		return;
	d = datagrams_slot(r->next);
	way = d ? way_of(d, r->next) : WAYS;
	if (d && way < WAYS) {
		r->next_cpu = d->cpu[way];
		d->used[way] = 1;
	}
}

/* The last one in the queue may have been merged or segmented on the way, and so not been seen before. */
static __always_inline void look_at_last(struct sock *sk, u64 address, const bool direct)
{
	u64 last = address_of((u64)GET(direct, sk, sk_receive_queue.prev));
	struct datagrams *d;
	u32 way;

	/* An empty queue points to itself. */
	if (last == address + bpf_core_field_offset(sk->sk_receive_queue))
		return;
	d = datagrams_slot(last);
	if (!d)
		return;
	way = way_of(d, last);
	if (way == WAYS || d->used[way & (WAYS - 1)])
		note(d, last);
}

/* Assigns the slot to this socket. */
static __always_inline void begin(struct receiver *r, u64 sk)
{
	r->sk = sk;
	r->next = 0;
	r->signalled_on = r->waiting = r->reads = r->signals = 0;
}

static __always_inline bool is_udp_of_port(struct sock *sk, const bool direct)
{
	return is_udp(sk, direct) &&
	       (!only_port || GET(direct, sk, __sk_common.skc_num) == only_port);
}

/* A datagram of this CPU has been read. */
static __always_inline void is_read(const struct reader *reader, u32 cpu)
{
	struct key key = reader->key;
	char comm[COMM];

	if (!reader->counts)
		return;
	key.received_on = cpu;
	__builtin_memcpy(comm, reader->comm, COMM);
	count(&key, comm);
	if (per_event)
		report(&key, comm, -1, reader->length);
}

/* A datagram was read that no CPU has signalled yet: it counts without a CPU until one does. */
static __always_inline void wait_for_cpu(struct receiver *r, const struct reader *reader)
{
	struct key key = reader->key;
	char comm[COMM];

	key.received_on = NO_CPU;
	__builtin_memcpy(comm, reader->comm, COMM);
	if (reader->counts)
		count(&key, comm);
	if ((s32)r->waiting > 0 &&
	    (r->reader.key.tid != key.tid || r->reader.key.accepted_on != key.accepted_on)) {
		if (per_event && r->reader.counts)
			__sync_fetch_and_add(&events_dropped, r->waiting);
		r->waiting = 0;
	}
	r->reader = *reader;
	if ((s32)r->waiting < WAITING_MAX)
		__sync_fetch_and_add(&r->waiting, 1);
	else if (per_event && reader->counts)
		report(&key, comm, -1, reader->length);
}

/* This CPU signals it. */
static __always_inline void signalled(struct receiver *r)
{
	struct key key = r->reader.key;
	struct counted *counted;

	__sync_fetch_and_add(&r->waiting, -1);
	key.received_on = NO_CPU;
	counted = bpf_map_lookup_elem(&accepted, &key);
	if (counted)
		__sync_fetch_and_add(&counted->moved, 1);
	is_read(&r->reader, bpf_get_smp_processor_id());
}

/* An sk_buff reaches the protocols on the CPU that receives it; again if it comes through a tunnel. */
PROBE(netif_receive_skb, "netif_receive_skb")
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	u16 protocol = GET(direct, skb, protocol);
	struct datagrams *d;
	u64 address, data;
	u8 transport;

	if (!active || (protocol != bpf_htons(ETH_P_IP) && protocol != bpf_htons(ETH_P_IPV6)))
		return;
	data = (u64)GET(direct, skb, data);
	/* protocol of struct iphdr, nexthdr of struct ipv6hdr */
	data += protocol == bpf_htons(ETH_P_IP) ? 9 : 6;
	if (bpf_probe_read_kernel(&transport, sizeof(transport), (void *)data) || transport != IPPROTO_UDP)
		return;
	address = address_of(ctx[0]);
	d = datagrams_slot(address);
	if (d)
		note(d, address);
}

PROBE(sk_data_ready, "sk_data_ready")
{
	struct sock *sk = (struct sock *)ctx[0];
	u64 address = address_of(ctx[0]);
	struct receiver *r;
	bool matched = false;

	if (!active || !is_udp_of_port(sk, direct))
		return;
	look_at_last(sk, address, direct);
	if (has_consume_udp)
		return;
	r = receiver_slot(address);
	if (!r)
		return;
	if (r->sk != address)
		begin(r, address);
	__sync_fetch_and_add(&r->signals, 1);
	if ((s32)r->waiting > 0) {
		signalled(r);
		matched = true;
	}
	if (r->next)
		return;
	look_at_queue(r, sk, direct);
	/* The queue is empty: a reader has it, but its call has not returned yet. */
	if (!r->next && !matched && (s32)(r->signals - r->reads) > 0)
		r->signalled_on = bpf_get_smp_processor_id() + 1;
}

/* Before 6.3 */
PROBE_ENTRY(sk_data_ready, "sock_def_readable")

/*
 * A reader has a datagram, and UDP releases it. A datagram that is only peeked at (MSG_PEEK) has a negative
 * length and stays in the queue.
 */
PROBE_FUNCTION(consume_udp, "skb_consume_udp")
{
	struct sock *sk = (struct sock *)ctx[0];
	struct sk_buff *skb = (struct sk_buff *)ctx[1];
	struct reader reader = { .length = (s32)ctx[2] };
	u64 address = address_of(ctx[1]);
	struct datagrams *d;
	u32 way;

	if (!active || reader.length < 0 || (!reader.length && BPF_CORE_READ(skb, users.refs.counter) > 1) ||
	    !is_udp_of_port(sk, direct))
		return;
	d = datagrams_slot(address);
	if (!d)
		return;
	way = way_of(d, address);
	reader.counts = is_at(&reader.key, sk) && is_by_current(&reader.key, reader.comm);
	reader.key.accepted_on = bpf_get_smp_processor_id();
	is_read(&reader, way == WAYS || d->used[way & (WAYS - 1)] ? NO_CPU : d->cpu[way & (WAYS - 1)]);
	if (way < WAYS)
		d->used[way] = 1;
}

/* A receive call returns: the socket, the length or an error, its flags. */
PROBE(sock_recv, "sock_recv_length")
{
	struct sock *sk = (struct sock *)ctx[0];
	u64 address = address_of(ctx[0]);
	struct reader reader = { .length = (s32)ctx[1] };
	struct receiver *r;
	bool known;

	if (!active || reader.length < 0 || (u32)ctx[2] & (MSG_PEEK | MSG_ERRQUEUE) || !is_udp_of_port(sk, direct))
		return;
	if (!reader.length && GET(direct, sk, sk_shutdown) & RCV_SHUTDOWN)
		return; /* end of the socket, no datagram */
	r = receiver_slot(address);
	if (!r)
		return;
	reader.counts = is_at(&reader.key, sk) && is_by_current(&reader.key, reader.comm);
	reader.key.accepted_on = bpf_get_smp_processor_id();
	known = r->sk == address;
	if (!known)
		begin(r, address);
	__sync_fetch_and_add(&r->reads, 1);
	if (!known) {
		is_read(&reader, NO_CPU); /* it was in the queue before tracing started */
		r->signals = 1;
	} else if (r->signalled_on) {
		is_read(&reader, r->signalled_on - 1);
		r->signalled_on = 0;
	} else if (r->next) {
		is_read(&reader, r->next_cpu);
	} else {
		wait_for_cpu(r, &reader);
	}
	/* Some were missed: what came before no longer predicts what is next. */
	if (r->reads - r->signals + DRIFT_MAX > 2 * DRIFT_MAX)
		r->signals = r->reads;
	look_at_queue(r, sk, direct);
}

#include "recvmsg.h"

#endif
