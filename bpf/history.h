/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What each CPU ran recently, and the slow packets. A slow packet is sent to user space after the events of its
 * CPU and of its reader up to then, so that user space can account for the time.
 *
 * A CPU has two rings of events. Those of tasks and interrupts are written with interrupts off; those of
 * softirqs may be interrupted by the first kind, but not by each other. So each ring has a single writer at a
 * time and needs no lock.
 */
#ifndef NEARPATH_HISTORY_H
#define NEARPATH_HISTORY_H

#include "filter.h"
#include "readers.h"
#include "tasks.h"
#include "waits.h"

/* Start and end of a period in which a cgroup was throttled on a CPU. */
struct throttle {
	u64 begin_ns, end_ns;
};

/* The last such periods of one cgroup on one CPU, looked up by a hash of the two. */
#define THROTTLES 4

struct throttles_of {
	u64 group;
	u32 cpu;
	u32 next; /* index of the oldest */
	struct throttle last[THROTTLES];
};

struct outlier {
	u64 at_ns; /* end of the span */
	u64 span_ns;
	u32 from_cpu, to_cpu;
	u16 from, to; /* stages */
	u32 pid; /* of the task that takes the packet, or that runs at the span's end */
	u16 received; /* number of packets that the CPU has received, mod 2^16 */
	u16 flags; /* see waits.h */
	u32 bytes; /* of the packet */
	struct tuple flow; /* version 0: unknown */
	char comm[16]; /* of that task */
	u64 heads[RINGS]; /* how many events were ever written to each ring of the CPU */
	u64 reader_heads[RINGS]; /* the same for the rings of that task, */
	u64 reader_claimed[RINGS]; /* and how many of these belong to earlier owners of the slot */
	u32 reader_ring; /* number of its first ring, or 0 if it is not a reader */
	u32 unused;
	struct queued queued; /* where the packet was queued to be sent */
	u64 gap_end_ns; /* when the data arrived that a TCP segment waited for, or 0 */
	struct throttle throttled[THROTTLES]; /* its cgroup, on this CPU, unordered; 0: none */
	struct packet_path packet_path; /* up to here; packet 0: none */
};

/* Layout shared with crates/instruments/src/stages/record.rs. */
_Static_assert(__builtin_offsetof(struct outlier, pid) == 28, "offset of pid");
_Static_assert(__builtin_offsetof(struct outlier, flow) == 40, "offset of flow");
_Static_assert(__builtin_offsetof(struct outlier, heads) == 96, "offset of heads");
_Static_assert(__builtin_offsetof(struct outlier, reader_ring) == 144, "offset of reader_ring");
_Static_assert(__builtin_offsetof(struct outlier, queued) == 152, "offset of queued");
_Static_assert(__builtin_offsetof(struct outlier, gap_end_ns) == 192, "offset of gap_end_ns");
_Static_assert(__builtin_offsetof(struct outlier, throttled) == 200, "offset of throttled");
_Static_assert(__builtin_offsetof(struct outlier, packet_path) == 264, "offset of packet_path");
_Static_assert(sizeof(struct outlier) != sizeof(struct block), "records are distinguished by their size");

#define THROTTLE_SLOT_BITS 10
/* After this long, two compared clocks differ by microseconds at most. */
#define CLOCKS_AGREE_NS 100000000ULL
/* This many levels are checked: a task's cgroup and its ancestors. */
#define GROUPS_ABOVE 4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << THROTTLE_SLOT_BITS);
	__type(key, u32);
	__type(value, struct throttles_of);
} throttles SEC(".maps");

/* Writes an event with the current time; returns it so that the caller can add details of a task. */
static __always_inline struct event *add_event(struct cpu *cpu, u32 ring, u32 kind, u32 id, u64 now)
{
	u64 *head = ring == RING_TASKS ? &cpu->task_events : &cpu->softirq_events;
	struct event *e = event_at(bpf_get_smp_processor_id() * RINGS + ring, *head);

	if (!e)
		return 0;
	e->ns = now;
	e->id = id;
	e->kind = kind;
	if (kind != EVENT_TASK)
		e->current = bpf_get_current_pid_tgid();
	if (ring == RING_SOFTIRQS)
		e->prio = cpu->received;
	*head += 1;
	return e;
}

