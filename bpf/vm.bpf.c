// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "vm": packets from the host's NIC into a virtual machine, by vhost-net and KVM.
 *
 *   NIC's interrupt -> NET_RX -> tap -> vhost worker -> used ring -> eventfd -> vCPU -> guest
 *        (a)                (b)     (c)                       (d)
 *
 * and from there to the NIC (vm_transmit.h). If the NIC timestamps, the path begins there (nic_stamps.h). Of devices that
 * are passed through, the interrupts (vm_devices.h), and of those that a process serves, what it writes (vm_backends.h).
 *
 * Each step is joined to the next by a pointer, never by time: a packet by its sk_buff from the tap to the vhost
 * worker; the worker's ring by the socket of the tap's queue (vhost_virtqueue.private_data); the ring's interrupt by
 * its eventfd (call_ctx.ctx), whose waiters the worker itself calls under a lock; the vCPU by the pointer that KVM
 * gives the interrupt to, and its entry by the vector that is being injected.
 *
 * One signal may cover many packets: they wait in the queue's batch until the used ring is written, then with the vCPU
 * and the vector until that is injected.
 */
#include "vm_queues.h"
#include "vm_devices.h"
#include "vm_backends.h"
#include "vm_transmit.h"
#include "vm_late.h"

char LICENSE[] SEC("license") = "GPL";

PROBE(irq_handler_entry, "irq_handler_entry")
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->irq_ns = bpf_ktime_get_ns();
	note_threaded((u32)ctx[0], cpu->irq_ns);
}

PROBE(irq_handler_exit, "irq_handler_exit")
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->irq_ns = 0;
	/* Another one may interrupt a thread that handles this. */
	if (cpu->device_irq == (u32)ctx[0])
		cpu->device_ns = 0;
}

/* vfio_msihandler(irq, eventfd) */
PROBE_FUNCTION(vfio_msihandler, "vfio_msihandler")
{
	if (active)
		device_interrupts((u32)ctx[0]);
}

/* vfio_intx_handler(irq, device) */
PROBE_FUNCTION(vfio_intx_handler, "vfio_intx_handler")
{
	if (active)
		device_interrupts((u32)ctx[0]);
}

/* The first raise since the last run began is that of the next run. */
PROBE(softirq_raise, "softirq_raise")
{
	struct cpu *cpu;

	if ((u32)ctx[0] != NET_RX_SOFTIRQ)
		return;
	cpu = this_cpu();
	if (!cpu || cpu->is_raised)
		return;
	cpu->is_raised = true;
	cpu->next_irq_ns = cpu->irq_ns;
}

/*
 * The tracepoints of runs are for all softirqs, most of which are of timers, the scheduler and RCU: where fentry can be
 * used, the function that NET_RX runs is observed instead. (Not so for its raise: napi_schedule() within a run raises
 * nothing from Linux 6.3 on, net/core/dev.c.)
 */
static __always_inline void net_rx_runs(void)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	cpu->run_ns = bpf_ktime_get_ns();
	cpu->run_irq_ns = cpu->next_irq_ns;
	cpu->next_irq_ns = 0;
	cpu->is_raised = false;
}

static __always_inline void net_rx_ends(void)
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		cpu->run_ns = cpu->run_irq_ns = 0;
}

PROBE(softirq_entry, "softirq_entry")
{
	if ((u32)ctx[0] == NET_RX_SOFTIRQ)
		net_rx_runs();
}

SEC("fentry/net_rx_action") int softirq_entry_net_rx(u64 *ctx)
{
	if (measuring)
		net_rx_runs();
	return 0;
}

PROBE(softirq_exit, "softirq_exit")
{
	if ((u32)ctx[0] == NET_RX_SOFTIRQ)
		net_rx_ends();
}

SEC("fexit/net_rx_action") int softirq_exit_net_rx(u64 *ctx)
{
	if (measuring)
		net_rx_ends();
	return 0;
}

/*
 * When the NIC had the packet, if it is known that its interrupt came after that: on another CPU (RPS), in a thread
 * (threaded NAPI), or without an interrupt (NET_RX goes on polling), the time since then is not the NIC's alone. One
 * that came after the interrupt does not have it, and one that came while NET_RX ran is in NET_RX since then.
 */
