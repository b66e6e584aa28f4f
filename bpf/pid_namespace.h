/* SPDX-License-Identifier: GPL-2.0-only */
/* Ids of processes and threads as the PID namespace of nearpath's /proc numbers them. */
#ifndef NEARPATH_PID_NAMESPACE_H
#define NEARPATH_PID_NAMESPACE_H

#include "probe.h"

/* How deep namespaces are nested at most (MAX_PID_NS_LEVEL). */
#define PID_LEVELS 32

/* Inode of that namespace; 0: the first one, whose numbers are those that the kernel uses itself. Set by user space. */
const volatile u32 pid_namespace;

/*
 * A thread's number there; 0 where it is in a namespace above or beside. (Not static, so that the verifier looks at
 * the loop once: trail.h.)
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

/* That of a task's process. */
static __always_inline u32 process_in_namespace(struct task_struct *task)
{
	return number_in_namespace((u64)BPF_CORE_READ(task, group_leader));
}

#endif
