/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The instrument "accepts": which are looked at, and counting them by socket, thread and the CPUs at
 * both ends. crates/instruments/src/accepts/load.rs knows the layouts.
 */
#ifndef NEARPATH_ACCEPTS_H
#define NEARPATH_ACCEPTS_H

#include "pid_namespace.h"
#include "probe.h"

#define ACCEPTS_MAX 65536
#define COMM 16
/* In place of the number of a CPU: not known. */
#define NO_CPU (~0U)

/* Which are looked at; 0 and the empty name: all. */
const volatile u32 only_pid, only_netns;
const volatile u16 only_port;
const volatile char only_comm[COMM];
const volatile bool each;

struct key {
	u8 address[16]; /* of the listener; an IPv4 address in the first four bytes */
	u32 netns;
	u16 family;
	u16 port;
	u32 pid; /* in /proc; 0: it is not in that, and tid is the kernel's own number */
	u32 tid;
	u32 received_on;
	u32 accepted_on;
};

struct counted {
	u64 accepts;
	u64 moved; /* of those, counted again when the CPU was known */
	char comm[COMM];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ACCEPTS_MAX);
	__type(key, struct key);
	__type(value, struct counted);
} accepted SEC(".maps");

struct one {
	struct key key;
	s32 listener_fd; /* -1: not known */
	s32 fd;
	char comm[COMM];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ones SEC(".maps");

volatile u32 active;
u64 lost, ones_lost;

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

/* Enters the thread that runs; returns whether it is looked at. */
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

/* Enters what the socket is bound to; returns whether it is looked at. */
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

static __always_inline void tell(const struct key *key, const char *comm, s32 listener_fd, s32 fd)
{
	struct one *one = bpf_ringbuf_reserve(&ones, sizeof(*one), 0);

	if (!one) {
		__sync_fetch_and_add(&ones_lost, 1);
		return;
	}
	one->key = *key;
	one->listener_fd = listener_fd;
	one->fd = fd;
	__builtin_memcpy(one->comm, comm, COMM);
	bpf_ringbuf_submit(one, 0);
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

/* The socket of TCP over IP behind a file; NULL where it is none. */
static __always_inline struct sock *sock_of(struct file *file)
{
	struct socket___kernel *socket = BPF_CORE_READ(file, private_data);
	struct sock *sk = BPF_CORE_READ(socket, sk);
	u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);

	if (family != AF_INET && family != AF_INET6)
		return 0;
	return BPF_CORE_READ(sk, sk_protocol) == IPPROTO_TCP ? sk : 0;
}

/* The same behind a descriptor of the thread that runs. */
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

/* The thread that runs has accepted; `sk` is the connection, NULL where it cannot be seen. */
static __always_inline void accepts(struct key *key, const char *comm, struct sock *listener,
				    struct sock *sk, s32 listener_fd, s32 fd)
{
	if (!is_at(key, listener))
		return;
	key->received_on = sk ? BPF_CORE_READ(sk, __sk_common.skc_incoming_cpu) : NO_CPU;
	key->accepted_on = bpf_get_smp_processor_id();
	count(key, comm);
	if (each)
		tell(key, comm, listener_fd, fd);
}

#endif
