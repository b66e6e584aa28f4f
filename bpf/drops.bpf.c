// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "drops": packets that the kernel drops (kfree_skb), by reason, function, device and
 * protocol, and by flow.
 *
 * Both maps have a fixed size; what does not fit is counted as such. Packets that do not match the filter are
 * counted as well, because the kernel's own counters, which the results are compared with, have no filter.
 */
#include "drops.h"

char LICENSE[] SEC("license") = "GPL";

#define DROPS_MAX 4096
#define DROP_FLOWS_MAX 8192

struct drop_key {
	u64 location;
	u32 reason;
	u32 netns;
	u32 ifindex;
	u16 ethertype;
	u8 protocol; /* of IP; 0: not read */
	u8 version; /* of IP */
};

struct drop_count {
	u64 packets, bytes; /* that match the filter */
	u64 all; /* including those that do not */
	u64 described; /* that were looked at, of those that match */
	char dev[DEVICE_NAME];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DROPS_MAX);
	__type(key, struct drop_key);
	__type(value, struct drop_count);
} drops SEC(".maps");

struct flow_key {
	u64 location;
	struct tuple flow;
	u32 reason;
	u32 netns;
};

struct flow_count {
	u64 packets, bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DROP_FLOWS_MAX);
	__type(key, struct flow_key);
	__type(value, struct flow_count);
} flows SEC(".maps");

/*
 * In a flood of drops, one of many is described and stands for those before it: at least so much time is to pass
 * from one to the next, of all CPUs; 0: each is described.
 */
const volatile u64 least_gap_ns;

/* Drops described between two looks at the clock. */
#define BATCH 64
/* One of at most about 1 << this is described, */
#define GAP_SHIFT_MAX 12
/* and one after so much time in any case. */
#define GAP_JIFFIES 10

struct gap {
	u64 ended; /* jiffies */
	u32 left, passed; /* drops that are not described */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct gap);
} gaps SEC(".maps");

/* Written by all CPUs without locks: a value that is lost only delays a change of the gap. */
volatile u32 gap_shift, described;
volatile u64 batch_began;
u64 extrapolated; /* drops that others stand for */

volatile u32 active;
u64 unplaced, unplaced_bytes; /* packets that match the filter and did not fit in drops */
u64 unplaced_all; /* the same, including those that do not match */
u64 unplaced_flows; /* packets that did not fit in flows */
u64 not_packets; /* sk_buffs that are not packets: netlink, Unix sockets */

/* One drop. */
struct drop {
	struct drop_site site;
	struct drop_key key;
	struct flow_key flow;
	u64 bytes;
	u64 weight; /* drops that it stands for, with itself */
	bool wanted;
};

static __always_inline void adapt_gap(void)
{
	u64 now, took, least = BATCH * least_gap_ns;
	u32 shift;

	if (++described % BATCH)
		return;
	now = bpf_ktime_get_ns();
	took = now - batch_began;
	batch_began = now;
	/* Read once: others write it, and it must not leave its range. */
	shift = gap_shift;
	if (took < least && shift < GAP_SHIFT_MAX)
		gap_shift = shift + 1;
	else if (took > 5 * least / 2 && shift)
		gap_shift = shift - 1;
}

/* How many drops this one stands for; 0: another one does. The gaps are random, so that no pattern escapes. */
static __always_inline u64 weight_of_drop(void)
{
	u64 now, weight = 1;
	u32 zero = 0, shift;
	struct gap *gap;

	if (!least_gap_ns)
		return 1;
	gap = bpf_map_lookup_elem(&gaps, &zero);
	if (!gap)
		return 1;
	now = bpf_jiffies64();
	if (gap->left && now - gap->ended < GAP_JIFFIES) {
		gap->left--;
		gap->passed++;
		return 0;
	}
	adapt_gap();
	/* What comes when the flood is over stands for itself: those before it are counted as not placed. */
	if (gap->left)
		__sync_fetch_and_add(&unplaced_all, gap->passed);
	else
		weight += gap->passed;
	if (gap->passed)
		__sync_fetch_and_add(&extrapolated, gap->passed);
	gap->passed = 0;
	shift = gap_shift;
	gap->left = shift ? bpf_get_prandom_u32() % (2U << (shift & 15)) : 0;
	gap->ended = now;
	return weight;
}

