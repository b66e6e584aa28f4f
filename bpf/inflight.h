/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is under way: packets and CPUs as in skb_track.bpf.h, tasks and sockets.
 */
#ifndef NEARPATH_INFLIGHT_H
#define NEARPATH_INFLIGHT_H

#include "probe.h"
#include "histogram.h"
#include "stages.h"

#define TASK_SLOT_BITS 14
#define SOCKET_SLOT_BITS 12
#define REPLACED_SLOT_BITS 6
/* Packets in user space that there is room for. */
#define UPCALL_BITS 12
/* Different pairs of adjacent stages that are kept apart. */
#define SPANS_MAX 128
/* A slot not touched for so long holds a packet whose end was not seen. */
#define PACKET_STALE_NS 1000000000ULL

struct packet {
	u64 tag; /* address of the sk_buff */
	u64 last_ns; /* when the last stage was passed; of an ignored packet since when it is in hand */
	u32 last_cpu;
	u8 last_stage;
	u8 state;
	u8 datagram; /* waits in a UDP socket, from which a receive call takes it whole */
	u8 flags; /* see waits.h */
	u64 group; /* see group.h; 0: not known */
	u64 begin_ns; /* when it passed the first stage of its path, and where */
	u32 begin_cpu;
	u8 begin_stage;
	u8 unused[19]; /* a cache line to itself */
};

struct task {
	u32 pid;
	u32 send_cpu, tcp_cpu, copy_cpu;
	u64 send_ns; /* entry of the send call that the task is in, or 0 */
	u64 tcp_ns; /* tcp_sendmsg within it, or 0 */
	u64 copy_ns; /* the last packet copied in the receive call under way, or 0 */
	u64 woken_by; /* tag of the packet that woke the task, or 0 */
	u64 datagram; /* tag of the datagram freed in the receive call under way, or 0 */
	u64 copy_group; /* group of the last packet copied */
	u64 datagram_ns; /* its last stage when it was freed: what came to its address since has a later one */
	u64 is_batch; /* whether the send call is for several messages */
	struct packet taken; /* the datagram that the receive call under way has taken; tag 0: none */
	u64 unused[2];
};

struct counters {
	u64 started, completed, dropped, collided, sampled_out, unexpected, outliers_lost;
	u64 trails_lost;
	/* Of hardware time stamps; see nic_stamps.h. */
	u64 stamps_used, stamps_ahead, stamps_old, stamps_unconverted, stamps_opaque, stamps_of_others;
	u64 unused[2];
};

/* A UDP socket: its reader takes one packet a call, in order. */
struct socket {
	u64 sk;
	u64 next; /* tag of the packet that the next receive call takes, or 0 */
	u64 next_ns; /* when it was seen in the queue */
	u64 taken; /* tag of the packet that the receive call under way has taken, if it is known, or 0 */
	u64 returned_ns; /* when a receive call returned last */
	u64 fence; /* nothing is told by its value */
};

/*
 * A datagram that a receive call has taken and freed, at whose address is a newer packet before that
 * call returned.
 */
struct replaced {
	struct packet packet;
	u64 replaced_ns;
};

/* Per CPU, seven cache lines, of which every stage needs the first. Times are 0 where there is none. */
struct cpu {
	u64 entry_ns; /* entry of the run of NET_RX under way */
	u64 poll_ns; /* its entry, or the end of the last NAPI poll in it */
	u64 serving; /* the softirq vector that runs, plus 1 */
	u64 packet; /* tag of the packet that the stack works on */
	u64 waker; /* tag of the packet whose socket calls its reader */
	u32 shard; /* which histograms and counters this CPU writes to; set by user space */
	u32 place; /* its row in the matrix of places; likewise */
	u64 irq_ns; /* the interrupt handler that runs */
	u64 gro_packet; /* tag of the packet handed to GRO */

	u64 next_raise_ns; /* first raise of NET_RX since its last entry */
	u64 next_irq_ns; /* the interrupt in which that was */
	u64 run_irq_ns; /* the same two of the run of NET_RX under way */
	u64 run_raise_ns;
	u32 node, llc; /* ~0: unknown; set by user space */
	u64 backlog_ns; /* entry of the last poll of the backlog */
	u64 run_queue; /* address of its run queue, or 0; see softirqs.h */
	u64 earlier_raise_ns; /* likewise: of the run of NET_RX before the one that next_raise_ns is of */

	/* What the IP layer was given to send last: the sk_buff, when, by which function. */
	u64 ip_packet;
	u64 ip_ns;
	u64 ip_tcp_ns; /* tcp_transmit_skb() before it, or 0 */
	u64 tcp_ns; /* tcp_transmit_skb() whose segment is not with IP yet, or 0 */
	u64 ip_stage;

	/* See history.h. */
	u64 task_events; /* how many were entered into each ring */
	u64 softirq_events;
	u64 received; /* packets that the stack was given */

	u64 reader; /* the task that the CPU turns to, for which a packet waited; or 0 */
	u64 stolen_ns; /* by the hypervisor, as the kernel counts it */
	u64 clock_ns; /* how much the clock of its run queue is behind ours */
	u64 clock_at_ns; /* and when that was found, or 0 */
	u64 task_ns; /* since when a task receives on this CPU, not a softirq, or 0 */
	u64 batch_sender; /* the thread that sends several datagrams by one system call, or 0 */
	u64 given_dev; /* by which device the stack was given the last sk_buff; see skb_track.bpf.h */
	u32 given_first, given_next;

	/* Of budgets alone. */
	u32 sent[2]; /* how many events of each ring user space has, mod 2^32 */
	u64 interrupt; /* the one that runs, plus 1, or 0 */
	u64 next_tx_raise; /* first raise of NET_TX since its last entry, and what raised it (waits.h) */
	u64 run_tx_raise; /* the same of the run of NET_TX under way */
	u64 unused3[4];

	u64 given[16]; /* what the stack was given last */
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

static __always_inline struct socket *socket_slot(u64 sk)
{
	u32 slot = (sk >> 6) * 0x9e3779b97f4a7c15ULL >> (64 - SOCKET_SLOT_BITS);

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

/* Tasks that a packet had woken, or that had taken one, and whose slot another task took. */
u64 tasks_collided;

/* Makes the slot the task's; whoever was in it is forgotten. */
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
