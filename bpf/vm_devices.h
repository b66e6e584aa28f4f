/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Interrupts of devices that are passed through to virtual machines (VFIO). Such a device writes packets into the
 * guest's memory by itself; of them the host sees only the interrupt:
 *
 *   MSI -> handler of vfio-pci -> eventfd -> vCPU -> guest
 *
 * The handler signals the eventfd, whose waiter is KVM, before it returns: all of this happens on one CPU, with
 * interrupts off or in the interrupt's thread (threadirqs, PREEMPT_RT). From there on it is as with vhost, with one
 * "packet" for each interrupt (vm_queues.h). An interrupt that the IOMMU posts to the guest is not seen by the host at
 * all.
 */
#ifndef NEARPATH_VM_DEVICES_H
#define NEARPATH_VM_DEVICES_H

#include "vm_queues.h"

/* Of interrupts whose handlers run in threads: when the interrupt came that the thread has not handled yet, or 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, QUEUES_MAX);
	__type(key, u32);
	__type(value, u64);
} threaded SEC(".maps");

volatile u32 has_threaded;

/* An interrupt comes. */
static __always_inline void note_threaded(u32 irq, u64 now)
{
	u64 *came_ns;

	if (!has_threaded)
		return;
	came_ns = bpf_map_lookup_elem(&threaded, &irq);
	if (came_ns && !*came_ns)
		*came_ns = now;
}

/* When the interrupt came whose handler begins in a thread; of the first one it is not known. */
static __always_inline u64 came_to_thread(u32 irq)
{
	u64 *came_ns = bpf_map_lookup_elem(&threaded, &irq), now = bpf_ktime_get_ns(), none = 0;

	if (!came_ns) {
		bpf_map_update_elem(&threaded, &irq, &none, BPF_NOEXIST);
		has_threaded = true;
	} else if (*came_ns) {
		now = *came_ns;
		*came_ns = 0;
	}
	return now;
}

/* The handler of an interrupt of vfio-pci begins. (A benchmark counts all that come meanwhile.) */
static __always_inline void device_interrupts(u32 irq)
{
	struct cpu *cpu = this_cpu();

	if (!cpu || beside_stages || only.session == ONLY_NONE)
		return;
	cpu->device_ns = cpu->irq_ns ? cpu->irq_ns : came_to_thread(irq);
	cpu->device_task = bpf_get_current_task();
	cpu->device_irq = irq;
	cpu->device_eventfd = 0;
}

/* Whether the handler is at work. One that ran in a thread may have left its mark here when it ended. */
static __always_inline bool is_in_device_interrupt(struct cpu *cpu)
{
	return cpu->device_ns && cpu->device_task == bpf_get_current_task();
}

/* It signals this eventfd. */
static __always_inline void device_signals(struct cpu *cpu, u64 eventfd)
{
	struct queue *queue;

	/* Before Linux 6.8 eventfd_signal() calls eventfd_signal_mask(). */
	if (cpu->device_eventfd == eventfd)
		return;
	queue = queue_of_socket(eventfd);
	if (!queue)
		return;
	/* The one before was not for KVM at once: its interrupt is set by a worker thread, or user space waits for it. */
	close_batch(queue);
	queue->irq = cpu->device_irq;
	queue->eventfd = eventfd;
	queue->signalled_ns = bpf_ktime_get_ns();
	queue->taken++;
	queue->batch[0].start_ns = queue->batch[0].raised_ns = queue->batch[0].tap_ns = cpu->device_ns;
	queue->batch[0].handler_ns = 0;
	queue->count = queue->used = 1;
	see_on(queue->index, POINT_HANDLER, bpf_get_smp_processor_id(), 1);
	cpu->device_eventfd = eventfd;
}

/* KVM gives the interrupt to a vCPU: its eventfd; 0: it was given to one before. */
static __always_inline u64 device_reaches(struct cpu *cpu)
{
	u64 eventfd = cpu->device_eventfd;

	cpu->device_eventfd = 0;
	return eventfd;
}

#endif