static __always_inline bool is_direction(struct sk_buff *skb)
{
	bool sent;

	if ((filter.directions & 3) == 3)
		return true;
	/* Received means that it came from a device, forwarded packets included. */
	sent = !BPF_CORE_READ(skb, skb_iif) && BPF_CORE_READ(skb, sk);
	return filter.directions & (sent ? 2 : 1);
}

static __always_inline bool is_wanted(struct drop *d, struct sk_buff *skb, u64 header, u32 version)
{
	if (filter.ifindex && d->site.ifindex != filter.ifindex)
		return false;
	if (filter.netns && d->site.netns != filter.netns)
		return false;
	if (!is_direction(skb))
		return false;
	return !filter.headers || (version && match_headers(header, version) == MATCH);
}

static __always_inline void count_drop(struct drop *d)
{
	struct drop_count *count = bpf_map_lookup_elem(&drops, &d->key);

	if (!count) {
		struct drop_count first = {};

		name_drop_device(first.dev, &d->site);
		bpf_map_update_elem(&drops, &d->key, &first, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&drops, &d->key);
	}
	if (!count) {
		__sync_fetch_and_add(&unplaced_all, d->weight);
		if (d->wanted) {
			__sync_fetch_and_add(&unplaced, d->weight);
			__sync_fetch_and_add(&unplaced_bytes, d->weight * d->bytes);
		}
		return;
	}
	__sync_fetch_and_add(&count->all, d->weight);
	if (d->wanted) {
		__sync_fetch_and_add(&count->packets, d->weight);
		__sync_fetch_and_add(&count->bytes, d->weight * d->bytes);
		__sync_fetch_and_add(&count->described, 1);
	}
}

static __always_inline void count_flow(struct drop *d)
{
	struct flow_count *count = bpf_map_lookup_elem(&flows, &d->flow);

	if (!count) {
		struct flow_count first = {};

		bpf_map_update_elem(&flows, &d->flow, &first, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&flows, &d->flow);
	}
	if (!count) {
		__sync_fetch_and_add(&unplaced_flows, d->weight);
		return;
	}
	__sync_fetch_and_add(&count->packets, d->weight);
	__sync_fetch_and_add(&count->bytes, d->weight * d->bytes);
}

PROBE(kfree_skb, "kfree_skb")
{
	struct sk_buff *skb = (struct sk_buff *)address_of(ctx[0]);
	struct drop d = {};
	u64 header = 0;
	u32 version;

	if (!active)
		return;
	d.weight = weight_of_drop();
	if (!d.weight)
		return;
	d.key.ethertype = bpf_ntohs(BPF_CORE_READ(skb, protocol));
	find_drop_site(&d.site, skb, drop_rx_sk(ctx));
	if (!d.key.ethertype && !d.site.ifindex) {
		__sync_fetch_and_add(&not_packets, d.weight);
		return;
	}
	version = find_ip_header(skb, d.key.ethertype, &header);
	if (version && !(version == 4 ? read_ipv4(header, &d.flow.flow) : read_ipv6(header, &d.flow.flow)))
		version = 0;
	d.key.location = d.flow.location = ctx[1];
	d.key.reason = d.flow.reason = drop_reason(ctx);
	d.key.netns = d.flow.netns = d.site.netns;
	d.key.ifindex = d.site.ifindex;
	if (version) {
		d.key.protocol = d.flow.flow.protocol;
		d.key.version = version;
	}
	d.bytes = BPF_CORE_READ(skb, len);
	d.wanted = is_wanted(&d, skb, header, version);
	count_drop(&d);
	if (d.wanted && version)
		count_flow(&d);
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
