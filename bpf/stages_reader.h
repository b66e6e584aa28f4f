/* SPDX-License-Identifier: GPL-2.0-only */
/* The receive path, from the socket's queue to the return of its reader's call. */
#ifndef NEARPATH_STAGES_READER_H
#define NEARPATH_STAGES_READER_H

#include "stages_rx.h"
#include "sockets.h"

/* tcp_rcv_established(): a segment without data ends here, as nobody waits for it. */
PROBE(tcp_rcv_established, "tcp_probe")
{
	struct cpu *cpu = this_cpu();
	struct sk_buff *skb = (struct sk_buff *)ctx[1];
	struct packet *p;

	if (!cpu)
		return;
	p = receive(cpu, ctx[1], RX_TCP_RCV_ESTABLISHED, NEVER, direct);
	if (!p)
		return;
	if (has_tcp_data(skb, direct)) {
		turn_to(cpu, p->tag);
		return;
	}
	TAKEN_BY(p, NO_PROCESS);
	finish(p);
	COUNT(cpu, completed);
	turn_to(cpu, 0);
}

static __always_inline bool waits_for_reader(struct packet *p, u64 tag)
{
	return p && p->tag == tag && p->state == PACKET_RX &&
	       (in_stack(p) || p->last_stage == RX_TCP_RCV_ESTABLISHED);
}

/* The slot of a socket that data came to; whoever was in it is forgotten. */
static __always_inline struct socket *socket_of(struct sock *sk)
{
	u64 address = address_of((u64)sk);
	struct socket *s = socket_slot(address);

	if (s && s->sk != address) {
		s->sk = address;
		s->next = s->taken_ns = 0;
	}
	return s;
}

/*
 * The socket has told of a datagram that came in at received_ns. With none before it, it is what
 * the next receive call takes. Where the queue is empty a reader was quick and took it already;
 * if its call has returned, too, the path ends here. Returns whether it does.
 */
static __always_inline bool queue_datagram(struct packet *p, struct sock *sk, u64 tag,
					   u64 received_ns, const bool direct)
{
	struct socket *s = socket_of(sk);
	u64 first = address_of((u64)GET(direct, sk, sk_receive_queue.next));

	if (!s || s->next || p->tag != tag)
		return false;
	if (first != tag) {
		first = next_datagram(sk, direct);
		if (first && first != tag)
			return false;
	}
	/* Written before taken_ns is read, as sock_recv does the reverse: one of them sees the other. */
	s->next = tag;
	if (first || s->taken_ns <= received_ns)
		return false;
	s->next = 0;
	return p->tag == tag;
}

/*
 * Whether somebody waits for the socket to have data (skwq_has_sleeper). Where nobody does, the next
 * that is woken on this CPU, as by an interrupt, is not its reader.
 */
static __always_inline bool is_awaited(struct sock *sk, const bool direct)
{
	struct socket_wq *wq = GET(direct, sk, sk_wq);

	/* An empty list points to itself. */
	return wq && address_of((u64)GET(direct, wq, wait.head.next)) !=
			     address_of((u64)wq) + bpf_core_field_offset(wq->wait.head);
}

/*
 * The socket says only that it has data. Which packet that was: for UDP the one that this CPU works
 * on, as other CPUs put theirs into the same queue; else the last in the queue, or, when TCP merged
 * it into an earlier one, the one that this CPU works on.
 */
PROBE(sk_data_ready, "sk_data_ready")
{
	struct cpu *cpu = this_cpu();
	struct sock *sk = (struct sock *)ctx[0];
	u32 number = bpf_get_smp_processor_id();
	u64 tag, received_ns, now;
	struct packet *p;
	u32 protocol;
	bool own;

	if (!cpu || !is_internet(sk, direct))
		return;
	protocol = GET(direct, sk, sk_protocol);
	tag = cpu->packet;
	p = tag ? packet_slot(tag) : 0;
	own = waits_for_reader(p, tag) && p->last_cpu == number;
	if (!own || protocol != IPPROTO_UDP) {
		u64 last = address_of((u64)GET(direct, sk, sk_receive_queue.prev));
		struct packet *other = packet_slot(last);

		if (waits_for_reader(other, last)) {
			tag = last;
			p = other;
		} else if (!own) {
			return;
		} else if (protocol == IPPROTO_TCP &&
			   last != address_of(ctx[0]) + bpf_core_field_offset(sk->sk_receive_queue)) {
			/* (With an empty queue its reader was quick and is about to copy it.) */
			p->state = PACKET_RX_MERGED;
			COUNT(cpu, completed);
		}
	}
	received_ns = p->last_ns;
	p->datagram = protocol == IPPROTO_UDP;
	now = bpf_ktime_get_ns();
	cpu->packet = 0;
	cpu->waker = 0;
	/* A reader may have been quick. */
	barrier();
	if (p->datagram && p->state != PACKET_RX)
		return;
	pass(p, cpu, number, RX_SK_DATA_READY, now);
	if (p->state == PACKET_RX_MERGED)
		TAKEN_BY(p, group_of_owner(address_of(ctx[0])));
	cpu->waker = is_awaited(sk, direct) ? tag : 0;
	if (p->datagram && queue_datagram(p, sk, tag, received_ns, direct)) {
		TAKEN_BY(p, group_of_owner(address_of(ctx[0])));
		finish(p);
		COUNT(cpu, completed);
		cpu->waker = 0;
	}
}

/* Before 6.3 */
PROBE_ENTRY(sk_data_ready, "sock_def_readable")

static __always_inline bool is_received(struct packet *p)
{
	return p->state == PACKET_RX || p->state == PACKET_RX_MERGED;
}

