/* SPDX-License-Identifier: GPL-2.0-only */
/* The receive path, from the socket's queue to the return of the reader's call. */
#ifndef NEARPATH_STAGES_READER_H
#define NEARPATH_STAGES_READER_H

#include "stages_rx.h"
#include "sockets.h"

/* tcp_rcv_established(): a segment without data ends here, as no task waits for it. */
PROBE(tcp_rcv_established, "tcp_probe")
{
	struct cpu *cpu = this_cpu();
	struct sk_buff *skb = (struct sk_buff *)ctx[1];
	u64 tag = address_of(ctx[1]);
	struct packet *p = packet_slot(tag);

	if (!cpu || !p || p->tag != tag)
		return;
	/* TCP frees segments without a tracepoint. */
	if (p->state == PACKET_RX_IGNORED)
		free_slot(p);
	if (p->state != PACKET_RX)
		return;
	pass(p, cpu, bpf_get_smp_processor_id(), RX_TCP_RCV_ESTABLISHED, bpf_ktime_get_ns());
	if (has_tcp_data(skb, direct)) {
		if (budgets)
			note_gap(p, (struct sock *)ctx[0], skb);
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

/* Assigns the slot to a socket that received data, and resets it. */
static __always_inline struct socket *socket_of(struct sock *sk)
{
	u64 address = address_of((u64)sk);
	struct socket *s = socket_slot(address);

	if (s && s->sk != address) {
		s->sk = address;
		s->next = s->taken = 0;
	}
	return s;
}

/* When a receive call from the socket last returned, or 0 if unknown. */
static __always_inline u64 returned_ns(struct socket *s, u64 address)
{
	return s->returned_sk == address ? s->returned_ns : 0;
}

/* Records what the next receive call takes; nothing if the queue is empty, as another CPU may be recording one. */
static __always_inline void see_next(struct socket *s, struct sock *sk, const bool direct)
{
	u64 tag = next_datagram(sk, direct);
	struct packet *p;

	if (!tag)
		return;
	s->next = tag;
	p = packet_slot(tag);
	/* The time of a delivered packet is not checked: what reuses its address is newer than 0. */
	s->next_ns = p && p->tag == tag && delivered(p) ? 0 : bpf_ktime_get_ns();
}

/*
 * The socket has signalled a datagram that was received at received_ns. If it is no longer in a queue, a reader
 * was faster; if the reader's call has also returned, the path ends here. Returns whether it does.
 */
static __always_inline bool queue_datagram(struct packet *p, struct sock *sk, u64 tag,
					   u64 received_ns, const bool direct)
{
	struct socket *s = socket_of(sk);
	u64 address = address_of((u64)sk);

	if (!s || p->tag != tag || s->next == tag)
		return false;
	if (!s->next)
		see_next(s, sk, direct);
	if (is_queued(tag))
		return false;
	/* (If an earlier call returned since, the next one must not end it, too.) */
	if (returned_ns(s, address) <= received_ns) {
		s->taken = tag;
		/* sock_recv does this in the opposite order, so one of the two sees the other, or each does. */
		fence(&s->fence);
		if (returned_ns(s, address) <= received_ns)
			return false;
	}
	/* It has ended the path if it saw that this datagram was taken. */
	if (!await_look(&s->returned_ns, &s->looked_ns))
		return false;
	if (s->taken == tag)
		s->taken = 0;
	if (s->next == tag)
		s->next = 0;
	return p->tag == tag && p->state == PACKET_RX;
}

/*
 * Whether a task waits for the socket to have data (skwq_has_sleeper). If none does, the next task woken on
 * this CPU, for example by an interrupt, is not its reader.
 */
static __always_inline bool is_awaited(struct sock *sk, const bool direct)
{
	struct socket_wq *wq = GET(direct, sk, sk_wq);

	/* An empty list points to itself. */
	return wq && address_of((u64)GET(direct, wq, wait.head.next)) !=
			     address_of((u64)wq) + bpf_core_field_offset(wq->wait.head);
}

static __always_inline bool awaits_delivery(u64 tag, u32 number)
{
	struct packet *p = tag ? packet_slot(tag) : 0;

	return waits_for_reader(p, tag) && p->last_cpu == number;
}

/*
 * The socket signals only that it has data, not which packet. For UDP delivered_datagram() finds it; otherwise
 * it is the last one in the queue or, if TCP merged it into an earlier one, the one that this CPU is
 * processing.
 */
PROBE(sk_data_ready, "sk_data_ready")
{
	struct cpu *cpu = this_cpu();
	struct sock *sk = (struct sock *)ctx[0];
	u32 number = bpf_get_smp_processor_id();
	u64 tag, last, received_ns, now;
	struct packet *p;
	u32 protocol;
	bool own;

	if (!cpu || !is_internet(sk, direct))
		return;
	protocol = GET(direct, sk, sk_protocol);
	last = address_of((u64)GET(direct, sk, sk_receive_queue.prev));
	tag = cpu->packet;
	if (protocol == IPPROTO_UDP && !has_udp_rcv)
		tag = delivered_datagram(cpu, number, last, GET(direct, sk, __sk_common.skc_num));
	p = tag ? packet_slot(tag) : 0;
	own = waits_for_reader(p, tag) && p->last_cpu == number;
	if (own && !has_softirqs && protocol == IPPROTO_TCP) {
		u64 served = cpu->serving;

		/*
		 * The backlog of a socket is received by its owner: it is not the packet that a softirq was
		 * processing.
		 */
		see_softirq(cpu);
		own = cpu->serving == served;
	}
	if (!own || protocol != IPPROTO_UDP) {
		struct packet *other = packet_slot(last);

		if (waits_for_reader(other, last)) {
			tag = last;
			p = other;
		} else if (!own) {
			return;
		} else if (protocol == IPPROTO_TCP &&
			   last != address_of(ctx[0]) + bpf_core_field_offset(sk->sk_receive_queue)) {
			/* (If the queue is empty, a fast reader has it and is about to copy it.) */
			p->state = PACKET_RX_MERGED;
			COUNT(cpu, completed);
		}
	}
	received_ns = p->last_ns;
	p->datagram = protocol == IPPROTO_UDP;
	now = bpf_ktime_get_ns();
	if (budgets && protocol == IPPROTO_TCP)
		note_ready(sk, now);
	cpu->packet = 0;
	cpu->waker = 0;
	/* A reader may have been faster. */
	barrier();
	if (p->datagram && p->state != PACKET_RX)
		return;
	pass(p, cpu, number, RX_SK_DATA_READY, now);
	if (p->state == PACKET_RX_MERGED)
		TAKEN_BY(p, group_of_owner(address_of(ctx[0])));
	cpu->waker = is_awaited(sk, direct) ? tag : 0;
	if (p->datagram && !has_consume_udp && queue_datagram(p, sk, tag, received_ns, direct)) {
		TAKEN_BY(p, group_of_owner(address_of(ctx[0])));
		end_path(p, PATH_RECEIVE);
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

/* Maximum time from the socket's call to the wake-up, which takes some locks. */
#define WAKES_WITHIN_NS 50000

/* try_to_wake_up() of the reader, called by the socket: the task now carries the packet. */
PROBE(sched_waking, "sched_waking")
{
	struct cpu *cpu = this_cpu();
	struct task_struct *reader = (struct task_struct *)ctx[0];
	u32 number = bpf_get_smp_processor_id();
	struct reader *known = 0;
	struct packet *p;
	struct task *task;
	u64 now = 0;
	u32 pid;

	if (budgets) {
		known = find_reader(GET(direct, reader, pid));
		if (known) {
			now = bpf_ktime_get_ns();
			reader_woken(cpu, known, reader, now, direct);
		}
	}
	if (!cpu || !cpu->waker)
		return;
	p = packet_slot(cpu->waker);
	if (!p || p->tag != cpu->waker || !is_received(p) || p->last_cpu != number ||
	    (has_data_ready ? p->last_stage != RX_SK_DATA_READY : !waits_for_reader(p, p->tag)))
		return;
	cpu->waker = 0;
	if (!now)
		now = bpf_ktime_get_ns();
	/* The socket wakes at once; a later wake-up is of another task, by an interrupt or another softirq. */
	if (!has_softirqs && now - p->last_ns > WAKES_WITHIN_NS)
		return;
	pid = GET(direct, reader, pid);
	task = task_slot(pid);
	if (!task)
		return;
	pass(p, cpu, number, RX_SCHED_WAKING, now);
	claim_task(task, pid);
	task->woken_by = p->tag;
	if (budgets && !known) {
		known = claim_reader(pid);
		if (known)
			reader_woken(cpu, known, reader, now, direct);
	}
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
		struct task_struct *previous = (struct task_struct *)ctx[1];
		struct reader *r;

		cpu = this_cpu();
		now = bpf_ktime_get_ns();
		if (cpu)
			add_task(cpu, next, pid, now, (u8)ctx[0] || is_ready(previous, direct), direct);
		note_task(ctx[2], pid, direct);
		note_task(ctx[1], GET(direct, previous, pid), direct);
		r = find_reader(GET(direct, previous, pid));
		if (r)
			reader_leaves(ctx, r, previous, (u8)ctx[0], now, direct);
		r = find_reader(pid);
		if (r)
			add_reader_event(r, RING_SWITCHES, READER_RUNS, bpf_get_smp_processor_id(), now);
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

/* System calls that receive and have flags; set by user space for its architecture. */
const volatile u64 recvfrom_call, recvmsg_call, recvmmsg_call;

/*
 * Whether the receive call in progress only peeks at the data (MSG_PEEK), from the arguments of the system
 * call. Not known before 5.15.
 */
static __always_inline bool is_peek(void)
{
	struct pt_regs *regs = user_regs();
	u64 call;

	if (!regs)
		return false;
	call = USER_REG(regs, CALL_NUMBER);
	if (call == recvmsg_call)
		return USER_REG(regs, THIRD_ARGUMENT) & MSG_PEEK;
	return (call == recvfrom_call || call == recvmmsg_call) && USER_REG(regs, FOURTH_ARGUMENT) & MSG_PEEK;
}

PROBE(skb_copy_datagram, "skb_copy_datagram_iovec")
{
	struct cpu *cpu = this_cpu();
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct sock *owner;
	u32 pid = bpf_get_current_pid_tgid();
	u64 tag = address_of(ctx[0]);
	struct packet *p = packet_slot(tag);
	struct task *task;

	if (p && is_ignored(p, tag) && !is_peek())
		free_slot(p);
	/*
	 * A packet that did not reach its socket, or that its socket only needed to know of (the last one of a
	 * handshake), was freed unseen, and its address was reused: here by a socket of another kind (netlink, Unix).
	 */
	owner = GET(direct, skb, sk);
	if (p && p->tag == tag && owner && is_of_messages(owner, direct)) {
		free_slot(p);
		return;
	}
	if (!cpu || !p || p->tag != tag || p->state != PACKET_RX ||
	    (has_data_ready && !delivered(p) && !p->datagram))
		return;
	task = task_slot(pid);
	/* Checked once per call, at its first copy. */
	if ((!has_sock_recv || !task || task->pid != pid || !task->copy_ns) && is_peek())
		return;
	note_reader();
	pass(p, cpu, bpf_get_smp_processor_id(), RX_SKB_COPY_DATAGRAM, bpf_ktime_get_ns());
	TAKEN_BY(p, group_of_current());
	end_path(p, PATH_RECEIVE);
	finish(p);
	COUNT(cpu, completed);
	if (task) {
		claim_task(task, pid);
		task->copy_group = p->group;
		task->copy_ns = p->last_ns;
		task->copy_cpu = p->last_cpu;
	}
}

/*
 * UDP has copied a datagram to its reader, the current task, and releases it: it leaves its slot, as its
 * address may be reused before the call returns. One that is only peeked at (MSG_PEEK) has a negative length
 * and stays in the queue.
 */
PROBE_FUNCTION(consume_udp, "skb_consume_udp")
{
	struct sk_buff *skb = (struct sk_buff *)ctx[1];
	u32 pid = bpf_get_current_pid_tgid();
	u64 tag = address_of(ctx[1]);
	struct packet *p = packet_slot(tag);
	struct task *task = task_slot(pid);
	s32 length = ctx[2];

	if (!p || !task || p->tag != tag || length < 0 || (!length && BPF_CORE_READ(skb, users.refs.counter) > 1))
		return;
	if (p->state == PACKET_RX_IGNORED)
		free_slot(p);
	if (!has_sock_recv || p->state != PACKET_RX)
		return;
	claim_task(task, pid);
	/* Done first, as another CPU may be about to report it. */
	p->state = PACKET_FREE;
	barrier();
	task->taken = *p;
	p->tag = 0;
}

/*
 * The datagram with which a receive call returns leaves its slot, if it is known. This is done first, as
 * another CPU may be about to signal or free it, or to send a packet that reuses its address. freed_ns is its
 * last stage when it was freed, or 0; before_ns is when the previous call returned. Returns whether there is one.
 */
static __always_inline bool claim_datagram(struct packet *datagram, struct socket *s, u64 tag, u64 freed_ns,
					  u64 before_ns)
{
	struct replaced *r = replaced_slot(tag);
	struct packet *p = packet_slot(tag);

	if (r && r->packet.tag == tag &&
	    (freed_ns ? r->packet.last_ns == freed_ns : r->replaced_ns > before_ns)) {
		*datagram = r->packet;
		/* Its recorded path belongs to the newer packet. */
		r->packet.tag = datagram->tag = 0;
		return true;
	}
	if (!p || p->tag != tag || p->state != PACKET_RX)
		return false;
	/*
	 * One in the queue counts as delivered, even if its socket has not signalled it yet; a newer one does
	 * not.
	 */
	if (!delivered(p) && (freed_ns ? p->last_ns > freed_ns : !in_stack(p) || p->last_ns > s->next_ns))
		return false;
	p->state = PACKET_FREE;
	barrier();
	s->looked_ns = s->returned_ns;
	*datagram = *p;
	p->tag = 0;
	return true;
}

/* The receive call returns with the datagram that it has taken. */
static __always_inline void end_taken(struct task *task, struct cpu *cpu)
{
	struct packet *p = &task->taken;

	if (!p->tag)
		return;
	pass(p, cpu, bpf_get_smp_processor_id(), RX_SOCK_RECV, bpf_ktime_get_ns());
	TAKEN_BY(p, group_of_current());
	end_path(p, PATH_RECEIVE);
	end_packet_path(p->tag);
	p->tag = 0;
	COUNT(cpu, completed);
}

/*
 * A receive call returns. TCP: the last packet that it copied, as the others take as long. UDP, where the copy
 * of a small datagram has no tracepoint: the datagram that it took.
 */
PROBE(sock_recv, "sock_recv_length")
{
	u32 pid = bpf_get_current_pid_tgid();
	struct sock *sk = (struct sock *)ctx[0];
	u64 address = address_of(ctx[0]);
	struct task *task = task_slot(pid);
	struct socket *s = socket_slot(address);
	struct cpu *cpu = this_cpu();
	u64 tag, freed, before, now;
	bool is_claimed;
	struct packet datagram;

	if (!cpu || !task || !s)
		return;
	claim_task(task, pid);
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
	if (has_consume_udp) {
		end_taken(task, cpu);
		return;
	}
	if ((s32)ctx[1] < 0 || (u32)ctx[2] & MSG_PEEK)
		return;
	if (!freed && s->sk != address && GET(direct, sk, sk_protocol) != IPPROTO_UDP)
		return;
	now = bpf_ktime_get_ns();
	tag = freed;
	before = returned_ns(s, address);
	if (!freed) {
		/* Also for a socket without a slot: a reader may be faster than the signal for its first datagram. */
		s->returned_ns = now;
		s->returned_sk = address;
		fence(&s->fence);
		tag = s->sk != address ? 0 : s->taken ?: s->next;
	}
	is_claimed = tag && claim_datagram(&datagram, s, tag, freed ? task->datagram_ns : 0, before);
	barrier();
	s->looked_ns = s->returned_ns;
	if (s->sk != address && !is_claimed)
		return;
	note_reader();
	if (is_claimed) {
		pass(&datagram, cpu, bpf_get_smp_processor_id(), RX_SOCK_RECV, now);
		if (datagram.tag) {
			TAKEN_BY(&datagram, BY_PROCESS ? group_of_current() : NO_GROUP);
			end_packet_path(datagram.tag);
		}
		end_path(&datagram, PATH_RECEIVE);
		COUNT(cpu, completed);
	}
	if (s->sk == address) {
		s->next = s->taken = 0;
		barrier();
		see_next(s, sk, direct);
	}
}

#include "recvmsg.h"

#endif
