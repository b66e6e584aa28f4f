/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The transmit direction: packets of a virtual machine, from its kick to the host's NIC.
 *
 *   guest's kick -> vhost worker -> tap -> bridge, Open vSwitch, macvlan -> NIC
 *            wake-up          (copies)              (host's path)
 *
 * A kick is joined to the run of the worker by the work of vhost that it queues (vhost_virtqueue.poll.work), a run to
 * its packets by the socket of the tap's queue, and a packet to the NIC by its sk_buff. What a kick announces is
 * counted from the ring when the worker begins; packets that the guest adds while the worker runs need no kick.
 */
#ifndef NEARPATH_VM_TRANSMIT_H
#define NEARPATH_VM_TRANSMIT_H

#include "vm_queues.h"

#define KICK_SLOT_BITS 9
#define SENDER_SLOT_BITS 8
#define SENT_SLOT_BITS 12
/* Packets that vhost gives to the tap at once (VHOST_NET_BATCH). */
#define SENT_BATCH 64
/* The ring of vhost that the guest transmits by (VHOST_NET_VQ_TX). */
#define TRANSMIT_RING 1
/* The type of a message with several packets (TUN_MSG_PTR). */
#define TUN_MSG_PTR 2

/* The same order as in crates/instruments/src/vm. */
enum transmit_span {
	TRANSMIT_WAKEUP, /* kick to the run of the worker */
	TRANSMIT_VHOST, /* the worker's run to the packet at the tap */
	TRANSMIT_HOST, /* the tap to the NIC's driver */
	TRANSMIT_WHOLE, /* kick to the NIC's driver */
	TRANSMIT_SPANS,
};

enum transmit_point {
	TRANSMIT_KICK,
	TRANSMIT_WORKER,
	TRANSMIT_NIC,
	TRANSMIT_POINTS,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct vhost_work {
	unsigned long flags;
};

struct vhost_poll {
	struct wait_queue_entry wait;
	struct vhost_work work;
	struct vhost_dev *dev;
};

struct vhost_dev {
	struct vhost_virtqueue___poll **vqs;
	int nvqs;
};

struct vring_avail {
	u16 flags;
	u16 idx;
};

struct vhost_virtqueue___poll {
	struct vhost_poll poll;
	struct vring_avail *avail; /* in user space */
	u16 last_avail_idx;
	void *private_data;
};

struct tun_msg_ctl {
	unsigned short type;
	unsigned short num;
};

struct device {
	struct device *parent;
};

struct net_device___parent {
	struct device dev;
};

#pragma clang attribute pop

/* A kick that waits for the worker. */
struct kick {
	u64 work; /* 0: free */
	u64 ns;
	u32 pid, cpu; /* the process that kicked: the virtual machine */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << KICK_SLOT_BITS);
	__type(key, u32);
	__type(value, struct kick);
} kicks SEC(".maps");

/* A queue that a virtual machine transmits by: the socket of a tap's queue. Written by its worker. */
struct transmit_queue {
	u32 index; /* of its histograms and CPUs */
	u32 ifindex;
	u32 number; /* of the queue in the tap */
	u32 worker; /* thread */
	u32 pid; /* of the process that kicked last */
	u32 pending; /* packets that the last kick announced, and that were not yet sent */
	u32 announced; /* those of the batch that is being sent, and that are not yet in the host's network */
	u32 is_macvtap;
	u64 device; /* of the tap */
	u64 kick_ns, run_ns;
	u64 kicks;
	u64 batches;
	u64 sent; /* packets given to the tap */
	u64 kicked; /* of which a kick announced */
	u64 reached; /* packets at a NIC */
	u64 collided; /* packets not followed to a NIC, as another one has their slot */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, QUEUES_MAX);
	__type(key, u64); /* the socket */
	__type(value, struct transmit_queue);
} transmit_queues SEC(".maps");

/* Initial value of a new queue. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct transmit_queue);
} new_transmit_queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, QUEUES_MAX * TRANSMIT_SPANS);
	__type(key, u32);
	__type(value, struct histogram);
} transmit_histograms SEC(".maps");

/* Packets by queue, point and CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* QUEUES_MAX * TRANSMIT_POINTS * CPUs, set by user space */
	__type(key, u32);
	__type(value, u64);
} transmitted_on SEC(".maps");

/* Which socket a worker sends by. */
struct sender {
	u64 task, socket;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << SENDER_SLOT_BITS);
	__type(key, u32);
	__type(value, struct sender);
} senders SEC(".maps");