static __always_inline void note_nic(struct tap_packet *packet, u64 nic_ns)
{
	if (nic_ns <= packet->irq_ns)
		packet->nic_ns = nic_ns;
	else
		packet->irq_ns = 0;
	if (packet->handler_ns && nic_ns > packet->handler_ns)
		packet->handler_ns = nic_ns;
}

/*
 * `address` is what vhost will take: that of an sk_buff, or of a frame of XDP with a mark. `nic_ns` is when the NIC had
 * it; 0: unknown.
 */
static __always_inline void reaches_tap(u64 address, u32 ifindex, bool is_other, u64 nic_ns)
{
	struct cpu *cpu = this_cpu();
	struct tap_packet *packet;

	if (!cpu)
		return;
	packet = claim_packet(address, is_other);
	if (!packet)
		return;
	packet->is_other = is_other;
	packet->irq_ns = cpu->run_irq_ns;
	packet->handler_ns = cpu->run_ns;
	packet->tap_ns = bpf_ktime_get_ns();
	packet->nic_ns = 0;
	if (nic_ns)
		note_nic(packet, nic_ns);
	packet->cpu = bpf_get_smp_processor_id();
	packet->ifindex = ifindex;
	packet->skb = address;
	if (!is_other)
		count(&counters.started, 1);
}

static __always_inline void skb_reaches_tap(u64 address, u32 ifindex)
{
	struct sk_buff *skb = (struct sk_buff *)address;
	u64 nic_ns = 0;

	if (!active)
		return;
	/* Packets of this host have no skb_iif. */
	if (has_nic_stamps && BPF_CORE_READ(skb, skb_iif))
		nic_ns = nic_stamp_ns(address, BPF_CORE_READ(skb, skb_iif), bpf_ktime_get_ns());
	if (beside_stages)
		reaches_tap(address, ifindex, !is_tracked(address), nic_ns);
	else
		reaches_tap(address, ifindex, only.session && !is_probe(skb), nic_ns);
}

/* tun_net_xmit(skb, device) */
PROBE_FUNCTION(tun_net_xmit, "tun_net_xmit")
{
	struct net_device *device = (struct net_device *)ctx[1];

	skb_reaches_tap(address_of(ctx[0]), GET(direct, device, ifindex));
}

/* Frames that XDP redirects at once (DEV_MAP_BULK_SIZE), and their mark in the tap's ring (TUN_XDP_FLAG). */
#define XDP_FRAMES 16
#define TUN_XDP_FLAG 1

/* tun_xdp_xmit(device, n, frames, flags) */
PROBE_FUNCTION(tun_xdp_xmit, "tun_xdp_xmit")
{
	struct net_device *device = (struct net_device *)address_of(ctx[0]);
	u64 frames, frame;
	u32 n = (u32)ctx[1];

	/* Kernels such as 6.1 do not let programs load an argument that is a pointer to pointers. */
	if (!active || beside_stages || bpf_probe_read_kernel(&frames, sizeof(frames), &ctx[2]))
		return;
	for (u32 i = 0; i < XDP_FRAMES; i++) {
		if (i >= n || bpf_probe_read_kernel(&frame, sizeof(frame), (void *)(frames + 8 * i)))
			break;
		reaches_tap(frame | TUN_XDP_FLAG, BPF_CORE_READ(device, ifindex),
			    only.session && !is_probe_frame((struct xdp_frame *)frame), 0);
	}
}

/* tap_handle_frame(&skb): of a macvtap, or an ipvtap. */
PROBE_FUNCTION(tap_handle_frame, "tap_handle_frame")
{
	u64 address = 0;

	if (!bpf_probe_read_kernel(&address, sizeof(address), (void *)address_of(ctx[0])) && address)
		skb_reaches_tap(address, BPF_CORE_READ((struct sk_buff *)address, dev, ifindex));
}

/* handle_rx(vhost_net): the worker begins to look for packets. */
PROBE_FUNCTION(handle_rx, "handle_rx")
{
	struct cpu *cpu;

	if (!active)
		return;
	cpu = this_cpu();
	if (!cpu)
		return;
	cpu->worker_ns = bpf_ktime_get_ns();
	cpu->worker = bpf_get_current_task();
	watch_thread(cpu->worker);
}

