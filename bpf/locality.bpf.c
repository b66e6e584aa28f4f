// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "locality": on which CPU each packet's sk_buff is allocated, and on which it is let
 * go of, as a matrix.
 *
 * Where functions can be attached to, both moments are seen (locality_exact.h). Elsewhere a packet
 * begins where a tracepoint first sees it and ends where one last does (locality_seen.h). What is
 * here tells receive from transmit, by what the packet does.
 */
#include "locality.h"
#include "locality_exact.h"
#include "locality_seen.h"

char LICENSE[] SEC("license") = "GPL";

#define SKB_FCLONE_CLONE 2 /* include/linux/skbuff.h */

static __always_inline bool is_clone(struct sk_buff *skb)
{
	return BPF_CORE_READ_BITFIELD_PROBED(skb, cloned);
}

static __always_inline bool is_of_tcp(struct sk_buff *skb)
{
	return BPF_CORE_READ_BITFIELD_PROBED(skb, fclone) == SKB_FCLONE_CLONE;
}

/* The packet came in: by a driver, or from a virtual device. */
static __always_inline void receive(u64 pointer, u32 progress, u64 header, const bool direct)
{
	struct sk_buff *skb = (struct sk_buff *)pointer;
	u32 number = bpf_get_smp_processor_id(), from = number;
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);
	struct cpu *cpu = this_cpu();
	bool not_allocated = false;
	u64 dev = 0;

	if (!p || !cpu)
		return;
	if (!exact)
		dev = address_of((u64)GET(direct, skb, dev));
	if (p->tag == tag) {
		if ((p->state == PACKET_RX || p->state == PACKET_RX_IGNORED) &&
		    (exact || same_packet(p, cpu, progress, dev))) {
			p->progress = progress;
			goto in_hand;
		}
		/* A virtual device hands the sk_buff to its peer: it is sent, and received as a new one. */
		if (p->state == PACKET_TX)
			let_go(p, cpu, false);
		else if (p->state == PACKET_ALLOCATED || p->state == PACKET_RX_NO_MATCH)
			from = p->cpu;
	} else if (exact) {
		/*
		 * What was sent as a clone is no sk_buff of its own before its peer receives it; a veth device
		 * with NAPI has copied what it shared by then.
		 */
		not_allocated = !is_clone(skb) && !is_of_tcp(skb);
	}
	begin(p, cpu, tag, skb, from, false, not_allocated, header, direct);
	if (p->tag == tag)
		p->progress = progress;
in_hand:
	if (!exact && progress == IN_STACK) {
		give(cpu, tag, dev);
		cpu->packet = tag;
	}
}

PROBE(napi_gro_receive, "napi_gro_receive_entry")
{
	to_gro(ctx[0]);
	receive(ctx[0], HANDED_IN, 0, direct);
}

PROBE(napi_gro_frags, "napi_gro_frags_entry")
{
	u64 tag = address_of(ctx[0]), header;
	struct packet *p = packet_slot(tag);

	if (find_header_of_frags((struct sk_buff *)ctx[0], &header)) {
		to_gro(ctx[0]);
		receive(ctx[0], HANDED_IN, header, direct);
	} else if (!exact && p && p->tag == tag) {
		/* Its headers are read when the stack is given it. What was at its address has ended. */
		free_slot(p);
	}
}

PROBE(netif_rx, "netif_rx")
{
	receive(ctx[0], HANDED_IN, 0, direct);
}

PROBE(netif_receive_skb, "netif_receive_skb")
{
	receive(ctx[0], IN_STACK, 0, direct);
}

/*
 * The packet goes to a device. What TCP sends is a clone, while the sk_buff with the data waits for
 * its acknowledgement: that one is the packet. Other clones are none.
 */
PROBE(net_dev_queue, "net_dev_queue")
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	u64 tag = address_of(ctx[0]);
	u32 number = bpf_get_smp_processor_id();
	bool of_tcp = is_of_tcp(skb);
	struct cpu *cpu = this_cpu();
	struct packet *p;

	if (exact && of_tcp)
		tag -= bpf_core_field_offset(struct sk_buff_fclones, skb2);
	p = packet_slot(tag);
	if (!p || !cpu)
		return;
	if (p->tag == tag) {
		switch (p->state) {
		case PACKET_TX:
		case PACKET_TX_IGNORED:
			return;
		case PACKET_RX:
		case PACKET_RX_NO_MATCH:
		case PACKET_RX_IGNORED:
			/* Forwarded. */
			if (exact || cpu->packet == tag)
				return;
			break;
		case PACKET_ALLOCATED:
		case PACKET_TX_NO_MATCH:
			number = p->cpu;
		}
		begin(p, cpu, tag, skb, number, true, false, 0, direct);
	} else if (exact) {
		if (of_tcp || !is_clone(skb))
			begin(p, cpu, tag, skb, number, true, true, 0, direct);
	} else {
		if (of_tcp)
			number = sender_of(address_of((u64)GET(direct, skb, sk)), number);
		begin(p, cpu, tag, skb, number, true, false, 0, direct);
	}
}

/* Softirqs work for no task, whichever they interrupt. Looked at where packets are split by process. */
PROBE(softirq_entry, "softirq_entry")
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		cpu->serving = ctx[0] + 1;
}

PROBE(softirq_exit, "softirq_exit")
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		cpu->serving = 0;
}

static __always_inline void freed(u64 pointer, bool drop)
{
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);
	struct cpu *cpu;

	if (!p || p->tag != tag)
		return;
	if (!is_followed(p)) {
		free_slot(p);
		return;
	}
	/* Its reader is about to return, whose moment counts: others may free it for the reader. */
	if (!exact && !drop && waits_for_receive_call(p))
		return;
	cpu = this_cpu();
	if (cpu)
		let_go(p, cpu, drop);
}

PROBE(consume_skb, "consume_skb")
{
	freed(ctx[0], false);
}

PROBE(kfree_skb, "kfree_skb")
{
	freed(ctx[0], true);
}

/* The same without a tracepoint. All but a datagram's and a merged packet's end goes through it. */
PROBE_FUNCTION(skb_release_head_state, "skb_release_head_state")
{
	freed(ctx[0], false);
}

/* GRO has put its data into another packet. */
PROBE_FUNCTION(napi_skb_free_stolen_head, "napi_skb_free_stolen_head")
{
	freed(ctx[0], false);
}

/*
 * A reader lets it go; from 5.18 on the kernel sends it back to the CPU that allocated it, to be
 * freed there. What counts is who had it last.
 */
PROBE_FUNCTION(skb_attempt_defer_free, "skb_attempt_defer_free")
{
	u64 tag = address_of(ctx[0]);
	struct packet *p = packet_slot(tag);
	struct cpu *cpu = this_cpu();

	if (cpu && p && p->tag == tag && is_followed(p) && p->cpu != bpf_get_smp_processor_id())
		COUNT(cpu, returned);
	freed(ctx[0], false);
}

/* Run by hand, to learn what the kernel's run-time statistics add to every run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
