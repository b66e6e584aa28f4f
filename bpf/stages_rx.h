/* SPDX-License-Identifier: GPL-2.0-only */
/* The receive path, from the driver to the socket's protocol. */
#ifndef NEARPATH_STAGES_RX_H
#define NEARPATH_STAGES_RX_H

#include "stages_packet.h"

/* A stage of the receive path that is told the sk_buff. */
static __always_inline struct packet *receive(struct cpu *cpu, u64 pointer, u32 stage,
					      enum begin may_begin, const bool direct)
{
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);
	u32 number = bpf_get_smp_processor_id();
	u64 now;

	if (!p)
		return 0;
	if (p->tag != tag || p->state != PACKET_RX ||
	    (may_begin != NEVER && !same_packet(p, cpu, number, stage, pointer, direct))) {
		u32 result;

		if (may_begin == NEVER || (p->tag == tag && p->state == PACKET_RX_IGNORED))
			return 0;
		if (p->tag == tag && p->state == PACKET_TX) {
			/*
			 * A virtual device hands the sk_buff to its peer: the end of its transmission. (By NAPI
			 * that is after the device has taken it.)
			 */
			if (has_netif_rx)
				pass_before(p, cpu, number, TX_NETIF_RX, bpf_ktime_get_ns());
			finish(p);
			COUNT(cpu, completed);
		}
		keep_datagram(p, tag);
		result = active ? filter_match((struct sk_buff *)pointer, false, direct) : NO_MATCH;
		if (result == NO_MATCH) {
			if (p->tag == tag && p->state != PACKET_FREE)
				finish(p);
			return 0;
		}
		if (result == NOT_SAMPLED) {
			ignore(p, cpu, tag, PACKET_RX_IGNORED);
			return 0;
		}
		now = bpf_ktime_get_ns();
		begin(p, cpu, tag, PACKET_RX, now);
		begin_group(p, cpu, false);
		if (may_begin == AFTER_CPU_HISTORY)
			pass_cpu_history(p, cpu, number);
	} else {
		now = bpf_ktime_get_ns();
		if (may_begin == AFTER_CPU_HISTORY)
			pass_cpu_history(p, cpu, number);
	}
	pass(p, cpu, number, stage, now);
	return p;
}

static __always_inline void gro_receive(u64 *ctx, const bool direct)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->gro_packet =
		receive(cpu, ctx[0], RX_NAPI_GRO_RECEIVE, AFTER_CPU_HISTORY, direct) ? address_of(ctx[0]) : 0;
}

PROBE(napi_gro_receive, "napi_gro_receive_entry")
{
	gro_receive(ctx, direct);
}

PROBE(napi_gro_frags, "napi_gro_frags_entry")
{
	gro_receive(ctx, direct);
}

/* A packet merged into another by GRO ends there (enum gro_result: MERGED 0, MERGED_FREE 1). */
static __always_inline void gro_result(u64 *ctx)
{
	struct cpu *cpu;
	struct packet *p;

	if ((u32)ctx[0] > 1)
		return;
	cpu = this_cpu();
	if (!cpu || !cpu->gro_packet)
		return;
	p = packet_slot(cpu->gro_packet);
	if (p && p->tag == cpu->gro_packet && p->state == PACKET_RX) {
		TAKEN_BY(p, NO_PROCESS);
		finish(p);
		COUNT(cpu, completed);
	}
	cpu->gro_packet = 0;
}

PROBE(napi_gro_receive_exit, "napi_gro_receive_exit")
{
	gro_result(ctx);
}

PROBE(napi_gro_frags_exit, "napi_gro_frags_exit")
{
	gro_result(ctx);
}

PROBE(netif_rx, "netif_rx")
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		receive(cpu, ctx[0], RX_NETIF_RX, HERE, direct);
}

PROBE(netif_receive_skb, "netif_receive_skb")
{
	struct cpu *cpu = this_cpu();

	struct packet *p;

	if (!cpu)
		return;
	see_softirq(cpu);
	if (budgets)
		cpu->received++;
	p = receive(cpu, ctx[0], RX_NETIF_RECEIVE_SKB, AFTER_CPU_HISTORY, direct);
	if (p && !cpu->serving) {
		receive_in_task(cpu, p->last_ns);
		cpu->task_dev = address_of((u64)GET(direct, (struct sk_buff *)ctx[0], dev));
	}
	turn_to(cpu, p ? p->tag : 0);
}

