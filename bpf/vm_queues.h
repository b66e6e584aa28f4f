/* SPDX-License-Identifier: GPL-2.0-only */
/* Packets on their way into virtual machines: at the tap, in the batch of a vhost queue, with a vCPU. */
#ifndef NEARPATH_VM_QUEUES_H
#define NEARPATH_VM_QUEUES_H

#include "histogram.h"
#include "pid_namespace.h"
#include "vm_kernel.h"
#include "vm_probes.h"
#include "vm_stages.h"

/* Packets between tap and worker: the rings of 16 queues, usually of 500 packets. */
#define TAP_SLOT_BITS 14
/* Slots that a packet may have, a power of two: with 2,000 packets at taps, one in 650 finds all four taken. */
#define TAP_WAYS 4
#define QUEUES_MAX 128
/* Packets of a signal: vhost signals after 64 (VHOST_NET_BATCH), and one may have several buffers. */
#define BATCH 128
/* Interrupts that wait for their vCPU, by vCPU and vector, and the slots that one may have; powers of two. */
#define INTERRUPT_SLOT_BITS 8
#define INTERRUPT_WAYS 4
/* Packets of each: a guest takes some out of its ring before it is entered with their interrupt, so that these may be
 * more than fit into the ring (of 256 usually, and of 1,024 at most with QEMU). */
#define WAITING 1024
/* An entry this old was left by a packet that was dropped, or a vCPU that is gone. */
#define STALE_NS 5000000000ULL

/* Spans, the histograms of a queue; the same order as in crates/instruments/src/vm. */
enum span {
	SPAN_NIC, /* at the NIC until its interrupt */
	SPAN_IRQ, /* (a) interrupt to NET_RX */
	SPAN_HANDLER, /* (b) NET_RX to the tap, where vhost is woken */
	SPAN_VHOST, /* (c) tap, device's interrupt, or backend's write, to KVM's interrupt */
	SPAN_VHOST_WAIT, /* of which: until the worker runs, if it was woken for the packet */
	SPAN_HALTED, /* (d) interrupt to entry: of a vCPU that was halted, */
	SPAN_POLLING, /* that polled before halting, */
	SPAN_RUNNING, /* that ran the guest, */
	SPAN_BUSY, /* that was in the host for another reason, or preempted */
	SPAN_WHOLE, /* from the first point known to the guest */
	SPANS,
};

/* Where a packet was: CPUs at the ends of the spans. */
enum point {
	POINT_HANDLER,
	POINT_VHOST,
	POINT_VCPU,
	POINTS,
};

/* Values of vcpu->mode and arch.mp_state. */
#define IN_GUEST_MODE 1
#define KVM_MP_STATE_HALTED 3

/* Written only by its CPU. */
struct cpu {
	u64 irq_ns; /* the device interrupt in progress, since when; or 0 */
	u64 next_irq_ns; /* that which raised NET_RX since its last run began */
	u64 run_irq_ns; /* that which raised the run in progress; 0: none */
	u64 run_ns; /* since when NET_RX runs, or 0 */
	u64 worker_ns; /* when the worker began to handle packets, */
	u64 worker; /* and which */
	u64 queue; /* whose used ring was written last */
	u64 signalling; /* whose eventfd is being signalled, */
	u64 signaller; /* by which task */
	u64 is_raised;
	/* The interrupt of a device that is passed through, while it is handled: since when (0: none), in which task, */
	u64 device_ns, device_task;
	u64 device_irq, device_eventfd; /* its number, and what it signalled */
	/* Of an interrupt that a process writes: its eventfd, until KVM gives it to a vCPU, and the task. */
	u64 backend_eventfd, backend_task;
	u64 unused[10];
	/* Hardware timestamps, by what became of them (nic_stamps.h). Up to here whole pairs of cache lines. */
	u64 stamps_used, stamps_ahead, stamps_old, stamps_unconverted, stamps_of_others, stamps_opaque;
};

_Static_assert(sizeof(struct cpu) % 128 == 0, "CPUs share no cache line");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by user space for this host */
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* A packet at the tap. */
struct tap_packet {
	u64 skb; /* 0: free */
	u64 nic_ns, irq_ns, handler_ns, tap_ns; /* 0: unknown */
	u32 ifindex;
	u32 cpu;
	u64 is_other; /* not one of the packets that are followed */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << TAP_SLOT_BITS);
	__type(key, u32);
	__type(value, struct tap_packet);
} tap_packets SEC(".maps");

