// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "tcp": connections that end, with all that they did, so that none is missed however short it
 * was; who reset them; why segments were retransmitted, and why the congestion window was reduced. All of these are
 * rare compared with packets. Numbers between the start and the end of a connection come from sock_diag.
 */
#include "pid_namespace.h"
#include "probe.h"
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

#define COMM 16
#define CONNECTIONS_MAX 65536
#define RETRANSMITTING_MAX 16384

/* Which connections; 0: all. Set by user space. */
const volatile u32 only_netns;
const volatile u16 wanted_sport, wanted_dport, wanted_port;

volatile u32 active;
u64 events_dropped; /* connections whose end did not fit in the ring */
u64 retransmits_lost; /* retransmissions that did not fit in the map */

/* What is known of a connection since its start; the key is its address. */
struct start {
	u64 began_ns; /* SYN sent or received */
	u64 established_ns;
	u32 pid;
	u32 reset; /* see enum reset */
	char comm[COMM];
};

enum reset {
	NO_RESET,
	RESET_SENT,
	RESET_RECEIVED,
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS_MAX);
	__type(key, u64);
	__type(value, struct start);
} starts SEC(".maps");

/* The layout is shared with crates/instruments/src/tcp/events.rs. */
struct ended {
	u64 cookie; /* 0: sock_diag has never reported it */
	u64 began_ns, established_ns, ended_ns; /* 0: unknown, never */
	u64 bytes_sent, bytes_acked, bytes_received, bytes_retrans;
	u8 local[16], remote[16]; /* an IPv4 address in the first four bytes */
	u16 family, sport, dport, old_state;
	u32 netns;
	u32 pid;
	u32 reset;
	u32 unused;
	char comm[COMM];
	u32 segs_out, segs_in, data_segs_out, data_segs_in;
	u32 total_retrans, dsack_dups, reord_seen, rcv_ooopack;
	u32 delivered, delivered_ce;
	u32 srtt_us, min_rtt_us; /* 0: no sample */
};

struct ended layout_of_ended; /* gives user space the type */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	/* About 21,000 ends. User space has it mapped twice. */
	__uint(max_entries, 1 << 22);
} events SEC(".maps");

/*
 * Why segments were retransmitted: in which state of congestion control. And how often that state was entered, which
 * reduces the congestion window.
 */
struct retransmits {
	u32 fast; /* found by duplicate or selective acknowledgements */
	u32 timeout;
	u32 probe; /* tail loss probes */
	u32 recoveries;
	u32 timeouts;
	u32 marks; /* ECN, or a full queue of this host */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, RETRANSMITTING_MAX);
	__type(key, u64); /* cookie */
	__type(value, struct retransmits);
} retransmitting SEC(".maps");

static __always_inline bool is_in_namespace(struct sock *sk)
{
	return BPF_CORE_READ(sk, sk_protocol) == IPPROTO_TCP &&
	       (!only_netns || BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum) == only_netns);
}

/* Unlike skc_num it is still set when the connection is closed. */
static __always_inline u16 local_port(struct sock *sk)
{
	return bpf_ntohs(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
}

static __always_inline bool is_wanted(struct sock *sk)
{
	u16 sport = local_port(sk), dport = bpf_ntohs(BPF_CORE_READ(sk, __sk_common.skc_dport));

	return (!wanted_sport || sport == wanted_sport) && (!wanted_dport || dport == wanted_dport) &&
	       (!wanted_port || sport == wanted_port || dport == wanted_port);
}

/* Only where a system call changes the state is the current process that of the connection. */
static __always_inline void set_process(struct start *start)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();

	start->pid = pid_namespace ? process_in_namespace(task) : bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(start->comm, COMM);
}

static __always_inline void report(struct sock *sk, u32 old_state)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	u64 key = address_of((u64)sk);
	struct start *start = bpf_map_lookup_elem(&starts, &key);
	struct ended *to = bpf_ringbuf_reserve(&events, sizeof(*to), 0);

	if (!to) {
		__sync_fetch_and_add(&events_dropped, 1);
		bpf_map_delete_elem(&starts, &key);
		return;
	}
	__builtin_memset(to, 0, sizeof(*to));
	to->cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
	to->ended_ns = bpf_ktime_get_ns();
	to->old_state = old_state;
	if (start) {
		to->began_ns = start->began_ns;
		to->established_ns = start->established_ns;
		to->pid = start->pid;
		to->reset = start->reset;
		__builtin_memcpy(to->comm, start->comm, COMM);
		bpf_map_delete_elem(&starts, &key);
	}
	to->family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (to->family == AF_INET6) {
		BPF_CORE_READ_INTO(&to->local, sk, __sk_common.skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&to->remote, sk, __sk_common.skc_v6_daddr);
	} else {
		BPF_CORE_READ_INTO((u32 *)to->local, sk, __sk_common.skc_rcv_saddr);
		BPF_CORE_READ_INTO((u32 *)to->remote, sk, __sk_common.skc_daddr);
	}
	to->sport = local_port(sk);
	to->dport = bpf_ntohs(BPF_CORE_READ(sk, __sk_common.skc_dport));
	to->netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	to->bytes_sent = BPF_CORE_READ(tp, bytes_sent);
	to->bytes_acked = BPF_CORE_READ(tp, bytes_acked);
	to->bytes_received = BPF_CORE_READ(tp, bytes_received);
	to->bytes_retrans = BPF_CORE_READ(tp, bytes_retrans);
	to->segs_out = BPF_CORE_READ(tp, segs_out);
	to->segs_in = BPF_CORE_READ(tp, segs_in);
	to->data_segs_out = BPF_CORE_READ(tp, data_segs_out);
	to->data_segs_in = BPF_CORE_READ(tp, data_segs_in);
	to->total_retrans = BPF_CORE_READ(tp, total_retrans);
	to->dsack_dups = BPF_CORE_READ(tp, dsack_dups);
	to->reord_seen = BPF_CORE_READ(tp, reord_seen);
	to->rcv_ooopack = BPF_CORE_READ(tp, rcv_ooopack);
	to->delivered = BPF_CORE_READ(tp, delivered);
	to->delivered_ce = BPF_CORE_READ(tp, delivered_ce);
	to->srtt_us = BPF_CORE_READ(tp, srtt_us) >> 3;
	to->min_rtt_us = BPF_CORE_READ(tp, rtt_min.s[0].v);
	bpf_ringbuf_submit(to, 0);
}

