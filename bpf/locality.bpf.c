// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "locality": the CPU on which each packet's sk_buff is allocated, and the CPU on which it is
 * freed, as a matrix.
 *
 * If functions can be attached to, both events are observed directly (locality_exact.h). Otherwise a packet
 * starts at the first tracepoint that sees it and ends at the last (locality_seen.h). This file distinguishes
 * receive from transmit, by what happens to the packet.
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

/* The packet was received: by a driver, or from a virtual device. */
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
			end_packet(p, cpu, false);
		else if (p->state == PACKET_ALLOCATED || p->state == PACKET_RX_NO_MATCH)
			from = p->cpu;
	} else if (exact) {
		/*
		 * A packet sent as a clone has no sk_buff of its own until its peer receives it; a veth device
		 * with NAPI has copied the shared data by then.
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
		/*
		 * Its headers are read when the stack receives it. The packet previously at this address has
		 * ended.
		 */
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
 * The packet goes to a device. TCP sends a clone, while the sk_buff with the data waits for its
 * acknowledgement: the latter is the packet. Other clones do not count.
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

/* Softirqs do not work on behalf of the task that they interrupt. Checked only if packets are split by process. */
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
	/*
	 * Its reader is about to return, and that is the end: other contexts may free it later on the reader's
	 * behalf.
	 */
	if (!exact && !drop && waits_for_receive_call(p))
		return;
	cpu = this_cpu();
	if (cpu)
		end_packet(p, cpu, drop);
}

PROBE(consume_skb, "consume_skb")
{
	freed(ctx[0], false);
}

PROBE(kfree_skb, "kfree_skb")
{
	freed(ctx[0], true);
}

/* The same without a tracepoint. Every free except those of datagrams and of merged packets goes through it. */
PROBE_FUNCTION(skb_release_head_state, "skb_release_head_state")
{
	freed(ctx[0], false);
}

/* GRO has merged its data into another packet. */
PROBE_FUNCTION(napi_skb_free_stolen_head, "napi_skb_free_stolen_head")
{
	freed(ctx[0], false);
}

/*
 * A reader releases it; since 5.18 the kernel sends it back to the CPU that allocated it, to be freed there.
 * The CPU of the last user is what counts.
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

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
