/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A packet's path: its start, its end, whether it is still the same packet, and what the CPU did before it was
 * first seen.
 */
#ifndef NEARPATH_STAGES_PACKET_H
#define NEARPATH_STAGES_PACKET_H

#include "span.h"
#include "nic_stamps.h"
#include "path.h"
#include "softirqs.h"

/* Whether sk_data_ready can be observed; if not, the packet itself is taken to wake the reader. */
const volatile bool has_data_ready = true;
/* Whether the start of UDP's processing can be; if not, only the order shows which datagram a socket receives. */
const volatile bool has_udp_rcv;
/* Whether the return of a receive call can be; if not, a datagram ends when it is freed. */
const volatile bool has_sock_recv = true;
/* Whether UDP's release of a datagram can be; if not, only the order shows which one a call has taken. */
const volatile bool has_consume_udp;
/* Whether netif_rx can be, through which a virtual device passes a packet to its peer. */
const volatile bool has_netif_rx = true;

/* Whether packets are followed into virtual machines, which begins where they are forwarded to a tap. */
const volatile bool into_guests;

/* System calls that send, by number; set by user space for its architecture. */
#define SYSCALLS_MAX 512
const volatile u8 sends[SYSCALLS_MAX];
/* The ones that send several messages. */
#define SENDS_SEVERAL 2

enum begin { HERE, AFTER_CPU_HISTORY };

/* The path of a packet starts at the NIC if the NIC has timestamped it. */
static __always_inline void pass_nic(struct packet *p, struct cpu *cpu, u32 number, u64 now)
{
	u64 packet = p->tag, stamp;

	if (!has_nic_stamps)
		return;
	/* Not the pointer itself: the verifier does not accept a typed pointer as a scalar argument. */
	stamp = nic_stamp_ns(packet, BPF_CORE_READ((struct sk_buff *)packet, dev, ifindex), now);
	if (stamp)
		pass_before(p, cpu, number, RX_NIC_RX, stamp);
}

static __always_inline void finish(struct packet *p)
{
	end_packet_path(p->tag);
	free_slot(p);
}

/* The packet continues as another sk_buff, and so does its recorded path. */
static __always_inline void release_slot(struct packet *p)
{
	forget_packet_path(p->tag);
	free_slot(p);
}

/* The packet has reached its socket: the stack is finished with it. */
static __always_inline bool delivered(struct packet *p)
{
	return p->last_stage >= RX_TCP_RCV_ESTABLISHED && p->last_stage <= RX_SCHED_SWITCH;
}

/* The packet was last seen between its device and its socket, the next device, or its reader. */
static __always_inline bool in_stack(struct packet *p)
{
	return p->last_stage >= RX_NETIF_RECEIVE_SKB && p->last_stage <= RX_UDPV6_RCV;
}

/*
 * The stack is processing the packet: it was last seen in the current run of NET_RX here, or in the task that
 * receives here. Otherwise it was freed without a tracepoint, and its address was reused.
 */
static __always_inline bool in_hand(struct packet *p, struct cpu *cpu, u32 number)
{
	struct sk_buff *skb = (struct sk_buff *)p->tag;

	/*
	 * If runs are not observed, the sk_buff itself shows it: the stack stores the device in it (skb_iif)
	 * when it passes netif_receive_skb, where each packet gets its slot. One allocated since then has no
	 * such mark.
	 */
	if (!has_softirqs)
		return BPF_CORE_READ(skb, skb_iif) != 0;
	if (cpu->serving == NET_RX_SOFTIRQ + 1)
		return p->last_cpu == number && p->last_ns >= cpu->entry_ns;
	if (cpu->serving)
		return false;
	/* The answer of user space is processed with softirqs enabled, so the task may have migrated. */
	return p->last_stage == RX_OVS_PACKET_CMD_EXECUTE ||
	       (p->last_cpu == number && cpu->task_ns && p->last_ns >= cpu->task_ns);
}

/*
 * A task receives, not a softirq: it writes to a tap, polls a NIC, or answers an upcall. Softirqs are disabled
 * meanwhile, so what it started ends before the next softirq.
 */
static __always_inline void receive_in_task(struct cpu *cpu, u64 now)
{
	if (!cpu->serving && !cpu->task_ns)
		cpu->task_ns = now;
}

