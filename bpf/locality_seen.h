/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For kernels where only tracepoints can be attached: the end of packets that are freed without a tracepoint,
 * and the CPU that gave a socket the data that it sends.
 */
#ifndef NEARPATH_LOCALITY_SEEN_H
#define NEARPATH_LOCALITY_SEEN_H

#include "locality.h"
#include "sockets.h"

/* Whether the return of a receive call can be observed; without it a datagram ends when it is freed. */
const volatile bool has_sock_recv;

/*
 * Whether an incoming sk_buff is still the packet in the slot, not a new one at the same address; `dev` is its
 * device.
 */
static __always_inline bool same_packet(struct packet *p, struct cpu *cpu, u32 progress, u64 dev)
{
	if (p->progress < progress)
		return true; /* passed on to the stack */
	return p->progress == IN_STACK && cpu->packet == p->tag && is_given_on(cpu, p->tag, dev);
}

static __always_inline bool waits_for_receive_call(struct packet *p)
{
	return has_sock_recv && p->progress == IN_SOCKET;
}

static __always_inline void to_gro(u64 pointer)
{
	struct cpu *cpu = exact ? 0 : this_cpu();

	if (cpu)
		cpu->gro_packet = address_of(pointer);
}

/* A packet merged into another by GRO ends there (enum gro_result: MERGED 0, MERGED_FREE 1). */
static __always_inline void gro_result(u64 result)
{
	struct cpu *cpu = this_cpu();
	struct packet *p;

	if (!cpu || (u32)result > 1)
		return;
	p = packet_slot(cpu->gro_packet);
	if (p && is_ignored(p, cpu->gro_packet))
		free_slot(p);
	if (p && p->tag == cpu->gro_packet && p->state == PACKET_RX)
		end_packet(p, cpu, false);
	cpu->gro_packet = 0;
}

PROBE(napi_gro_receive_exit, "napi_gro_receive_exit")
{
	gro_result(ctx[0]);
}

PROBE(napi_gro_frags_exit, "napi_gro_frags_exit")
{
	gro_result(ctx[0]);
}

static __always_inline struct packet *received(u64 tag)
{
	struct packet *p = tag ? packet_slot(tag) : 0;

	return p && p->tag == tag && p->state == PACKET_RX && p->progress >= IN_STACK ? p : 0;
}

/* A packet that is not sampled is not followed from here on. */
static __always_inline void end_ignored(u64 tag)
{
	struct packet *p = packet_slot(tag);

	if (p && is_ignored(p, tag))
		free_slot(p);
}

/* tcp_rcv_established() frees a segment without data. */
PROBE(tcp_rcv_established, "tcp_probe")
{
	u64 tag = address_of(ctx[1]);
	struct packet *p = received(tag);
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->packet = 0;
	end_ignored(tag);
	if (!p)
		return;
	if (has_tcp_data((struct sk_buff *)ctx[1], direct))
		cpu->packet = tag;
	else
		end_packet(p, cpu, false);
}

static __always_inline struct socket *socket_of(u64 sk)
{
	struct socket *s = socket_slot(sk);

	if (s && s->sk != sk) {
		s->sk = sk;
		s->next = 0;
		s->send_cpu = 0;
	}
	return s;
}

/* Another CPU writes it meanwhile. */
static __always_inline u32 early_cpu(struct socket *s)
{
	return *(volatile u32 *)&s->early_cpu;
}

/*
 * A datagram is signalled, `p` if it is followed. The next receive call takes the first in the queue. One that
 * is in no queue any more was taken by a fast reader: its call is about to return and ends it then, or has
 * returned and has left its CPU here.
 */
static __always_inline void signal_datagram(struct socket *s, struct packet *p, struct sock *sk, const bool direct)
{
	u64 tag = p ? p->tag : 0;
	u32 number;

	if (!s->next) {
		u64 next = p && !is_queued(tag) ? 0 : next_datagram(sk, direct);

		/* None: it has been taken since. */
		s->next = next ?: tag;
	}
	/* sock_recv does this in the opposite order. */
	fence(&s->fence);
	if (p && s->early_sk == s->sk && early_cpu(s) && !is_queued(tag) && await_look(&s->returned, &s->looked)) {
		struct cpu *cpu;

		/* Not if it has seen that this datagram was signalled, and has ended it. */
		number = early_cpu(s) - 1;
		cpu = bpf_map_lookup_elem(&cpus, &number);
		if (s->next == tag)
			s->next = next_datagram(sk, direct);
		if (cpu && received(tag) == p)
			end_packet_on(p, cpu, number, BY_PROCESS ? group_of_owner(s->sk) : NO_PROCESS, false);
	}
	s->early_cpu = 0;
}

