/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The watch: the receive latency of every packet, by one program at its end. User space loads these programs once more,
 * with those that record what CPUs and readers do, and without stages: they run while stages are paused.
 *
 * While any socket wants software timestamps (user space has one open, with SO_TIMESTAMPNS), the kernel stamps each
 * packet as the stack receives it: netif_rx() and netif_receive_skb(), before RPS (net_timestamp_check() in
 * net/core/dev.c, sysctl net.core.netdev_tstamp_prequeue). A reader's copy is the other end. So nothing is tracked
 * between the two, and the programs of the stages may be detached meanwhile.
 *
 * Not seen: data that is spliced, mapped or truncated instead of copied. Of TCP segments that were merged, the stamp of
 * the last one counts (tcp_try_coalesce()); of a segment that is read in parts, the first part.
 */
#ifndef NEARPATH_WATCH_H
#define NEARPATH_WATCH_H

#include "stages_reader.h"

/* The type of sk_buff.tstamp that is CLOCK_REALTIME: SKB_CLOCK_REALTIME; before 6.11 mono_delivery_time is not set. */
#define STAMP_REALTIME 0
/* A stamp that is older belongs to a packet that is to be sent, on another clock. */
#define WATCHED_LONGEST_NS 3600000000000LL

/* Packets count while this is set. */
volatile u32 watching;
/*
 * From CLOCK_TAI and from CLOCK_MONOTONIC to CLOCK_REALTIME, set by user space. The first does not change when the clock
 * is set, but programs can read it only since 6.1.
 */
volatile s64 real_from_tai_ns, real_from_monotonic_ns;

/* Packets later than `ns` are sent to user space, `left` of them at most (see struct slow in span.h). */
struct slow watch_slow;
/* Those later than this are counted. */
volatile u64 late_ns;

/* Per shard: user space adds them up. */
struct watched {
	u64 seen, unstamped, late, unused[5];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct watched);
} watched SEC(".maps");

/* CLOCK_REALTIME, as far as user space knows it. */
static __always_inline u64 now_real_ns(void)
{
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_ktime_get_tai_ns))
		return bpf_ktime_get_tai_ns() + real_from_tai_ns;
	return bpf_ktime_get_ns() + real_from_monotonic_ns;
}

/* Whether the stamp is one of reception, not of a packet to be sent. */
static __always_inline bool is_real(struct sk_buff *skb, const bool direct)
{
	struct sk_buff___mono *mono = (struct sk_buff___mono *)skb;
	struct sk_buff___type *type = (struct sk_buff___type *)skb;

	if (bpf_core_field_exists(type->tstamp_type))
		return (direct ? BPF_CORE_READ_BITFIELD(type, tstamp_type) :
				 BPF_CORE_READ_BITFIELD_PROBED(type, tstamp_type)) == STAMP_REALTIME;
	if (bpf_core_field_exists(mono->mono_delivery_time))
		return !(direct ? BPF_CORE_READ_BITFIELD(mono, mono_delivery_time) :
				  BPF_CORE_READ_BITFIELD_PROBED(mono, mono_delivery_time));
	return true;
}

/* Whether the packet is of those that are observed, from what is left of it: its device may be unknown by now. */
static __always_inline bool watch_matches(struct sk_buff *skb, u32 netns, const bool direct)
{
	u32 protocol;
	u64 at;

	if (!(filter.directions & 1) || (filter.netns && netns != filter.netns))
		return false;
	if (filter.ifindex && (u32)GET(direct, skb, skb_iif) != filter.ifindex)
		return false;
	if (!filter.headers)
		return true;
	at = address_of((u64)GET(direct, skb, head)) + GET(direct, skb, network_header);
	protocol = behind_vlan_tags(&at, bpf_ntohs(GET(direct, skb, protocol)), true);
	if (protocol != ETH_P_IP && protocol != ETH_P_IPV6)
		return false;
	return match_headers(at, protocol == ETH_P_IP ? 4 : 6) == MATCH;
}

static __always_inline u32 netns_of(struct sock *sk)
{
	return filter.netns ? BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum) : 0;
}

/* A packet that is about to be read, or has been. */
struct awaited {
	u64 sk;
	u64 tag; /* its address, or 0: none is known */
	s64 stamp; /* 0: none; see NOT_WATCHED */
	u64 group; /* if it is known before its reader is */
	u32 from_cpu; /* where it was allocated, as a rule by the device's poll */
	u32 unused;
};