/*
 * What the hypervisor stole since the last call: steal_account_process_time() keeps the accounted amount in the
 * CPU's run queue, which is reached through the current task.
 */
static __always_inline void add_stolen(struct cpu *cpu)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct rq *rq = 0;
	u64 stolen;

	if (!bpf_core_field_exists(rq->prev_steal_time) || !bpf_core_field_exists(task->se.cfs_rq))
		return;
	rq = BPF_CORE_READ(task, se.cfs_rq, rq);
	stolen = BPF_CORE_READ(rq, prev_steal_time);
	if (stolen == cpu->stolen_ns)
		return;
	if (cpu->stolen_ns)
		add_event(cpu, RING_TASKS, EVENT_STOLEN, stolen - cpu->stolen_ns, bpf_ktime_get_ns());
	cpu->stolen_ns = stolen;
}

/*
 * Measures the offset between the clock of the CPU's run queue and ours, from time to time, at a context
 * switch: the run-queue clock has then just been updated.
 */
static __always_inline void compare_clocks(struct cpu *cpu, struct task_struct *task, u64 now, const bool direct)
{
	struct rq *rq;

	if (!bpf_core_field_exists(task->se.cfs_rq) || now - cpu->clock_at_ns < CLOCKS_AGREE_NS)
		return;
	rq = direct ? task->se.cfs_rq->rq : BPF_CORE_READ(task, se.cfs_rq, rq);
	cpu->clock_ns = now - GET(direct, rq, clock);
	cpu->clock_at_ns = now;
}

static __always_inline bool is_ready(struct task_struct *task, const bool direct)
{
	return !state_of(task, direct);
}

/* Waits for a CPU at least this long are recorded. */
#define LONG_QUEUED_NS 500000

/*
 * Since when the next task was runnable, from the scheduler's statistics (CONFIG_SCHED_INFO), on the clock of
 * the run queue: there is no other source for a task that is not known as a reader yet.
 */
static __always_inline void add_queued(struct cpu *cpu, struct task_struct *next, u32 pid, u64 now, const bool direct)
{
	struct event *e;
	u64 since;

	if (!bpf_core_field_exists(next->sched_info.last_queued) || !pid || !cpu->clock_at_ns)
		return;
	since = GET(direct, next, sched_info.last_queued);
	if (!since)
		return;
	since += cpu->clock_ns;
	if ((s64)(now - since) < LONG_QUEUED_NS)
		return;
	e = add_event(cpu, RING_TASKS, EVENT_QUEUED, pid, now);
	if (e)
		e->since_ns = since;
}

/* The CPU switches to a task; pid 0 is the idle task. */
static __always_inline void add_task(struct cpu *cpu, struct task_struct *next, u32 pid, u64 now,
				     bool ready_before, const bool direct)
{
	struct event *e;

	compare_clocks(cpu, next, now, direct);
	add_queued(cpu, next, pid, now, direct);
	e = add_event(cpu, RING_TASKS, EVENT_TASK, pid, now);
	if (!e)
		return;
	e->prio = GET(direct, next, prio);
	e->policy = GET(direct, next, policy) | (ready_before ? READY_BEFORE : 0);
	if (direct) {
		*(u64 *)e->comm = *(u64 *)next->comm;
		*(u64 *)(e->comm + 8) = *(u64 *)(next->comm + 8);
	} else {
		bpf_probe_read_kernel(e->comm, sizeof(e->comm), &next->comm);
	}
}

/*
 * Stages at which a received packet's data starts with its network header, and those before it is seen, which are
 * added then: whoever gives it to the stack has called eth_type_trans(). Where that header is, is written into the
 * sk_buff only later: by GRO, or by __netif_receive_skb_core().
 */
static __always_inline bool is_at_link_layer(u32 stage)
{
	return stage <= RX_NETIF_RECEIVE_SKB;
}

