// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "memory": pages that the kernel moves between nodes, by reason, and the page faults that it takes
 * to find out which node uses a page.
 *
 * Pages are moved by a thread of the process itself (AutoNUMA, mbind), or by another one: migrate_pages(2) of another
 * process, a worker after a change of cpuset.mems. do_migrate_pages() then names the process whose pages they are.
 */
#include "pid_namespace.h"

char LICENSE[] SEC("license") = "GPL";

/* Processes that move pages, by owner and reason. */
#define MOVES_MAX 4096
/* Processes with hint faults. */
#define FAULTS_MAX 16384
/* Threads in do_migrate_pages() at the same time. */
#define OWNERS_MAX 1024

/* TNF_FAULT_LOCAL of include/linux/sched/numa_balancing.h. */
#define FAULT_LOCAL 0x08

struct move_key {
	u32 pid; /* the process whose pages they are; 0: unknown */
	u32 by; /* the process that moves them */
	u32 reason; /* enum migrate_reason */
};

struct moved {
	u64 moved;
	u64 failed;
	char comm[16]; /* of the thread that moves them */
};

struct hint_faults {
	u64 pages;
	u64 local;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOVES_MAX);
	__type(key, struct move_key);
	__type(value, struct moved);
} moves SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FAULTS_MAX);
	__type(key, u32);
	__type(value, struct hint_faults);
} faults SEC(".maps");

/* The process whose pages a thread moves, while it is in do_migrate_pages(). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWNERS_MAX);
	__type(key, u32);
	__type(value, u32);
} owners SEC(".maps");

volatile u32 active;
/* Moves that did not fit. */
u64 lost;

/* Whether the tracepoint has an argument before its mode (large_folio_split, since 6.7). */
const volatile bool has_folio_split;
/* Reasons for which a thread moves pages of its own process. */
const volatile u32 own_reasons;

static __always_inline u32 current_process(void)
{
	return process_in_namespace((struct task_struct *)bpf_get_current_task());
}

static __always_inline u32 current_thread(void)
{
	return (u32)bpf_get_current_pid_tgid();
}

PROBE(mm_migrate_pages, "mm_migrate_pages")
{
	struct move_key key = {};
	struct moved *moved;
	u32 thread, *owner;
	u64 succeeded, failed;

	if (!active)
		return;
	thread = current_thread();
	key.by = current_process();
	succeeded = ARGUMENT(ctx, 0);
	failed = ARGUMENT(ctx, 1);
	key.reason = has_folio_split ? ARGUMENT(ctx, 7) : ARGUMENT(ctx, 6);
	owner = bpf_map_lookup_elem(&owners, &thread);
	if (owner)
		key.pid = *owner;
	else if (key.reason < 32 && (own_reasons & (1U << key.reason)))
		key.pid = key.by;
	moved = bpf_map_lookup_elem(&moves, &key);
	if (!moved) {
		struct moved first = {};

		bpf_get_current_comm(first.comm, sizeof(first.comm));
		bpf_map_update_elem(&moves, &key, &first, BPF_NOEXIST);
		moved = bpf_map_lookup_elem(&moves, &key);
	}
	if (!moved) {
		__sync_fetch_and_add(&lost, succeeded);
		return;
	}
	__sync_fetch_and_add(&moved->moved, succeeded);
	__sync_fetch_and_add(&moved->failed, failed);
}

/* task_numa_fault(last_cpupid, node, pages, flags), in the thread that took the fault. */
PROBE_FUNCTION(task_numa_fault, "task_numa_fault")
{
	struct hint_faults *count;
	u32 pid, pages = ctx[2];

	if (!active)
		return;
	pid = current_process();
	count = bpf_map_lookup_elem(&faults, &pid);
	if (!count) {
		struct hint_faults first = {};

		bpf_map_update_elem(&faults, &pid, &first, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&faults, &pid);
	}
	if (!count)
		return;
	__sync_fetch_and_add(&count->pages, pages);
	if (ctx[3] & FAULT_LOCAL)
		__sync_fetch_and_add(&count->local, pages);
}

/* do_migrate_pages(mm, from, to, flags). */
PROBE_FUNCTION(migrate_begin, "do_migrate_pages")
{
	struct mm_struct *mm = (struct mm_struct *)address_of(ctx[0]);
	u32 thread = current_thread(), owner = 0;

	/* Without memory cgroups, mm has no owner. */
	if (bpf_core_field_exists(mm->owner)) {
		struct task_struct *task = BPF_CORE_READ(mm, owner);

		if (task)
			owner = process_in_namespace(task);
	}
	bpf_map_update_elem(&owners, &thread, &owner, BPF_ANY);
}

static __always_inline int migrate_ends(void)
{
	u32 thread = current_thread();

	bpf_map_delete_elem(&owners, &thread);
	return 0;
}

SEC("fexit/do_migrate_pages") int migrate_end_exit(void *ctx)
{
	return migrate_ends();
}

SEC("kretprobe/do_migrate_pages") int migrate_end_exit_ret(void *ctx)
{
	return migrate_ends();
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