/* It does not match the filter. */
#define NOT_WATCHED -1

static __always_inline void describe(struct awaited *a, struct sk_buff *skb, u32 netns, const bool direct)
{
	a->tag = address_of((u64)skb);
	a->stamp = GET(direct, skb, tstamp);
	if (a->stamp && !is_real(skb, direct))
		a->stamp = 0;
	if (!watch_matches(skb, netns, direct))
		a->stamp = NOT_WATCHED;
	a->group = per == PER_FLOW ? group_of_flow(skb, true, 0) : NO_GROUP;
	a->from_cpu = bpf_core_field_exists(skb->alloc_cpu) ? GET(direct, skb, alloc_cpu) : ~0U;
}

/* The group of a packet that its reader takes here. */
static __always_inline u64 watch_group(struct awaited *a, struct cpu *cpu)
{
	switch (per) {
	case PER_CPU:
		return bpf_get_smp_processor_id() + 1;
	case PER_NODE:
		return (u64)cpu->node + 1;
	case PER_PROCESS:
	case PER_CGROUP:
		return group_of_current();
	default:
		return a->group; /* its queue is no longer known */
	}
}

/* A packet has reached its reader, which runs here, at this stage. */
static __always_inline void watch(struct awaited *a, u32 stage)
{
	struct cpu *cpu = this_cpu();
	struct sk_buff *skb;
	struct watched *w;
	u64 group;
	u32 shard;
	s64 ns;

	if (!watching || !cpu || a->stamp == NOT_WATCHED)
		return;
	shard = cpu->shard;
	w = bpf_map_lookup_elem(&watched, &shard);
	if (!w)
		return;
	ns = now_real_ns() - a->stamp;
	if (!a->stamp || ns > WATCHED_LONGEST_NS) {
		__sync_fetch_and_add(&w->unstamped, 1);
		return;
	}
	/* Two clocks are read one after the other. */
	if (ns < 0)
		ns = 0;
	if (a->from_cpu == ~0U)
		a->from_cpu = bpf_get_smp_processor_id();
	__sync_fetch_and_add(&w->seen, 1);
	if ((u64)ns > late_ns)
		__sync_fetch_and_add(&w->late, 1);
	group = watch_group(a, cpu);
	if (group)
		count_packet(group);
	count_path(group, PATH_WATCH, a->from_cpu, ns);
	if (!budgets)
		return;
	note_reader();
	if ((u64)ns < watch_slow.ns || watch_slow.left <= 0)
		return;
	watch_slow.left--;
	/* Its address may belong to another packet by now, whose flow would be reported. */
	skb = (struct sk_buff *)a->tag;
	if ((s64)BPF_CORE_READ(skb, tstamp) != a->stamp)
		a->tag = 0;
	send_outlier(a->tag, (u64)a->from_cpu << 32 | pair(RX_SKB_TSTAMP, stage), bpf_ktime_get_ns(), ns);
}

/* A received UDP datagram. (Packets in the queues of raw, packet and ICMP sockets have skb->sk set.) */
static __always_inline bool is_datagram(struct sk_buff *skb, const bool direct)
{
	u32 protocol = bpf_ntohs(GET(direct, skb, protocol));
	u64 at = address_of((u64)GET(direct, skb, head)) + GET(direct, skb, network_header);
	u8 next = 0;

	if ((protocol != ETH_P_IP && protocol != ETH_P_IPV6) || GET(direct, skb, sk) || !GET(direct, skb, skb_iif))
		return false;
	bpf_probe_read_kernel(&next, sizeof(next), (void *)(at + (protocol == ETH_P_IP ? 9 : 6)));
	if (next == IPPROTO_UDP)
		return true;
	/* Behind extension headers. */
	return protocol == ETH_P_IPV6 && (next == IPPROTO_HOPOPTS || next == IPPROTO_DSTOPTS ||
					  next == IPPROTO_ROUTING || next == IPPROTO_FRAGMENT);
}

/*
 * UDP has copied a datagram to its reader and frees it. (Since 6.18 skb_attempt_defer_free() leaves that to the CPU that
 * allocated it, so this is not its reader's time; those kernels have the tracepoints used below.)
 */
