/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Attributes of a task by its pid, available after it has exited: its cgroup, and its number in /proc. Recorded
 * when the scheduler switches to or from the task, if not recorded yet, and again when the task moves to
 * another cgroup. A task's slot is reused by a later one with the same low bits of the pid.
 */
#ifndef NEARPATH_TASKS_H
#define NEARPATH_TASKS_H

#include "cgroups.h"
#include "pid_namespace.h"

#define SEEN_SLOT_BITS 12

struct seen_task {
	u64 set; /* the css_set that it was in */
	u64 cgroup; /* its key */
	u32 pid;
	u32 number; /* in /proc, or 0 */
};

/* 1 << SEEN_SLOT_BITS if history is recorded, set by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct seen_task);
} seen_tasks SEC(".maps");

struct cgroup_path {
	u64 names[CGROUP_LEVELS][CGROUP_NAME / 8]; /* char[CGROUP_NAME] each, from the leaf up */
};

/* The least recently used one is evicted. max_entries is set by user space if history is recorded. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct cgroup_path);
} cgroup_paths SEC(".maps");

/* Initial value of a new entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cgroup_path);
} new_cgroup_path SEC(".maps");

/* Not static, to save verification time (see packet_path.h): few switches get here. */
__noinline int note_new_task(u64 address, u32 pid)
{
	struct task_struct *task = (struct task_struct *)address;
	u32 slot = pid & ((1 << SEEN_SLOT_BITS) - 1), zero = 0;
	struct seen_task *seen = bpf_map_lookup_elem(&seen_tasks, &slot);
	struct cgroup_path *path, *blank = bpf_map_lookup_elem(&new_cgroup_path, &zero);
	struct cgroup_of cgroup = cgroup_of(task);
	u64 key = cgroup.key;

	if (!seen || !blank)
		return 0;
	path = bpf_map_lookup_elem(&cgroup_paths, &key);
	if (!path && !bpf_map_update_elem(&cgroup_paths, &key, blank, BPF_NOEXIST)) {
		path = bpf_map_lookup_elem(&cgroup_paths, &key);
		if (path)
			name_cgroup((char (*)[CGROUP_NAME])path->names, cgroup.node, key);
	}
	seen->pid = 0;
	seen->set = (u64)BPF_CORE_READ(task, cgroups);
	seen->cgroup = key;
	seen->number = number_in_namespace(address);
	seen->pid = pid;
	return 0;
}

static __always_inline void note_task(u64 address, u32 pid, const bool direct)
{
	struct task_struct *task = (struct task_struct *)address;
	u32 slot = pid & ((1 << SEEN_SLOT_BITS) - 1);
	struct seen_task *seen = bpf_map_lookup_elem(&seen_tasks, &slot);

	/* An exiting task loses its css_set first: what was recorded before stays. */
	if (seen && pid && (seen->pid != pid || seen->set != address_of((u64)GET(direct, task, cgroups))))
		note_new_task(address_of(address), pid);
}

#endif
