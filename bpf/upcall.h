/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets that Open vSwitch has sent to user space.
 *
 * On a flow-table miss the datapath copies the packet to ovs-vswitchd and frees the sk_buff; the answer
 * contains the packet's bytes, for which a new sk_buff is allocated. So the packet's state is kept in the
 * meantime, and found again by its fingerprint (fingerprint.h). Packets with the same fingerprint are answered
 * in order.
 *
 * If the packet was to be segmented (TCP, or UDP with UDP_SEGMENT), its segments come back in any order. The
 * first segment continues as the packet; the others are the same packet and are not tracked.
 */
#ifndef NEARPATH_UPCALL_H
#define NEARPATH_UPCALL_H

#include "stages_packet.h"
#include "fingerprint.h"

/* This many packets with the same fingerprint can be in flight. */
#define UPCALL_WAYS 16
#define UPCALL_BUCKET_BITS (UPCALL_BITS - 4)
#define ANSWERED 2ULL
#define ENTERING 4ULL

/* Whether the answers can be observed; if not, a packet ends when user space receives it. */
const volatile bool has_upcall_answers;

struct upcall {
	u64 key; /* the fingerprint, which is odd; 0: free; ANSWERED: being answered; ENTERING: being written */
	u64 rest; /* a hash of the remaining bytes of the packet, or 0 */
	u64 tag; /* address of the copied sk_buff, or 0 once it is freed */
	u64 ns; /* when, and on which CPU */
	u64 group;
	u64 begin_ns; /* start of its path, and its CPU */
	u32 begin_cpu;
	u32 cpu;
	u8 begin_stage;
	u8 unused[3];
	u32 state;
};

struct upcalls {
	struct upcall ways[UPCALL_WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << UPCALL_BUCKET_BITS);
	__type(key, u32);
	__type(value, struct upcalls);
} upcalls SEC(".maps");

/* What was segmented for user space, per flow. */
struct segments {
	u64 flow, ns;
	u32 first, end; /* TCP: sequence numbers */
	s32 further; /* UDP: segments that are still to come back, besides the first ones */
	u32 state;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << UPCALL_BUCKET_BITS);
	__type(key, u32);
	__type(value, struct segments);
} segments SEC(".maps");

static __always_inline struct upcalls *bucket_of(u64 key)
{
	u32 bucket = key >> (64 - UPCALL_BUCKET_BITS);

	return bpf_map_lookup_elem(&upcalls, &bucket);
}

static __always_inline struct segments *segments_of(u64 flow)
{
	u32 slot = flow >> (64 - UPCALL_BUCKET_BITS);

	return bpf_map_lookup_elem(&segments, &slot);
}

/* Records which segments will come back, besides those of the same flow already in flight. */
static __always_inline void enter_segments(struct fingerprint *fingerprint, u32 segment, u32 state, u64 ns)
{
	struct segments *s = segments_of(fingerprint->flow);
	u32 end = fingerprint->sequence + fingerprint->length;

	if (!s)
		return;
	if (s->flow != fingerprint->flow || ns - s->ns >= PACKET_STALE_NS) {
		s->flow = fingerprint->flow;
		s->first = fingerprint->sequence;
		s->end = end;
		s->further = 0;
	}
	s->ns = ns;
	s->state = state;
	if (fingerprint->protocol == IPPROTO_UDP) {
		__sync_fetch_and_add(&s->further, (fingerprint->length - 1) / segment);
		return;
	}
	if ((s32)(fingerprint->sequence - s->first) < 0)
		s->first = fingerprint->sequence;
	if ((s32)(end - s->end) > 0)
		s->end = end;
}

/* Index of the recorded path of the packet in a bucket's way. */
static __always_inline u32 path_index(u64 key, u32 way)
{
	return (key >> (64 - UPCALL_BUCKET_BITS)) * UPCALL_WAYS + way;
}

/*
 * Writes an upcall into its way. Another CPU that looks for one with the same fingerprint meanwhile finds this
 * one only when it is whole, with its time and not that of the way's last upcall (stores are ordered on x86).
 */
