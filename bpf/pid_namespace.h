/* SPDX-License-Identifier: GPL-2.0-only */
/* Ids of processes and threads as numbered by the PID namespace of nearpath's /proc. */
#ifndef NEARPATH_PID_NAMESPACE_H
#define NEARPATH_PID_NAMESPACE_H

#include "probe.h"

/* Maximum nesting of namespaces (MAX_PID_NS_LEVEL). */
#define PID_LEVELS 32

/* Inode of that namespace; 0: the initial one, with the kernel's own numbers. Set by user space. */
const volatile u32 pid_namespace;

/*
 * A thread's number there; 0 if it is in an ancestor or an unrelated namespace. (Not static, so that the
 * verifier checks the loop once: packet_path.h.)
 */
__noinline u32 number_in_namespace(u64 address)
{
	struct task_struct *task = (struct task_struct *)address;
	struct pid *pid;
	u32 deepest;

	if (!pid_namespace)
		return BPF_CORE_READ(task, pid);
	pid = BPF_CORE_READ(task, thread_pid);
	deepest = BPF_CORE_READ(pid, level);
	for (u32 level = 0; level < PID_LEVELS; level++) {
		struct upid *upid = (struct upid *)((u64)pid + bpf_core_field_offset(pid->numbers) +
						    level * bpf_core_type_size(struct upid));

		if (level > deepest)
			break;
		if (BPF_CORE_READ(upid, ns, ns.inum) == pid_namespace)
			return BPF_CORE_READ(upid, nr);
	}
	return 0;
}

/* The number of a task's process. */
static __always_inline u32 process_in_namespace(struct task_struct *task)
{
	return number_in_namespace((u64)BPF_CORE_READ(task, group_leader));
}

#endif
