/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets that Open vSwitch has sent to user space.
 *
 * On a flow-table miss the datapath copies the packet to ovs-vswitchd and frees the sk_buff; the
 * answer comes with the packet's bytes, for which it makes a new sk_buff. So the packet's state is
 * kept meanwhile, and found again by what the headers say (print.h). Packets that print the same are
 * answered in their order.
 *
 * Of a packet that was to be segmented (TCP, or UDP by UDP_SEGMENT) each segment comes back, in any
 * order: the first of them goes on as the packet, the others are the same packet still and are not
 * looked at.
 */
#ifndef NEARPATH_UPCALL_H
#define NEARPATH_UPCALL_H

#include "stages_packet.h"
#include "print.h"

/* So many that print the same can be under way. */
#define UPCALL_WAYS 16
#define UPCALL_BUCKET_BITS (UPCALL_BITS - 4)
#define ANSWERED 2ULL

/* Whether the answers can be observed; without that a packet ends where user space gets it. */
const volatile bool has_upcall_answers;

struct upcall {
	u64 key; /* the print, which is odd; 0: free; ANSWERED: being so just now */
	u64 rest; /* what more is known of the packet's bytes, or 0 */
	u64 tag; /* address of the sk_buff that was copied, or 0 once it is freed */
	u64 ns; /* when, and where */
	u64 group;
	u64 begin_ns; /* of its path, and where that was */
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

/* What of a flow was segmented for user space. */
struct segments {
	u64 flow, ns;
	u32 first, end; /* of TCP: sequence numbers */
	s32 further; /* of UDP: segments that are still to come back, beside the first ones */
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

/* Remembers which segments will come back, beside those of the same flow that are on their way. */
static __always_inline void enter_segments(struct print *print, u32 segment, u32 state, u64 ns)
{
	struct segments *s = segments_of(print->flow);
	u32 end = print->sequence + print->length;

	if (!s)
		return;
	if (s->flow != print->flow || ns - s->ns >= PACKET_STALE_NS) {
		s->flow = print->flow;
		s->first = print->sequence;
		s->end = end;
		s->further = 0;
	}
	s->ns = ns;
	s->state = state;
	if (print->protocol == IPPROTO_UDP) {
		__sync_fetch_and_add(&s->further, (print->length - 1) / segment);
		return;
	}
	if ((s32)(print->sequence - s->first) < 0)
		s->first = print->sequence;
	if ((s32)(end - s->end) > 0)
		s->end = end;
}

/* Where the trail of the packet in a bucket's way is kept. */
static __always_inline u32 place_of(u64 key, u32 way)
{
	return (key >> (64 - UPCALL_BUCKET_BITS)) * UPCALL_WAYS + way;
}

/* Enters an upcall; in a full bucket it takes the place of the oldest, which is lost. */
static __noinline u32 enter_upcall(struct cpu *cpu, struct upcall *new)
{
	struct upcall *way, *place;
	struct upcalls *bucket;
	u32 number = 0;

	if (!cpu || !new)
		return 0;
	bucket = bucket_of(new->key);
	if (!bucket)
		return 0;
	/* A loop: unrolled, the addresses of all ways lie on the stack, of which there are 512 bytes for all calls. */
#pragma clang loop unroll(disable)
	for (u32 i = 1; i < UPCALL_WAYS; i++) {
		place = &bucket->ways[number & (UPCALL_WAYS - 1)];
		way = &bucket->ways[i];
		if (place->key && (!way->key || way->ns < place->ns))
			number = i;
	}
	place = &bucket->ways[number & (UPCALL_WAYS - 1)];
	if (place->key && (place->state == PACKET_RX || place->state == PACKET_TX) &&
	    new->ns - place->ns < PACKET_STALE_NS)
		COUNT(cpu, collided);
	if (new->tag)
		keep_trail(new->tag, place_of(new->key, number));
	*place = *new;
	return 0;
}

/* The packet is on its way to user space. */
static __noinline u32 begin_upcall(struct packet *p, struct cpu *cpu, u64 pointer)
{
	struct print print;
	struct upcall new = {};
	u32 segment;

	if (!p || !cpu)
		return 0;
	print_known(pointer, &print);
	if (!print.flow)
		return 0;
	new.key = key_of(&print);
	new.rest = print.rest;
	new.tag = p->state == PACKET_RX || p->state == PACKET_TX ? p->tag : 0;
	new.ns = p->last_ns;
	new.cpu = p->last_cpu;
	new.group = p->group;
	new.begin_ns = p->begin_ns;
	new.begin_cpu = p->begin_cpu;
	new.begin_stage = p->begin_stage;
	new.state = p->state;
	segment = segment_of((struct sk_buff *)pointer);
	if (print.length && segment)
		enter_segments(&print, segment, p->state, new.ns);
	return enter_upcall(cpu, &new);
}

/* The sk_buff that was copied is freed; if it is dropped, user space did not get the copy. */
static __noinline u32 freed_in_upcall(u64 pointer, u32 drop)
{
	u64 tag = address_of(pointer), key;
	struct upcalls *bucket;
	struct print print;

	print_known(pointer, &print);
	if (!print.flow)
		return 0;
	key = key_of(&print);
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
 * Whether the packet of an upcall waits for its answer, and has not gone on meanwhile, as one does
 * that is only shown to user space. `tag` is what the upcall had.
 */
static __always_inline bool is_awaiting(struct upcall *upcall, u64 tag)
{
	struct packet *p;

	if (!tag)
		return true;
	/*
	 * The answer may be quicker than the CPU that is about to free the sk_buff. It is that CPU which
	 * empties the slot: here the address may be another packet's as soon as it was looked at.
	 */
	p = packet_slot(tag);
	if (p && p->tag == tag && in_upcall(p))
		return true;
	/* Or as quick: freed_in_upcall() says so before the packet is finished. */
	return !*(volatile u64 *)&upcall->tag;
}

/* The oldest upcall with a print. */
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

/* Which state a packet has of which user space gives back a further segment. */
static __always_inline u32 ignored_segment(struct print *print)
{
	struct segments *s = segments_of(print->flow);

	if (!s || s->flow != print->flow || !print->length)
		return PACKET_FREE;
	if (print->protocol == IPPROTO_UDP) {
		/* Two CPUs may take the last one: it is a packet too many that is left out. */
		if (s->further <= 0)
			return PACKET_FREE;
		__sync_fetch_and_add(&s->further, -1);
	} else if (print->sequence - s->first >= s->end - s->first) {
		return PACKET_FREE;
	}
	return s->state == PACKET_RX || s->state == PACKET_RX_IGNORED ? PACKET_RX_IGNORED : PACKET_TX_IGNORED;
}

/* A packet goes on with its answer. */
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

/* User space gives a packet back. */
static __noinline u32 end_upcall(struct cpu *cpu, u64 pointer, u64 now)
{
	u64 tag = address_of(pointer), key;
	struct upcall *found, upcall;
	struct upcalls *bucket;
	struct print print;
	struct packet *p;
	u32 state, way = 0;

	if (!cpu)
		return 0;
	print_frame(pointer, &print);
	if (!print.flow)
		return 0;
	key = key_of(&print);
	bucket = bucket_of(key);
	p = packet_slot(tag);
	if (!bucket || !p)
		return 0;
	/* What had this address was freed unseen. */
	if (p->tag == tag)
		finish(p);
	found = find_upcall(bucket, key, print.rest, &way);
	if (!found) {
		state = ignored_segment(&print);
		if (state)
			claim_slot(p, cpu, tag, state, now);
		return 0;
	}
	upcall = *found;
	found->key = ANSWERED;
	if (is_awaiting(found, upcall.tag)) {
		claim_slot(p, cpu, tag, upcall.state, now);
		if (upcall.state == PACKET_RX || upcall.state == PACKET_TX) {
			resume_trail(place_of(key, way), tag);
			go_on(p, cpu, &upcall, now);
		}
	}
	found->key = 0;
	return 0;
}

#endif