static __always_inline void write_upcall(struct upcall *way, struct upcall *new)
{
	u64 key = new->key;

	/* First the time: a way that is being written is not the oldest of a full bucket. */
	*(volatile u64 *)&way->ns = new->ns;
	*(volatile u64 *)&way->key = ENTERING;
	new->key = ENTERING;
	barrier();
	*way = *new;
	barrier();
	*(volatile u64 *)&way->key = key;
}

/* Records an upcall; in a full bucket it replaces the oldest, which is lost. */
static __noinline u32 enter_upcall(struct cpu *cpu, struct upcall *new)
{
	/* CPUs that enter at the same time prefer different ways. */
	u32 first = bpf_get_smp_processor_id(), number = first;
	struct upcall *way, *slot;
	struct upcalls *bucket;

	if (!cpu || !new)
		return 0;
	bucket = bucket_of(new->key);
	if (!bucket)
		return 0;
	/* A loop: unrolled, the addresses of all ways would be on the stack, which is 512 bytes for all calls. */
#pragma clang loop unroll(disable)
	for (u32 i = 1; i < UPCALL_WAYS; i++) {
		slot = &bucket->ways[number & (UPCALL_WAYS - 1)];
		way = &bucket->ways[(first + i) & (UPCALL_WAYS - 1)];
		if (slot->key && (!way->key || way->ns < slot->ns))
			number = first + i;
	}
	number &= UPCALL_WAYS - 1;
	slot = &bucket->ways[number];
	if (slot->key && (slot->state == PACKET_RX || slot->state == PACKET_TX) &&
	    new->ns - slot->ns < PACKET_STALE_NS)
		COUNT(cpu, collided);
	if (new->tag)
		keep_packet_path(new->tag, path_index(new->key, number));
	write_upcall(slot, new);
	return 0;
}

/* The packet is sent to user space. */
static __noinline u32 begin_upcall(struct packet *p, struct cpu *cpu, u64 pointer)
{
	struct fingerprint fingerprint;
	struct upcall new = {};
	u32 segment;

	if (!p || !cpu)
		return 0;
	fingerprint_known(pointer, &fingerprint);
	if (!fingerprint.flow)
		return 0;
	new.key = key_of(&fingerprint);
	new.rest = fingerprint.rest;
	new.tag = p->state == PACKET_RX || p->state == PACKET_TX ? p->tag : 0;
	new.ns = p->last_ns;
	new.cpu = p->last_cpu;
	new.group = p->group;
	new.begin_ns = p->begin_ns;
	new.begin_cpu = p->begin_cpu;
	new.begin_stage = p->begin_stage;
	new.state = p->state;
	segment = segment_of((struct sk_buff *)pointer);
	if (fingerprint.length && segment)
		enter_segments(&fingerprint, segment, p->state, new.ns);
	return enter_upcall(cpu, &new);
}

/* The copied sk_buff is freed; if it is dropped, user space did not get the copy. */
static __noinline u32 freed_in_upcall(u64 pointer, u32 drop)
{
	u64 tag = address_of(pointer), key;
	struct upcalls *bucket;
	struct fingerprint fingerprint;

	fingerprint_known(pointer, &fingerprint);
	if (!fingerprint.flow)
		return 0;
	key = key_of(&fingerprint);
	bucket = bucket_of(key);
	if (!bucket)
		return 0;
#pragma unroll
	for (int i = 0; i < UPCALL_WAYS; i++) {
		struct upcall *way = &bucket->ways[i];

		if (way->tag == tag) {
			if (drop)
				way->key = 0;
			way->tag = 0;
		}
	}
	return 0;
}

static __always_inline bool in_upcall(struct packet *p)
{
	return has_upcall_answers &&
	       (p->last_stage == RX_OVS_DP_UPCALL || p->last_stage == TX_OVS_DP_UPCALL);
}

/*
 * Whether the packet of an upcall waits for its answer. One that was only mirrored to user space has continued
 * in the meantime. `tag` is the tag stored in the upcall.
 */