/* A function that the packet passes on its way from one device to the next, or to its socket. */
static __always_inline struct packet *pass_function(u64 pointer, u32 stage)
{
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);
	struct cpu *cpu = this_cpu();
	u32 number = bpf_get_smp_processor_id();

	/* What was freed unseen since is not taken for it: the run of NET_RX is the same. */
	if (!cpu || !p || p->tag != tag || p->state != PACKET_RX || !in_stack(p) ||
	    !in_hand(p, cpu, number))
		return 0;
	pass(p, cpu, number, stage, bpf_ktime_get_ns());
	return p;
}

static __always_inline void pass_udp(u64 pointer, u32 stage)
{
	struct packet *p = pass_function(pointer, stage);

	if (p)
		p->datagram = true;
}

/* On the CPU that it comes from; the CPU that it goes to is seen at its next stage. */
PROBE_FUNCTION(enqueue_to_backlog, "enqueue_to_backlog")
{
	u64 tag = address_of(ctx[0]);
	struct packet *p = packet_slot(tag);
	struct cpu *cpu = this_cpu();

	if (cpu && p && p->tag == tag && p->state == PACKET_RX && !delivered(p))
		pass(p, cpu, bpf_get_smp_processor_id(), RX_ENQUEUE_TO_BACKLOG, bpf_ktime_get_ns());
}

/* Of a tunnel: the outer headers are off, and the inner packet waits in a queue of the CPU's NAPI. */
PROBE_FUNCTION(gro_cells_receive, "gro_cells_receive")
{
	pass_function(ctx[1], RX_GRO_CELLS_RECEIVE);
}

/* A device that stands on the one that the packet came by gets the address of the sk_buff's pointer. */
static __always_inline void pass_upper(u64 pointer, u32 stage)
{
	u64 skb = 0;

	if (!bpf_probe_read_kernel(&skb, sizeof(skb), (void *)pointer))
		pass_function(skb, stage);
}

PROBE_FUNCTION(vlan_do_receive, "vlan_do_receive")
{
	pass_upper(ctx[0], RX_VLAN_DO_RECEIVE);
}

PROBE_FUNCTION(bond_handle_frame, "bond_handle_frame")
{
	pass_upper(ctx[0], RX_BOND_HANDLE_FRAME);
}

PROBE_FUNCTION(br_handle_frame, "br_handle_frame")
{
	pass_upper(ctx[0], RX_BR_HANDLE_FRAME);
}

PROBE_FUNCTION(macvlan_handle_frame, "macvlan_handle_frame")
{
	pass_upper(ctx[0], RX_MACVLAN_HANDLE_FRAME);
}

/* Macvtap and ipvtap: it waits for a program to read it. */
PROBE_FUNCTION(tap_handle_frame, "tap_handle_frame")
{
	pass_upper(ctx[0], RX_TAP_HANDLE_FRAME);
}

PROBE_FUNCTION(ip_rcv, "ip_rcv")
{
	pass_function(ctx[0], RX_IP_RCV);
}

PROBE_FUNCTION(ipv6_rcv, "ipv6_rcv")
{
	pass_function(ctx[0], RX_IPV6_RCV);
}

PROBE_FUNCTION(tcp_v4_rcv, "tcp_v4_rcv")
{
	pass_function(ctx[0], RX_TCP_V4_RCV);
}

PROBE_FUNCTION(tcp_v6_rcv, "tcp_v6_rcv")
{
	pass_function(ctx[0], RX_TCP_V6_RCV);
}

PROBE_FUNCTION(udp_rcv, "udp_rcv")
{
	pass_udp(ctx[0], RX_UDP_RCV);
}

PROBE_FUNCTION(udpv6_rcv, "udpv6_rcv")
{
	pass_udp(ctx[0], RX_UDPV6_RCV);
}

#endif