/* A packet on its way to a NIC. */
struct sent {
	u64 skb; /* 0: free */
	u64 head; /* its memory, and */
	u32 len, iif; /* its length and interface: the same address may be another packet's later */
	u64 kick_ns; /* 0: none announced it */
	u64 tap_ns;
	u64 socket;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << SENT_SLOT_BITS);
	__type(key, u32);
	__type(value, struct sent);
} sent_packets SEC(".maps");

u32 transmit_queue_count;

__noinline int add_transmit_time(u32 queue, u32 span, u64 ns)
{
	u32 key = queue * TRANSMIT_SPANS + span;
	struct histogram *histogram = bpf_map_lookup_elem(&transmit_histograms, &key);

	if (histogram)
		histogram_add(histogram, (s64)ns < 0 ? 0 : ns);
	return 0;
}

static __always_inline void transmit_on(u32 queue, u32 point, u32 cpu, u64 n)
{
	u32 key = (queue * TRANSMIT_POINTS + point) * cpu_count + cpu;
	u64 *seen = bpf_map_lookup_elem(&transmitted_on, &key);

	if (seen && cpu < cpu_count)
		count(seen, n);
}

static __always_inline struct kick *kick_slot(u64 work)
{
	u32 slot = hash(work, KICK_SLOT_BITS);

	return bpf_map_lookup_elem(&kicks, &slot);
}

static __always_inline struct sender *sender_slot(u64 task)
{
	u32 slot = hash(task, SENDER_SLOT_BITS);

	return bpf_map_lookup_elem(&senders, &slot);
}

static __always_inline struct sent *sent_slot(u64 skb)
{
	u32 slot = hash(skb, SENT_SLOT_BITS);

	return bpf_map_lookup_elem(&sent_packets, &slot);
}

static __always_inline struct transmit_queue *transmit_queue_of(u64 socket)
{
	struct transmit_queue *queue = bpf_map_lookup_elem(&transmit_queues, &socket), *first;
	u32 zero = 0, index;

	if (queue)
		return queue;
	first = bpf_map_lookup_elem(&new_transmit_queue, &zero);
	index = __sync_fetch_and_add(&transmit_queue_count, 1);
	if (!first || index >= QUEUES_MAX || bpf_map_update_elem(&transmit_queues, &socket, first, BPF_NOEXIST)) {
		count(&counters.no_queue, 1);
		return 0;
	}
	queue = bpf_map_lookup_elem(&transmit_queues, &socket);
	if (queue)
		queue->index = index;
	return queue;
}

/* A wake-up of vhost: by the guest's kick, if it is by the eventfd of the ring that it transmits by. */
static __always_inline void kicked(u64 wait)
{
	struct vhost_poll *poll = (struct vhost_poll *)(wait - bpf_core_field_offset(struct vhost_poll, wait));
	struct vhost_dev *dev = BPF_CORE_READ(poll, dev);
	u64 work = (u64)poll + bpf_core_field_offset(struct vhost_poll, work), ring = 0, own;
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct kick *kick;
	u64 now;

	if (BPF_CORE_READ(dev, nvqs) <= TRANSMIT_RING ||
	    bpf_probe_read_kernel(&ring, sizeof(ring), BPF_CORE_READ(dev, vqs) + TRANSMIT_RING))
		return;
	own = ring + bpf_core_field_offset(struct vhost_virtqueue___poll, poll);
	kick = kick_slot(work);
	if (own != (u64)poll || !kick)
		return;
	now = bpf_ktime_get_ns();
	/* The worker was kicked already, and has not yet begun. Another's slot is taken over only if it is old. */
	if (kick->work && now - kick->ns < STALE_NS)
		return;
	kick->ns = now;
	kick->pid = process_in_namespace(task);
	kick->cpu = bpf_get_smp_processor_id();
	kick->work = work;
}

/* The worker begins with what a kick announced. */
static __always_inline void worker_sends(u64 work)
{
	struct vhost_virtqueue___poll *ring =
		(struct vhost_virtqueue___poll *)(work - bpf_core_field_offset(struct vhost_virtqueue___poll, poll) -
						  bpf_core_field_offset(struct vhost_poll, work));
	struct vring_avail *avail = BPF_CORE_READ(ring, avail);
	u64 socket = (u64)BPF_CORE_READ(ring, private_data), now = bpf_ktime_get_ns();
	struct kick *kick = kick_slot(work);
	struct transmit_queue *queue;
	u16 added = 0;

	if (!socket)
		return;
	queue = transmit_queue_of(socket);
	if (!queue)
		return;
	queue->run_ns = now;
	if (!kick || kick->work != work)
		return; /* vhost went on by itself */
	if (bpf_probe_read_user(&added, sizeof(added), (void *)avail + sizeof(u16)))
		added = queue->pending = 0;
	else
		queue->pending = (u16)(added - BPF_CORE_READ(ring, last_avail_idx));
	queue->kick_ns = kick->ns;
	queue->pid = kick->pid;
	queue->kicks++;
	add_transmit_time(queue->index, TRANSMIT_WAKEUP, now - kick->ns);
	transmit_on(queue->index, TRANSMIT_KICK, kick->cpu, 1);
	kick->work = 0;
}

