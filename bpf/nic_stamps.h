/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When the NIC received a packet: its hardware timestamp (skb_hwtstamps), on the NIC's own clock, converted to
 * the kernel's monotonic clock. User space reads the clocks (crates/instruments/src/stamps).
 *
 * Whoever includes it has this_cpu(), and COUNT(cpu, what) for its counters.
 */
#ifndef NEARPATH_NIC_STAMPS_H
#define NEARPATH_NIC_STAMPS_H

#define NICS_MAX 64
/* With the upper devices of NICs (VLANs, macvtaps). */
#define NICS_AND_UPPERS_MAX 1024
/*
 * An older timestamp does not belong to this packet, or the clock was set: any other delay of a second between
 * NIC and stack would have overflowed the NIC's ring.
 */
#define STAMP_OLDEST_NS 1000000000LL
/* A timestamp can be converted up to this far from the clock's last reading: 69 s. */
#define STAMP_FARTHEST_NS (1LL << 36)
/* Fractional bits of a clock's rate: units of 2^-30. */
#define RATE_BITS 30
/* In tx_flags: hwtstamps is a pointer of the driver, not a time. */
#define SKBTX_HW_TSTAMP_NETDEV (1 << 5)

/* Whether a device timestamps received packets and its clock can be read. */
const volatile bool has_nic_stamps;

/* A device: its network namespace (inode), its index. */
struct nic {
	u32 netns, ifindex;
};

/*
 * Row of a device in nic_clocks. A device without a row does not timestamp: the timestamp is then of a device
 * that the packet passed before, as a forwarded packet keeps it. An upper device of one NIC alone may have the row of
 * that, for whoever sees its packets after they have passed it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NICS_AND_UPPERS_MAX);
	__type(key, struct nic);
	__type(value, u32);
} nics SEC(".maps");

/* The NIC's clock read phc_ns at monotonic_ns. The monotonic clock runs faster by this rate, in units of 2^-30. */
struct clock_reading {
	u64 phc_ns, monotonic_ns;
	s64 rate;
};

/* User space writes the unused reading, then switches to it. */
struct nic_clock {
	u64 latest;
	struct clock_reading readings[2];
	u64 is_known; /* 0: not yet, or no longer */
	u64 is_used; /* a packet's timestamp was converted */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NICS_MAX);
	__type(key, u32);
	__type(value, struct nic_clock);
} nic_clocks SEC(".maps");

/*
 * When the NIC with this index, in the network namespace of the device that has the packet now, received it, or 0 if
 * unknown. Not static, to save verification time (see packet_path.h).
 */
__noinline u64 nic_stamp_ns(u64 packet, u32 ifindex, u64 now)
{
	struct sk_buff *skb = (struct sk_buff *)packet;
	u64 end = (u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, end);
	struct skb_shared_info *info = (struct skb_shared_info *)end;
	s64 stamp = BPF_CORE_READ(info, hwtstamps.hwtstamp), since, age;
	struct cpu *cpu = this_cpu();
	struct clock_reading *reading;
	struct nic_clock *clock;
	struct nic nic;
	u32 *row;

	if (!stamp || !cpu)
		return 0;
	if (bpf_core_field_exists(info->hwtstamps.netdev_data) &&
	    BPF_CORE_READ(info, tx_flags) & SKBTX_HW_TSTAMP_NETDEV) {
		COUNT(cpu, stamps_opaque);
		return 0;
	}
	nic.netns = BPF_CORE_READ(skb, dev, nd_net.net, ns.inum);
	nic.ifindex = ifindex;
	row = bpf_map_lookup_elem(&nics, &nic);
	if (!row) {
		COUNT(cpu, stamps_of_others);
		return 0;
	}
	clock = bpf_map_lookup_elem(&nic_clocks, row);
	if (!clock || !clock->is_known) {
		COUNT(cpu, stamps_unconverted);
		return 0;
	}
	reading = &clock->readings[clock->latest & 1];
	since = stamp - reading->phc_ns;
	if (since >= STAMP_FARTHEST_NS) {
		COUNT(cpu, stamps_ahead);
		return 0;
	}
	if (since <= -STAMP_FARTHEST_NS) {
		COUNT(cpu, stamps_old);
		return 0;
	}
	stamp = reading->monotonic_ns + since + (since * reading->rate >> RATE_BITS);
	age = now - stamp;
	if (age < 0) {
		COUNT(cpu, stamps_ahead);
		return 0;
	}
	if (age > STAMP_OLDEST_NS) {
		COUNT(cpu, stamps_old);
		return 0;
	}
	COUNT(cpu, stamps_used);
	if (!clock->is_used)
		clock->is_used = 1;
	return stamp;
}

#endif
