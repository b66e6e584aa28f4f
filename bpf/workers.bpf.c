// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "workers": which tasks run on the CPUs of threads that poll, for how long, and how long at a stretch.
 *
 * A switch on another CPU costs one lookup. A task that is not switched out is counted when it is read: `read_cpu` runs
 * on the worker's CPU, in the context of whatever runs there.
 */
#include "pid_namespace.h"

char LICENSE[] SEC("license") = "GPL";

/* Tasks by CPU. */
#define RAN_MAX 16384

struct cpu {
	u64 since_ns; /* counted until then; 0: nothing yet */
	u64 began_ns; /* the task in progress runs since then */
	u32 is_watched;
	u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by user space for this host */
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct ran_key {
	u32 cpu;
	u32 tid; /* the kernel's own number; 0: idle */
};

struct ran {
	u64 ns;
	u64 runs;
	u64 longest_ns;
	u32 pid, tid; /* as numbered by the PID namespace of /proc */
	char comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RAN_MAX);
	__type(key, struct ran_key);
	__type(value, struct ran);
} ran SEC(".maps");

volatile u32 active;
/* Time of tasks that did not fit. */
u64 lost_ns;

static __always_inline struct ran *ran_of(struct task_struct *task, struct ran_key *key)
{
	struct ran *found = bpf_map_lookup_elem(&ran, key);
	struct ran first = {};

	if (found)
		return found;
	if (key->tid) {
		first.pid = process_in_namespace(task);
		first.tid = number_in_namespace((u64)task);
	}
	bpf_map_update_elem(&ran, key, &first, BPF_NOEXIST);
	return bpf_map_lookup_elem(&ran, key);
}

/* Counts the time of a task on this CPU until now. An entry is written by its CPU only, with interrupts disabled. */
static __always_inline void count(struct cpu *cpu, struct task_struct *task, u32 tid, const bool ends)
{
	u64 now = bpf_ktime_get_ns(), since = cpu->since_ns, began = cpu->began_ns;
	struct ran_key key = {};
	struct ran *of;

	cpu->since_ns = now;
	if (ends || !began)
		cpu->began_ns = now;
	if (!since)
		return;
	key.cpu = bpf_get_smp_processor_id();
	key.tid = tid;
	of = ran_of(task, &key);
	if (!of) {
		__sync_fetch_and_add(&lost_ns, now - since);
		return;
	}
	/* A program that was started has another name than the shell that started it. */
	BPF_CORE_READ_STR_INTO(&of->comm, task, comm);
	of->ns += now - since;
	if (ends)
		of->runs++;
	if (began && now - began > of->longest_ns)
		of->longest_ns = now - began;
}

PROBE(sched_switch, "sched_switch")
{
	u32 number = bpf_get_smp_processor_id();
	struct task_struct *prev = (struct task_struct *)address_of(ctx[1]);
	struct cpu *cpu;

	if (!active)
		return;
	cpu = bpf_map_lookup_elem(&cpus, &number);
	if (!cpu || !cpu->is_watched)
		return;
	count(cpu, prev, BPF_CORE_READ(prev, pid), true);
}

/* Run by user space on a CPU that is watched: at the start, at each reading and at the end. */
SEC("raw_tp") int read_cpu(void *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	u32 number = bpf_get_smp_processor_id();
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);

	if (cpu && cpu->is_watched)
		count(cpu, task, BPF_CORE_READ(task, pid), false);
	return 0;
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