/* Whether an incoming sk_buff is still the packet in the slot, not a new one; `dev` is its device. */
static __always_inline bool same_packet(struct packet *p, struct cpu *cpu, u32 number, u32 stage, u64 dev)
{
	if (!in_stack(p))
		return p->last_stage == RX_GRO_CELLS_RECEIVE ||
		       (stage == RX_NETIF_RECEIVE_SKB && p->last_stage < RX_NETIF_RECEIVE_SKB) ||
		       /* Another CPU takes it over from one that goes offline (dev_cpu_dead). */
		       (stage == RX_NETIF_RX &&
			(p->last_stage == RX_NETIF_RX || p->last_stage == RX_ENQUEUE_TO_BACKLOG));
	/*
	 * The answer of user space does not come from a device, and the stage that records it may not be
	 * observed.
	 */
	return in_hand(p, cpu, number) &&
	       (!has_softirqs || p->last_stage == RX_OVS_PACKET_CMD_EXECUTE || is_given_on(cpu, p->tag, dev));
}

/*
 * Claims a slot for a packet; another packet in it is lost. If that had the same address, or was silent for
 * long, it was gone already and only its end was missed.
 */
static __always_inline void claim_slot(struct packet *p, struct cpu *cpu, u64 tag, u32 state, u64 now)
{
	if (is_followed(p) && p->tag != tag && now - p->last_ns < PACKET_STALE_NS)
		COUNT(cpu, collided);
	p->tag = tag;
	p->last_stage = STAGE_NONE;
	p->datagram = false;
	p->flags = 0;
	p->last_ns = now;
	p->state = state;
}

/* The same for a new packet. */
static __always_inline void begin(struct packet *p, struct cpu *cpu, u64 tag, u32 state, u64 now)
{
	begin_packet_path(tag, now);
	claim_slot(p, cpu, tag, state, now);
}

/*
 * A packet that is not sampled passes a stage: its position shows at the next stage whether it is the same
 * packet.
 */
static __always_inline void pass_ignored(struct packet *p, struct cpu *cpu, u32 number, u32 stage)
{
	if (stage == RX_NETIF_RECEIVE_SKB && !cpu->serving && !cpu->task_ns)
		receive_in_task(cpu, bpf_ktime_get_ns());
	p->last_stage = stage;
	p->last_cpu = number;
	/* The run identifies it without reading the clock, which is the most expensive part. */
	p->last_ns = cpu->serving ? cpu->entry_ns : cpu->task_ns;
}

/* Claims a slot for a packet that is not sampled, at minimal cost. */
static __always_inline void ignore(struct packet *p, struct cpu *cpu, u64 tag, u32 state, u32 number, u32 stage)
{
	if (is_followed(p) && p->tag != tag && bpf_ktime_get_ns() - p->last_ns < PACKET_STALE_NS)
		COUNT(cpu, collided);
	p->tag = tag;
	p->state = state;
	if (state == PACKET_RX_IGNORED)
		pass_ignored(p, cpu, number, stage);
}

/*
 * A newer packet reuses the address. The datagram that was there is kept until the call that took it returns;
 * that is still to come if the call was interrupted just after it freed the datagram.
 */
static __always_inline void keep_datagram(struct packet *p, u64 tag)
{
	struct replaced *r;

	if (p->tag != tag || p->state != PACKET_RX || !p->datagram || !delivered(p))
		return;
	r = replaced_slot(tag);
	if (!r)
		return;
	r->packet = *p;
	r->replaced_ns = bpf_ktime_get_ns();
}

/* What this CPU did since the packet's last stage: interrupt, raise, entry, start of the poll. */
static __always_inline void pass_cpu_history(struct packet *p, struct cpu *cpu, u32 number)
{
	bool first = !p->last_stage;

	if (cpu->serving != NET_RX_SOFTIRQ + 1)
		return;
	/* An interrupt before the packet's last stage does not belong to this packet. */
	if (has_softirqs && cpu->run_irq_ns &&
	    (first || (p->last_stage == RX_NIC_RX && cpu->run_irq_ns > p->last_ns)))
		pass_before(p, cpu, number, RX_IRQ_HANDLER, cpu->run_irq_ns);
	if (cpu->run_raise_ns && (first || cpu->run_raise_ns > p->last_ns))
		pass_before(p, cpu, number, RX_NET_RX_RAISE, cpu->run_raise_ns);
	if (!has_softirqs)
		return;
	if (first || cpu->entry_ns > p->last_ns)
		pass_before(p, cpu, number, RX_NET_RX_ENTRY, cpu->entry_ns);
	/* The first poll of a run starts at its entry; a later one waited for the polls before it. */
	if (cpu->poll_ns > cpu->entry_ns && (first || cpu->poll_ns > p->last_ns))
		pass_before(p, cpu, number, RX_NAPI_POLL, cpu->poll_ns);
	/* The poll of what RPS, netif_rx() or a peer's softirq put into this CPU's backlog. */
	if (cpu->backlog_ns >= cpu->poll_ns && (first || cpu->backlog_ns > p->last_ns))
		pass_before(p, cpu, number, RX_PROCESS_BACKLOG, cpu->backlog_ns);
}

#endif
