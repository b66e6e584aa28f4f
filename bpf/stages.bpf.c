// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "stages": latency between adjacent stages of each packet's path.
 *
 * A packet is identified by the address of its sk_buff. Its path starts where it is first seen: on receive at
 * GRO, netif_rx or netif_receive_skb, on transmit at net_dev_queue. What the CPU (interrupt, softirq, poll) or
 * the task (send call) did before is kept until then and becomes the path's first spans.
 */
#include "stages_cpu.h"
#include "stages_rx.h"
#include "stages_reader.h"
#include "stages_tx.h"
#include "stages_ovs.h"
#include "stage_drops.h"
#include "watch.h"

char LICENSE[] SEC("license") = "GPL";

/* Both kinds of path end when the sk_buff is freed. */

/*
 * Some kernels free a datagram with a tracepoint just before the receive call that took it returns, which is
 * its end. (Others free it later, in a softirq.)
 */
static __always_inline void read_datagram(struct cpu *cpu, struct packet *p)
{
	u32 pid = bpf_get_current_pid_tgid();
	struct task *task = task_slot(pid);

	if (!task || cpu->serving)
		return;
	claim_task(task, pid);
	task->datagram = p->tag;
	task->datagram_ns = p->last_ns;
}

/* The owner of a freed packet: the task that received it, unless the packet was dropped. */
static __always_inline u64 taker(struct packet *p, struct cpu *cpu, bool drop)
{
	return drop || cpu->serving || !(p->datagram || delivered(p)) ? NO_PROCESS : group_of_current();
}

/* Returns the packet's last stage if it counts as dropped, else 0. */
static __always_inline u32 free_packet(u64 pointer, u32 rx_stage, u32 tx_stage, bool drop)
{
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);
	u32 number = bpf_get_smp_processor_id();
	u32 dropped_after = 0;
	struct cpu *cpu;

	if (!p || p->tag != tag)
		return 0;
	cpu = this_cpu();
	if (!cpu)
		return 0;
	if (p->state == PACKET_RX)
		see_softirq(cpu);
	if (in_upcall(p)) {
		freed_in_upcall(pointer, drop);
		/* User space has a copy, and the packet continues as what comes back. */
		if (!drop) {
			release_slot(p);
			return 0;
		}
	}
	if (!drop && has_sock_recv && !has_consume_udp && p->state == PACKET_RX && p->datagram &&
	    (delivered(p) || !in_hand(p, cpu, number))) {
		read_datagram(cpu, p);
		return 0;
	}
	/* Delivered, but its end was missed: this may be another packet at the same address. */
	if (p->state == PACKET_TX ||
	    (p->state == PACKET_RX && !(has_sock_recv && delivered(p)) &&
	     (!in_stack(p) || in_hand(p, cpu, number)))) {
		bool is_read = (p->datagram || delivered(p) || p->last_stage == RX_TAP_HANDLE_FRAME) && !cpu->serving;

		dropped_after = drop ? p->last_stage : 0;
		pass(p, cpu, number, p->state == PACKET_RX ? rx_stage : tx_stage, bpf_ktime_get_ns());
		if (p->state == PACKET_RX)
			TAKEN_BY(p, taker(p, cpu, drop));
		if (drop) {
			COUNT(cpu, dropped);
		} else {
			COUNT(cpu, completed);
			if (p->state == PACKET_TX)
				end_transmit(p);
			else if (is_read)
				end_path(p, PATH_RECEIVE);
		}
	}
	finish(p);
	return dropped_after;
}

PROBE(consume_skb, "consume_skb")
{
	free_packet(ctx[0], RX_CONSUME_SKB, TX_CONSUME_SKB, false);
}

PROBE(kfree_skb, "kfree_skb")
{
	u32 stage = free_packet(ctx[0], RX_KFREE_SKB, TX_KFREE_SKB, true);

	if (stage)
		count_stage_drop(address_of(ctx[0]), address_of(ctx[1]), drop_reason(ctx),
				 (u64)drop_rx_sk(ctx), stage);
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
