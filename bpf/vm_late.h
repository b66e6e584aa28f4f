/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Why packets are late: where the time of those went that took longer than slow_ns into the guest.
 *
 * The time is split, without a rest, into that at the NIC (if it timestamps), the wait for NET_RX, its run, and for vhost
 * and the vCPU each the time that the thread was ready without having a CPU, that for which its cgroup had no quota left,
 * and the rest. For that, each CPU has a ring of what it ran last, and each thread one of its last waits, each with the
 * task that had the CPU for longest. A packet is counted where most of its time went.
 *
 * Waits of at least pause_ns are also kept one by one: a guest sees that its vCPU was without a CPU for so long, and
 * not why.
 */
#ifndef NEARPATH_VM_LATE_H
#define NEARPATH_VM_LATE_H

#include "quota.h"
#include "vm_queues.h"

#define THREAD_SLOT_BITS 9
/* Waits kept of a thread, and runs of a CPU; powers of two. */
#define WAITS 16
#define RUNS 32
#define CULPRITS_MAX 1024
/* A power of two. */
#define PAUSES_MAX 8192

/* The same order as in crates/instruments/src/vm. */
enum part {
	PART_NIC, /* the NIC has it, and has not interrupted */
	PART_INTERRUPT, /* from the interrupt to NET_RX */
	PART_HANDLER, /* NET_RX to the tap */
	PART_VHOST_WAIT, /* vhost is ready, and has no CPU */
	PART_VHOST_QUOTA, /* it is ready, and its cgroup has used up its quota */
	PART_VHOST, /* vhost is woken, copies this packet and others before it */
	PART_VCPU_WAIT, /* the vCPU's thread is ready, and has no CPU */
	PART_VCPU_QUOTA, /* it is ready, and its cgroup has used up its quota */
	PART_VCPU, /* it is woken, kicked, or leaves the host */
	PARTS,
};

/* A task on a CPU, or a thread's time without one and what ran instead. */
struct wait {
	u64 start_ns, end_ns;
	u64 quota; /* whether it was for its cgroup's quota */
	char comm[16];
};

/* What ran instead of a thread for which late packets waited. */
struct culprit {
	u32 queue, part;
	char comm[16];
};

/* What a CPU computes with. Loops keep their sums here rather than in registers: the verifier knows nothing of what is
 * read from a map, so that each iteration leaves it one state. With ranges of registers it has 2^WAITS. */
struct scratch {
	u64 sum_ns, quota_ns, longest_ns;
	u64 longest; /* its number in the ring */
	struct culprit by_vhost, by_vcpu;
};

/* What a CPU ran. Written only by it, with interrupts off. */
struct runs {
	u64 since_ns; /* of the task that it runs; 0: unknown */
	u64 runs; /* ever */
	struct scratch scratch;
	struct wait ring[RUNS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by user space for this host */
	__type(key, u32);
	__type(value, struct runs);
} runs_of_cpus SEC(".maps");

/* A thread of vhost or of a vCPU. */
struct thread {
	u64 task; /* 0: free */
	u64 ready_ns; /* since when it waits; 0: it runs, or is blocked */
	u64 throttled; /* whether it was when it became ready */
	u64 queue, throttled_ns; /* its run queue then, and for how long that had been throttled ever */
	u64 waits; /* ever */
	struct wait ring[WAITS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << THREAD_SLOT_BITS);
	__type(key, u32);
	__type(value, struct thread);
} threads SEC(".maps");

/* Late packets of a queue: in which part most of their time went, and that time. */
struct late {
	u64 packets[PARTS];
	u64 ns[PARTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUEUES_MAX);
	__type(key, u32);
	__type(value, struct late);
} late_packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CULPRITS_MAX);
	__type(key, struct culprit);
	__type(value, u64); /* packets */
} culprits SEC(".maps");

/* A wait of a vCPU's or a vhost worker's thread. */
struct pause {
	u64 start_ns, end_ns; /* end_ns 0: being written */
	u32 thread; /* its number in the kernel */
	u32 quota;
	char comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PAUSES_MAX); /* 1 if none is kept */
	__type(key, u32);
	__type(value, struct pause);
} pauses SEC(".maps");

/* Pauses ever; the last PAUSES_MAX of them are kept. */
u32 pause_count;

/* Packets are late from this on; 0: none is explained. Set by user space. */
const volatile u64 slow_ns;
/* Waits of this length are kept as pauses. */
const volatile u64 pause_ns;

static __always_inline struct thread *thread_slot(u64 task)
{
	u32 slot = hash(task, THREAD_SLOT_BITS);

	return bpf_map_lookup_elem(&threads, &slot);
}

