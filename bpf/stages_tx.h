/* SPDX-License-Identifier: GPL-2.0-only */
/* The transmit path, from the send call to the driver. */
#ifndef NEARPATH_STAGES_TX_H
#define NEARPATH_STAGES_TX_H

#include "stages_packet.h"

/* Whether the start of the driver's transmission can be observed. */
const volatile bool has_start_xmit;

/* Number of packets checked when a queueing discipline dequeues several at once (try_bulk_dequeue_skb). */
#define DEQUEUED_MAX 128

/* Entry of a system call: one that sends is recorded; any other ends the send call before it. */
PROBE(sock_send, "sys_enter")
{
	u32 pid = bpf_get_current_pid_tgid();
	struct task *task = task_slot(pid);
	u64 call = ctx[1];

	if (!task)
		return;
	if (call >= SYSCALLS_MAX || !sends[call & (SYSCALLS_MAX - 1)]) {
		if (task->pid == pid)
			task->send_ns = 0;
		return;
	}
	claim_task(task, pid);
	task->send_cpu = bpf_get_smp_processor_id();
	task->tcp_ns = 0;
	task->is_batch = sends[call & (SYSCALLS_MAX - 1)] == SENDS_SEVERAL;
	task->send_ns = bpf_ktime_get_ns();
}

/*
 * The same if functions can be observed: per message and for every sender, including io_uring threads; no other
 * system call is traced.
 */
static __always_inline int message_begins(void)
{
	u32 pid = bpf_get_current_pid_tgid();
	struct task *task = task_slot(pid);

	if (!measuring || !task)
		return 0;
	claim_task(task, pid);
	task->send_cpu = bpf_get_smp_processor_id();
	task->tcp_ns = 0;
	task->send_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int message_ends(void)
{
	u32 pid = bpf_get_current_pid_tgid();
	struct task *task = task_slot(pid);

	if (task && task->pid == pid)
		task->send_ns = 0;
	return 0;
}

#define SENDS_MESSAGE(name, function)                                   \
	SEC("fentry/" function) int sock_send_##name(u64 *ctx)          \
	{                                                               \
		return message_begins();                                \
	}                                                               \
	SEC("fexit/" function) int sock_send_##name##_exit(u64 *ctx)    \
	{                                                               \
		return message_ends();                                  \
	}

SENDS_MESSAGE(inet, "inet_sendmsg")
SENDS_MESSAGE(inet6, "inet6_sendmsg")
/* Before 6.5 */
SENDS_MESSAGE(page, "inet_sendpage")

PROBE(tcp_sendmsg, "tcp_sendmsg_locked")
{
	u32 pid = bpf_get_current_pid_tgid();
	struct task *task = task_slot(pid);

	/* Called again for each piece of a long message; the first call counts. */
	if (!task || task->pid != pid || !task->send_ns || task->tcp_ns)
		return;
	task->tcp_cpu = bpf_get_smp_processor_id();
	task->tcp_ns = bpf_ktime_get_ns();
}

/* Before 6.16 */
PROBE_ENTRY(tcp_sendmsg, "tcp_sendmsg_locked")

/*
 * TCP builds a segment: a clone, or a copy, of the sk_buff passed to it. Which one is known when the IP layer
 * receives it, next on this CPU.
 */
PROBE_FUNCTION(tcp_transmit_skb, "__tcp_transmit_skb")
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		cpu->tcp_ns = bpf_ktime_get_ns();
}

/* The IP layer receives a packet to send, whose header is not written yet. */
static __always_inline void to_ip(u64 pointer, u32 stage, bool from_tcp)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->ip_packet = address_of(pointer);
	cpu->ip_stage = stage;
	cpu->ip_tcp_ns = from_tcp ? cpu->tcp_ns : 0;
	cpu->tcp_ns = 0;
	cpu->ip_ns = bpf_ktime_get_ns();
}

PROBE_FUNCTION(ip_queue_xmit, "__ip_queue_xmit")
{
	to_ip(ctx[1], TX_IP_QUEUE_XMIT, true);
}

PROBE_FUNCTION(inet6_csk_xmit, "inet6_csk_xmit")
{
	to_ip(ctx[1], TX_INET6_CSK_XMIT, true);
}

PROBE_FUNCTION(ip_send_skb, "ip_send_skb")
{
	to_ip(ctx[1], TX_IP_SEND_SKB, false);
}