/* try_to_wake_up() of the reader, called by the socket: the task carries the packet on. */
PROBE(sched_waking, "sched_waking")
{
	struct cpu *cpu = this_cpu();
	struct task_struct *reader = (struct task_struct *)ctx[0];
	u32 number = bpf_get_smp_processor_id();
	struct packet *p;
	struct task *task;
	u32 pid;

	if (!cpu || !cpu->waker)
		return;
	p = packet_slot(cpu->waker);
	if (!p || p->tag != cpu->waker || !is_received(p) || p->last_cpu != number ||
	    (has_data_ready ? p->last_stage != RX_SK_DATA_READY : !waits_for_reader(p, p->tag)))
		return;
	cpu->waker = 0;
	pid = GET(direct, reader, pid);
	task = task_slot(pid);
	if (!task)
		return;
	pass(p, cpu, number, RX_SCHED_WAKING, bpf_ktime_get_ns());
	claim(task, pid);
	task->woken_by = p->tag;
	task->moved_ns = 0;
}

PROBE(sched_switch, "sched_switch")
{
	struct task_struct *next = (struct task_struct *)ctx[2];
	u32 pid = GET(direct, next, pid);
	struct task *task = task_slot(pid);
	struct packet *p;
	struct cpu *cpu;
	u64 tag, now = 0;

	if (budgets) {
		cpu = this_cpu();
		now = bpf_ktime_get_ns();
		if (cpu)
			add_task(cpu, next, pid, now,
				 (u8)ctx[0] || is_ready((struct task_struct *)ctx[1], direct), direct);
	}
	if (!task || task->pid != pid || !task->woken_by)
		return;
	tag = task->woken_by;
	task->woken_by = 0;
	p = packet_slot(tag);
	cpu = this_cpu();
	if (cpu && p && p->tag == tag && is_received(p) && p->last_stage == RX_SCHED_WAKING) {
		if (budgets)
			cpu->reader = address_of(ctx[2]);
		pass(p, cpu, bpf_get_smp_processor_id(), RX_SCHED_SWITCH,
		     budgets ? now : bpf_ktime_get_ns());
		cpu->reader = 0;
	}
}

PROBE(skb_copy_datagram, "skb_copy_datagram_iovec")
{
	struct cpu *cpu = this_cpu();
	u32 pid = bpf_get_current_pid_tgid();
	u64 tag = address_of(ctx[0]);
	struct packet *p = packet_slot(tag);
	struct task *task;

	/* What did not come to its socket was freed unseen, and its address is that of another's data. */
	if (!cpu || !p || p->tag != tag || p->state != PACKET_RX ||
	    (has_data_ready && !delivered(p) && !p->datagram))
		return;
	pass(p, cpu, bpf_get_smp_processor_id(), RX_SKB_COPY_DATAGRAM, bpf_ktime_get_ns());
	TAKEN_BY(p, group_of_current());
	finish(p);
	COUNT(cpu, completed);
	task = task_slot(pid);
	if (task) {
		claim(task, pid);
		task->copy_group = p->group;
		task->copy_ns = p->last_ns;
		task->copy_cpu = p->last_cpu;
	}
}

/*
 * A receive call returns. For TCP: the last packet that it copied, as the others are long with
 * it. For UDP, where the copy of a small datagram has no tracepoint: the datagram that it took.
 */
PROBE(sock_recv, "sock_recv_length")
{
	u32 pid = bpf_get_current_pid_tgid();
	struct sock *sk = (struct sock *)ctx[0];
	u64 address = address_of(ctx[0]);
	struct task *task = task_slot(pid);
	struct socket *s = socket_slot(address);
	struct cpu *cpu = this_cpu();
	u64 tag, freed, now;
	struct packet *p;
	bool known;

	if (!cpu || !task || !s)
		return;
	claim(task, pid);
	if (BY_PROCESS)
		note_owner(address);
	freed = task->datagram;
	task->datagram = 0;
	if (task->copy_ns) {
		u64 now = bpf_ktime_get_ns();

		add_span(cpu, 0, task->copy_group, pair(RX_SKB_COPY_DATAGRAM, RX_SOCK_RECV), task->copy_cpu, now,
			 now - task->copy_ns);
		task->copy_ns = 0;
	}
	if ((s32)ctx[1] < 0 || (u32)ctx[2] & MSG_PEEK)
		return;
	/* A reader may be quicker than the socket is to tell of its first datagram. */
	known = s->sk == address;
	if (!known && !freed)
		return;
	now = bpf_ktime_get_ns();
	tag = freed;
	if (known) {
		if (!freed && !s->next)
			s->taken_ns = now;
		tag = freed ? freed : s->next;
		s->next = 0;
	}
	p = tag ? packet_slot(tag) : 0;
	/*
	 * One that was in the queue counts as delivered, though its socket has yet to tell of it. Where it
	 * was freed, another may have come to its address.
	 */
	if (p && p->tag == tag && p->state == PACKET_RX &&
	    (delivered(p) || (freed ? p->last_ns <= task->datagram_ns :
				      in_stack(p) && p->last_ns <= s->next_ns))) {
		u64 reader = BY_PROCESS ? group_of_current() : NO_GROUP;

		/* Another CPU may be about to free it, or to send what is at its address by now. */
		p->state = PACKET_FREE;
		pass(p, cpu, bpf_get_smp_processor_id(), RX_SOCK_RECV, now);
		TAKEN_BY(p, reader);
		finish(p);
		COUNT(cpu, completed);
	}
	/* Where there is none, one may have come just now. */
	tag = known ? next_datagram(sk, direct) : 0;
	if (tag) {
		s->next = tag;
		s->next_ns = now;
	}
}

#include "recvmsg.h"

#endif
