/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An XDP program for a NIC: frames to 52:54:00:aa:00:40 are redirected to the interface in its map, a tap. All others
 * pass. Without headers, so that it needs nothing but clang.
 */
typedef unsigned int u32;
typedef unsigned long long u64;
#define SEC(name) __attribute__((section(name), used))
#define XDP_PASS 2

struct xdp_md {
	u32 data, data_end;
};

struct {
	int (*type)[14]; /* BPF_MAP_TYPE_DEVMAP */
	int (*max_entries)[1];
	u32 *key;
	u32 *value;
} tap SEC(".maps");

static long (*const redirect_map)(void *map, u64 key, u64 flags) = (void *)51;

SEC("xdp") int to_tap(struct xdp_md *frame)
{
	unsigned char *start = (void *)(long)frame->data, *end = (void *)(long)frame->data_end;

	if (start + 14 > end || start[0] != 0x52 || start[3] != 0xaa || start[4] || start[5] != 0x40)
		return XDP_PASS;
	return redirect_map(&tap, 0, XDP_PASS);
}

char _license[] SEC("license") = "GPL";