/* `address` is that of the packet that vhost has taken from the ring; 0 if another process reads. */
static __always_inline void takes(u64 socket, u64 address, u32 number)
{
	struct tap_packet *packet;
	struct queue *queue;

	if (!active || !address)
		return;
	packet = packet_of(address);
	if (!packet) {
		count(&counters.unknown, 1);
		return;
	}
	if (!packet->is_other && packet->tap_ns >= only.since_ns) {
		queue = queue_of_socket(socket);
		if (queue)
			take_packet(queue, packet, number);
	}
	packet->skb = 0;
}

/* tun_recvmsg(socket, message, length, flags) */
PROBE_FUNCTION(tun_recvmsg, "tun_recvmsg")
{
	struct msghdr *message = (struct msghdr *)ctx[1];
	u64 socket = address_of(ctx[0]);

	takes(socket, (u64)GET(direct, message, msg_control), BPF_CORE_READ(tun_file_of(socket), queue_index));
}

/* tap_recvmsg(socket, message, length, flags) */
PROBE_FUNCTION(tap_recvmsg, "tap_recvmsg")
{
	struct msghdr *message = (struct msghdr *)ctx[1];
	u64 socket = address_of(ctx[0]);

	takes(socket, (u64)GET(direct, message, msg_control), BPF_CORE_READ(tap_queue_of(socket), queue_index));
}

/* vhost_add_used_and_signal_n(device, virtqueue, …): the used ring is written, then the guest is interrupted. */
PROBE_FUNCTION(add_used, "vhost_add_used_and_signal_n")
{
	struct vhost_virtqueue *vq = (struct vhost_virtqueue *)ctx[1];
	struct cpu *cpu = this_cpu();
	struct queue *queue;
	u64 socket;

	if (!active || !cpu)
		return;
	socket = (u64)GET(direct, vq, private_data);
	queue = bpf_map_lookup_elem(&queues, &socket);
	if (!queue || !queue->count)
		return;
	queue->eventfd = address_of((u64)GET(direct, vq, call_ctx.ctx));
	queue->signalled_ns = 0;
	queue->used = queue->count;
	queue->signaller = bpf_get_current_task();
	cpu->queue = socket;
}

/* eventfd_signal(context, …): from its lock on, interrupts are off, and the waiters are called. */
static __always_inline void signals(u64 *ctx)
{
	u64 eventfd = address_of(ctx[0]), task;
	struct cpu *cpu = this_cpu();
	struct queue *queue;

	if (!active || !cpu)
		return;
	if (is_in_device_interrupt(cpu)) {
		device_signals(cpu, eventfd);
		return;
	}
	if (counts_kicks)
		kicks_eventfd(eventfd);
	/* Another one, from an interrupt: what KVM does next is not for this queue. */
	cpu->signalling = 0;
	if (!cpu->queue)
		return;
	queue = bpf_map_lookup_elem(&queues, &cpu->queue);
	task = bpf_get_current_task();
	if (!queue || queue->eventfd != eventfd || queue->signaller != task)
		return;
	cpu->signalling = cpu->queue;
	cpu->signaller = task;
	queue->signalled_ns = bpf_ktime_get_ns();
}

PROBE_FUNCTION(eventfd_signal_mask, "eventfd_signal_mask")
{
	signals(ctx);
}

PROBE_FUNCTION(eventfd_signal, "eventfd_signal")
{
	signals(ctx);
}

/* eventfd_write(file, …): a process writes to an eventfd. */
PROBE_FUNCTION(eventfd_write, "eventfd_write")
{
	struct file *file = (struct file *)address_of(ctx[0]);

	if (active && !beside_stages && only.session != ONLY_NONE)
		begins_signal((u64)BPF_CORE_READ(file, private_data));
}

/* irqfd_wakeup(wait, …): KVM waits for an eventfd that is written to, or signalled. */
PROBE_FUNCTION(irqfd_wakeup, "irqfd_wakeup")
{
	if (active && has_begun && !beside_stages && only.session != ONLY_NONE)
		backend_interrupts(address_of(ctx[0]));
}

/* ioeventfd_write(vcpu, device, …): the guest kicks, if the address and the value are those of the device. */
PROBE_FUNCTION(ioeventfd_write, "ioeventfd_write")
{
	if (active)
		begins_kick(address_of(ctx[1]));
}