PROBE(watch_datagram, "consume_skb")
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct cpu *cpu = this_cpu();
	struct awaited a = {};

	/* What a softirq frees was sent, forwarded or copied. */
	if (!cpu || !is_datagram(skb, direct) || is_in_softirq(cpu))
		return;
	describe(&a, skb, filter.netns ? BPF_CORE_READ(task, nsproxy, net_ns, ns.inum) : 0, direct);
	watch(&a, RX_CONSUME_SKB);
}

SEC("fentry/skb_consume_udp") int watch_datagram_entry(u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[1];
	struct awaited a = {};

	/* One that is only peeked at (MSG_PEEK) has a negative length and stays in the queue. */
	if (!measuring || (s32)ctx[2] < 0)
		return 0;
	describe(&a, skb, netns_of((struct sock *)ctx[0]), true);
	watch(&a, RX_SOCK_RECV);
	return 0;
}

/*
 * Where the function cannot be attached to, a datagram is seen while it is the next one in its socket's queue: when the
 * socket signals it, or when the receive call before it returns. One that a reader takes before either is not, and
 * counts as unstamped: it did not wait.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << SOCKET_SLOT_BITS);
	__type(key, u32);
	__type(value, struct awaited);
} awaited SEC(".maps");

static __always_inline struct awaited *awaited_slot(u64 sk)
{
	u32 slot = socket_hash(sk);

	return bpf_map_lookup_elem(&awaited, &slot);
}

/* Notes the datagram that the next receive call takes; tag is its address, or 0: there is none. */
static __always_inline void await_next(struct awaited *a, struct sock *sk, struct sk_buff *skb, u64 tag, const bool direct)
{
	a->sk = address_of((u64)sk);
	if (tag)
		describe(a, skb, netns_of(sk), direct);
	else
		a->tag = 0;
}

/* A datagram was queued. If none is known to be before it, its reader has no others and takes it next. */
PROBE(watch_ready, "sk_data_ready")
{
	struct sock *sk = (struct sock *)ctx[0];
	u64 address = address_of(ctx[0]);
	struct sk_buff *skb;
	struct awaited *a;

	if (!watching || !is_udp(sk, direct))
		return;
	a = awaited_slot(address);
	if (!a || (a->sk == address && a->tag))
		return;
	skb = GET(direct, sk, sk_receive_queue.next);
	/* An empty queue points to itself. */
	if (address_of((u64)skb) == address + bpf_core_field_offset(sk->sk_receive_queue))
		return;
	await_next(a, sk, skb, address_of((u64)skb), direct);
	/* Its reader may have taken it meanwhile. */
	if (!GET(direct, skb, prev))
		a->tag = 0;
}

PROBE(watch_receive, "sock_recv_length")
{
	struct sock *sk = (struct sock *)ctx[0];
	u64 address = address_of(ctx[0]), next;
	struct awaited taken = {}, *a;

	if (!watching || (s32)ctx[1] < 0 || (u32)ctx[2] & (MSG_PEEK | MSG_ERRQUEUE) || !is_udp(sk, direct))
		return;
	a = awaited_slot(address);
	if (!a)
		return;
	next = next_datagram(sk, direct);
	/* Not the one that is still the next. */
	if (a->sk == address && a->tag && a->tag != next)
		taken = *a;
	else if (filter.headers || filter.ifindex || netns_of(sk) != filter.netns)
		taken.stamp = NOT_WATCHED;
	await_next(a, sk, (struct sk_buff *)next, next, false);
	watch(&taken, RX_SOCK_RECV);
}

/* Data of a TCP segment is copied to its reader. */
PROBE(watch_segment, "skb_copy_datagram_iovec")
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct sock *sk = GET(direct, skb, sk);
	struct awaited a = {};

	if (!watching || !sk || !is_internet(sk, direct) || GET(direct, sk, sk_protocol) != IPPROTO_TCP)
		return;
	/* A part that is not its first. */
	if (BPF_CORE_READ((struct tcp_sock *)sk, copied_seq) != BPF_CORE_READ((struct tcp_skb_cb *)skb->cb, seq))
		return;
	if (is_peek())
		return;
	describe(&a, skb, netns_of(sk), direct);
	watch(&a, RX_SKB_COPY_DATAGRAM);
}

#endif
