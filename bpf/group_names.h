/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The queue, flow, process or cgroup that a packet belongs to, and its name.
 *
 * Groups are created when first seen, in a hash map of fixed size that is looked up by small keys and never
 * shrinks. Packets whose group does not fit are computed by user space: the total minus the groups. Queue, flow
 * and sender are known when the packet starts, the receiver at the end of its path.
 *
 * Functions here are not static, to save verification time (see packet_path.h). Older kernels verify such a
 * function even if nothing calls it, so each one first checks whether it is needed.
 */
#ifndef NEARPATH_GROUP_NAMES_H
#define NEARPATH_GROUP_NAMES_H

#include "filter.h"
#include "cgroups.h"
#include "pid_namespace.h"

enum per { PER_NONE, PER_CPU, PER_NODE, PER_QUEUE, PER_FLOW, PER_PROCESS, PER_CGROUP };

#define GROUPS_MAX 512
#define OWNER_SLOT_BITS 12

/* Groups have 55 bits; a cell adds its span number. */
#define NO_GROUP 0
#define NO_PROCESS (1ULL << 54)

struct group {
	u64 packets;
	union {
		struct {
			u32 netns, ifindex;
			u32 transmit;
			u32 number; /* plus 1; 0: not set by the driver */
			char dev[16];
		} queue;
		struct tuple flow;
		struct {
			u32 pid, unused; /* in /proc, or 0 */
			char comm[16];
		} process;
		char cgroup[CGROUP_LEVELS][CGROUP_NAME]; /* from the leaf up */
	};
};

/* Layout shared with crates/instruments/src/stages/group.rs. */
_Static_assert(sizeof(struct group) == 8 + CGROUP_LEVELS * CGROUP_NAME, "size of a group");
_Static_assert(__builtin_offsetof(struct group, queue.dev) == 24, "offset of dev");
_Static_assert(__builtin_offsetof(struct group, process.comm) == 16, "offset of comm");

/* max_entries is set by user space if packets are grouped. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct group);
} groups SEC(".maps");

/* The task that last sent or received on a socket; a later socket takes over the slot. */
struct owner {
	u64 sk;
	u64 group;
	u64 node, cgroup; /* a kernfs_node, and the key of its cgroup */
	u32 pid, unused;
	char comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << OWNER_SLOT_BITS);
	__type(key, u32);
	__type(value, struct owner);
} owners SEC(".maps");

/* Initial value of a new group. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct group);
} new_group SEC(".maps");

const volatile u32 per;
/* Packets whose group did not fit. */
u64 ungrouped_packets;

#define BY_PROCESS (per == PER_PROCESS || per == PER_CGROUP)

static __always_inline u64 mix(u64 hash, u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

static __always_inline u64 group_id(u64 hash)
{
	return (hash >> 10) | 1;
}

/* Creates a group if it is new; others see it at once, and its name a moment later. */
static __always_inline struct group *make_group(u64 id)
{
	u32 zero = 0;
	struct group *blank = bpf_map_lookup_elem(&new_group, &zero);

	if (!blank || bpf_map_update_elem(&groups, &id, blank, BPF_NOEXIST))
		return 0;
	return bpf_map_lookup_elem(&groups, &id);
}

/* The same for a group that usually exists already. */
static __always_inline struct group *first_seen(u64 id)
{
	return bpf_map_lookup_elem(&groups, &id) ? 0 : make_group(id);
}

__noinline int count_packet(u64 id)
{
	struct group *g;

	if (!per)
		return 0;
	g = bpf_map_lookup_elem(&groups, &id);
	if (!g)
		g = make_group(id);
	if (!g)
		g = bpf_map_lookup_elem(&groups, &id);
	if (g)
		__sync_fetch_and_add(&g->packets, 1);
	else
		__sync_fetch_and_add(&ungrouped_packets, 1);
	return 0;
}

static __always_inline struct owner *owner_slot(u64 sk)
{
	u32 slot = (sk >> 6) * 0x9e3779b97f4a7c15ULL >> (64 - OWNER_SLOT_BITS);

	return bpf_map_lookup_elem(&owners, &slot);
}

static __always_inline void describe_current(struct owner *o)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();

	o->group = bpf_get_current_pid_tgid() >> 32;
	if (per == PER_CGROUP) {
		struct cgroup_of cgroup = cgroup_of(task);

		o->node = (u64)cgroup.node;
		o->cgroup = cgroup.key;
		o->group = group_id(mix(0, o->cgroup));
	} else {
		o->pid = pid_namespace ? process_in_namespace(task) : (u32)o->group;
		task = BPF_CORE_READ(task, group_leader);
		bpf_probe_read_kernel(o->comm, sizeof(o->comm), &task->comm);
	}
}

