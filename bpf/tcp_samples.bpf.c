// SPDX-License-Identifier: GPL-2.0-only
/*
 * For the instrument "tcp" with the detail "full": what only each packet shows. The samples of the round-trip time, how
 * long data waited in the receive queue and on which CPU it was read, and closed windows. One program runs for each
 * segment that an established connection receives, one for each part of a receive call that copies data.
 *
 * The kernel calls both with the socket locked, so that a connection's slot has one writer at a time.
 */
#include "histogram_fine.h"
#include "probe.h"
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

#define SLOT_BITS 11
/* Segments of a connection whose wait is measured at the same time. */
#define MARKS 64
/* A slot not used for this long may be taken by another connection. */
#define STALE_NS 5000000000ULL
#define NO_CPU (~0U)

/* Which connections; 0: all. Set by user space. */
const volatile u32 only_netns;
const volatile u16 wanted_sport, wanted_dport, wanted_port;

volatile u32 active;
/* Incremented at each pause: what was remembered before it does not continue. */
volatile u32 epoch;
u64 collided; /* segments of connections without a slot */
u64 unmarked; /* segments received while all marks of their connection were in use */
u64 runs; /* segments and reads observed */

/* Data in the receive queue: its first sequence number, and when it arrived. */
struct mark {
	u64 arrived_ns;
	u64 seq;
};

/* A connection; the layout is shared with crates/instruments/src/tcp/samples.rs. */
struct sampled {
	u64 sk; /* its address; 0: free */
	u64 cookie; /* 0: sock_diag has not reported it yet */
	u64 used_ns; /* when it was used last */
	u32 ports; /* both, to recognize a new connection at the same address */
	u32 epoch;
	u32 srtt, mdev; /* the kernel's estimates after the last segment: 8 x µs, 4 x µs */
	u32 peer_window_closed, own_window_closed;
	u32 processed_on, read_on; /* CPUs; ~0: none yet */
	u64 reads, reads_elsewhere; /* on another CPU than the last segment was processed on */
	u64 peer_zero_windows, own_zero_windows;
	u64 max_rtt_ns, max_wait_ns;
	u32 first_mark, marks_used;
	struct mark marks[MARKS];
	u32 rtt[FINE_BUCKETS];
	u32 wait[HISTOGRAM_BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << SLOT_BITS);
	__type(key, u32);
	__type(value, struct sampled);
} connections SEC(".maps");

/* The fields of a socket that are read, from the arguments' types or by a helper. */
struct seen {
	u32 ports;
	u32 netns;
	u32 srtt, mdev, snd_wnd, rcv_wnd, rcv_nxt, copied_seq;
};

static __always_inline bool see(u64 *ctx, const bool direct, struct seen *to)
{
	struct sock *sk = (struct sock *)ctx[0];

	to->ports = (u32)GET(direct, sk, __sk_common.skc_dport) << 16 | GET(direct, sk, __sk_common.skc_num);
	to->netns = only_netns ? BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum) : 0;
	if (direct) {
		struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

		if (!tp)
			return false;
		to->srtt = tp->srtt_us;
		to->mdev = tp->mdev_us;
		to->snd_wnd = tp->snd_wnd;
		to->rcv_wnd = tp->rcv_wnd;
		to->rcv_nxt = tp->rcv_nxt;
		to->copied_seq = tp->copied_seq;
	} else {
		struct tcp_sock *tp = (struct tcp_sock *)sk;

		to->srtt = BPF_CORE_READ(tp, srtt_us);
		to->mdev = BPF_CORE_READ(tp, mdev_us);
		to->snd_wnd = BPF_CORE_READ(tp, snd_wnd);
		to->rcv_wnd = BPF_CORE_READ(tp, rcv_wnd);
		to->rcv_nxt = BPF_CORE_READ(tp, rcv_nxt);
		to->copied_seq = BPF_CORE_READ(tp, copied_seq);
	}
	return true;
}

