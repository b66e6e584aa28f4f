/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The instrument "accepts": selects accepts and counts them by socket, thread and the CPUs at both ends. The
 * layouts are shared with crates/instruments/src/accepts/load.rs.
 */
#ifndef NEARPATH_ACCEPTS_H
#define NEARPATH_ACCEPTS_H

#include "pid_namespace.h"
#include "probe.h"

#define ACCEPTS_MAX 65536
#define COMM 16
/* Used instead of a CPU number: unknown. */
#define NO_CPU (~0U)

/* Which accepts are observed; 0 or an empty name: all. */
const volatile u32 only_pid, only_netns;
const volatile u16 only_port;
const volatile char only_comm[COMM];
const volatile bool per_event;

struct key {
	u8 address[16]; /* of the listener; an IPv4 address in the first four bytes */
	u32 netns;
	u16 family;
	u16 port;
	u32 pid; /* in /proc; 0: not in that namespace, tid is the kernel's own number */
	u32 tid;
	u32 received_on;
	u32 accepted_on;
};

struct counted {
	u64 accepts;
	u64 moved; /* of those, counted again once the CPU was known */
	char comm[COMM];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ACCEPTS_MAX);
	__type(key, struct key);
	__type(value, struct counted);
} accepted SEC(".maps");

struct accept_event {
	struct key key;
	s32 listener_fd; /* -1: unknown */
	s32 fd;
	char comm[COMM];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

volatile u32 active;
u64 lost, events_dropped;

static __always_inline bool is_comm(const char *comm)
{
	for (int i = 0; i < COMM; i++) {
		if (comm[i] != only_comm[i])
			return false;
		if (!comm[i])
			break;
	}
	return true;
}

/* Records the current thread; returns whether it matches. */
static __always_inline bool is_by_current(struct key *key, char *comm)
{
	u64 pid_tid = bpf_get_current_pid_tgid();

	key->pid = pid_tid >> 32;
	key->tid = pid_tid;
	if (pid_namespace) {
		struct task_struct *task = (struct task_struct *)bpf_get_current_task();

		key->pid = process_in_namespace(task);
		if (key->pid)
			key->tid = number_in_namespace((u64)task);
	}
	if (only_pid && key->pid != only_pid)
		return false;
	bpf_get_current_comm(comm, COMM);
	return !only_comm[0] || is_comm(comm);
}

/* Records what the socket is bound to; returns whether it matches. */
static __always_inline bool is_at(struct key *key, struct sock *sk)
{
	key->port = BPF_CORE_READ(sk, __sk_common.skc_num);
	key->netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	if ((only_port && key->port != only_port) || (only_netns && key->netns != only_netns))
		return false;
	key->family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (key->family == AF_INET6)
		BPF_CORE_READ_INTO(&key->address, sk, __sk_common.skc_v6_rcv_saddr);
	else
		BPF_CORE_READ_INTO((u32 *)key->address, sk, __sk_common.skc_rcv_saddr);
	return true;
}

static __always_inline void report(const struct key *key, const char *comm, s32 listener_fd, s32 fd)
{
	struct accept_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&events_dropped, 1);
		return;
	}
	event->key = *key;
	event->listener_fd = listener_fd;
	event->fd = fd;
	__builtin_memcpy(event->comm, comm, COMM);
	bpf_ringbuf_submit(event, 0);
}

static __always_inline void count(const struct key *key, const char *comm)
{
	struct counted *counted = bpf_map_lookup_elem(&accepted, key);

	if (!counted) {
		struct counted first = {};

		__builtin_memcpy(first.comm, comm, COMM);
		bpf_map_update_elem(&accepted, key, &first, BPF_NOEXIST);
		counted = bpf_map_lookup_elem(&accepted, key);
	}
	if (counted)
		__sync_fetch_and_add(&counted->accepts, 1);
	else
		__sync_fetch_and_add(&lost, 1);
}

/* The TCP/IP socket behind a file, or NULL. */
static __always_inline struct sock *sock_of(struct file *file)
{
	struct socket___kernel *socket = BPF_CORE_READ(file, private_data);
	struct sock *sk = BPF_CORE_READ(socket, sk);
	u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);

	if (family != AF_INET && family != AF_INET6)
		return 0;
	return BPF_CORE_READ(sk, sk_protocol) == IPPROTO_TCP ? sk : 0;
}

/* The same for a descriptor of the current thread. */
static __always_inline struct sock *sock_at(s32 fd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files, *file = 0;

	if (fd < 0 || (u32)fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	files = BPF_CORE_READ(table, fd);
	bpf_probe_read_kernel(&file, sizeof(file), files + fd);
	return sock_of(file);
}

/* The current thread has accepted `sk`, the connection; NULL if it cannot be seen. */
static __always_inline void accepts(struct key *key, const char *comm, struct sock *listener,
				    struct sock *sk, s32 listener_fd, s32 fd)
{
	if (!is_at(key, listener))
		return;
	key->received_on = sk ? BPF_CORE_READ(sk, __sk_common.skc_incoming_cpu) : NO_CPU;
	key->accepted_on = bpf_get_smp_processor_id();
	count(key, comm);
	if (per_event)
		report(key, comm, listener_fd, fd);
}

#endif
