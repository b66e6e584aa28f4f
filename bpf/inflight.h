/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets and CPUs (see skb_track.bpf.h), tasks and sockets in flight.
 */
#ifndef NEARPATH_INFLIGHT_H
#define NEARPATH_INFLIGHT_H

#include "probe.h"
#include "histogram.h"
#include "stages.h"
#include "stage_packet.h"

#define TASK_SLOT_BITS 14
#define SOCKET_SLOT_BITS 12
#define REPLACED_SLOT_BITS 6
/* Capacity for packets that are in user space. */
#define UPCALL_BITS 12
/* Number of distinct pairs of adjacent stages. */
#define SPANS_MAX 128
/* A slot not touched for this long holds a packet whose end was missed. */
#define PACKET_STALE_NS 1000000000ULL

struct task {
	u32 pid;
	u32 send_cpu, tcp_cpu, copy_cpu;
	u64 send_ns; /* entry of the send call in progress, or 0 */
	u64 tcp_ns; /* tcp_sendmsg within it, or 0 */
	u64 copy_ns; /* the last packet copied in the receive call in progress, or 0 */
	u64 woken_by; /* tag of the packet that woke the task, or 0 */
	u64 datagram; /* tag of the datagram freed in the receive call in progress, or 0 */
	u64 copy_group; /* group of the last packet copied */
	u64 datagram_ns; /* its last stage when it was freed: a new packet at its address has a later one */
	u64 is_batch; /* whether the send call is for several messages */
	struct packet taken; /* the datagram that the receive call in progress has taken; tag 0: none */
	u64 unused[2];
};

struct counters {
	u64 started, completed, dropped, collided, sampled_out, unexpected, outliers_lost;
	u64 packet_paths_lost;
	/* For hardware timestamps; see nic_stamps.h. */
	u64 stamps_used, stamps_ahead, stamps_old, stamps_unconverted, stamps_opaque, stamps_of_others;
	u64 unused[2];
};

/* A UDP socket: its reader takes one packet per call, in order. */
struct socket {
	u64 sk;
	u64 next; /* tag of the packet that the next receive call takes, or 0 */
	u64 next_ns; /* when it was seen in the queue */
	u64 taken; /* tag of the packet that the receive call in progress has taken, or 0 if unknown */
	/* Where and when a receive call last returned; written only there, also if the socket has no slot yet. */
	u64 returned_sk;
	u64 returned_ns;
	u64 looked_ns; /* the same, once it has claimed what it took */
	u64 fence; /* see fence() */
};

/*
 * A datagram that a receive call has taken and freed, and whose address was reused for another packet before
 * the call returned.
 */
struct replaced {
	struct packet packet;
	u64 replaced_ns;
};

/* Per CPU, seven cache lines; every stage needs the first. Times are 0 if unset. */
struct cpu {
	u64 entry_ns; /* entry of the run of NET_RX in progress */
	u64 poll_ns; /* its entry, or the end of the last NAPI poll in it */
	u64 serving; /* the softirq vector that runs, plus 1 */
	u64 packet; /* tag of the packet that the stack is processing */
	u64 waker; /* tag of the packet whose socket is waking its reader */
	u32 shard; /* which histograms and counters this CPU writes; set by user space */
	u32 row; /* of the matrix of CPU pairs; likewise */
	u64 irq_ns; /* entry of the interrupt handler in progress */
	u64 gro_packet; /* tag of the packet handed to GRO */

	u64 next_raise_ns; /* first raise of NET_RX since its last entry */
	u64 next_irq_ns; /* the interrupt in which it was raised */
	u64 run_irq_ns; /* the same two for the run of NET_RX in progress */
	u64 run_raise_ns;
	u32 node, llc; /* ~0: unknown; set by user space */
	u64 backlog_ns; /* entry of the last poll of the backlog */
	u64 run_queue; /* address of its run queue, or 0; see softirqs.h */
	u64 earlier_raise_ns; /* the same for the run of NET_RX before that of next_raise_ns */

	/* What the IP layer was last given to send: the sk_buff, when, by which function. */
	u64 ip_packet;
	u64 ip_ns;
	u64 ip_tcp_ns; /* tcp_transmit_skb() before it, or 0 */
	u64 tcp_ns; /* tcp_transmit_skb() whose segment has not reached IP yet, or 0 */
	u64 ip_stage;

	/* See history.h. */
	u64 task_events; /* how many were written to each ring */
	u64 softirq_events;
	u64 received; /* packets that the stack has received */

	u64 reader; /* the task that the CPU switches to, if a packet waited for it; or 0 */
	u64 stolen_ns; /* by the hypervisor, as the kernel counts it */
	u64 clock_ns; /* how far the clock of its run queue is behind ours */
	u64 clock_at_ns; /* when that was measured, or 0 */
	u64 task_ns; /* since when a task, not a softirq, receives on this CPU, or 0 */
	u64 batch_sender; /* the thread that sends several datagrams in one system call, or 0 */
	u64 given_dev; /* the device of the last sk_buff passed to the stack; see skb_track.bpf.h */
	u32 given_first, given_next;

	/* Used only for budgets. */
	u32 sent[2]; /* how many events of each ring user space has, mod 2^32 */
	u64 interrupt; /* the one in progress, plus 1, or 0 */
	u64 next_tx_raise; /* first raise of NET_TX since its last entry, and its source (waits.h) */
	u64 run_tx_raise; /* the same for the run of NET_TX in progress */
	u64 unused3[4];

	u64 given[16]; /* the sk_buffs passed to the stack last */
};

#include "skb_track.bpf.h"

_Static_assert(sizeof(((struct cpu *)0)->given) == 8 * GIVEN_MAX, "size of given");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << TASK_SLOT_BITS);
	__type(key, u32);
	__type(value, struct task);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << SOCKET_SLOT_BITS);
	__type(key, u32);
	__type(value, struct socket);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << REPLACED_SLOT_BITS);
	__type(key, u32);
	__type(value, struct replaced);
} replaced SEC(".maps");

/* [shard][span]; max_entries set by user space for this host */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct histogram);
} histograms SEC(".maps");

static __always_inline u32 socket_hash(u64 sk)
{
	return (sk >> 6) * 0x9e3779b97f4a7c15ULL >> (64 - SOCKET_SLOT_BITS);
}

static __always_inline struct socket *socket_slot(u64 sk)
{
	u32 slot = socket_hash(sk);

	return bpf_map_lookup_elem(&sockets, &slot);
}

static __always_inline struct replaced *replaced_slot(u64 tag)
{
	u32 slot = packet_hash(tag) & ((1 << REPLACED_SLOT_BITS) - 1);

	return bpf_map_lookup_elem(&replaced, &slot);
}

static __always_inline struct task *task_slot(u32 pid)
{
	u32 slot = pid & ((1 << TASK_SLOT_BITS) - 1);

	return bpf_map_lookup_elem(&tasks, &slot);
}

/* Tasks that a packet had woken, or that had taken one, and whose slot was reused by another task. */
u64 tasks_collided;

/* Assigns the slot to the task and resets it. */
static __always_inline void claim_task(struct task *task, u32 pid)
{
	if (task->pid == pid)
		return;
	if (task->woken_by || task->taken.tag)
		__sync_fetch_and_add(&tasks_collided, 1);
	task->pid = pid;
	task->send_ns = task->copy_ns = task->woken_by = task->datagram = 0;
	task->is_batch = task->taken.tag = 0;
}

#endif