static __always_inline struct thread *thread_of(u64 task)
{
	struct thread *thread = thread_slot(task);

	return thread && thread->task == task ? thread : 0;
}

/* The waits of this task, which runs, are recorded from now on. The first in a slot stays. */
static __always_inline void watch_thread(u64 task)
{
	struct thread *thread;

	if (!slow_ns)
		return;
	thread = thread_slot(task);
	if (thread && !thread->task)
		thread->task = task;
}

static __always_inline bool is_runnable(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return BPF_CORE_READ(task, __state) == 0;
	return BPF_CORE_READ((struct task_struct___old *)task, state) == 0;
}

/* The CPU has run this task until now. */
static __always_inline struct runs *note_run(struct task_struct *task, u64 now)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct runs *runs = bpf_map_lookup_elem(&runs_of_cpus, &cpu);
	struct wait *run;

	if (!runs)
		return runs;
	run = &runs->ring[runs->runs & (RUNS - 1)];
	run->start_ns = runs->since_ns ? runs->since_ns : now;
	run->end_ns = now;
	/* With what is behind its end, which the kernel fills with zeros: it is a part of a key. */
	BPF_CORE_READ_INTO(&run->comm, task, comm);
	runs->runs++;
	runs->since_ns = now;
	return runs;
}

static __always_inline u64 overlap(struct wait *one, u64 from, u64 to)
{
	u64 start = one->start_ns > from ? one->start_ns : from;
	u64 end = one->end_ns < to ? one->end_ns : to;

	return one->end_ns && end > start ? end - start : 0;
}

/*
 * Puts the number of the CPU's longest run within these limits into its scratch. Selected without a branch: Linux 6.1
 * refuses a loop whose back edge is not a jump, and the compiler moves what follows a branch to its front.
 */
static __always_inline void longest_run(struct runs *runs, u64 from, u64 to)
{
	volatile struct scratch *scratch = &runs->scratch;

	scratch->longest_ns = scratch->longest = 0;
	for (u32 i = 0; i < RUNS; i++) {
		u64 ns = overlap(&runs->ring[i], from, to), longest_ns = scratch->longest_ns, longest = scratch->longest;

		scratch->longest_ns = ns > longest_ns ? ns : longest_ns;
		scratch->longest = ns > longest_ns ? i : longest;
	}
}

/* A thread is ready from now on, and has no CPU. */
static __always_inline void begin_wait(struct thread *thread, struct task_struct *task, u64 now)
{
	struct cfs_rq *queue = queue_of_task(task);

	thread->ready_ns = now;
	thread->throttled = is_throttled(task, false);
	thread->queue = (u64)queue;
	thread->throttled_ns = throttled_ns(queue);
}

/* Whether the thread waited for its cgroup's quota rather than for other tasks; it gets a CPU now. */
static __always_inline bool waited_for_quota(struct thread *thread, struct task_struct *task, u64 now)
{
	struct cfs_rq *queue = queue_of_task(task);

	/* On another CPU, or a kernel that does not count the time: whether it began so is what is known. */
	if ((u64)queue != thread->queue || !counts_throttled_ns())
		return thread->throttled;
	/* It may have been throttled later, when others of the cgroup had used up the rest, or only at first. */
	return 2 * (throttled_ns(queue) - thread->throttled_ns) > now - thread->ready_ns;
}

static __always_inline void keep_pause(struct wait *wait, struct task_struct *task)
{
	struct pause *pause;
	u32 number;

	if (!pause_ns || wait->end_ns - wait->start_ns < pause_ns)
		return;
	number = __sync_fetch_and_add(&pause_count, 1) & (PAUSES_MAX - 1);
	pause = bpf_map_lookup_elem(&pauses, &number);
	if (!pause)
		return;
	pause->end_ns = 0;
	barrier();
	pause->start_ns = wait->start_ns;
	pause->thread = BPF_CORE_READ(task, pid);
	pause->quota = wait->quota;
	__builtin_memcpy(pause->comm, wait->comm, sizeof(pause->comm));
	barrier();
	pause->end_ns = wait->end_ns;
}