/* A packet of a batch. */
struct taken {
	u64 start_ns; /* the first point known of it */
	u64 raised_ns; /* the first that was not at the NIC */
	u64 handler_ns; /* the run of NET_RX, or 0 */
	u64 tap_ns;
};

/*
 * A queue of a virtual machine: the socket of a tap's queue. Written by its worker. Or an interrupt of a device that is
 * passed through, by its eventfd (vm_devices.h): written by the interrupt, which never runs on two CPUs at once. Or one
 * that a process writes, by its eventfd (vm_backends.h): written under the eventfd's lock.
 */
struct queue {
	u32 index; /* of its histograms and CPUs */
	u32 ifindex;
	u32 number; /* of the queue in the tap */
	u32 worker; /* thread */
	u32 vcpu; /* the last that was interrupted */
	u32 vector;
	u32 count; /* packets of the batch that is not yet signalled */
	u32 used; /* of which are in the used ring */
	u32 irq; /* of a device that is passed through, or 0 */
	u32 is_backend; /* whether a process writes the interrupts: the number is the eventfd's (vm_backends.h) */
	u64 eventfd;
	u64 signalled_ns; /* 0: the guest wants no interrupt */
	u64 signaller;
	u64 taken; /* packets */
	u64 batches; /* interrupts */
	u64 interrupted; /* packets of these */
	u64 posted; /* of which to vCPUs whose interrupts are not seen from the host */
	u64 unsignalled; /* packets in the used ring without an interrupt */
	u64 deferred; /* packets whose interrupt KVM left to a worker thread */
	u64 host; /* packets that no softirq brought */
	u64 lost; /* packets that did not fit */
	struct taken batch[BATCH];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, QUEUES_MAX);
	__type(key, u64); /* the socket, or the eventfd */
	__type(value, struct queue);
} queues SEC(".maps");

/* Initial value of a new queue. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct queue);
} new_queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, QUEUES_MAX * SPANS);
	__type(key, u32);
	__type(value, struct histogram);
} histograms SEC(".maps");

/* Packets by queue, point and CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* QUEUES_MAX * POINTS * CPUs, set by user space */
	__type(key, u32);
	__type(value, u64);
} seen_on SEC(".maps");

/* A packet that waits for its vCPU. */
struct waiting {
	u64 start_ns, raised_ns, handler_ns, tap_ns, set_ns; /* set_ns 0: not complete */
	u64 worker; /* the task that copied it */
	u32 way; /* its span */
	u32 queue; /* index */
};

/* Packets that wait until a vCPU is entered with a vector. Added by the worker, taken by the vCPU's thread. */
struct interrupt {
	u64 vcpu;
	u32 vector;
	u32 head, tail; /* ever added and taken, mod 2^32 */
	u32 unused;
	struct waiting packets[WAITING];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << INTERRUPT_SLOT_BITS);
	__type(key, u32);
	__type(value, struct interrupt);
} interrupts SEC(".maps");

/* The thread of the vCPU that took the last packet of a queue, and its process: the virtual machine. */
struct owner {
	u64 task; /* 0: none yet */
	u32 pid, tid; /* of this task */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUEUES_MAX);
	__type(key, u32);
	__type(value, struct owner);
} owners SEC(".maps");

struct counters {
	u64 started; /* packets that reached a tap */
	u64 collided; /* not followed, as another packet has the slot */
	u64 unknown; /* taken by vhost, but not seen at the tap (XDP, or before the start) */
	u64 no_queue; /* of a queue too many */
	u64 no_slot; /* whose interrupt had no slot */
};

struct counters counters;
volatile u32 active;
/* Whether any packet may wait for a vCPU: most entries have none. Packets less those that have entered. */
u64 waiting_packets;
u32 queue_count;

const volatile u32 cpu_count = 1;

static __always_inline void count(u64 *counter, u64 n)
{
	__sync_fetch_and_add(counter, n);
}

static __always_inline struct cpu *this_cpu(void)
{
	u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &cpu);
}

