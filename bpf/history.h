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

enum event_kind { EVENT_TASK = 1, EVENT_IRQ, EVENT_IRQ_END, EVENT_SOFTIRQ, EVENT_SOFTIRQ_END };

/* An interrupt of the CPU's own, by its vector, not one of a device. */
#define VECTOR 0x80000000u

struct event {
	u64 ns;
	u32 id; /* the task's pid, the interrupt, the softirq's vector */
	u16 prio; /* of a task; for a softirq, how many packets the CPU has received, mod 2^16 */
	u8 policy; /* of a task */
	u8 kind;
	char comm[16]; /* of a task */
};

struct outlier {
	u64 at_ns; /* end of the span */
	u64 span_ns;
	u32 from_cpu, to_cpu;
	u16 from, to; /* stages */
	u32 pid; /* of the task at the span's end */
	u16 received; /* how many packets the CPU has received, mod 2^16 */
	u16 unused[3];
	struct tuple flow; /* version 0: unknown */
	char comm[16]; /* of that task */
	u64 heads[RINGS]; /* how many events were ever entered into each ring */
	struct event rings[RINGS][EVENTS]; /* as they lie there: event N is at N mod EVENTS */
	struct trail trail; /* up to here; packet 0: none */
};

/* Where crates/instruments/src/stages/record.rs looks for them. */
_Static_assert(sizeof(struct event) == 32, "size of an event");
_Static_assert(__builtin_offsetof(struct outlier, pid) == 28, "offset of pid");
_Static_assert(__builtin_offsetof(struct outlier, flow) == 40, "offset of flow");
_Static_assert(__builtin_offsetof(struct outlier, heads) == 96, "offset of heads");
_Static_assert(__builtin_offsetof(struct outlier, rings) == 112, "offset of rings");

/* [CPU][ring][event]; as many as CPUs, set by user space */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RINGS * EVENTS);
	__type(key, u32);
	__type(value, struct event);
} history SEC(".maps");

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
	if (ring == RING_SOFTIRQS)
		e->prio = cpu->received;
	*head += 1;
	return e;
}

/* The CPU turns to a task; pid 0 is the idle one. */
static __always_inline void add_task(struct cpu *cpu, struct task_struct *next, u32 pid, u64 now,
				     const bool direct)
{
	struct event *e = add_event(cpu, RING_TASKS, EVENT_TASK, pid, now);

	if (!e)
		return;
	e->prio = GET(direct, next, prio);
	e->policy = GET(direct, next, policy);
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

/* Sends a slow packet up. `to` is the CPU that the program runs on; `from` a CPU, and two stages. */
static __noinline u32 send_outlier(struct cpu *to, u64 packet, u64 from, u64 end_ns, u64 ns)
{
	u32 number = bpf_get_smp_processor_id();
	struct tuple flow = {};
	struct outlier *o;
	struct event *e;

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
	o->pid = bpf_get_current_pid_tgid();
	o->received = to->received;
	bpf_get_current_comm(o->comm, sizeof(o->comm));
	if (packet)
		read_flow(packet, &flow);
	o->flow = flow;
	o->heads[RING_TASKS] = to->task_events;
	o->heads[RING_SOFTIRQS] = to->softirq_events;
	/* Both rings at once: a loop over events would cost the verifier seconds. */
	e = event_at(number, RING_TASKS, 0);
	if (!e || bpf_probe_read_kernel(o->rings, sizeof(o->rings), e))
		o->heads[RING_TASKS] = o->heads[RING_SOFTIRQS] = 0;
	copy_trail(packet, &o->trail);
	bpf_ringbuf_submit(o, BPF_RB_NO_WAKEUP);
	return 0;
}

#endif
