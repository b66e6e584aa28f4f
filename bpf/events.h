/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Rings of events, and how they get to user space: in blocks, each event once.
 *
 * Each CPU has two rings, and so has each task that reads from sockets (readers.h). Nothing is sent until a
 * packet was slow. Then the blocks written since the last time are sent, and user space reassembles them by the
 * numbers of their events. Packets that were late for the same reason therefore do not send the same events
 * twice, and the amount sent is bounded by the amount written.
 */
#ifndef NEARPATH_EVENTS_H
#define NEARPATH_EVENTS_H

#include "packet_path.h"

/*
 * Events per ring of a CPU (set by user space for this host) and per ring of a reader; powers of two, multiples
 * of BLOCK_EVENTS.
 */
#define CPU_EVENTS_MAX 4096
#define READER_EVENTS 256
#define BLOCK_EVENTS 16
/* Tasks known as readers, looked up by pid. */
#define READER_SLOT_BITS 9
/* Recorded stacks on which readers block; a power of two. */
#define READER_SITES 4

enum ring { RING_TASKS, RING_SOFTIRQS, RINGS };
enum reader_ring { RING_SWITCHES, RING_WAKES };

enum event_kind {
	EVENT_TASK = 1,
	EVENT_IRQ,
	EVENT_IRQ_END,
	EVENT_SOFTIRQ,
	EVENT_SOFTIRQ_END,
	EVENT_STOLEN, /* by the hypervisor, since the previous interrupt */
	EVENT_ONLINE, /* the CPU comes online; it was offline since the previous event */
	/* of a reader */
	READER_RUNS,
	READER_READY, /* it leaves its CPU while runnable */
	READER_BLOCKS, /* it leaves its CPU to wait for something */
	READER_MOVES, /* to the run queue of another CPU */
	READER_WOKEN,
	READER_FOUND, /* it runs, and was not known before */
	/* of a CPU, just before EVENT_TASK: since when that task was runnable */
	EVENT_QUEUED,
};

/* An interrupt of the CPU itself, by its vector, not of a device. */
#define VECTOR 0x80000000u

/* Flag in a task's policy: the previous task was still runnable. */
#define READY_BEFORE 0x80

/* What woke a reader. */
enum waker { WAKER_TASK, WAKER_SOFTIRQ, WAKER_IRQ };
/* Flag of a wake-up: the reader's cgroup is throttled, its quota is used up. */
#define WAKER_THROTTLED 0x80

struct event {
	u64 ns;
	u32 id; /* the task's pid, the interrupt, the softirq's vector, nanoseconds stolen; the waker's */
	u16 prio; /* of a task; for a softirq, how many packets the CPU has received, mod 2^16; of a reader, its CPU */
	u8 policy; /* of a task; for a wake, what it came from */
	u8 kind;
	union {
		char comm[16]; /* of a task */
		struct {
			u32 current; /* of all others: pid of the task that the CPU runs */
			u32 unused;
			u64 since_ns;
		};
		struct {
			u32 state; /* in which it leaves its CPU */
			s32 stack; /* its number in the map of stacks; negative: none */
			u32 to_cpu;
			u32 flags;
		} reader;
	};
};

#define READER_IOWAIT 1
#define READER_THROTTLED 2

/* Layout shared with crates/instruments/src/stages/events.rs. */
_Static_assert(sizeof(struct event) == 32, "size of an event");

struct block {
	u32 ring;
	u32 unused;
	u64 first; /* number of its first event */
	u64 head; /* how many events had been written to the ring before these were copied, */
	u64 after; /* and after */
	struct event events[BLOCK_EVENTS];
};

/* The rings of CPUs, two each, then those of readers; the number is set by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct event);
} history SEC(".maps");

/* A task that reads from observed sockets. */
struct reader {
	u32 pid;
	u32 moved_from; /* the CPU that it was last moved from, */
	u64 moved_ns; /* and when */
	u64 woken_on; /* the CPU on which it was last woken, plus 1 */
	u64 heads[RINGS]; /* how many events were ever written to each ring, */
	u64 claimed[RINGS]; /* and how many before this task took the slot */
	u32 sent[RINGS]; /* how many have been sent, mod 2^32 */
	/* Where it blocked recently (readers.h), and the number of the stack there. */
	u64 sites[READER_SITES];
	s32 site_stacks[READER_SITES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << READER_SLOT_BITS);
	__type(key, u32);
	__type(value, struct reader);
} readers SEC(".maps");

/* Whether history is recorded at all. */
const volatile bool budgets;
/* Events of a ring of a CPU. */
const volatile u32 cpu_events = CPU_EVENTS_MAX;
/* Number of the first ring of readers, set by user space; the rings of CPUs come before it. */
const volatile u32 reader_rings = RINGS;

/* Address of an event of a ring. Rings of readers have numbers from reader_rings on. */
static __always_inline struct event *event_at(u32 ring, u64 number)
{
	u32 key;

	if (ring < reader_rings)
		key = ring * cpu_events + (number & (cpu_events - 1));
	else
		key = reader_rings * cpu_events + (ring - reader_rings) * READER_EVENTS +
		      (number & (READER_EVENTS - 1));
	return bpf_map_lookup_elem(&history, &key);
}

static __always_inline u64 ring_head(u32 ring)
{
	u32 key = ring / RINGS;
	struct reader *r;
	struct cpu *cpu;

	if (ring < reader_rings) {
		cpu = bpf_map_lookup_elem(&cpus, &key);
		if (!cpu)
			return 0;
		return ring % RINGS == RING_TASKS ? cpu->task_events : cpu->softirq_events;
	}
	key = (ring - reader_rings) / RINGS;
	r = bpf_map_lookup_elem(&readers, &key);
	return r ? r->heads[ring & (RINGS - 1)] : 0;
}

/*
 * Sends the blocks of a ring, starting with the one that holds event `first`. Returns whether all of them
 * fitted. (Not static, so that the verifier checks the loop once: packet_path.h.)
 */
__noinline int send_blocks(u32 ring, u64 first, u64 head)
{
	struct block *b;
	struct event *e;

	first &= ~(u64)(BLOCK_EVENTS - 1);
	/* One more than a ring holds, as the first and the last block may both be partial. */
	for (u32 i = 0; i <= CPU_EVENTS_MAX / BLOCK_EVENTS; i++) {
		if (first >= head)
			return true;
		e = event_at(ring, first);
		if (!e)
			return false;
		b = bpf_ringbuf_reserve(&outliers, sizeof(*b), 0);
		if (!b)
			return false;
		b->ring = ring;
		b->unused = 0;
		b->first = first;
		b->head = head;
		if (bpf_probe_read_kernel(b->events, sizeof(b->events), e)) {
			bpf_ringbuf_discard(b, BPF_RB_NO_WAKEUP);
			return false;
		}
		/* Events written in the meantime, for example by an interrupt, replace the oldest ones. */
		b->after = ring_head(ring);
		bpf_ringbuf_submit(b, BPF_RB_NO_WAKEUP);
		first += BLOCK_EVENTS;
	}
	return true;
}

/* Sends what user space does not have yet of a ring with `size` events. */
static __always_inline void send_ring(u32 ring, u64 head, u32 *sent, u32 size)
{
	u32 unsent = (u32)head - *sent;

	if (!unsent)
		return;
	if (unsent > size)
		unsent = head < size ? head : size;
	/* If two CPUs do this at once, both send; a duplicate event does no harm. */
	if (send_blocks(ring, head - unsent, head))
		*sent = head;
}

#endif