#define COUNT(cpu, what) count(&(cpu)->what, 1)

#include "nic_stamps.h"

static __always_inline u32 hash(u64 address, u32 bits)
{
	return address * 0x9e3779b97f4a7c15ULL >> (64 - bits);
}

static __always_inline struct histogram *histogram_of(u32 queue, u32 span)
{
	u32 key = queue * SPANS + span;

	return bpf_map_lookup_elem(&histograms, &key);
}

/* Not static, so that the verifier checks the body once: it is called in loops. */
__noinline int add_time(u32 queue, u32 span, u64 ns)
{
	struct histogram *histogram = histogram_of(queue, span);

	if (histogram)
		histogram_add(histogram, (s64)ns < 0 ? 0 : ns);
	return 0;
}

static __always_inline void see_on(u32 queue, u32 point, u32 cpu, u64 n)
{
	u32 key = (queue * POINTS + point) * cpu_count + cpu;
	u64 *seen = bpf_map_lookup_elem(&seen_on, &key);

	if (seen && cpu < cpu_count)
		count(seen, n);
}

/* One of the slots that a packet may have. */
static __always_inline struct tap_packet *tap_slot(u64 skb, u32 way)
{
	u32 slot = hash(skb, TAP_SLOT_BITS) ^ way;

	return bpf_map_lookup_elem(&tap_packets, &slot);
}

/* A slot for a packet; none if others have all of them. Of two, a probe keeps it or gets it. */
static __always_inline struct tap_packet *claim_packet(u64 skb, bool is_other)
{
	struct tap_packet *packet, *found = 0;

#pragma unroll
	for (u32 way = 0; way < TAP_WAYS; way++) {
		packet = tap_slot(skb, way);
		if (!packet || !packet->skb || packet->skb == skb)
			return packet;
		if (!found && (bpf_ktime_get_ns() - packet->tap_ns >= STALE_NS || (!is_other && packet->is_other)))
			found = packet;
	}
	if (!found && !is_other)
		count(&counters.collided, 1);
	return found;
}

static __always_inline struct tap_packet *packet_of(u64 skb)
{
	struct tap_packet *packet;

#pragma unroll
	for (u32 way = 0; way < TAP_WAYS; way++) {
		packet = tap_slot(skb, way);
		if (packet && packet->skb == skb)
			return packet;
	}
	return 0;
}

/* The queue of a tap that has this socket. */
static __always_inline struct tun_file *tun_file_of(u64 socket)
{
	return (struct tun_file *)(socket - bpf_core_field_offset(struct tun_file, socket));
}

/* The same of a macvtap. */
static __always_inline struct tap_queue *tap_queue_of(u64 socket)
{
	return (struct tap_queue *)(socket - bpf_core_field_offset(struct tap_queue, sock));
}

static __always_inline struct queue *queue_of_socket(u64 socket)
{
	struct queue *queue = bpf_map_lookup_elem(&queues, &socket), *first;
	u32 zero = 0, index;

	if (queue)
		return queue;
	first = bpf_map_lookup_elem(&new_queue, &zero);
	index = __sync_fetch_and_add(&queue_count, 1);
	if (!first || index >= QUEUES_MAX || bpf_map_update_elem(&queues, &socket, first, BPF_NOEXIST)) {
		count(&counters.no_queue, 1);
		return 0;
	}
	queue = bpf_map_lookup_elem(&queues, &socket);
	if (queue)
		queue->index = index;
	return queue;
}

/* The batch before has its interrupt, or none. */
static __always_inline void close_batch(struct queue *queue)
{
	if (!queue->used)
		return;
	if (queue->signalled_ns)
		queue->deferred += queue->used;
	else
		queue->unsignalled += queue->used;
	queue->count = queue->used = 0;
}

