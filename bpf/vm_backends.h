/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Interrupts that a process writes to a virtual machine: the backend of a device (vhost-user), as a thread of Open
 * vSwitch with DPDK. It shares the guest's memory, so that the host sees none of its packets, but the eventfds:
 *
 *   backend's write to the call eventfd -> KVM's waiter (irqfd) -> vCPU -> guest
 *   guest's kick -> KVM (ioeventfd) -> kick eventfd, which the backend waits for, unless it polls the ring
 *
 * A write is joined to KVM's waiter by the task that writes and the eventfd: the waiter is called by the write itself,
 * under the eventfd's lock and with interrupts off. From there on it is as with vhost, with one "packet" for each write
 * (vm_queues.h). vhost-net and VFIO signal their eventfds from the kernel, which is no write. Of kicks, the eventfd that
 * the vCPU's thread signals is that of KVM's ioeventfd.
 */
#ifndef NEARPATH_VM_BACKENDS_H
#define NEARPATH_VM_BACKENDS_H

#include "vm_queues.h"

#define SIGNALLERS_MAX 8192
#define KICKED_MAX 1024

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct eventfd_ctx {
	int id;
};

struct kvm {
	struct mm_struct *mm;
};

struct kvm_kernel_irqfd {
	struct kvm *kvm;
	struct wait_queue_entry wait;
	struct eventfd_ctx *eventfd;
};

struct kvm_io_device {
	const void *ops;
};

struct _ioeventfd {
	struct eventfd_ctx *eventfd;
	struct kvm_io_device dev;
};

#pragma clang attribute pop

/* What a task is about to signal: by a system call, or for a guest. */
struct signal {
	u64 eventfd; /* 0: nothing */
	u64 ns;
};

/* By task, which keeps its entry: most write again and again. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SIGNALLERS_MAX);
	__type(key, u64);
	__type(value, struct signal);
} signals_begun SEC(".maps");

/* The thread that wrote last, by the index of the queue. */
struct backend {
	u64 task; /* 0: none yet */
	u32 pid, tid; /* of this task */
	char comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUEUES_MAX);
	__type(key, u32);
	__type(value, struct backend);
} backends SEC(".maps");

/* An eventfd that guests have kicked. */
struct kicked_eventfd {
	u32 id; /* as in /proc/PID/fdinfo */
	u32 pid; /* of the virtual machine */
	u64 kicks;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KICKED_MAX);
	__type(key, u64);
	__type(value, struct kicked_eventfd);
} kicked_eventfds SEC(".maps");

/* Whether kicks are counted. */
const volatile bool counts_kicks;

/* Writes and kicks by tasks too many, or to eventfds too many. */
u64 signals_lost;

/* Whether any write was seen: on a host of vhost-net alone KVM's waiters need not be asked who called them. */
volatile u32 has_begun;

static __always_inline void begins_signal(u64 eventfd)
{
	u64 task = bpf_get_current_task();
	struct signal *signal = bpf_map_lookup_elem(&signals_begun, &task), first = {};

	if (!has_begun)
		has_begun = true;
	if (signal) {
		signal->ns = bpf_ktime_get_ns();
		signal->eventfd = eventfd;
		return;
	}
	first.ns = bpf_ktime_get_ns();
	first.eventfd = eventfd;
	if (bpf_map_update_elem(&signals_begun, &task, &first, BPF_ANY))
		count(&signals_lost, 1);
}

/* Since when this task is about to signal this eventfd, which it does now; 0: it is not. */
static __always_inline u64 begun_ns(u64 eventfd)
{
	u64 task = bpf_get_current_task();
	struct signal *signal = bpf_map_lookup_elem(&signals_begun, &task);

	if (!signal || signal->eventfd != eventfd)
		return 0;
	signal->eventfd = 0;
	return signal->ns;
}

static __always_inline void note_backend(u32 queue)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct backend *backend = bpf_map_lookup_elem(&backends, &queue);

	if (!backend || backend->task == (u64)task)
		return;
	backend->task = (u64)task;
	backend->tid = number_in_namespace((u64)task);
	backend->pid = process_in_namespace(task);
	BPF_CORE_READ_INTO(&backend->comm, task, comm);
}

/* KVM's waiter is called: the task that writes is the backend, unless it is the virtual machine's own. */
static __always_inline void backend_interrupts(u64 wait)
{
	struct kvm_kernel_irqfd *irqfd =
		(struct kvm_kernel_irqfd *)(wait - bpf_core_field_offset(struct kvm_kernel_irqfd, wait));
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	u64 eventfd = (u64)BPF_CORE_READ(irqfd, eventfd), since_ns = begun_ns(eventfd);
	struct cpu *cpu = this_cpu();
	struct queue *queue;

	if (!since_ns || !cpu)
		return;
	if (BPF_CORE_READ(irqfd, kvm, mm) == BPF_CORE_READ(task, mm))
		return;
	queue = queue_of_socket(eventfd);
	if (!queue)
		return;
	/* The one before was not for a vCPU at once: a worker thread sets its interrupt. */
	close_batch(queue);
	queue->is_backend = true;
	queue->number = BPF_CORE_READ((struct eventfd_ctx *)eventfd, id);
	queue->eventfd = eventfd;
	queue->signalled_ns = bpf_ktime_get_ns();
	queue->taken++;
	queue->batch[0].start_ns = queue->batch[0].raised_ns = queue->batch[0].tap_ns = since_ns;
	queue->batch[0].handler_ns = 0;
	queue->count = queue->used = 1;
	see_on(queue->index, POINT_HANDLER, bpf_get_smp_processor_id(), 1);
	note_backend(queue->index);
	cpu->backend_eventfd = eventfd;
	cpu->backend_task = (u64)task;
}

/* KVM gives the interrupt of a write to a vCPU: its eventfd; 0: it is not one of these. */
static __always_inline u64 backend_reaches(struct cpu *cpu)
{
	u64 eventfd = cpu->backend_eventfd;

	if (!eventfd || cpu->backend_task != bpf_get_current_task())
		return 0;
	cpu->backend_eventfd = 0;
	return eventfd;
}

/* A guest writes to a register that KVM signals an eventfd for. */
static __always_inline void begins_kick(u64 device)
{
	struct _ioeventfd *ioeventfd = (struct _ioeventfd *)(device - bpf_core_field_offset(struct _ioeventfd, dev));

	begins_signal((u64)BPF_CORE_READ(ioeventfd, eventfd));
}

/* An eventfd is signalled; that of a kick by the thread of the vCPU that kicks. */
static __always_inline void kicks_eventfd(u64 eventfd)
{
	struct kicked_eventfd *known, first = {};
	u32 id;

	/* Before Linux 6.8 eventfd_signal() calls eventfd_signal_mask(), which finds it no more. */
	if (!begun_ns(eventfd))
		return;
	id = BPF_CORE_READ((struct eventfd_ctx *)eventfd, id);
	known = bpf_map_lookup_elem(&kicked_eventfds, &eventfd);
	if (known && known->id == id) {
		count(&known->kicks, 1);
		return;
	}
	first.id = id;
	first.pid = process_in_namespace((struct task_struct *)bpf_get_current_task());
	first.kicks = 1;
	if (bpf_map_update_elem(&kicked_eventfds, &eventfd, &first, BPF_ANY))
		count(&signals_lost, 1);
}

#endif
