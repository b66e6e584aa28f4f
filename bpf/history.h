/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What each CPU ran lately, and the packets that were slow: these are sent up, each with what the
 * CPU did during its span, so that user space can say where the time went.
 *
 * A CPU keeps two rings of events. Those of tasks and interrupts are entered with interrupts off;
 * those of softirqs may be interrupted by the first, but never by one another. So each ring has
 * one writer at a time and needs no lock.
 */
#ifndef NEARPATH_HISTORY_H
#define NEARPATH_HISTORY_H

#include "trail.h"
#include "filter.h"

#define EVENTS 512

enum ring { RING_TASKS, RING_SOFTIRQS, RINGS };

enum event_kind {
	EVENT_TASK = 1,
	EVENT_IRQ,
	EVENT_IRQ_END,
	EVENT_SOFTIRQ,
	EVENT_SOFTIRQ_END,
	EVENT_STOLEN, /* by the hypervisor, since the interrupt before */
	EVENT_ONLINE, /* the CPU comes online: it was offline since the event before */
};

/* An interrupt of the CPU's own, by its vector, not one of a device. */
#define VECTOR 0x80000000u

/* Of a task's policy: the task before it could have gone on. */
#define READY_BEFORE 0x80

struct event {
	u64 ns;
	u32 id; /* the task's pid, the interrupt, the softirq's vector, nanoseconds stolen */
	u16 prio; /* of a task; for a softirq, how many packets the CPU has received, mod 2^16 */
	u8 policy; /* of a task */
	u8 kind;
	union {
		char comm[16]; /* of a task */
		u32 current; /* of all else: the pid of the task that the CPU is at */
	};
};

/* From when until when a cgroup's tasks on a CPU had used up its quota. */
struct throttle {
	u64 begin_ns, end_ns;
};

/* The last times of one cgroup on one CPU, found by a hash of the two. */
#define THROTTLES 4

struct throttles_of {
	u64 group;
	u32 cpu;
	u32 next; /* where the oldest is */
	struct throttle last[THROTTLES];
};

struct outlier {
	u64 at_ns; /* end of the span */
	u64 span_ns;
	u32 from_cpu, to_cpu;
	u16 from, to; /* stages */
	u32 pid; /* of the task that takes the packet, or that runs at the span's end */
	u16 received; /* how many packets the CPU has received, mod 2^16 */
	u16 unused[3];
	struct tuple flow; /* version 0: unknown */
	char comm[16]; /* of that task */
	u64 heads[RINGS]; /* how many events were ever entered into each ring */
	u64 moved_ns; /* when that task was moved to this CPU since it was woken, or 0 */
	u32 moved_from; /* the CPU that it was moved from */
	u32 bytes; /* of the packet */
	struct throttle throttled[THROTTLES]; /* its cgroup, on this CPU, in no order; 0 where there is none */
	struct event rings[RINGS][EVENTS]; /* as they lie there: event N is at N mod EVENTS */
	struct trail trail; /* up to here; packet 0: none */
};

/*
 * What the CPU did that the reader of a slow packet was moved from. It is sent up just before the
 * outlier that it belongs to. That CPU goes on meanwhile: its oldest events may be newer ones.
 */
struct left {
	u64 at_ns; /* of the outlier, */
	u32 to_cpu; /* and its CPU */
	u32 cpu; /* whose events these are */
	u64 heads[RINGS];
	struct event rings[RINGS][EVENTS];
};

/* Where crates/instruments/src/stages/record.rs looks for them. */
_Static_assert(__builtin_offsetof(struct left, heads) == 16, "offset of heads");
_Static_assert(__builtin_offsetof(struct left, rings) == 32, "offset of rings");
_Static_assert(sizeof(struct event) == 32, "size of an event");
_Static_assert(__builtin_offsetof(struct outlier, pid) == 28, "offset of pid");
_Static_assert(__builtin_offsetof(struct outlier, flow) == 40, "offset of flow");
_Static_assert(__builtin_offsetof(struct outlier, heads) == 96, "offset of heads");
_Static_assert(__builtin_offsetof(struct outlier, moved_ns) == 112, "offset of moved_ns");
_Static_assert(__builtin_offsetof(struct outlier, throttled) == 128, "offset of throttled");
_Static_assert(__builtin_offsetof(struct outlier, rings) == 192, "offset of rings");

/* [CPU][ring][event]; as many as CPUs, set by user space */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RINGS * EVENTS);
	__type(key, u32);
	__type(value, struct event);
} history SEC(".maps");

#define THROTTLE_SLOT_BITS 10
/* Two clocks that were compared differ by microseconds after so long, at the most. */
#define CLOCKS_AGREE_NS 100000000ULL
/* Of a task's cgroup and those above it, so many are looked at. */
#define GROUPS_ABOVE 4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << THROTTLE_SLOT_BITS);
	__type(key, u32);
	__type(value, struct throttles_of);
} throttles SEC(".maps");

/* Whether the history is kept at all. */
const volatile bool budgets;

static __always_inline struct event *event_at(u32 number, u32 ring, u64 index)
{
	u32 key = (number * RINGS + ring) * EVENTS + (index & (EVENTS - 1));

	return bpf_map_lookup_elem(&history, &key);
}