/* The flow of a packet of which only the address is known, at this stage. */
static __always_inline void read_flow(u64 packet, u32 stage, struct tuple *flow)
{
	struct sk_buff *skb = (struct sk_buff *)packet;
	u32 protocol = bpf_ntohs(BPF_CORE_READ(skb, protocol));
	bool at_link_layer = is_at_link_layer(stage);
	u64 at = 0;

	flow->version = 0;
	if (stage <= RX_NAPI_GRO_RECEIVE && BPF_CORE_READ(skb, data_len) && !find_header_of_frags(skb, &at))
		return;
	if (!at)
		at = at_link_layer ? (u64)BPF_CORE_READ(skb, data)
				   : (u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header);
	protocol = behind_vlan_tags(&at, protocol, !at_link_layer);
	if (protocol == ETH_P_IP ? !read_ipv4(at, flow) : protocol != ETH_P_IPV6 || !read_ipv6(at, flow))
		flow->version = 0;
}

static __always_inline struct throttles_of *throttle_slot(u64 group, u32 cpu)
{
	u32 slot = ((group >> 6) + cpu) * 0x9e3779b97f4a7c15ULL >> (64 - THROTTLE_SLOT_BITS);

	return bpf_map_lookup_elem(&throttles, &slot);
}

/* When a task's cgroup, or an ancestor of it, was last throttled on this CPU. */
static __always_inline void read_throttle(struct outlier *o, struct task_struct *task)
{
	struct task_group *group;
	u64 latest = 0;

	__builtin_memset(o->throttled, 0, sizeof(o->throttled));
	if (!bpf_core_field_exists(task->sched_task_group))
		return;
	group = BPF_CORE_READ(task, sched_task_group);
#pragma unroll
	for (int i = 0; i < GROUPS_ABOVE; i++) {
		struct throttles_of *t = throttle_slot((u64)group, o->to_cpu);

		if (t && t->group == (u64)group && t->cpu == o->to_cpu) {
			u64 end = t->last[(t->next - 1) % THROTTLES].end_ns;

			if (end > latest) {
				latest = end;
				__builtin_memcpy(o->throttled, t->last, sizeof(o->throttled));
			}
		}
		group = BPF_CORE_READ(group, parent);
	}
}

/* The task that takes the packet: the one woken for it, else the current one. */
static __always_inline struct task_struct *reader_of(struct cpu *cpu)
{
	struct task_struct *reader = (struct task_struct *)cpu->reader;

	return reader ? reader : (struct task_struct *)bpf_get_current_task();
}

/* How far rings are sent for a slow packet: later events are after its span. */
struct heads {
	u64 cpu[RINGS];
	u64 reader[RINGS];
};

/* Sends the events of a CPU that user space does not have. */
static __always_inline void send_cpu(u32 number, struct cpu *cpu, u64 tasks, u64 softirqs)
{
	send_ring(number * RINGS + RING_TASKS, tasks, &cpu->sent[RING_TASKS], cpu_events);
	send_ring(number * RINGS + RING_SOFTIRQS, softirqs, &cpu->sent[RING_SOFTIRQS], cpu_events);
}

/*
 * Sends the events of a reader that user space does not have, and those of the CPU it migrated from during a
 * span; of a watched packet also those of the CPU on which it was woken.
 */
static __always_inline void send_reader(struct reader *r, struct heads *heads, u64 begin_ns, bool woken)
{
	u32 ring = reader_rings + reader_slot_of(r->pid) * RINGS;
	u32 number = r->moved_from;
	struct cpu *from;

	send_ring(ring + RING_SWITCHES, heads->reader[RING_SWITCHES], &r->sent[RING_SWITCHES], READER_EVENTS);
	send_ring(ring + RING_WAKES, heads->reader[RING_WAKES], &r->sent[RING_WAKES], READER_EVENTS);
	if (r->moved_ns > begin_ns && number != bpf_get_smp_processor_id()) {
		from = bpf_map_lookup_elem(&cpus, &number);
		if (from)
			send_cpu(number, from, from->task_events, from->softirq_events);
	}
	number = r->woken_on - 1;
	if (!woken || !r->woken_on || number == bpf_get_smp_processor_id())
		return;
	from = bpf_map_lookup_elem(&cpus, &number);
	if (from)
		send_cpu(number, from, from->task_events, from->softirq_events);
}