static __always_inline bool is_awaiting(struct upcall *upcall, u64 tag)
{
	struct packet *p;

	if (!tag)
		return true;
	/*
	 * The answer may be faster than the CPU that is about to free the sk_buff. Only that CPU clears the
	 * slot: here the address may be reused as soon as it was checked.
	 */
	p = packet_slot(tag);
	if (p && p->tag == tag && in_upcall(p))
		return true;
	/* Or as fast: freed_in_upcall() sets this before the packet is finished. */
	return !*(volatile u64 *)&upcall->tag;
}

/* The oldest upcall with a fingerprint. */
static __always_inline struct upcall *find_upcall(struct upcalls *bucket, u64 key, u64 rest, u32 *number)
{
	struct upcall *way, *found = 0;
	u64 oldest = ~0ULL;

#pragma unroll
	for (int i = 0; i < UPCALL_WAYS; i++) {
		way = &bucket->ways[i];
		if (way->key == key && way->ns < oldest && (!way->rest || !rest || way->rest == rest)) {
			oldest = way->ns;
			found = way;
			*number = i;
		}
	}
	return found;
}

/* State of a packet for which user space returns a further segment. */
static __always_inline u32 ignored_segment(struct fingerprint *fingerprint)
{
	struct segments *s = segments_of(fingerprint->flow);

	if (!s || s->flow != fingerprint->flow || !fingerprint->length)
		return PACKET_FREE;
	if (fingerprint->protocol == IPPROTO_UDP) {
		/* Two CPUs may take the last one: one packet too many is then ignored. */
		if (s->further <= 0)
			return PACKET_FREE;
		__sync_fetch_and_add(&s->further, -1);
	} else if (fingerprint->sequence - s->first >= s->end - s->first) {
		return PACKET_FREE;
	}
	return s->state == PACKET_RX || s->state == PACKET_RX_IGNORED ? PACKET_RX_IGNORED : PACKET_TX_IGNORED;
}

/* A packet continues with its answer. */
static __always_inline void go_on(struct packet *p, struct cpu *cpu, struct upcall *upcall, u64 now)
{
	bool receives = upcall->state == PACKET_RX;

	p->last_stage = receives ? RX_OVS_DP_UPCALL : TX_OVS_DP_UPCALL;
	p->last_ns = upcall->ns;
	p->last_cpu = upcall->cpu;
	p->group = upcall->group;
	p->begin_ns = upcall->begin_ns;
	p->begin_cpu = upcall->begin_cpu;
	p->begin_stage = upcall->begin_stage;
	pass_before(p, cpu, bpf_get_smp_processor_id(),
		    receives ? RX_OVS_PACKET_CMD_EXECUTE : TX_OVS_PACKET_CMD_EXECUTE, now);
}

/* User space returns a packet. */
static __noinline u32 end_upcall(struct cpu *cpu, u64 pointer, u64 now)
{
	u64 tag = address_of(pointer), key;
	struct upcall *found, upcall;
	struct upcalls *bucket;
	struct fingerprint fingerprint;
	struct packet *p;
	u32 state, way = 0;

	if (!cpu)
		return 0;
	fingerprint_frame(pointer, &fingerprint);
	if (!fingerprint.flow)
		return 0;
	key = key_of(&fingerprint);
	bucket = bucket_of(key);
	p = packet_slot(tag);
	if (!bucket || !p)
		return 0;
	/* The packet previously at this address was freed unseen. */
	if (p->tag == tag)
		finish(p);
	found = find_upcall(bucket, key, fingerprint.rest, &way);
	if (!found) {
		state = ignored_segment(&fingerprint);
		if (state)
			claim_slot(p, cpu, tag, state, now);
		return 0;
	}
	upcall = *found;
	found->key = ANSWERED;
	if (is_awaiting(found, upcall.tag)) {
		claim_slot(p, cpu, tag, upcall.state, now);
		if (upcall.state == PACKET_RX || upcall.state == PACKET_TX) {
			resume_packet_path(path_index(key, way), tag);
			go_on(p, cpu, &upcall, now);
		}
	}
	found->key = 0;
	return 0;
}

#endif
