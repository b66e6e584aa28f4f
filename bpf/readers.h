/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The state of each task that reads from sockets, at every moment: running, runnable and waiting for a CPU, or
 * blocked, where, and woken by whom: a packet, a timer, a signal or another thread.
 *
 * A task is known as a reader once it has read an observed packet, was woken to read one, or has sent one. Each
 * has two rings of events: one is written under the lock of its run queue (it runs, leaves its CPU, migrates),
 * the other under that of its wake-ups (pi_lock); so each has a single writer at a time.
 */
#ifndef NEARPATH_READERS_H
#define NEARPATH_READERS_H

#include "events.h"
#include "quota.h"
#include "user_regs.h"

/* Frames recorded of a stack: enough to get past the scheduler to its caller. */
#define STACK_FRAMES 24
/* Frames of BPF and of the tracepoint itself. */
#define STACK_SKIP 2
#define STACKS 1024

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, STACKS);
	__uint(key_size, sizeof(u32));
	__uint(value_size, STACK_FRAMES * sizeof(u64));
} stacks SEC(".maps");

/* A scheduler state (include/linux/sched.h): another CPU is waking the task. */
#define TASK_WAKING 0x200

/* Whether both switches and wake-ups are observed: with only one of them the result would be wrong. */
const volatile bool knows_readers = true;

static __always_inline u32 reader_slot_of(u32 pid)
{
	return pid & ((1 << READER_SLOT_BITS) - 1);
}

/* The state of a reader; 0: the task is not a reader. */
static __always_inline struct reader *find_reader(u32 pid)
{
	u32 slot = reader_slot_of(pid);
	struct reader *r = bpf_map_lookup_elem(&readers, &slot);

	return knows_readers && r && pid && r->pid == pid ? r : 0;
}

static __always_inline struct event *add_reader_event(struct reader *r, u32 ring, u32 kind, u32 cpu, u64 now)
{
	struct event *e = event_at(reader_rings + reader_slot_of(r->pid) * RINGS + ring, r->heads[ring]);

	if (!e)
		return 0;
	e->ns = now;
	e->id = r->pid;
	e->prio = cpu;
	e->policy = 0;
	e->kind = kind;
	r->heads[ring] += 1;
	return e;
}

/* The task takes over its slot; the task before it is no longer a reader. */
static __always_inline struct reader *claim_reader(u32 pid)
{
	u32 slot = reader_slot_of(pid);
	struct reader *r = bpf_map_lookup_elem(&readers, &slot);

	if (!knows_readers || !r || !pid)
		return 0;
	r->claimed[RING_SWITCHES] = r->heads[RING_SWITCHES];
	r->claimed[RING_WAKES] = r->heads[RING_WAKES];
	r->moved_ns = r->woken_on = 0;
	__builtin_memset(r->sites, 0, sizeof(r->sites));
	r->pid = pid;
	return r;
}

/* The current task has read, or sent, a packet. */
static __always_inline void note_reader(void)
{
	u32 pid = bpf_get_current_pid_tgid();
	struct reader *r;

	if (!budgets || find_reader(pid))
		return;
	r = claim_reader(pid);
	if (r)
		add_reader_event(r, RING_SWITCHES, READER_FOUND, bpf_get_smp_processor_id(), bpf_ktime_get_ns());
}

static __always_inline u32 state_of(struct task_struct *task, const bool direct)
{
	struct task_struct___old *old = (struct task_struct___old *)task;

	if (bpf_core_field_exists(task->__state))
		return GET(direct, task, __state);
	return BPF_CORE_READ(old, state);
}

/*
 * Number of the stack on which the current reader blocks; negative: unknown. Readers block on few distinct
 * stacks, so user space resolves each one once. The stack is walked once per place where a reader blocks,
 * because that costs twenty times as much as the rest. (Unknown if its slot in the map is taken by another
 * one.)
 */
static __always_inline s32 blocking_stack(u64 *ctx, struct reader *r, u32 state, u32 flags)
{
	u64 site = entry_site();
	s32 stack;
	u32 at;

	if (site)
		site = (site ^ state ^ (u64)flags << 32) | 1;
	at = (site * 0x9e3779b97f4a7c15ULL >> 32) & (READER_SITES - 1);
	if (site && r->sites[at] == site)
		return r->site_stacks[at];
	stack = bpf_get_stackid(ctx, &stacks, STACK_SKIP | BPF_F_FAST_STACK_CMP);
	r->sites[at] = site;
	r->site_stacks[at] = stack;
	return stack;
}

static __always_inline void reader_leaves(u64 *ctx, struct reader *r, struct task_struct *task, bool preempted,
					  u64 now, const bool direct)
{
	u32 state = state_of(task, direct);
	bool blocks = !preempted && state;
	struct event *e = add_reader_event(r, RING_SWITCHES, blocks ? READER_BLOCKS : READER_READY,
					   bpf_get_smp_processor_id(), now);

	if (!e)
		return;
	e->reader.state = state;
	e->reader.flags = 0;
	e->reader.stack = -1;
	if (!blocks) {
		if (is_throttled(task, direct))
			e->reader.flags = READER_THROTTLED;
		return;
	}
	if (direct ? BPF_CORE_READ_BITFIELD(task, in_iowait) : BPF_CORE_READ_BITFIELD_PROBED(task, in_iowait))
		e->reader.flags = READER_IOWAIT;
	e->reader.stack = blocking_stack(ctx, r, state, e->reader.flags);
}

static __always_inline void reader_woken(struct cpu *cpu, struct reader *r, struct task_struct *task, u64 now,
					 const bool direct)
{
	struct task_struct___old *old = (struct task_struct___old *)task;
	u32 queue = bpf_core_field_exists(task->thread_info.cpu) ? GET(direct, task, thread_info.cpu) :
								  BPF_CORE_READ(old, cpu);
	struct event *e = add_reader_event(r, RING_WAKES, READER_WOKEN, queue, now);

	if (!e)
		return;
	r->woken_on = (u64)bpf_get_smp_processor_id() + 1;
	if (!cpu || cpu->interrupt || cpu->serving)
		e->reader.to_cpu = r->woken_on;
	if (cpu && cpu->interrupt) {
		e->policy = WAKER_IRQ;
		e->id = cpu->interrupt - 1;
	} else if (cpu && cpu->serving) {
		e->policy = WAKER_SOFTIRQ;
		e->id = cpu->serving - 1;
	} else {
		e->policy = WAKER_TASK;
		e->id = bpf_get_current_pid_tgid();
		bpf_get_current_comm(e->comm, sizeof(e->comm));
	}
	if (is_throttled(task, direct))
		e->policy |= WAKER_THROTTLED;
}

/* The scheduler migrates the task to the queue of another CPU. */
static __always_inline void reader_moves(struct reader *r, u32 from, u32 to, u64 now)
{
	struct event *e = add_reader_event(r, RING_SWITCHES, READER_MOVES, from, now);

	if (e)
		e->reader.to_cpu = to;
	r->moved_from = from;
	r->moved_ns = now;
}

#endif
