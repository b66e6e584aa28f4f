// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "accepts": for each connection that accept(2) or accept4(2) returns, the CPU on which
 * the kernel received it and the CPU that accepts, by listener and thread.
 *
 * Seen where the system call returns, which every kernel lets programs see: there the descriptor says
 * which socket it is. Every system call of the machine passes here, so what is none of these is let go
 * first.
 */
#include "probe.h"

char LICENSE[] SEC("license") = "GPL";

/* Entries for listener, thread and CPUs. crates/instruments/src/accepts/load.rs knows these layouts. */
#define ACCEPTS_MAX 65536
#define COMM 16

/* Which accepts are looked at; 0 and the empty name: all. */
const volatile u32 only_pid, only_netns;
const volatile u16 only_port;
const volatile char only_comm[COMM];
const volatile bool each;
const volatile s64 accept_call, accept4_call;

struct key {
	u8 address[16]; /* of the listener; an IPv4 address in the first four bytes */
	u32 netns;
	u16 family;
	u16 port;
	u32 pid;
	u32 tid;
	u32 received_on;
	u32 accepted_on;
};

struct counted {
	u64 accepts;
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
	s32 listener_fd;
	s32 fd;
	char comm[COMM];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ones SEC(".maps");

volatile u32 active;
u64 lost, ones_lost;

#if defined(__TARGET_ARCH_x86)
#define CALL_OF(regs) BPF_CORE_READ(regs, orig_ax)
#define FIRST_OF(regs) BPF_CORE_READ(regs, di)
#elif defined(__TARGET_ARCH_arm64)
#define CALL_OF(regs) BPF_CORE_READ((struct pt_regs___call *)(regs), syscallno)
#define FIRST_OF(regs) BPF_CORE_READ((struct pt_regs___call *)(regs), orig_x0)
#endif

/* The socket behind a descriptor of this process; NULL where that is none of TCP over IP. */
static __always_inline struct sock *sock_of(struct task_struct *task, s32 fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct socket___kernel *socket;
	struct file **files, *file = 0;
	struct sock *sk;
	u16 family;

	if (fd < 0 || (u32)fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	files = BPF_CORE_READ(table, fd);
	bpf_probe_read_kernel(&file, sizeof(file), files + fd);
	socket = BPF_CORE_READ(file, private_data);
	sk = BPF_CORE_READ(socket, sk);
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (family != AF_INET && family != AF_INET6)
		return 0;
	return BPF_CORE_READ(sk, sk_protocol) == IPPROTO_TCP ? sk : 0;
}

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

PROBE(sys_exit, "sys_exit")
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	struct task_struct *task;
	struct sock *listener, *sk;
	struct key key = {};
	char comm[COMM] = {};
	s64 fd = ctx[1], call;
	s32 listener_fd;
	u64 pid_tid;

	if (fd < 0 || !active)
		return;
	call = CALL_OF(regs);
	if (call != accept_call && call != accept4_call)
		return;
	pid_tid = bpf_get_current_pid_tgid();
	key.pid = pid_tid >> 32;
	key.tid = pid_tid;
	if (only_pid && key.pid != only_pid)
		return;
	task = (struct task_struct *)bpf_get_current_task();
	listener_fd = FIRST_OF(regs);
	listener = sock_of(task, listener_fd);
	sk = sock_of(task, fd);
	/* A thread that closes either meanwhile takes it out of our sight. */
	if (!sk)
		return;
	if (!listener)
		listener = sk;
	bpf_get_current_comm(comm, sizeof(comm));
	key.port = BPF_CORE_READ(listener, __sk_common.skc_num);
	key.netns = BPF_CORE_READ(listener, __sk_common.skc_net.net, ns.inum);
	if ((only_port && key.port != only_port) || (only_netns && key.netns != only_netns) ||
	    (only_comm[0] && !is_comm(comm)))
		return;
	key.family = BPF_CORE_READ(listener, __sk_common.skc_family);
	if (key.family == AF_INET6)
		BPF_CORE_READ_INTO(&key.address, listener, __sk_common.skc_v6_rcv_saddr);
	else
		BPF_CORE_READ_INTO((u32 *)key.address, listener, __sk_common.skc_rcv_saddr);
	key.received_on = BPF_CORE_READ(sk, __sk_common.skc_incoming_cpu);
	key.accepted_on = bpf_get_smp_processor_id();
	count(&key, comm);
	if (each)
		tell(&key, comm, listener_fd, fd);
}

/* Run by hand, to learn what the kernel's run-time statistics add to every run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