/* The worker takes a packet from the tap. */
static __always_inline void take_packet(struct queue *queue, struct tap_packet *packet, u32 number)
{
	struct cpu *cpu = this_cpu();
	u32 index = queue->index, at;
	u64 start = packet->tap_ns, raised;

	close_batch(queue);
	queue->taken++;
	queue->ifindex = packet->ifindex;
	queue->number = number;
	if (!queue->worker)
		queue->worker = number_in_namespace(bpf_get_current_task());
	if (packet->handler_ns) {
		start = packet->handler_ns;
		add_time(index, SPAN_HANDLER, packet->tap_ns - packet->handler_ns);
	} else {
		queue->host++;
	}
	if (packet->irq_ns) {
		start = packet->irq_ns;
		add_time(index, SPAN_IRQ, packet->handler_ns - packet->irq_ns);
	}
	raised = start;
	if (packet->nic_ns) {
		start = packet->nic_ns;
		add_time(index, SPAN_NIC, raised - start);
	}
	if (cpu && cpu->worker == bpf_get_current_task() && cpu->worker_ns > packet->tap_ns)
		add_time(index, SPAN_VHOST_WAIT, cpu->worker_ns - packet->tap_ns);
	see_on(index, POINT_HANDLER, packet->cpu, 1);
	see_on(index, POINT_VHOST, bpf_get_smp_processor_id(), 1);
	at = queue->count;
	if (at >= BATCH) {
		queue->lost++;
		return;
	}
	queue->batch[at].start_ns = start;
	queue->batch[at].raised_ns = raised;
	queue->batch[at].handler_ns = packet->handler_ns;
	queue->batch[at].tap_ns = packet->tap_ns;
	queue->count = at + 1;
}

static __always_inline u32 interrupt_slot(u64 vcpu, u32 vector, u32 way)
{
	return hash(vcpu + vector * 0x100000001ULL, INTERRUPT_SLOT_BITS) ^ way;
}

static __always_inline bool is_of(struct interrupt *interrupt, u64 vcpu, u32 vector)
{
	return interrupt->vcpu == vcpu && interrupt->vector == vector;
}

/* Which way a vCPU takes to the guest; as a macro, like GET() in it. */
#define WAY_OF(direct, vcpu)                                                              \
	(GET(direct, vcpu, mode) == IN_GUEST_MODE			   ? SPAN_RUNNING \
	 : GET(direct, vcpu, wait.task)					   ? SPAN_HALTED  \
	 : GET(direct, vcpu, arch.mp_state) == KVM_MP_STATE_HALTED ? SPAN_POLLING         \
								   : SPAN_BUSY)

/* The vCPU that an interrupt reaches. */
struct reached {
	u64 vcpu;
	u32 id; /* its number */
	u32 vector;
	u32 way; /* its span */
	bool is_posted; /* the processor interrupts the guest, unseen by the host */
};

/* No slot for the interrupt. */
#define NO_SLOT (~0U)

/*
 * A slot for this vector of the vCPU; none if others have all of them with packets that wait. One that nobody has had goes
 * before one whose owner has no packets now: two owners would take it from each other.
 */
static __always_inline u32 claim_interrupt(u64 vcpu, u32 vector, u64 now)
{
	struct interrupt *interrupt;
	u32 slot, new = NO_SLOT, found = NO_SLOT;

#pragma unroll
	for (u32 way = 0; way < INTERRUPT_WAYS; way++) {
		slot = interrupt_slot(vcpu, vector, way);
		interrupt = bpf_map_lookup_elem(&interrupts, &slot);
		if (!interrupt)
			return NO_SLOT;
		if (is_of(interrupt, vcpu, vector))
			return slot;
		if (!interrupt->vcpu)
			new = slot;
		else if (interrupt->head == interrupt->tail ||
			 now - interrupt->packets[interrupt->tail & (WAITING - 1)].set_ns >= STALE_NS)
			found = slot;
	}
	if (new != NO_SLOT)
		found = new;
	interrupt = bpf_map_lookup_elem(&interrupts, &found);
	if (!interrupt)
		return NO_SLOT;
	count(&waiting_packets, interrupt->tail - (u64)interrupt->head);
	interrupt->tail = interrupt->head;
	interrupt->vcpu = vcpu;
	interrupt->vector = vector;
	return found;
}

/*
 * Packet i of the queue's batch has its interrupt, and waits for the vCPU, if there is a slot. (Not static, so that the
 * verifier checks the body once, and the loop around it is short.)
 */