/* Packets of the worker are at the tap. */
static __always_inline void sends(u64 socket, struct msghdr *message, u32 number, struct net_device *device,
				  bool is_macvtap)
{
	struct tun_msg_ctl *several = BPF_CORE_READ(message, msg_control);
	struct transmit_queue *queue = transmit_queue_of(socket);
	u64 task = bpf_get_current_task(), now = bpf_ktime_get_ns();
	struct sender *sender = sender_slot(task);
	u32 n = 1;

	if (!queue || !sender)
		return;
	if (several && BPF_CORE_READ(several, type) == TUN_MSG_PTR)
		n = BPF_CORE_READ(several, num);
	queue->ifindex = BPF_CORE_READ(device, ifindex);
	queue->device = (u64)device;
	queue->number = number;
	queue->is_macvtap = is_macvtap;
	if (!queue->worker)
		queue->worker = number_in_namespace(task);
	queue->announced = queue->pending < n ? queue->pending : n;
	queue->pending -= queue->announced;
	queue->kicked += queue->announced;
	queue->sent += n;
	queue->batches++;
	transmit_on(queue->index, TRANSMIT_WORKER, bpf_get_smp_processor_id(), n);
	sender->task = task;
	sender->socket = socket;
	if (!queue->run_ns)
		return;
	for (u32 i = 0; i < SENT_BATCH; i++) {
		if (i >= n)
			break;
		add_transmit_time(queue->index, TRANSMIT_VHOST, now - queue->run_ns);
	}
}

/* The worker's packet is in the host's network: at the tap as received, or transmitted by the macvtap. */
static __always_inline void enters_host(struct sk_buff *skb, u64 device, bool is_macvtap)
{
	u64 task = bpf_get_current_task(), now;
	struct sender *sender = sender_slot(task);
	struct transmit_queue *queue;
	struct sent *sent;

	if (!sender || sender->task != task)
		return;
	queue = bpf_map_lookup_elem(&transmit_queues, &sender->socket);
	if (!queue || queue->device != device || queue->is_macvtap != is_macvtap)
		return;
	sent = sent_slot((u64)skb);
	if (!sent)
		return;
	now = bpf_ktime_get_ns();
	if (sent->skb && sent->skb != (u64)skb && now - sent->tap_ns < STALE_NS) {
		queue->collided++;
		return;
	}
	sent->head = (u64)BPF_CORE_READ(skb, head);
	sent->len = BPF_CORE_READ(skb, len);
	sent->iif = is_macvtap ? 0 : queue->ifindex;
	sent->kick_ns = 0;
	if (queue->announced) {
		queue->announced--;
		sent->kick_ns = queue->kick_ns;
	}
	sent->tap_ns = now;
	sent->socket = sender->socket;
	sent->skb = (u64)skb;
}

/* Whether this is the packet, not a later one at its address. */
static __always_inline bool is_same(struct sent *sent, struct sk_buff *skb)
{
	if (sent->skb != (u64)skb || BPF_CORE_READ(skb, skb_iif) != (int)sent->iif)
		return false;
	return sent->iif || (sent->head == (u64)BPF_CORE_READ(skb, head) && sent->len == BPF_CORE_READ(skb, len));
}

/* A device transmits a packet: the path ends at one that is hardware. */
static __always_inline void reaches_nic(struct sk_buff *skb, struct net_device *device)
{
	struct net_device___parent *hardware = (struct net_device___parent *)device;
	struct sent *sent = sent_slot((u64)skb);
	u64 now, socket, start, tap;
	struct transmit_queue *queue;

	if (!sent || !is_same(sent, skb)) {
		enters_host(skb, (u64)device, true);
		return;
	}
	if (!BPF_CORE_READ(hardware, dev.parent))
		return;
	socket = sent->socket;
	start = sent->kick_ns;
	tap = sent->tap_ns;
	sent->skb = 0;
	queue = bpf_map_lookup_elem(&transmit_queues, &socket);
	if (!queue)
		return;
	now = bpf_ktime_get_ns();
	count(&queue->reached, 1);
	add_transmit_time(queue->index, TRANSMIT_HOST, now - tap);
	if (start)
		add_transmit_time(queue->index, TRANSMIT_WHOLE, now - start);
	transmit_on(queue->index, TRANSMIT_NIC, bpf_get_smp_processor_id(), 1);
}

#endif