PROBE_FUNCTION(ip6_send_skb, "ip6_send_skb")
{
	to_ip(ctx[0], TX_IP6_SEND_SKB, false);
}

/* What TCP and IP did with the packet before a device was selected. */
static __always_inline void pass_ip(struct packet *p, struct cpu *cpu, u32 number)
{
	if (cpu->ip_packet != p->tag)
		return;
	cpu->ip_packet = 0;
	/* An observed send call may be later than the one that the segment waited for. */
	if (cpu->ip_tcp_ns && (!p->last_stage || cpu->ip_tcp_ns > p->last_ns))
		pass_before(p, cpu, number, TX_TCP_TRANSMIT_SKB, cpu->ip_tcp_ns);
	if (!p->last_stage || cpu->ip_ns > p->last_ns)
		pass_before(p, cpu, number, cpu->ip_stage, cpu->ip_ns);
}

/*
 * A datagram of a system call that sends several has left the stack: the call continues with the next one. What
 * TCP sends may be part of a message.
 */
static __always_inline void message_has_left(struct cpu *cpu)
{
	u32 sender = cpu->batch_sender, pid;
	struct task *task;

	if (!sender || cpu->serving)
		return;
	cpu->batch_sender = 0;
	pid = bpf_get_current_pid_tgid();
	task = task_slot(pid);
	if (!task || sender != pid || task->pid != pid || !task->send_ns)
		return;
	task->send_cpu = bpf_get_smp_processor_id();
	task->send_ns = bpf_ktime_get_ns();
}

/* The send call in which the packet leaves, unless a softirq sends it independently. */
static __always_inline void pass_send_call(struct packet *p, struct cpu *cpu, struct sk_buff *skb)
{
	u32 pid = bpf_get_current_pid_tgid();
	struct task *task;

	if (cpu->serving)
		return;
	task = task_slot(pid);
	if (!task || task->pid != pid || !task->send_ns)
		return;
	note_reader();
	pass_before(p, cpu, task->send_cpu, TX_SOCK_SEND, task->send_ns);
	if (task->tcp_ns)
		pass_before(p, cpu, task->tcp_cpu, TX_TCP_SENDMSG, task->tcp_ns);
	if (task->is_batch && BPF_CORE_READ(skb, sk, sk_protocol) != IPPROTO_TCP)
		cpu->batch_sender = pid;
}

PROBE(net_dev_queue, "net_dev_queue")
{
	struct cpu *cpu = this_cpu();
	u32 number = bpf_get_smp_processor_id();
	u64 tag = address_of(ctx[0]);
	struct packet *p = packet_slot(tag);
	bool forwarded = false;
	u64 now = 0;
	u32 state;

	if (!cpu || !p || (p->tag == tag && p->state == PACKET_TX_IGNORED))
		return;
	if (p->tag != tag || p->state != PACKET_TX) {
		if (p->tag == tag && p->state == PACKET_RX && in_stack(p) && in_hand(p, cpu, number)) {
			/* Received and forwarded: the end of its reception. */
			now = bpf_ktime_get_ns();
			pass_before(p, cpu, number, RX_NET_DEV_QUEUE, now);
			TAKEN_BY(p, NO_PROCESS);
			end_path(p, PATH_FORWARD);
			finish(p);
			COUNT(cpu, completed);
			forwarded = true;
		}
		keep_datagram(p, tag);
		state = begin_state(cpu, (struct sk_buff *)ctx[0], true, 0, direct);
		if (state == PACKET_FREE) {
			if (p->tag == tag && p->state != PACKET_FREE)
				finish(p);
			/* The instrument "vm" follows it into a virtual machine. */
			if (forwarded && into_guests) {
				p->tag = tag;
				p->state = PACKET_FORWARDED;
			}
			return;
		}
		if (state == PACKET_TX_IGNORED) {
			ignore(p, cpu, tag, PACKET_TX_IGNORED, number, TX_NET_DEV_QUEUE);
			return;
		}
		if (!now)
			now = bpf_ktime_get_ns();
		begin(p, cpu, tag, PACKET_TX, now);
		if (BY_PROCESS)
			see_softirq(cpu);
		begin_group(p, cpu, true, 0);
		pass_send_call(p, cpu, (struct sk_buff *)ctx[0]);
		pass_ip(p, cpu, number);
	} else {
		now = bpf_ktime_get_ns();
	}
	pass(p, cpu, number, TX_NET_DEV_QUEUE, now);
	if (budgets && !has_qdisc_enqueue)
		note_stopped(tag, queue_of((struct sk_buff *)tag));
}