static __always_inline bool awaits_delivery(u64 tag, u32 number)
{
	struct packet *p = received(tag);

	return p && p->progress == IN_STACK;
}

/*
 * The socket has data. TCP: the packet that the CPU is processing was freed if its data was merged into an
 * earlier one.
 */
PROBE(sk_data_ready, "sk_data_ready")
{
	struct sock *sk = (struct sock *)ctx[0];
	u64 address = address_of(ctx[0]);
	struct cpu *cpu = this_cpu();
	struct packet *p;
	struct socket *s;
	u32 protocol;
	u64 last;

	if (!cpu || !is_internet(sk, direct))
		return;
	protocol = GET(direct, sk, sk_protocol);
	last = address_of((u64)GET(direct, sk, sk_receive_queue.prev));
	p = received(cpu->packet);
	if (protocol == IPPROTO_TCP && p) {
		if (last != p->tag && last != address + bpf_core_field_offset(sk->sk_receive_queue))
			end_packet(p, cpu, false);
	}
	if (protocol == IPPROTO_UDP) {
		p = received(delivered_datagram(cpu, bpf_get_smp_processor_id(), last,
						GET(direct, sk, __sk_common.skc_num)));
		if (p)
			p->progress = IN_SOCKET;
		s = socket_of(address);
		if (s)
			signal_datagram(s, p, sk, direct);
	}
	cpu->packet = 0;
}

/* Data is copied to user space (not for a small datagram). */
PROBE(skb_copy_datagram, "skb_copy_datagram_iovec")
{
	struct packet *p = received(address_of(ctx[0]));
	struct cpu *cpu = this_cpu();

	end_ignored(address_of(ctx[0]));
	if (cpu && p)
		end_packet(p, cpu, false);
}

/* A receive call returns: for UDP with the datagram that was first in the queue. */
PROBE(sock_recv, "sock_recv_length")
{
	struct sock *sk = (struct sock *)ctx[0];
	u64 address = address_of(ctx[0]);
	struct socket *s = socket_slot(address);
	struct cpu *cpu = this_cpu();
	u32 number = bpf_get_smp_processor_id();
	struct packet *p;
	bool is_early;
	u64 next;

	if (BY_PROCESS)
		note_owner(address);
	if (exact || !cpu || !s || (s32)ctx[1] < 0 || (u32)ctx[2] & MSG_PEEK ||
	    GET(direct, sk, sk_protocol) != IPPROTO_UDP)
		return;
	/* Before its CPU is there to be seen: who sees it waits until this call has looked. */
	fence(&s->returned);
	is_early = s->sk != address || !s->next;
	if (is_early) {
		s->early_sk = address;
		s->early_cpu = number + 1;
	} else {
		p = received(s->next);
		if (p)
			end_packet(p, cpu, false);
		s->next = 0;
	}
	/* One that is signalled from here on is noted there, one before is in the queue, or is seen here. */
	fence(&s->fence);
	if (s->sk == address) {
		next = s->next;
		p = is_early ? received(next) : 0;
		if (p && !is_queued(next)) {
			end_packet(p, cpu, false);
			s->next = 0;
			s->early_cpu = 0;
		}
	}
	/* Now: if an interrupt comes before, the signal stops waiting and the datagram's end is missed. */
	fence(&s->looked);
	if (s->sk == address) {
		next = next_datagram(sk, direct);
		if (next)
			s->next = next;
	}
}

/* Data is passed to a TCP socket; TCP decides when it is sent. */
PROBE(tcp_sendmsg, "tcp_sendmsg_locked")
{
	struct socket *s = socket_of(address_of(ctx[0]));

	if (s)
		s->send_cpu = bpf_get_smp_processor_id() + 1;
}

/* The CPU that passed data to a TCP socket, if known. */
static __always_inline u32 sender_of(u64 sk, u32 number)
{
	struct socket *s = socket_slot(sk);

	return s && s->sk == sk && s->send_cpu ? s->send_cpu - 1 : number;
}

#endif
