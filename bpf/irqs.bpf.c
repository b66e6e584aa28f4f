// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "irqs": how long each CPU is in hard interrupts and in softirqs, and the polls of each NAPI
 * instance. The number of interrupts is counted by the kernel (/proc/interrupts). On request, packets by priority.
 *
 * Hard interrupts interrupt softirqs and not the other way round: their time is subtracted from that of the
 * softirq, so that the sum is the time that the CPU spent in both.
 */
#include "priorities.h"
#include "probe.h"

char LICENSE[] SEC("license") = "GPL";

/* A power of two: the kernel has ten. */
#define VECTORS 16
/* Entries for NAPI instances by CPU. */
#define POLLS_MAX 16384
/* Used instead of an interrupt's number: NET_RX was raised by several, or by something else. */
#define SEVERAL (~0U)

enum hard {
	HARD_DEVICE,
	HARD_TIMER,
	HARD_CALL,
	HARDS = 4,
};

/*
 * Whole cache lines for each CPU, written only by that CPU: the values of a mapped array start on a page
 * boundary. A multiple of 128 bytes, because x86 prefetches pairs of lines.
 */
struct cpu {
	u64 hard_ns[HARDS], hards[HARDS];
	u64 softirq_ns[VECTORS], softirqs[VECTORS];
	u64 polls_lost; /* polls of instances that did not fit */
	u64 hard_begin_ns; /* of the hard interrupt in progress, or 0 */
	u64 hard_sum_ns;
	u64 softirq_begin_ns; /* of the softirq in progress, or 0 */
	u64 hard_before_ns; /* hard_sum_ns at its start */
	u32 vector; /* of the softirq in progress */
	u32 irq; /* the device interrupt in progress, plus 1, or 0 */
	u32 raised_by; /* the interrupt that raised NET_RX since its last run, plus 1; 0; or SEVERAL */
	u32 run_raised_by; /* the same for the run in progress, until its first poll */
	u64 unused; /* pads to a cache line */
};

_Static_assert(sizeof(struct cpu) % 128 == 0, "CPUs share no cache line");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set by user space for this host */
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* The address may be reused by another instance, and the id is 0 for some: the key is both. */
struct napi_on_cpu {
	u64 napi;
	u32 napi_id;
	u32 cpu;
};

struct polls {
	u64 polls;
	u64 work;
	u64 budget;
	u64 full; /* polls that used up their budget */
	u32 ifindex; /* 0: a CPU's backlog */
	u32 netns;
	u32 irq; /* the interrupt that it is polled for, plus 1; 0: unknown; SEVERAL: contradictory */
	u32 unused;
	char dev[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, POLLS_MAX);
	__type(key, struct napi_on_cpu);
	__type(value, struct polls);
} polled SEC(".maps");

volatile u32 active;

static __always_inline struct cpu *this_cpu(void)
{
	u32 number = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &number);
}

static __always_inline void hard_entry(u32 irq)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->irq = irq;
	cpu->hard_begin_ns = active ? bpf_ktime_get_ns() : 0;
}

static __always_inline void hard_exit(enum hard kind)
{
	struct cpu *cpu = this_cpu();
	u64 ns;

	if (!cpu)
		return;
	cpu->irq = 0;
	/* It was entered before the measurement started. */
	if (!cpu->hard_begin_ns)
		return;
	ns = bpf_ktime_get_ns() - cpu->hard_begin_ns;
	cpu->hard_begin_ns = 0;
	cpu->hard_sum_ns += ns;
	if (!active)
		return;
	cpu->hard_ns[kind] += ns;
	cpu->hards[kind]++;
}

PROBE(irq_handler_exit, "irq_handler_exit")
{
	hard_exit(HARD_DEVICE);
}

PROBE(irq_handler_entry, "irq_handler_entry")
{
	hard_entry((u32)ctx[0] + 1);
}

/* Interrupts without a device handler: x86's timer, and calls by other CPUs (RPS). */

PROBE(local_timer_exit, "local_timer_exit")
{
	hard_exit(HARD_TIMER);
}

PROBE(local_timer_entry, "local_timer_entry")
{
	hard_entry(0);
}

PROBE(call_function_single_exit, "call_function_single_exit")
{
	hard_exit(HARD_CALL);
}