/* A stage of the transmit path; returns the packet. */
static __always_inline struct packet *transmit(struct cpu *cpu, u64 pointer, u32 stage)
{
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);

	if (!p || p->tag != tag || p->state != PACKET_TX)
		return 0;
	pass(p, cpu, bpf_get_smp_processor_id(), stage, bpf_ktime_get_ns());
	return p;
}

PROBE(qdisc_enqueue, "qdisc_enqueue")
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	transmit(cpu, ctx[2], TX_QDISC_ENQUEUE);
	message_has_left(cpu);
	if (budgets)
		note_stopped(ctx[2], (struct netdev_queue *)ctx[1]);
}

/* One of several packets that a queueing discipline dequeues at once. Not static: see packet_path.h. */
__noinline int dequeue_further(u64 pointer, u64 now)
{
	struct packet *p = packet_slot(pointer);
	struct cpu *cpu = this_cpu();

	if (cpu && p && p->tag == pointer && p->state == PACKET_TX)
		pass(p, cpu, bpf_get_smp_processor_id(), TX_QDISC_DEQUEUE, now);
	return 0;
}

/* The first packet of a list, and the length of the list. */
PROBE(qdisc_dequeue, "qdisc_dequeue")
{
	u64 at = address_of(ctx[3]), now;
	struct cpu *cpu = this_cpu();
	u32 count = ctx[2];

	if (!cpu)
		return;
	transmit(cpu, ctx[3], TX_QDISC_DEQUEUE);
	if ((s32)count < 2 || !at)
		return;
	now = bpf_ktime_get_ns();
	for (u32 i = 1; i < DEQUEUED_MAX; i++) {
		at = (u64)BPF_CORE_READ((struct sk_buff *)at, next);
		if (i >= count || !at)
			break;
		dequeue_further(at, now);
	}
}

PROBE(net_dev_start_xmit, "net_dev_start_xmit")
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		transmit(cpu, ctx[0], TX_NET_DEV_START_XMIT);
}

/*
 * The driver has it, unless it was busy (rc). The sk_buff may be freed by now and its address reused, but not
 * by a packet that this CPU passed to a driver just now. A virtual device has passed it on before; an upper
 * (stacked) device has queued it on its lower device, where it still waits.
 */
PROBE(net_dev_xmit, "net_dev_xmit")
{
	u64 tag = address_of(ctx[0]);
	struct packet *p = packet_slot(tag);
	u32 number = bpf_get_smp_processor_id();
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	message_has_left(cpu);
	if (!(u32)ctx[1] && p && p->tag == tag && p->state == PACKET_TX && p->last_cpu == number &&
	    (!has_start_xmit || p->last_stage >= TX_NET_DEV_START_XMIT))
		pass(p, cpu, number, TX_NET_DEV_XMIT, bpf_ktime_get_ns());
}

/*
 * A packet longer than its device supports is segmented and freed: it continues as its first segment. The other
 * segments are the same packet, and are not tracked. (Open vSwitch segments a packet that it sends to user
 * space; what comes back is tracked there.)
 */
static __always_inline int gso_segment_returns(u64 *ctx)
{
	u64 tag = address_of(ctx[0]), first = address_of(ctx[3]);
	struct packet *p = packet_slot(tag), *first_segment, packet;
	struct cpu *cpu = this_cpu();
	u64 now = bpf_ktime_get_ns();

	/* NULL, an error (include/linux/err.h), or the packet itself. */
	if (!measuring || !cpu || !p || p->tag != tag || !first || first >= -4095ULL || first == tag)
		return 0;
	if (!(p->state == PACKET_TX && p->last_stage >= TX_NET_DEV_QUEUE && p->last_stage <= TX_QDISC_DEQUEUE) &&
	    !(p->state == PACKET_RX && p->last_stage != RX_OVS_DP_UPCALL && in_stack(p) &&
	      in_hand(p, cpu, bpf_get_smp_processor_id())))
		return 0;
	first_segment = packet_slot(first);
	if (!first_segment)
		return 0;
	packet = *p;
	transfer_packet_path(tag, first);
	release_slot(p);
	claim_slot(first_segment, cpu, first, packet.state, now);
	packet.tag = first;
	*first_segment = packet;
	return 0;
}

SEC("fexit/__skb_gso_segment") int gso_segment_exit(u64 *ctx)
{
	return measuring ? gso_segment_returns(ctx) : 0;
}

#endif
