/* SPDX-License-Identifier: GPL-2.0-only */
/* The receive path, from the driver to the socket's protocol. */
#ifndef NEARPATH_STAGES_RX_H
#define NEARPATH_STAGES_RX_H

#include "stages_packet.h"

/*
 * A stage of the receive path that has the sk_buff, where packets may start; `header` is the address of the
 * network header, or 0 to use that of the sk_buff.
 */
static __always_inline struct packet *receive(struct cpu *cpu, u64 pointer, u32 stage, enum begin may_begin,
					      u64 header, const bool direct)
{
	struct sk_buff *skb = (struct sk_buff *)pointer;
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);
	u32 number = bpf_get_smp_processor_id();
	u64 dev, now = 0;
	bool same;

	if (!p)
		return 0;
	dev = address_of((u64)GET(direct, skb, dev));
	same = p->tag == tag && (p->state == PACKET_RX || p->state == PACKET_RX_IGNORED) &&
	       same_packet(p, cpu, number, stage, dev);
	if (stage == RX_NETIF_RECEIVE_SKB)
		give(cpu, tag, dev);
	if (same && p->state == PACKET_RX_IGNORED) {
		pass_ignored(p, cpu, number, stage);
		return 0;
	}
	if (!same) {
		u32 state;

		if (p->tag == tag && p->state == PACKET_TX) {
			/*
			 * A virtual device passes the sk_buff to its peer: the end of its transmission. (With
			 * NAPI that is after the device has taken it.)
			 */
			if (has_netif_rx) {
				now = bpf_ktime_get_ns();
				pass_before(p, cpu, number, TX_NETIF_RX, now);
			}
			end_transmit(p);
			finish(p);
			COUNT(cpu, completed);
		}
		keep_datagram(p, tag);
		state = begin_state(cpu, skb, false, header, direct);
		if (state == PACKET_FREE) {
			if (p->tag == tag && p->state != PACKET_FREE)
				finish(p);
			return 0;
		}
		if (state == PACKET_RX_IGNORED) {
			ignore(p, cpu, tag, PACKET_RX_IGNORED, number, stage);
			return 0;
		}
		if (!now)
			now = bpf_ktime_get_ns();
		begin(p, cpu, tag, PACKET_RX, now);
		begin_group(p, cpu, false, header);
		pass_nic(p, cpu, number, now);
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

static __always_inline void gro_receive(u64 pointer, u64 header, const bool direct)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	see_softirq(cpu);
	cpu->gro_packet = address_of(pointer);
	receive(cpu, pointer, RX_NAPI_GRO_RECEIVE, AFTER_CPU_HISTORY, header, direct);
}

PROBE(napi_gro_receive, "napi_gro_receive_entry")
{
	gro_receive(ctx[0], 0, direct);
}

/* A driver that passes pages to GRO: the headers after Ethernet's are still in the first page. */
PROBE(napi_gro_frags, "napi_gro_frags_entry")
{
	struct packet *p;
	u64 header;

	if (!find_header_of_frags((struct sk_buff *)ctx[0], &header)) {
		/* They are read when the stack receives it. The packet previously at this address has ended. */
		p = packet_slot(address_of(ctx[0]));
		if (p && p->tag == address_of(ctx[0]))
			finish(p);
		return;
	}
	gro_receive(ctx[0], header, direct);
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
	if (p && is_ignored(p, cpu->gro_packet))
		free_slot(p);
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
		receive(cpu, ctx[0], RX_NETIF_RX, HERE, 0, direct);
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
	p = receive(cpu, ctx[0], RX_NETIF_RECEIVE_SKB, AFTER_CPU_HISTORY, 0, direct);
	if (p)
		receive_in_task(cpu, p->last_ns);
	turn_to(cpu, p ? p->tag : 0);
}

/* A function that the packet passes between its device and the next device or its socket. */
static __always_inline struct packet *pass_function(u64 pointer, u32 stage)
{
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);
	struct cpu *cpu = this_cpu();
	u32 number = bpf_get_smp_processor_id();

	/* A packet freed unseen since then is not mistaken for it: the run of NET_RX is the same. */
	if (!cpu || !p || p->tag != tag || (p->state != PACKET_RX && p->state != PACKET_RX_IGNORED) ||
	    !in_stack(p) || !in_hand(p, cpu, number))
		return 0;
	if (p->state == PACKET_RX_IGNORED) {
		pass_ignored(p, cpu, number, stage);
		return 0;
	}
	pass(p, cpu, number, stage, bpf_ktime_get_ns());
	return p;
}

static __always_inline void pass_udp(u64 pointer, u32 stage)
{
	struct packet *p = pass_function(pointer, stage);
	struct cpu *cpu = this_cpu();

	if (p)
		p->datagram = true;
	/* The stack turns to this one of the packets that were passed to it. */
	if (cpu)
		turn_to(cpu, p ? p->tag : 0);
}

/* Runs on the source CPU; the target CPU is seen at the next stage. */
PROBE_FUNCTION(enqueue_to_backlog, "enqueue_to_backlog")
{
	u64 tag = address_of(ctx[0]);
	struct packet *p = packet_slot(tag);
	struct cpu *cpu = this_cpu();

	if (cpu && p && is_ignored(p, tag))
		pass_ignored(p, cpu, bpf_get_smp_processor_id(), RX_ENQUEUE_TO_BACKLOG);
	if (cpu && p && p->tag == tag && p->state == PACKET_RX && !delivered(p))
		pass(p, cpu, bpf_get_smp_processor_id(), RX_ENQUEUE_TO_BACKLOG, bpf_ktime_get_ns());
}

/* A tunnel: the outer headers are removed, and the inner packet waits in a queue of the CPU's NAPI. */
PROBE_FUNCTION(gro_cells_receive, "gro_cells_receive")
{
	pass_function(ctx[1], RX_GRO_CELLS_RECEIVE);
}

/* An upper device of the one that the packet came from receives the address of the sk_buff's pointer. */
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

/* Macvtap and ipvtap: the packet waits for a program to read it. */
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
