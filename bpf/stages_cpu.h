/* SPDX-License-Identifier: GPL-2.0-only */
/* What the CPU does: interrupts, softirqs, polls; kept until a packet uses it. */
#ifndef NEARPATH_STAGES_CPU_H
#define NEARPATH_STAGES_CPU_H

#include "stages_packet.h"

PROBE(irq_handler_entry, "irq_handler_entry")
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->irq_ns = bpf_ktime_get_ns();
	if (budgets) {
		cpu->interrupt = (u64)(u32)ctx[0] + 1;
		add_event(cpu, RING_TASKS, EVENT_IRQ, ctx[0], cpu->irq_ns);
	}
}

PROBE(irq_handler_exit, "irq_handler_exit")
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->irq_ns = 0;
	cpu->interrupt = 0;
	if (budgets)
		add_event(cpu, RING_TASKS, EVENT_IRQ_END, ctx[0], bpf_ktime_get_ns());
}

/* Interrupts without a device handler: x86's timer, and calls by other CPUs (RPS). */
static __always_inline void vector_event(u64 *ctx, u32 kind)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->interrupt = kind == EVENT_IRQ ? (VECTOR | (u64)(u32)ctx[0]) + 1 : 0;
	add_event(cpu, RING_TASKS, kind, VECTOR | (u32)ctx[0], bpf_ktime_get_ns());
}

/* Among the callbacks of CPU hotplug, the idle task runs those of a CPU that starts (notify_cpu_starting). */
PROBE(cpuhp_enter, "cpuhp_enter")
{
	struct cpu *cpu = this_cpu();

	if (cpu && (u32)ctx[0] == bpf_get_smp_processor_id() && !(u32)bpf_get_current_pid_tgid())
		add_event(cpu, RING_TASKS, EVENT_ONLINE, 0, bpf_ktime_get_ns());
}

PROBE(local_timer_entry, "local_timer_entry")
{
	vector_event(ctx, EVENT_IRQ);
}

PROBE(local_timer_exit, "local_timer_exit")
{
	struct cpu *cpu = this_cpu();

	/* What was stolen is accounted for by the timer. */
	if (cpu)
		add_stolen(cpu);
	vector_event(ctx, EVENT_IRQ_END);
}

PROBE(call_function_single_entry, "call_function_single_entry")
{
	vector_event(ctx, EVENT_IRQ);
}

PROBE(call_function_single_exit, "call_function_single_exit")
{
	vector_event(ctx, EVENT_IRQ_END);
}

PROBE(softirq_raise, "softirq_raise")
{
	struct cpu *cpu;

	if ((u32)ctx[0] != NET_RX_SOFTIRQ && (!budgets || (u32)ctx[0] != NET_TX_SOFTIRQ))
		return;
	cpu = this_cpu();
	if (!cpu)
		return;
	if ((u32)ctx[0] == NET_TX_SOFTIRQ) {
		note_tx_raise(cpu);
		return;
	}
	if (!has_softirqs) {
		raise_unseen(cpu);
		return;
	}
	if (cpu->next_raise_ns)
		return;
	cpu->next_raise_ns = bpf_ktime_get_ns();
	cpu->next_irq_ns = cpu->irq_ns;
}

PROBE(softirq_entry, "softirq_entry")
{
	struct cpu *cpu = this_cpu();
	u32 vector = ctx[0];
	u64 now;

	if (!cpu)
		return;
	cpu->serving = vector + 1;
	if (!budgets && vector != NET_RX_SOFTIRQ)
		return;
	now = bpf_ktime_get_ns();
	if (budgets)
		add_event(cpu, RING_SOFTIRQS, EVENT_SOFTIRQ, vector, now);
	if (vector == NET_TX_SOFTIRQ) {
		cpu->run_tx_raise = cpu->next_tx_raise;
		cpu->next_tx_raise = 0;
	}
	if (vector != NET_RX_SOFTIRQ)
		return;
	cpu->run_raise_ns = cpu->next_raise_ns;
	cpu->run_irq_ns = cpu->next_irq_ns;
	cpu->next_raise_ns = cpu->next_irq_ns = 0;
	cpu->entry_ns = cpu->poll_ns = now;
}

/* The CPU turns to another packet, or to none. */
static __always_inline void turn_to(struct cpu *cpu, u64 tag)
{
	cpu->packet = tag;
	cpu->waker = has_data_ready ? 0 : tag;
}

PROBE(softirq_exit, "softirq_exit")
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->serving = 0;
	cpu->task_ns = 0;
	forget_given(cpu);
	if (budgets)
		add_event(cpu, RING_SOFTIRQS, EVENT_SOFTIRQ_END, ctx[0], bpf_ktime_get_ns());
	turn_to(cpu, 0);
}

PROBE(napi_poll, "napi_poll")
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		cpu->poll_ns = bpf_ktime_get_ns();
}

PROBE_FUNCTION(process_backlog, "process_backlog")
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		cpu->backlog_ns = bpf_ktime_get_ns();
}

/* The scheduler migrates a task to the queue of another CPU. */
PROBE(sched_migrate_task, "sched_migrate_task")
{
	struct task_struct *moved = (struct task_struct *)ctx[0];
	struct task_struct___old *old = (struct task_struct___old *)moved;
	struct reader *r = find_reader(GET(direct, moved, pid));

	if (!r)
		return;
	reader_moves(r,
		     bpf_core_field_exists(moved->thread_info.cpu) ? GET(direct, moved, thread_info.cpu) :
								     BPF_CORE_READ(old, cpu),
		     ctx[1], bpf_ktime_get_ns());
}

/*
 * A cgroup's tasks may run on a CPU again after their quota (cpu.max) was used up. The start of the throttling
 * is on the clock of the run queue; the kernel resets it only after this.
 */
PROBE_FUNCTION(unthrottle_cfs_rq, "unthrottle_cfs_rq")
{
	struct cfs_rq *queue = (struct cfs_rq *)ctx[0];
	struct rq *rq = GET(direct, queue, rq);
	u64 group = address_of((u64)GET(direct, queue, tg));
	u64 begin = GET(direct, queue, throttled_clock);
	u32 number = GET(direct, rq, cpu);
	struct throttles_of *t = throttle_slot(group, number);
	struct throttle *last;
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	u64 now = bpf_ktime_get_ns();

	if (!t || !cpu || !cpu->clock_at_ns || !begin)
		return;
	begin += cpu->clock_ns;
	if (begin > now)
		return;
	if (t->group != group || t->cpu != number) {
		__builtin_memset(t, 0, sizeof(*t));
		t->group = group;
		t->cpu = number;
	}
	last = &t->last[t->next % THROTTLES];
	last->begin_ns = begin;
	last->end_ns = now;
	t->next++;
}

#endif