static __always_inline void switches(bool preempted, struct task_struct *previous, struct task_struct *next)
{
	struct thread *thread = thread_of((u64)previous);
	u64 now = bpf_ktime_get_ns();
	struct runs *runs = note_run(previous, now);
	struct wait *wait;

	if (thread && (preempted || is_runnable(previous)))
		begin_wait(thread, previous, now);
	thread = thread_of((u64)next);
	if (!thread || !thread->ready_ns || !runs)
		return;
	wait = &thread->ring[thread->waits & (WAITS - 1)];
	wait->start_ns = thread->ready_ns;
	wait->end_ns = now;
	wait->quota = waited_for_quota(thread, next, now);
	longest_run(runs, wait->start_ns, now);
	__builtin_memset(wait->comm, 0, sizeof(wait->comm));
	if (runs->scratch.longest_ns)
		__builtin_memcpy(wait->comm, runs->ring[runs->scratch.longest & (RUNS - 1)].comm, sizeof(wait->comm));
	keep_pause(wait, next);
	thread->waits++;
	thread->ready_ns = 0;
}

static __always_inline void wakes(u64 task)
{
	struct thread *thread = thread_of(task);

	if (!thread || thread->ready_ns || task == bpf_get_current_task())
		return;
	begin_wait(thread, (struct task_struct *)task, bpf_ktime_get_ns());
}

/*
 * The time within these limits that a thread waited for a CPU, and for its quota, in `scratch`; `worst` is the longest
 * of its waits for a CPU.
 */
static __always_inline void waited(struct thread *thread, u64 from, u64 to, struct scratch *scratch,
				  struct culprit *worst)
{
	scratch->sum_ns = scratch->quota_ns = 0;
	scratch->longest_ns = 0;
	__builtin_memset(worst->comm, 0, sizeof(worst->comm));
	for (u32 i = 0; i < WAITS; i++) {
		struct wait *wait = &thread->ring[i];
		u64 ns = overlap(wait, from, to);

		*(wait->quota ? &scratch->quota_ns : &scratch->sum_ns) += ns;
		if (!wait->quota && ns > scratch->longest_ns) {
			scratch->longest_ns = ns;
			__builtin_memcpy(worst->comm, wait->comm, sizeof(worst->comm));
		}
	}
}

/* Splits the time from one point to the next: that without a CPU, without quota, and the rest. */
static __always_inline void split(u64 task, u64 from, u64 to, u64 *parts, struct scratch *scratch,
				  struct culprit *worst)
{
	struct thread *thread = thread_of(task);
	u64 rest = to > from ? to - from : 0, without;

	if (thread) {
		waited(thread, from, to, scratch, worst);
		parts[0] = scratch->sum_ns;
		parts[1] = scratch->quota_ns;
		without = parts[0] + parts[1];
		rest -= without < rest ? without : rest;
	}
	parts[2] = rest;
}

/* A packet reaches the guest; interrupts are off. (Not static, so that the verifier checks the body once.) */
__noinline int explain(struct waiting *packet, u64 now)
{
	u64 parts[PARTS] = {}, longest = 0;
	u32 most = 0, queue, cpu = bpf_get_smp_processor_id();
	struct scratch *scratch;
	struct runs *runs;
	struct culprit *worst;
	struct late *late;
	u64 one = 1, *known;

	if (!packet || !slow_ns)
		return 0;
	queue = packet->queue;
	late = bpf_map_lookup_elem(&late_packets, &queue);
	runs = bpf_map_lookup_elem(&runs_of_cpus, &cpu);
	if (!late || !runs || now - packet->start_ns < slow_ns)
		return 0;
	scratch = &runs->scratch;
	parts[PART_NIC] = packet->raised_ns - packet->start_ns;
	if (packet->handler_ns) {
		parts[PART_INTERRUPT] = packet->handler_ns - packet->raised_ns;
		parts[PART_HANDLER] = packet->tap_ns - packet->handler_ns;
	}
	split(packet->worker, packet->tap_ns, packet->set_ns, &parts[PART_VHOST_WAIT], scratch, &scratch->by_vhost);
	split(bpf_get_current_task(), packet->set_ns, now, &parts[PART_VCPU_WAIT], scratch, &scratch->by_vcpu);
	for (u32 i = 0; i < PARTS; i++) {
		if (parts[i] <= longest)
			continue;
		longest = parts[i];
		most = i;
	}
	if (most >= PARTS)
		return 0;
	count(&late->packets[most], 1);
	count(&late->ns[most], longest);
	if (most == PART_VHOST_WAIT)
		worst = &scratch->by_vhost;
	else if (most == PART_VCPU_WAIT)
		worst = &scratch->by_vcpu;
	else
		return 0;
	worst->queue = queue;
	worst->part = most;
	known = bpf_map_lookup_elem(&culprits, worst);
	if (known)
		count(known, 1);
	else
		bpf_map_update_elem(&culprits, worst, &one, BPF_NOEXIST);
	return 0;
}

#endif