PROBE(set_state, "inet_sock_set_state")
{
	struct sock *sk = (struct sock *)ctx[0];
	u32 old_state = ctx[1], new_state = ctx[2];
	u64 key = address_of((u64)sk);
	struct start fresh = {}, *start;

	/* A new connection of a server begins as a copy of the listening socket. */
	if (!active || (old_state == TCP_LISTEN && new_state != TCP_SYN_RECV) || !is_in_namespace(sk))
		return;
	/* The ports are not yet known when the SYN arrives. */
	switch (new_state) {
	case TCP_SYN_SENT:
		set_process(&fresh);
		/* fallthrough */
	case TCP_SYN_RECV:
		fresh.began_ns = bpf_ktime_get_ns();
		bpf_map_update_elem(&starts, &key, &fresh, BPF_ANY);
		break;
	case TCP_ESTABLISHED:
		start = bpf_map_lookup_elem(&starts, &key);
		if (start)
			start->established_ns = bpf_ktime_get_ns();
		break;
	case TCP_FIN_WAIT1:
	case TCP_LAST_ACK:
		start = bpf_map_lookup_elem(&starts, &key);
		if (start && !start->pid)
			set_process(start);
		break;
	case TCP_CLOSE:
		if (is_wanted(sk))
			report(sk, old_state);
		break;
	}
}

/* A reset ends the connection: the reason is reported with its end. */
static __always_inline void note_reset(struct sock *sk, u32 reset)
{
	u64 key = address_of((u64)sk);
	struct start *start = bpf_map_lookup_elem(&starts, &key);
	struct start earlier = { .reset = reset };

	if (start)
		start->reset = reset;
	else /* It began before the measurement. */
		bpf_map_update_elem(&starts, &key, &earlier, BPF_NOEXIST);
}

/* Sockets without a full structure (SYNs, TIME-WAIT) have no end that is reported. */
static __always_inline bool is_full(struct sock *sk)
{
	u32 state = BPF_CORE_READ(sk, __sk_common.skc_state);

	return state != TCP_LISTEN && state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV;
}

PROBE(reset_received, "tcp_receive_reset")
{
	struct sock *sk = (struct sock *)ctx[0];

	if (active && is_in_namespace(sk) && is_wanted(sk))
		note_reset(sk, RESET_RECEIVED);
}

PROBE(reset_sent, "tcp_send_reset")
{
	struct sock *sk = (struct sock *)ctx[0];

	/* Without a socket: a segment for a port on which nothing listens. */
	if (active && sk && is_full(sk) && is_in_namespace(sk) && is_wanted(sk))
		note_reset(sk, RESET_SENT);
}

#define CA_CWR 2
#define CA_RECOVERY 3
#define CA_LOSS 4

static __always_inline u32 state_of(struct sock *sk)
{
	return BPF_CORE_READ_BITFIELD_PROBED((struct inet_connection_sock *)sk, icsk_ca_state);
}

/* The counts of a connection, or NULL if there is no room or if it has no cookie yet. */
static __always_inline struct retransmits *counts_of(struct sock *sk)
{
	u64 cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
	struct retransmits *of, none = {};

	if (!cookie)
		return 0;
	of = bpf_map_lookup_elem(&retransmitting, &cookie);
	if (!of) {
		bpf_map_update_elem(&retransmitting, &cookie, &none, BPF_NOEXIST);
		of = bpf_map_lookup_elem(&retransmitting, &cookie);
	}
	if (!of)
		__sync_fetch_and_add(&retransmits_lost, 1);
	return of;
}

PROBE(retransmit, "tcp_retransmit_skb")
{
	struct sock *sk = (struct sock *)ctx[0];
	struct retransmits *of;
	u32 state;

	if (!active || !is_in_namespace(sk) || !is_wanted(sk))
		return;
	of = counts_of(sk);
	if (!of)
		return;
	state = state_of(sk);
	if (state == CA_LOSS)
		__sync_fetch_and_add(&of->timeout, 1);
	else if (state == CA_RECOVERY)
		__sync_fetch_and_add(&of->fast, 1);
	else
		__sync_fetch_and_add(&of->probe, 1);
}

/* The state of congestion control is about to change; since Linux 5.19. */
PROBE(cong_state, "tcp_cong_state_set")
{
	struct sock *sk = (struct sock *)ctx[0];
	u32 now = (u8)ctx[1], before;
	struct retransmits *of;

	if (!active || now < CA_CWR || !is_in_namespace(sk) || !is_wanted(sk))
		return;
	before = state_of(sk);
	if (now == before)
		return;
	of = counts_of(sk);
	if (!of)
		return;
	if (now == CA_LOSS)
		__sync_fetch_and_add(&of->timeouts, 1);
	else if (now == CA_RECOVERY)
		__sync_fetch_and_add(&of->recoveries, 1);
	else
		__sync_fetch_and_add(&of->marks, 1);
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
