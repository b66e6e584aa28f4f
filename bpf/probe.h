/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One body, several ways to attach it. To a tracepoint: tp_btf, if the kernel has the types of the arguments
 * and fields can be read directly, and raw_tp, for kernels without BTF, where every field is copied by a
 * helper. To a function (fentry, fexit, kprobe), if there is no tracepoint or this kernel lacks it.
 *
 * Several programs may share a tracepoint with other instruments; user space selects which of the two is loaded
 * (crates/instruments/src/stages/table.rs).
 */
#ifndef NEARPATH_PROBE_H
#define NEARPATH_PROBE_H

#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* Field f of p; `direct` is a constant, true in the tp_btf program. */
#define GET(direct, p, f) ((direct) ? (p)->f : BPF_CORE_READ(p, f))

/*
 * The address held by a pointer, as a number. The verifier rejects arithmetic on a pointer of type
 * trusted_ptr_; a byte swap makes it a scalar and a second one restores the value.
 */
static __always_inline u64 address_of(u64 pointer)
{
	asm volatile("%0 = be64 %0\n%0 = be64 %0" : "+r"(pointer));
	return pointer;
}

/* Argument n of a tracepoint: the compiler would compute an address from ctx, which the verifier rejects. */
#define ARGUMENT(ctx, n)                                                                 \
	({                                                                                   \
		u64 value;                                                                       \
		asm volatile("%0 = *(u64 *)(%1 + %2)" : "=r"(value) : "r"(ctx), "i"((n) * 8));   \
		value;                                                                           \
	})

/*
 * False only to measure the cost of attaching itself: the verifier then removes every body, which leaves empty
 * programs.
 */
const volatile bool measuring = true;

#define PROBE(name, tracepoint)                                              \
	static __always_inline void name(u64 *ctx, const bool direct);           \
	SEC("tp_btf/" tracepoint) int name##_btf(u64 *ctx)                       \
	{                                                                        \
		if (measuring)                                                       \
			name(ctx, true);                                                 \
		return 0;                                                            \
	}                                                                        \
	SEC("raw_tp/" tracepoint) int name##_raw(u64 *ctx)                       \
	{                                                                        \
		if (measuring)                                                       \
			name(ctx, false);                                                \
		return 0;                                                            \
	}                                                                        \
	static __always_inline void name(u64 *ctx, const bool direct)

/*
 * The same body at the entry of a function that has the tracepoint's arguments: fentry if the kernel has their
 * types, kprobe if it does not or rejects fentry.
 */
#define PROBE_ENTRY(name, function)                                          \
	SEC("fentry/" function) int name##_entry(u64 *ctx)                       \
	{                                                                        \
		if (measuring)                                                       \
			name(ctx, true);                                                 \
		return 0;                                                            \
	}                                                                        \
	SEC("kprobe/" function) int name##_kprobe(struct pt_regs *regs)          \
	{                                                                        \
		u64 arguments[] = { PT_REGS_PARM1(regs), PT_REGS_PARM2(regs),        \
				    PT_REGS_PARM3(regs), PT_REGS_PARM4(regs) };      \
		if (measuring)                                                       \
			name(arguments, false);                                          \
		return 0;                                                            \
	}

/* A body for a function without a tracepoint. */
#define PROBE_FUNCTION(name, function)                                       \
	static __always_inline void name(u64 *ctx, const bool direct);           \
	PROBE_ENTRY(name, function)                                              \
	static __always_inline void name(u64 *ctx, const bool direct)

#endif