static __always_inline void read_reader(struct outlier *o, struct cpu *cpu, struct heads *heads)
{
	struct task_struct *task = reader_of(cpu);
	struct reader *r;

	o->pid = BPF_CORE_READ(task, pid);
	bpf_probe_read_kernel(o->comm, sizeof(o->comm), &task->comm);
	o->reader_ring = 0;
	r = find_reader(o->pid);
	if (r) {
		o->reader_ring = reader_rings + reader_slot_of(o->pid) * RINGS;
#pragma unroll
		for (int ring = 0; ring < RINGS; ring++) {
			o->reader_heads[ring] = heads->reader[ring];
			o->reader_claimed[ring] = r->claimed[ring];
		}
	}
	read_throttle(o, task);
}

/*
 * Sends a slow packet to user space, given a CPU and two stages; the span ends on this CPU. (Not static: the
 * verifier checks it once.)
 */
__noinline int send_outlier(u64 packet, u64 from, u64 end_ns, u64 ns)
{
	u32 number = bpf_get_smp_processor_id();
	struct cpu *to = this_cpu();
	struct heads heads = {};
	struct tuple flow = {};
	struct outlier *o;
	struct reader *r;

	if (!to)
		return 0;
	heads.cpu[RING_TASKS] = to->task_events;
	heads.cpu[RING_SOFTIRQS] = to->softirq_events;
	send_cpu(number, to, heads.cpu[RING_TASKS], heads.cpu[RING_SOFTIRQS]);
	r = find_reader(BPF_CORE_READ(reader_of(to), pid));
	if (r) {
		heads.reader[RING_SWITCHES] = r->heads[RING_SWITCHES];
		heads.reader[RING_WAKES] = r->heads[RING_WAKES];
		send_reader(r, &heads, end_ns - ns, (u32)from / STAGES_MAX == RX_SKB_TSTAMP);
	}
	o = bpf_ringbuf_reserve(&outliers, sizeof(*o), 0);
	if (!o) {
		COUNT(to, outliers_lost);
		return 0;
	}
	o->at_ns = end_ns;
	o->span_ns = ns;
	o->from_cpu = from >> 32;
	o->to_cpu = number;
	o->from = (u32)from / STAGES_MAX;
	o->to = (u32)from % STAGES_MAX;
	o->received = to->received;
	o->heads[RING_TASKS] = heads.cpu[RING_TASKS];
	o->heads[RING_SOFTIRQS] = heads.cpu[RING_SOFTIRQS];
	read_reader(o, to, &heads);
	o->bytes = 0;
	o->flags = to->serving ? 0 : WAIT_ENDED_IN_TASK;
	o->gap_end_ns = 0;
	__builtin_memset(&o->queued, 0, sizeof(o->queued));
	/* The reader sees the packet as freed by then. */
	if (packet && (o->to != RX_SOCK_RECV || o->from == RX_SKB_TSTAMP)) {
		struct sk_buff *skb = (struct sk_buff *)packet;
		struct packet *p = packet_slot(packet);

		o->bytes = BPF_CORE_READ(skb, len);
		read_flow(packet, o->to, &flow);
		if (o->from == TX_NET_DEV_QUEUE || o->from == TX_QDISC_ENQUEUE)
			o->flags |= read_queued(&o->queued, to, p, skb);
		else if (o->from == RX_TCP_RCV_ESTABLISHED)
			o->flags |= read_gap(&o->gap_end_ns, p, skb, end_ns - ns);
	}
	o->flow = flow;
	copy_packet_path(packet, &o->packet_path);
	bpf_ringbuf_submit(o, BPF_RB_NO_WAKEUP);
	return 0;
}

#endif
