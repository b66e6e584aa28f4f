/* SPDX-License-Identifier: GPL-2.0-only */
/* The cgroup of a task: its key and its path. */
#ifndef NEARPATH_CGROUPS_H
#define NEARPATH_CGROUPS_H

#include "probe.h"

#define CGROUP_LEVELS 8
#define CGROUP_NAME 64
/* Flag in a cgroup's key: a version 1 cgroup, whose hierarchies number theirs independently. */
#define CGROUP_V1 (1ULL << 63)

/* Used instead of the name: the cgroup was removed before its name was read. */
#define CGROUP_REMOVED 1

struct cgroup_of {
	struct kernfs_node *node;
	u64 key; /* unique to this cgroup, unlike the node's address */
};

/* In the unified hierarchy; for tasks in its root, in the cpu hierarchy of version 1. */
static __always_inline struct cgroup_of cgroup_of(struct task_struct *task)
{
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct cgroup *cgroup = BPF_CORE_READ(set, dfl_cgrp);
	struct cgroup_subsys_state *state = 0;
	struct cgroup_of found = {};
	struct kernfs_node *node;

	if (!BPF_CORE_READ(cgroup, level) &&
	    bpf_core_enum_value_exists(enum cgroup_subsys_id, cpu_cgrp_id)) {
		u64 at = (u64)set + bpf_core_field_offset(set->subsys) +
			 8 * bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id);
		struct cgroup *first;

		if (!bpf_probe_read_kernel(&state, sizeof(state), (void *)at) && state) {
			first = BPF_CORE_READ(state, cgroup);
			if (first != cgroup)
				found.key = CGROUP_V1;
			cgroup = first;
		}
	}
	node = BPF_CORE_READ(cgroup, kn);
	found.node = node;
	found.key |= BPF_CORE_READ(node, id);
	return found;
}

static __always_inline struct kernfs_node *parent_of(struct kernfs_node *node)
{
	/* Since 6.15 */
	if (bpf_core_field_exists(((struct kernfs_node___rcu *)node)->__parent))
		return BPF_CORE_READ((struct kernfs_node___rcu *)node, __parent);
	return BPF_CORE_READ(node, parent);
}

/* Writes the names from the leaf up; none if the node no longer belongs to that cgroup. */
static __always_inline void name_cgroup(char (*names)[CGROUP_NAME], struct kernfs_node *node, u64 key)
{
	struct kernfs_node *at = node;

	for (int level = 0; level < CGROUP_LEVELS; level++) {
		if (!at)
			break;
		bpf_probe_read_kernel_str(names[level], CGROUP_NAME, BPF_CORE_READ(at, name));
		at = parent_of(at);
	}
	/* It was freed, and another one was allocated at its address. */
	if (BPF_CORE_READ(node, id) != (key & ~CGROUP_V1))
		names[0][0] = CGROUP_REMOVED;
}

#endif
