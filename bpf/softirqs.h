/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a softirq runs on this CPU, and since when NET_RX was pending: from the tracepoints at both ends of
 * softirqs or, if these are not attached, from the CPU's own state. The tracepoints cost two calls per run of
 * each softirq, which is per packet on a veth pair; the CPU's own state costs two reads per packet.
 */
#ifndef NEARPATH_SOFTIRQS_H
#define NEARPATH_SOFTIRQS_H

#include "inflight.h"

/* Whether both ends of softirqs are observed. */
const volatile bool has_softirqs = true;

/*
 * Offsets of a CPU's preemption count and pending softirqs from its run queue: all three are per-CPU variables
 * whose addresses user space takes from the kernel's BTF. (A ksym would need CONFIG_KALLSYMS_ALL.)
 */
const volatile s64 preempt_count_at;
const volatile s64 pending_softirqs_at;

/* include/linux/preempt.h */
#define SERVING_SOFTIRQ 0x100

/* A word of the CPU's state at that offset from its run queue. */
static __always_inline u32 word_of_cpu(struct cpu *cpu, s64 at)
{
	u32 word = 0;

	if (!cpu->run_queue) {
		struct task_struct *task = (struct task_struct *)bpf_get_current_task();

		if (!bpf_core_field_exists(task->se.cfs_rq))
			return 0;
		cpu->run_queue = (u64)BPF_CORE_READ(task, se.cfs_rq, rq);
	}
	bpf_probe_read_kernel(&word, sizeof(word), (void *)(cpu->run_queue + at));
	return word;
}

/* Whether the CPU is in a softirq, also where its tracepoints are not attached at the moment. */
static __always_inline bool is_in_softirq(struct cpu *cpu)
{
	return preempt_count_at ? word_of_cpu(cpu, preempt_count_at) & SERVING_SOFTIRQ : cpu->serving;
}

/* Whether the next run of NET_RX is pending already; used if the tracepoints are not attached. */
static __always_inline bool is_net_rx_pending(struct cpu *cpu)
{
	return word_of_cpu(cpu, pending_softirqs_at) & 1 << NET_RX_SOFTIRQ;
}

/*
 * NET_RX is raised (the kernel marks it pending after the tracepoint). The first raise since the start of the
 * last run is that of the next run; the one before it is that of the run which may be in progress.
 */
static __always_inline void raise_unseen(struct cpu *cpu)
{
	if (is_net_rx_pending(cpu))
		return;
	cpu->earlier_raise_ns = cpu->next_raise_ns;
	cpu->next_raise_ns = bpf_ktime_get_ns();
}

/*
 * Updates `serving` and `run_raise_ns` if the tracepoints are not attached. The vector of the running softirq
 * is unknown: one that has a packet is taken for NET_RX.
 */
static __always_inline void see_softirq(struct cpu *cpu)
{
	if (has_softirqs)
		return;
	cpu->serving = word_of_cpu(cpu, preempt_count_at) & SERVING_SOFTIRQ ? NET_RX_SOFTIRQ + 1 : 0;
	if (cpu->serving)
		cpu->run_raise_ns = is_net_rx_pending(cpu) ? cpu->earlier_raise_ns : cpu->next_raise_ns;
}

#endif
