/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Datagrams of UDP: the CPU on which each was received, and the one on which it is read.
 *
 * The kernel keeps no CPU with a datagram, so it is noted when the stack is given it. Where UDP is seen to give up
 * what it has copied (skb_consume_udp), both it and its reader are known. Elsewhere nothing says which one a
 * receive call has read; but they are read in the order of the queue, so it is the one that
 * was first in it after the call before, or when the socket told of data. A reader that is quick has taken
 * a datagram before anybody has seen it in the queue: then reader and CPU find each other when the later of
 * both comes, the call's return or the socket that tells of it.
 */
#ifndef NEARPATH_ACCEPTS_DATAGRAMS_H
#define NEARPATH_ACCEPTS_DATAGRAMS_H

#include "accepts.h"
#include "sockets.h"
#include <bpf/bpf_endian.h>

#define DATAGRAM_SLOT_BITS 15
#define WAYS 4
#define RECEIVER_SLOT_BITS 16
#define MSG_ERRQUEUE 0x2000
#define RCV_SHUTDOWN 1
/* Datagrams of a socket that may wait for the CPU that tells of them. */
#define WAITING_MAX 8
/* A socket may have told of so many more, or fewer, than were read, before they are counted anew. */
#define DRIFT_MAX 4096

/*
 * Datagrams by a hash of their sk_buffs' addresses, as many as share a cache line: thousands may wait in
 * sockets, and where one slot has one only, they would drive each other out.
 */
struct datagrams {
	u64 skb[WAYS];
	u32 cpu[WAYS];
	u8 used[WAYS]; /* whether the CPU was asked for: what is at the address now may be another one */
	u32 turn; /* whose place is taken next where all are waited for */
	u64 unused;
};

/* Who has read a datagram. */
struct reader {
	struct key key;
	char comm[COMM];
	s32 length;
	u32 counts; /* whether it is looked at */
};

/* A socket, by a hash of its address. */
struct receiver {
	u64 sk;
	u64 next; /* address of the sk_buff that is read next, or 0 */
	u32 next_cpu; /* where it was received */
	u32 told; /* the CPU, plus 1, that told of a datagram after it had been taken, or 0 */
	u32 waiting; /* how many `reader` has read that no CPU has told of so far */
	u32 reads, tells; /* datagrams that were read, and that the socket told of */
	u32 unused;
	struct reader reader;
};

/* Whether UDP's giving up of a datagram can be observed. */
const volatile bool has_consume_udp;

/* max_entries of these are 1 where datagrams are not looked at. */
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

/* Which of the slot's is the sk_buff's; WAYS: none. */
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

/* Enters which datagram is read next, if there is one. It is in the queue now, and later may not be. */
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

/* The last in the queue may have been put together, or taken apart, on its way: then it was not seen before. */
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

/* The slot is this socket's from now on. */
static __always_inline void begin(struct receiver *r, u64 sk)
{
	r->sk = sk;
	r->next = 0;
	r->told = r->waiting = r->reads = r->tells = 0;
}

static __always_inline bool is_udp(struct sock *sk, const bool direct)
{
	return is_internet(sk, direct) && GET(direct, sk, sk_protocol) == IPPROTO_UDP &&
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
	if (each)
		tell(&key, comm, -1, reader->length);
}

/* A datagram was read that no CPU has told of: it counts as of none until one does. */
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
		if (each && r->reader.counts)
			__sync_fetch_and_add(&ones_lost, r->waiting);
		r->waiting = 0;
	}
	r->reader = *reader;
	if ((s32)r->waiting < WAITING_MAX)
		__sync_fetch_and_add(&r->waiting, 1);
	else if (each && reader->counts)
		tell(&key, comm, -1, reader->length);
}

/* And this CPU does. */
static __always_inline void is_told(struct receiver *r)
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

/* An sk_buff comes to the protocols on the CPU that is to receive it; again where it comes by a tunnel. */
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
	bool told = false;

	if (!active || !is_udp(sk, direct))
		return;
	look_at_last(sk, address, direct);
	if (has_consume_udp)
		return;
	r = receiver_slot(address);
	if (!r)
		return;
	if (r->sk != address)
		begin(r, address);
	__sync_fetch_and_add(&r->tells, 1);
	if ((s32)r->waiting > 0) {
		is_told(r);
		told = true;
	}
	if (r->next)
		return;
	look_at_queue(r, sk, direct);
	/* Nothing is there any more: a reader has it, but not one whose call has returned. */
	if (!r->next && !told && (s32)(r->tells - r->reads) > 0)
		r->told = bpf_get_smp_processor_id() + 1;
}

/* Before 6.3 */
PROBE_ENTRY(sk_data_ready, "sock_def_readable")

/*
 * A reader has a datagram, and UDP gives it up. One that is only looked at (MSG_PEEK) has a negative length, and is in
 * the queue still.
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
	    !is_udp(sk, direct))
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

	if (!active || reader.length < 0 || (u32)ctx[2] & (MSG_PEEK | MSG_ERRQUEUE) || !is_udp(sk, direct))
		return;
	if (!reader.length && GET(direct, sk, sk_shutdown) & RCV_SHUTDOWN)
		return; /* its end, no datagram */
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
		is_read(&reader, NO_CPU); /* it was in the queue before we looked */
		r->tells = 1;
	} else if (r->told) {
		is_read(&reader, r->told - 1);
		r->told = 0;
	} else if (r->next) {
		is_read(&reader, r->next_cpu);
	} else {
		wait_for_cpu(r, &reader);
	}
	/* Some was not seen: what came before then says no more what is to come. */
	if (r->reads - r->tells + DRIFT_MAX > 2 * DRIFT_MAX)
		r->tells = r->reads;
	look_at_queue(r, sk, direct);
}

#include "recvmsg.h"

#endif