__noinline int interrupt_packet(u64 socket, u32 i, u64 now, u32 slot, u32 way)
{
	struct queue *queue = bpf_map_lookup_elem(&queues, &socket);
	struct interrupt *interrupt;
	struct waiting *waiting;
	struct taken *taken;
	u32 head;

	if (!queue)
		return 0;
	taken = &queue->batch[i & (BATCH - 1)];
	add_time(queue->index, SPAN_VHOST, now - taken->tap_ns);
	interrupt = bpf_map_lookup_elem(&interrupts, &slot);
	if (!interrupt)
		return 0;
	head = interrupt->head;
	if (head - interrupt->tail >= WAITING) {
		queue->lost++;
		return 0;
	}
	waiting = &interrupt->packets[head & (WAITING - 1)];
	waiting->start_ns = taken->start_ns;
	waiting->raised_ns = taken->raised_ns;
	waiting->handler_ns = taken->handler_ns;
	waiting->tap_ns = taken->tap_ns;
	waiting->worker = bpf_get_current_task();
	waiting->way = way;
	waiting->queue = queue->index;
	waiting->set_ns = now;
	interrupt->head = head + 1;
	count(&waiting_packets, 1);
	return 0;
}

/* KVM sets the interrupt of the queue's packets. */
static __always_inline void interrupt_guest(struct queue *queue, u64 socket, struct reached *reached)
{
	u32 n = queue->used, way = reached->way, slot = NO_SLOT;
	u64 now = bpf_ktime_get_ns();

	queue->used = queue->count = 0;
	queue->vcpu = reached->id;
	queue->vector = reached->vector;
	queue->batches++;
	queue->interrupted += n;
	if (reached->is_posted) {
		queue->posted += n;
	} else {
		slot = claim_interrupt(reached->vcpu, reached->vector, now);
		if (slot == NO_SLOT)
			count(&counters.no_slot, n);
	}
	for (u32 i = 0; i < BATCH; i++) {
		if (i >= n)
			break;
		interrupt_packet(socket, i, now, slot, way);
	}
}

/* Of vm_late.h. */
__noinline int explain(struct waiting *packet, u64 now);

static __always_inline void note_owner(u32 queue)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct owner *owner = bpf_map_lookup_elem(&owners, &queue);

	/* Usually that of the packet before, and its numbers are many pointers away. */
	if (!owner || owner->task == (u64)task)
		return;
	owner->task = (u64)task;
	owner->tid = number_in_namespace((u64)task);
	owner->pid = process_in_namespace(task);
}

/* The next packet that waits for this interrupt reaches the guest; whether there was one. */
__noinline int enter_packet(u32 slot, u64 now)
{
	struct interrupt *interrupt = bpf_map_lookup_elem(&interrupts, &slot);
	struct waiting *waiting;
	u32 tail, queue;

	if (!interrupt)
		return false;
	tail = interrupt->tail;
	waiting = &interrupt->packets[tail & (WAITING - 1)];
	if (tail == interrupt->head || !waiting->set_ns)
		return false;
	/* Set since this entry began, by another CPU: the next one brings it. */
	if ((s64)(now - waiting->set_ns) < 0)
		return false;
	queue = waiting->queue;
	if (waiting->tap_ns >= only.since_ns) {
		add_time(queue, waiting->way, now - waiting->set_ns);
		add_time(queue, SPAN_WHOLE, now - waiting->start_ns);
		see_on(queue, POINT_VCPU, bpf_get_smp_processor_id(), 1);
		explain(waiting, now);
		note_owner(queue);
	}
	waiting->set_ns = 0;
	interrupt->tail = tail + 1;
	count(&waiting_packets, -1ULL);
	return true;
}

/* The vCPU enters the guest with an interrupt of this vector. */
static __always_inline void enter_guest(u64 vcpu, u32 vector)
{
	struct interrupt *interrupt;
	u32 slot, found = NO_SLOT;
	u64 now;

#pragma unroll
	for (u32 way = 0; way < INTERRUPT_WAYS; way++) {
		slot = interrupt_slot(vcpu, vector, way);
		interrupt = bpf_map_lookup_elem(&interrupts, &slot);
		if (interrupt && is_of(interrupt, vcpu, vector)) {
			found = slot;
			break;
		}
	}
	if (found == NO_SLOT)
		return;
	now = bpf_ktime_get_ns();
	for (u32 i = 0; i < WAITING; i++)
		if (!enter_packet(found, now))
			break;
}

#endif