PROBE(call_function_single_entry, "call_function_single_entry")
{
	hard_entry(0);
}

PROBE(softirq_exit, "softirq_exit")
{
	struct cpu *cpu = this_cpu();
	u32 vector = (u32)ctx[0] & (VECTORS - 1);
	u64 ns, hard;

	if (!cpu || !cpu->softirq_begin_ns)
		return;
	ns = bpf_ktime_get_ns() - cpu->softirq_begin_ns;
	hard = cpu->hard_sum_ns - cpu->hard_before_ns;
	cpu->softirq_begin_ns = 0;
	if (!active || cpu->vector != vector)
		return;
	cpu->softirq_ns[vector] += hard < ns ? ns - hard : 0;
	cpu->softirqs[vector]++;
}

PROBE(softirq_entry, "softirq_entry")
{
	struct cpu *cpu = this_cpu();
	u32 vector = (u32)ctx[0] & (VECTORS - 1);

	if (!cpu)
		return;
	if (vector == NET_RX_SOFTIRQ) {
		cpu->run_raised_by = cpu->raised_by;
		cpu->raised_by = 0;
	}
	cpu->vector = vector;
	cpu->hard_before_ns = cpu->hard_sum_ns;
	cpu->softirq_begin_ns = active ? bpf_ktime_get_ns() : 0;
}

/*
 * Which interrupt a NAPI instance is polled for: if NET_RX was raised once since its last run, by a device
 * interrupt, the first instance polled in the run belongs to that interrupt. (Work remaining from the previous
 * run is raised again by that run, outside of interrupts.)
 */
PROBE(softirq_raise, "softirq_raise")
{
	struct cpu *cpu;
	u32 by;

	if ((u32)ctx[0] != NET_RX_SOFTIRQ)
		return;
	cpu = this_cpu();
	if (!cpu)
		return;
	by = cpu->irq ? cpu->irq : SEVERAL;
	cpu->raised_by = cpu->raised_by && cpu->raised_by != by ? SEVERAL : by;
}

/* The interrupt that raised the run in progress, if this is its first poll. */
static __always_inline u32 polled_for(struct cpu *cpu)
{
	u32 irq = cpu->run_raised_by;

	if (!cpu->softirq_begin_ns || cpu->vector != NET_RX_SOFTIRQ)
		return 0;
	cpu->run_raised_by = 0;
	return irq == SEVERAL ? 0 : irq;
}

static __always_inline struct polls *new_polls(struct napi_on_cpu *key)
{
	struct napi_struct *napi = (struct napi_struct *)key->napi;
	struct net_device *dev = BPF_CORE_READ(napi, dev);
	struct polls new = {};

	if (dev) {
		new.ifindex = BPF_CORE_READ(dev, ifindex);
		new.netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
		BPF_CORE_READ_STR_INTO(&new.dev, dev, name);
	}
	bpf_map_update_elem(&polled, key, &new, BPF_NOEXIST);
	return bpf_map_lookup_elem(&polled, key);
}

PROBE(napi_poll, "napi_poll")
{
	struct napi_struct *napi = (struct napi_struct *)ctx[0];
	struct napi_on_cpu key = {};
	s32 work = (s32)ctx[1], budget = (s32)ctx[2];
	struct cpu *cpu = this_cpu();
	struct polls *p;
	u32 irq;

	if (!cpu)
		return;
	irq = polled_for(cpu);
	if (!active)
		return;
	key.napi_id = GET(direct, napi, napi_id);
	key.napi = address_of(ctx[0]);
	key.cpu = bpf_get_smp_processor_id();
	p = bpf_map_lookup_elem(&polled, &key);
	if (!p)
		p = new_polls(&key);
	if (!p) {
		cpu->polls_lost++;
		return;
	}
	/* An entry is written by its CPU only, and polls do not interrupt each other. */
	p->polls++;
	if (work > 0)
		p->work += work;
	if (budget > 0)
		p->budget += budget;
	if (budget > 0 && work >= budget)
		p->full++;
	if (irq)
		p->irq = p->irq && p->irq != irq ? SEVERAL : irq;
}

PROBE(netif_receive_skb, "netif_receive_skb")
{
	if (active)
		count_priority((struct sk_buff *)ctx[0], direct);
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