/* Creates the group of an owner, unless it exists. */
static __always_inline u64 group_of(struct owner *o)
{
	u64 id = o->group;
	struct group *g = first_seen(id);

	if (!g)
		return id;
	if (per == PER_CGROUP) {
		name_cgroup(g->cgroup, (struct kernfs_node *)o->node, o->cgroup);
	} else {
		g->process.pid = o->pid;
		__builtin_memcpy(g->process.comm, o->comm, sizeof(o->comm));
	}
	return id;
}

/* The process, or the cgroup, of the current task. */
__noinline u64 group_of_current(void)
{
	struct owner current = {};

	if (!BY_PROCESS)
		return NO_GROUP;
	describe_current(&current);
	return group_of(&current);
}

__noinline u64 group_of_owner(u64 sk)
{
	struct owner *o = BY_PROCESS && sk ? owner_slot(sk) : 0;

	return o && o->sk == sk ? group_of(o) : NO_PROCESS;
}

/* The current task sends or receives on a socket, which need not be one that is measured. */
__noinline int note_owner(u64 sk)
{
	struct owner *o = BY_PROCESS && sk ? owner_slot(sk) : 0;

	if (o) {
		o->sk = sk;
		describe_current(o);
	}
	return 0;
}

static __always_inline u64 group_of_flow(struct sk_buff *skb, bool transmit, u64 header)
{
	u32 protocol = bpf_ntohs(BPF_CORE_READ(skb, protocol));
	struct tuple flow = {};
	struct group *g;
	u64 at = header, id = 0;

	if (transmit)
		at = (u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header);
	else if (!header)
		at = (u64)BPF_CORE_READ(skb, data);
	protocol = behind_vlan_tags(&at, protocol, transmit);
	if (protocol == ETH_P_IP ? !read_ipv4(at, &flow) : protocol != ETH_P_IPV6 || !read_ipv6(at, &flow))
		return NO_GROUP;
#pragma unroll
	for (int i = 0; i < 4; i++)
		id = mix(id, (u64)flow.src.words[i] << 32 | flow.dst.words[i]);
	id = group_id(mix(id, (u64)flow.sport << 48 | (u64)flow.dport << 32 | flow.protocol));
	g = first_seen(id);
	if (g)
		g->flow = flow;
	return id;
}

static __always_inline u64 group_of_queue(struct sk_buff *skb, bool transmit)
{
	struct net_device *dev = BPF_CORE_READ(skb, dev);
	u32 number = BPF_CORE_READ(skb, queue_mapping) + (transmit ? 1 : 0);
	u64 id = group_id(mix(mix(0, (u64)dev), (u64)number << 1 | transmit));
	struct group *g = first_seen(id);

	if (!g)
		return id;
	g->queue.netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	g->queue.ifindex = BPF_CORE_READ(dev, ifindex);
	g->queue.transmit = transmit;
	g->queue.number = number;
	bpf_probe_read_kernel(g->queue.dev, sizeof(g->queue.dev), &dev->name);
	return id;
}

/* The group of a packet that starts, as far as it is known. */
__noinline u64 group_at_begin(u64 packet, u32 transmit, u32 in_softirq, u64 header)
{
	struct sk_buff *skb = (struct sk_buff *)packet;
	u64 sk;

	if (per == PER_FLOW)
		return group_of_flow(skb, transmit, header);
	if (per == PER_QUEUE)
		return group_of_queue(skb, transmit);
	if (!BY_PROCESS || !transmit)
		return NO_GROUP;
	sk = (u64)BPF_CORE_READ(skb, sk);
	if (in_softirq)
		return group_of_owner(sk);
	note_owner(sk);
	return group_of_current();
}

#endif
