/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Allocations of sk_buffs, observed at the return of functions. Some of these call each other, and each
 * kernel's compiler inlines different ones, so all are attached; an sk_buff returned by two of them is recorded
 * twice with the same CPU.
 */
#ifndef NEARPATH_LOCALITY_EXACT_H
#define NEARPATH_LOCALITY_EXACT_H

#include "locality.h"

static __always_inline int allocated(u64 pointer)
{
	u64 tag = address_of(pointer);
	u32 number = bpf_get_smp_processor_id();
	struct packet *p;
	struct cpu *cpu;

	if (!measuring || !tag)
		return 0;
	p = packet_slot(tag);
	if (!p)
		return 0;
	if (is_followed(p)) {
		cpu = this_cpu();
		if (cpu)
			claim_slot(p, cpu, tag, number, PACKET_ALLOCATED);
		return 0;
	}
	p->tag = tag;
	p->cpu = number;
	p->state = PACKET_ALLOCATED;
	return 0;
}

/* `result` is stored after the function's arguments. */
#define ALLOCATES(function, result)                             \
	SEC("fexit/" #function) int alloc_##function(u64 *ctx)      \
	{                                                           \
		return allocated(ctx[result]);                          \
	}                                                           \
	SEC("kretprobe/" #function) int alloc_##function##_ret(struct pt_regs *regs) \
	{                                                           \
		return allocated(PT_REGS_RC(regs));                     \
	}

ALLOCATES(__alloc_skb, 4)
ALLOCATES(__build_skb, 2)
ALLOCATES(build_skb, 2)
ALLOCATES(slab_build_skb, 1)
ALLOCATES(__napi_build_skb, 2)
ALLOCATES(napi_build_skb, 2)
ALLOCATES(__netdev_alloc_skb, 3)
ALLOCATES(__napi_alloc_skb, 3) /* before 6.10 */
ALLOCATES(napi_alloc_skb, 2)

#endif