/* Enters an event of this moment; returns it for what else is to be said of a task. */
static __always_inline struct event *add_event(struct cpu *cpu, u32 ring, u32 kind, u32 id, u64 now)
{
	u64 *head = ring == RING_TASKS ? &cpu->task_events : &cpu->softirq_events;
	struct event *e = event_at(bpf_get_smp_processor_id(), ring, *head);

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
 * What the hypervisor took since this was last asked: steal_account_process_time() keeps what it has
 * accounted for in the CPU's run queue, which the task that runs there belongs to.
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
 * Learns how the clock of the CPU's run queue differs from ours, now and then: when the scheduler
 * switches it has just been set.
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
	struct task_struct___old *old = (struct task_struct___old *)task;

	if (bpf_core_field_exists(task->__state))
		return !GET(direct, task, __state);
	return !BPF_CORE_READ(old, state);
}

/* The CPU turns to a task; pid 0 is the idle one. */
static __always_inline void add_task(struct cpu *cpu, struct task_struct *next, u32 pid, u64 now,
				     bool ready_before, const bool direct)
{
	struct event *e = add_event(cpu, RING_TASKS, EVENT_TASK, pid, now);

	if (!e)
		return;
	compare_clocks(cpu, next, e->ns, direct);
	e->prio = GET(direct, next, prio);
	e->policy = GET(direct, next, policy) | (ready_before ? READY_BEFORE : 0);
	if (direct) {
		*(u64 *)e->comm = *(u64 *)next->comm;
		*(u64 *)(e->comm + 8) = *(u64 *)(next->comm + 8);
	} else {
		bpf_probe_read_kernel(e->comm, sizeof(e->comm), &next->comm);
	}
}

/* The flow of a packet that is known by its address alone. */
static __always_inline void read_flow(u64 packet, struct tuple *flow)
{
	struct sk_buff *skb = (struct sk_buff *)packet;
	u32 protocol = bpf_ntohs(BPF_CORE_READ(skb, protocol));
	u64 at = (u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header);

	if (protocol == ETH_P_IP ? !read_ipv4(at, flow) : protocol != ETH_P_IPV6 || !read_ipv6(at, flow))
		flow->version = 0;
}

static __always_inline struct throttles_of *throttle_slot(u64 group, u32 cpu)
{
	u32 slot = ((group >> 6) + cpu) * 0x9e3779b97f4a7c15ULL >> (64 - THROTTLE_SLOT_BITS);

	return bpf_map_lookup_elem(&throttles, &slot);
}

/* When a task's cgroup, or one above it, was last throttled on this CPU. */
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

/* The task that takes the packet: the one that was woken for it, else the one that runs. */
static __always_inline struct task_struct *reader_of(struct cpu *cpu)
{
	struct task_struct *reader = (struct task_struct *)cpu->reader;

	return reader ? reader : (struct task_struct *)bpf_get_current_task();
}

/* Both rings of a CPU at once: a loop over events would cost the verifier seconds. */
static __always_inline void copy_rings(u32 number, struct cpu *cpu, u64 *heads,
				       struct event (*rings)[EVENTS])
{
	struct event *e = event_at(number, RING_TASKS, 0);

	heads[RING_TASKS] = cpu->task_events;
	heads[RING_SOFTIRQS] = cpu->softirq_events;
	if (!e || bpf_probe_read_kernel(rings, RINGS * EVENTS * sizeof(struct event), e))
		heads[RING_TASKS] = heads[RING_SOFTIRQS] = 0;
}

/* Sends up what the CPU did that the reader was moved from in a span, if it was. */
static __noinline u32 send_left(struct cpu *to, u64 begin_ns, u64 end_ns)
{
	struct task *task;
	struct left *left;
	struct cpu *from;
	u32 pid, number;

	if (!to)
		return 0;
	pid = BPF_CORE_READ(reader_of(to), pid);
	task = task_slot(pid);
	if (!task || task->pid != pid || task->moved_ns <= begin_ns)
		return 0;
	number = task->moved_from;
	from = bpf_map_lookup_elem(&cpus, &number);
	if (!from)
		return 0;
	left = bpf_ringbuf_reserve(&outliers, sizeof(*left), 0);
	if (!left)
		return 0;
	left->at_ns = end_ns;
	left->to_cpu = bpf_get_smp_processor_id();
	left->cpu = number;
	copy_rings(number, from, left->heads, left->rings);
	bpf_ringbuf_submit(left, BPF_RB_NO_WAKEUP);
	return 0;
}

static __always_inline void read_reader(struct outlier *o, struct cpu *cpu)
{
	struct task_struct *reader = reader_of(cpu);
	struct task *task;

	o->pid = BPF_CORE_READ(reader, pid);
	bpf_probe_read_kernel(o->comm, sizeof(o->comm), &reader->comm);
	o->moved_ns = 0;
	o->moved_from = 0;
	task = task_slot(o->pid);
	if (task && task->pid == o->pid && task->moved_ns) {
		o->moved_ns = task->moved_ns;
		o->moved_from = task->moved_from;
	}
	read_throttle(o, reader);
}

/* Sends a slow packet up. `to` is the CPU that the program runs on; `from` a CPU, and two stages. */
static __noinline u32 send_outlier(struct cpu *to, u64 packet, u64 from, u64 end_ns, u64 ns)
{
	u32 number = bpf_get_smp_processor_id();
	struct tuple flow = {};
	struct outlier *o;

	send_left(to, end_ns - ns, end_ns);
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
	read_reader(o, to);
	o->bytes = 0;
	/* To its reader the packet is freed by then. */
	if (packet && o->to != RX_SOCK_RECV) {
		o->bytes = BPF_CORE_READ((struct sk_buff *)packet, len);
		read_flow(packet, &flow);
	}
	o->flow = flow;
	copy_rings(number, to, o->heads, o->rings);
	copy_trail(packet, &o->trail);
	bpf_ringbuf_submit(o, BPF_RB_NO_WAKEUP);
	return 0;
}

#endif