static __always_inline bool is_wanted(const struct seen *seen)
{
	u16 sport = seen->ports, dport = bpf_ntohs(seen->ports >> 16);

	return (!only_netns || seen->netns == only_netns) && (!wanted_sport || sport == wanted_sport) &&
	       (!wanted_dport || dport == wanted_dport) &&
	       (!wanted_port || sport == wanted_port || dport == wanted_port);
}

/* One of the two slots that a connection may have. */
static __always_inline struct sampled *slot_at(u64 sk, u32 which)
{
	u64 hash = (sk >> 6) * 0x9e3779b97f4a7c15ULL;
	u32 index = (which ? hash >> 32 : hash >> 48) & ((1 << SLOT_BITS) - 1);

	return bpf_map_lookup_elem(&connections, &index);
}

/* That slot, if it is the connection's. */
static __always_inline struct sampled *slot_of(u64 sk, u32 ports, u32 which)
{
	struct sampled *slot = slot_at(sk, which);

	return slot && slot->sk == sk && slot->ports == ports ? slot : 0;
}

/* The same, if it may be given to the connection. */
static __always_inline struct sampled *free_slot(u64 sk, u64 now, u32 which)
{
	struct sampled *slot = slot_at(sk, which);

	return slot && (!slot->sk || slot->sk == sk || now - slot->used_ns > STALE_NS) ? slot : 0;
}

static __always_inline struct sampled *find(u64 sk, u32 ports)
{
	struct sampled *slot = slot_of(sk, ports, 0);

	return slot ? slot : slot_of(sk, ports, 1);
}

/* What was remembered of the connection does not continue. */
static __always_inline void forget(struct sampled *slot)
{
	slot->epoch = epoch;
	slot->srtt = 0;
	slot->mdev = 0;
	slot->first_mark = 0;
	slot->marks_used = 0;
	slot->peer_window_closed = 0;
	slot->own_window_closed = 0;
}

/* Gives a connection a slot. */
static __always_inline struct sampled *claim(u64 sk, u32 ports, u64 now)
{
	struct sampled *slot = free_slot(sk, now, 0);

	if (!slot)
		slot = free_slot(sk, now, 1);
	if (!slot)
		return 0;
	/* Those of the connection that had the slot before. */
	for (u32 i = 0; slot->sk && i < FINE_BUCKETS; i++) {
		slot->rtt[i] = 0;
		slot->wait[i & (HISTOGRAM_BUCKETS - 1)] = 0;
		/* Else the compiler makes it a call of memset(), which does not exist here. */
		barrier();
	}
	slot->sk = sk;
	slot->ports = ports;
	slot->cookie = 0;
	slot->processed_on = NO_CPU;
	slot->read_on = NO_CPU;
	slot->reads = 0;
	slot->reads_elsewhere = 0;
	slot->peer_zero_windows = 0;
	slot->own_zero_windows = 0;
	slot->max_rtt_ns = 0;
	slot->max_wait_ns = 0;
	forget(slot);
	return slot;
}

/*
 * The sample that changed the smoothed round-trip time: it is srtt' = srtt + sample - srtt / 8, in eighths of a
 * microsecond (tcp_rtt_estimator, net/ipv4/tcp_input.c). A sample equal to the mean changes only the deviation.
 */
static __always_inline void sample_rtt(struct sampled *slot, const struct seen *seen)
{
	s32 us = seen->srtt - slot->srtt + (slot->srtt >> 3);
	bool is_new = slot->srtt && (seen->srtt != slot->srtt || seen->mdev != slot->mdev);
	u32 bucket;
	u64 ns;

	slot->srtt = seen->srtt;
	slot->mdev = seen->mdev;
	if (!is_new || us < 0)
		return;
	ns = (u64)us * 1000;
	bucket = histogram_fine_bucket(ns);
	if (bucket < FINE_BUCKETS)
		slot->rtt[bucket]++;
	if (ns > slot->max_rtt_ns)
		slot->max_rtt_ns = ns;
}

