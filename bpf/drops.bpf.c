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
	char dev[DEVICE_NAME];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DROPS_MAX);
	__type(key, struct drop_key);
	__type(value, struct drop_count);
} drops SEC(".maps");

struct flow_key {
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
	bool wanted;
};

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
		__sync_fetch_and_add(&unplaced_all, 1);
		if (d->wanted) {
			__sync_fetch_and_add(&unplaced, 1);
			__sync_fetch_and_add(&unplaced_bytes, d->bytes);
		}
		return;
	}
	__sync_fetch_and_add(&count->all, 1);
	if (d->wanted) {
		__sync_fetch_and_add(&count->packets, 1);
		__sync_fetch_and_add(&count->bytes, d->bytes);
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
		__sync_fetch_and_add(&unplaced_flows, 1);
		return;
	}
	__sync_fetch_and_add(&count->packets, 1);
	__sync_fetch_and_add(&count->bytes, d->bytes);
}

PROBE(kfree_skb, "kfree_skb")
{
	struct sk_buff *skb = (struct sk_buff *)address_of(ctx[0]);
	struct drop d = {};
	u64 header = 0;
	u32 version;

	if (!active)
		return;
	d.key.ethertype = bpf_ntohs(BPF_CORE_READ(skb, protocol));
	find_drop_site(&d.site, skb, drop_rx_sk(ctx));
	if (!d.key.ethertype && !d.site.ifindex) {
		__sync_fetch_and_add(&not_packets, 1);
		return;
	}
	version = find_ip_header(skb, d.key.ethertype, &header);
	if (version && !(version == 4 ? read_ipv4(header, &d.flow.flow) : read_ipv6(header, &d.flow.flow)))
		version = 0;
	d.key.location = ctx[1];
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
