/* SPDX-License-Identifier: GPL-2.0-only */
/* Whether a task may not run because its cgroup has used up its quota (cpu.max). */
#ifndef NEARPATH_QUOTA_H
#define NEARPATH_QUOTA_H

#include "probe.h"

/* Whether the task is throttled: its cgroup has used up its quota of the CPU that it is queued on. */
static __always_inline bool is_throttled(struct task_struct *task, const bool direct)
{
	struct cfs_rq *queue = 0;

	/* Since 6.18 it is dequeued individually, when it would return to user space. */
	if (bpf_core_field_exists(task->throttled))
		return GET(direct, task, throttled);
	if (!bpf_core_field_exists(task->se.cfs_rq) || !bpf_core_field_exists(queue->throttle_count))
		return false;
	queue = GET(direct, task, se.cfs_rq);
	return queue && GET(direct, queue, throttle_count) > 0;
}

/* The run queue of the task's cgroup on its CPU; 0 if the kernel has no such queues. */
static __always_inline struct cfs_rq *queue_of_task(struct task_struct *task)
{
	if (!bpf_core_field_exists(task->se.cfs_rq))
		return 0;
	return BPF_CORE_READ(task, se.cfs_rq);
}

/* Whether the kernel counts for how long the tasks of a queue have been throttled. */
static __always_inline bool counts_throttled_ns(void)
{
	struct cfs_rq *queue = 0;
	struct cfs_rq___old *old = 0;

	return bpf_core_field_exists(queue->throttled_clock_pelt_time) ||
	       bpf_core_field_exists(old->throttled_clock_task_time);
}

/*
 * For how long the tasks of this queue, or of one above it, have been throttled ever, in periods that have ended:
 * nanoseconds of the CPU's clock for load tracking (kernel/sched/fair.c, tg_unthrottle_up), which is slower than time
 * while the CPU's frequency is low. 0 if the kernel does not count it.
 */
static __always_inline u64 throttled_ns(struct cfs_rq *queue)
{
	struct cfs_rq___old *old = (struct cfs_rq___old *)queue;

	if (!queue)
		return 0;
	if (bpf_core_field_exists(queue->throttled_clock_pelt_time))
		return BPF_CORE_READ(queue, throttled_clock_pelt_time);
	if (bpf_core_field_exists(old->throttled_clock_task_time))
		return BPF_CORE_READ(old, throttled_clock_task_time);
	return 0;
}

#endif