/* The peer's window is as the segment before left it. */
static __always_inline void count_peer_zero_windows(struct sampled *slot, const struct seen *seen)
{
	u32 closed = !seen->snd_wnd;

	slot->peer_zero_windows += closed && !slot->peer_window_closed;
	slot->peer_window_closed = closed;
}

/* The own one is closed by an acknowledgement, and opened after data was read. */
static __always_inline void count_own_zero_windows(struct sampled *slot, const struct seen *seen)
{
	u32 closed = !seen->rcv_wnd;

	slot->own_zero_windows += closed && !slot->own_window_closed;
	slot->own_window_closed = closed;
}

/* A segment arrives at an established connection; the kernel has not processed it yet. */
PROBE(segment, "tcp_probe")
{
	struct tcp_skb_cb *cb = (struct tcp_skb_cb *)((struct sk_buff *)ctx[1])->cb;
	u64 sk = address_of(ctx[0]), now;
	struct seen seen = {};
	struct sampled *slot;
	u32 seq, at;

	if (!active || !see(ctx, direct, &seen) || !is_wanted(&seen))
		return;
	now = bpf_ktime_get_ns();
	slot = find(sk, seen.ports);
	if (!slot)
		slot = claim(sk, seen.ports, now);
	if (!slot) {
		__sync_fetch_and_add(&collided, 1);
		return;
	}
	__sync_fetch_and_add(&runs, 1);
	if (slot->epoch != epoch)
		forget(slot);
	slot->used_ns = now;
	if (!slot->cookie)
		slot->cookie = BPF_CORE_READ((struct sock *)ctx[0], __sk_common.skc_cookie.counter);
	slot->processed_on = bpf_get_smp_processor_id();
	sample_rtt(slot, &seen);
	count_peer_zero_windows(slot, &seen);
	count_own_zero_windows(slot, &seen);

	seq = BPF_CORE_READ(cb, seq);
	if (seq != seen.rcv_nxt || seq == BPF_CORE_READ(cb, end_seq))
		return;
	if (slot->marks_used >= MARKS) {
		__sync_fetch_and_add(&unmarked, 1);
		return;
	}
	at = (slot->first_mark + slot->marks_used) & (MARKS - 1);
	slot->marks[at].seq = seq;
	slot->marks[at].arrived_ns = now;
	slot->marks_used++;
}

/* A receive call has copied data. */
PROBE(read, "tcp_rcv_space_adjust")
{
	u64 sk = address_of(ctx[0]), now, waited;
	struct seen seen = {};
	struct sampled *slot;
	struct mark *mark;
	u32 cpu;

	if (!active || !see(ctx, direct, &seen) || !is_wanted(&seen))
		return;
	slot = find(sk, seen.ports);
	if (!slot || slot->epoch != epoch)
		return;
	__sync_fetch_and_add(&runs, 1);
	now = bpf_ktime_get_ns();
	cpu = bpf_get_smp_processor_id();
	slot->used_ns = now;
	slot->read_on = cpu;
	slot->reads++;
	count_own_zero_windows(slot, &seen);
	slot->reads_elsewhere += slot->processed_on != NO_CPU && slot->processed_on != cpu;
	for (u32 i = 0; i < MARKS; i++) {
		if (!slot->marks_used)
			break;
		mark = &slot->marks[slot->first_mark & (MARKS - 1)];
		/* The first byte of the segment has not been read yet. */
		if ((s32)((u32)mark->seq - seen.copied_seq) >= 0)
			break;
		waited = now - mark->arrived_ns;
		slot->wait[histogram_bucket(waited) & (HISTOGRAM_BUCKETS - 1)]++;
		if (waited > slot->max_wait_ns)
			slot->max_wait_ns = waited;
		slot->first_mark = (slot->first_mark + 1) & (MARKS - 1);
		slot->marks_used--;
	}
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