/* The queue whose interrupt KVM gives to a vCPU now: its socket, or the eventfd; 0: another interrupt. */
static __always_inline u64 interrupting(struct cpu *cpu)
{
	u64 socket;

	if (is_in_device_interrupt(cpu))
		return device_reaches(cpu);
	socket = backend_reaches(cpu);
	if (socket)
		return socket;
	if (!cpu->signalling || cpu->signaller != bpf_get_current_task())
		return 0;
	socket = cpu->signalling;
	cpu->signalling = cpu->queue = 0;
	return socket;
}

/* __apic_accept_irq(apic, mode, vector, …): KVM gives the interrupt to a vCPU. */
PROBE_FUNCTION(accept_irq, "__apic_accept_irq")
{
	struct kvm_lapic *apic = (struct kvm_lapic *)ctx[0];
	struct reached reached = { .vector = (u8)ctx[2] };
	struct cpu *cpu = this_cpu();
	struct kvm_vcpu *vcpu;
	struct queue *queue;
	u64 socket;

	socket = cpu ? interrupting(cpu) : 0;
	if (!socket)
		return;
	queue = bpf_map_lookup_elem(&queues, &socket);
	if (!queue || !queue->used)
		return;
	vcpu = GET(direct, apic, vcpu);
	reached.id = GET(direct, vcpu, vcpu_id);
	reached.way = WAY_OF(direct, vcpu);
	reached.is_posted = bpf_core_field_exists(apic->apicv_active) && GET(direct, apic, apicv_active);
	reached.vcpu = address_of((u64)vcpu);
	interrupt_guest(queue, socket, &reached);
}

/* svm_vcpu_run(vcpu, …), vmx_vcpu_run(vcpu, …): the guest runs. */
static __always_inline void enters(u64 *ctx, const bool direct)
{
	struct kvm_vcpu *vcpu = (struct kvm_vcpu *)ctx[0];

	if (active)
		watch_thread(bpf_get_current_task());
	if (active && waiting_packets && GET(direct, vcpu, arch.interrupt.injected))
		enter_guest(address_of(ctx[0]), GET(direct, vcpu, arch.interrupt.nr));
}

PROBE_FUNCTION(svm_vcpu_run, "svm_vcpu_run")
{
	enters(ctx, direct);
}

PROBE_FUNCTION(vmx_vcpu_run, "vmx_vcpu_run")
{
	enters(ctx, direct);
}

/* vhost_poll_wakeup(wait, …): vhost is woken, by an eventfd or a tap. */
PROBE_FUNCTION(vhost_poll_wakeup, "vhost_poll_wakeup")
{
	if (active)
		kicked(address_of(ctx[0]));
}

/* handle_tx_kick(work): the worker begins to send. */
PROBE_FUNCTION(handle_tx_kick, "handle_tx_kick")
{
	if (active)
		worker_sends(address_of(ctx[0]));
}

/* tun_sendmsg(socket, message, length): one packet, or a batch. */
PROBE_FUNCTION(tun_sendmsg, "tun_sendmsg")
{
	u64 socket = address_of(ctx[0]);
	struct tun_file *file = tun_file_of(socket);

	if (active)
		sends(socket, (struct msghdr *)address_of(ctx[1]), BPF_CORE_READ(file, queue_index),
		      BPF_CORE_READ(file, tun, dev), false);
}

/* tap_sendmsg(socket, message, length) */
PROBE_FUNCTION(tap_sendmsg, "tap_sendmsg")
{
	u64 socket = address_of(ctx[0]);
	struct tap_queue *queue = tap_queue_of(socket);

	if (active)
		sends(socket, (struct msghdr *)address_of(ctx[1]), BPF_CORE_READ(queue, queue_index),
		      BPF_CORE_READ(queue, tap, dev), true);
}

PROBE(netif_receive_skb, "netif_receive_skb")
{
	struct sk_buff *skb = (struct sk_buff *)address_of(ctx[0]);

	if (active && transmit_queue_count)
		enters_host(skb, (u64)BPF_CORE_READ(skb, dev), false);
}

PROBE(net_dev_start_xmit, "net_dev_start_xmit")
{
	if (active && transmit_queue_count)
		reaches_nic((struct sk_buff *)address_of(ctx[0]), (struct net_device *)address_of(ctx[1]));
}

PROBE(sched_switch, "sched_switch")
{
	if (active)
		switches((u8)ctx[0], (struct task_struct *)address_of(ctx[1]),
			 (struct task_struct *)address_of(ctx[2]));
}

PROBE(sched_waking, "sched_waking")
{
	if (active)
		wakes(address_of(ctx[0]));
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
