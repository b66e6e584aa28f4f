/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The sockets in REUSEPORT groups, with their group and its program, which getsockopt(2) does not report. Two
 * iterators that are read once; nothing stays attached. Input: the network namespace of the reading thread.
 * Output: one record per socket.
 *
 * Kernels without BTF have no iterators. There a third program is run manually, for one descriptor of the
 * process that runs it.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* A group of more sockets than this has no order (index is NO_INDEX). */
#define SOCKETS_MAX 1024
#define NO_INDEX 0xffffffff
/* This many instructions of a classic program suffice to recognize ours. */
#define CLASSIC_MAX 4

struct reuseport_socket {
	u64 inode;
	u64 group; /* its address in the kernel: the same for all its sockets */
	u32 sockets;
	u32 index;
	u32 program; /* 0: none, 1: classic, 2: eBPF */
	u32 program_id;
	u8 tag[8];
	char name[16];
	u32 classic_length;
	u32 unused;
	struct sock_filter classic[CLASSIC_MAX];
};

static __always_inline u32 index_of(struct sock_reuseport *group, struct sock *sk, u32 sockets)
{
	for (u32 i = 0; i < SOCKETS_MAX && i < sockets; i++) {
		struct sock *at = 0;

		bpf_core_read(&at, sizeof(at), &group->socks[i]);
		if (at == sk)
			return i;
	}
	return NO_INDEX;
}

static __always_inline void read_program(struct reuseport_socket *to, struct bpf_prog *program)
{
	struct sock_fprog_kern *classic = BPF_CORE_READ(program, orig_prog);

	to->program_id = BPF_CORE_READ(program, aux, id);
	to->program = to->program_id ? 2 : 1;
	BPF_CORE_READ_INTO(&to->tag, program, tag);
	BPF_CORE_READ_INTO(&to->name, program, aux, name);
	if (!classic)
		return;
	to->classic_length = BPF_CORE_READ(classic, len);
	for (u32 i = 0; i < CLASSIC_MAX && i < to->classic_length; i++)
		bpf_probe_read_kernel(&to->classic[i], sizeof(to->classic[i]),
				      BPF_CORE_READ(classic, filter) + i);
}

/* Whether the socket is in a group. */
static __always_inline bool describe(struct reuseport_socket *to, struct sock *sk)
{
	struct sock_reuseport *group = BPF_CORE_READ(sk, sk_reuseport_cb);
	struct bpf_prog *program;

	if (!group)
		return false;
	to->inode = BPF_CORE_READ(sk, sk_socket, file, f_inode, i_ino);
	to->group = (u64)group;
	to->sockets = BPF_CORE_READ(group, num_socks);
	to->index = index_of(group, sk, to->sockets);
	program = BPF_CORE_READ(group, prog);
	if (program)
		read_program(to, program);
	return true;
}

static __always_inline void report(struct seq_file *seq, struct sock *sk)
{
	struct reuseport_socket to = {};

	if (describe(&to, sk))
		bpf_seq_write(seq, &to, sizeof(to));
}

SEC("iter/tcp") int tcp_sockets(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;

	if (sk && sk->skc_state == TCP_LISTEN)
		report(ctx->meta->seq, (struct sock *)sk);
	return 0;
}

SEC("iter/udp") int udp_sockets(struct bpf_iter__udp *ctx)
{
	struct udp_sock *sk = ctx->udp_sk;

	if (sk)
		report(ctx->meta->seq, (struct sock *)sk);
	return 0;
}

/* Result of the program below; all zeroes: not a socket in a group. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct reuseport_socket);
} found SEC(".maps");

/* The argument passed by BPF_PROG_TEST_RUN: the descriptor of a socket. */
SEC("raw_tp") int socket_of_descriptor(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct reuseport_socket to = {};
	struct socket___kernel *socket;
	struct file **files, *file = 0;
	u32 fd = ctx[0], zero = 0;

	if (fd < BPF_CORE_READ(table, max_fds)) {
		files = BPF_CORE_READ(table, fd);
		bpf_probe_read_kernel(&file, sizeof(file), files + fd);
		socket = BPF_CORE_READ(file, private_data);
		describe(&to, BPF_CORE_READ(socket, sk));
	}
	bpf_map_update_elem(&found, &zero, &to, 0);
	return 0;
}

char _license[] SEC("license") = "GPL";
