/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The registers with which a task entered the kernel: its system call, the arguments, and the instruction.
 * Before 5.15 there is no way to find them.
 */
#ifndef NEARPATH_USER_REGS_H
#define NEARPATH_USER_REGS_H

#include "probe.h"

/* In the order of x86's struct pt_regs (di, orig_ax, ip), where they are adjacent. */
struct entry {
	u64 argument, call, instruction;
};

#if defined(__TARGET_ARCH_x86)
#define CALL_NUMBER(regs) (regs)->orig_ax
#define THIRD_ARGUMENT(regs) (regs)->dx
#define FOURTH_ARGUMENT(regs) (regs)->r10

/* The number of reads is what costs, not their size. */
#define READ_ENTRY(entry, regs) bpf_probe_read_kernel(entry, sizeof(*(entry)), &(regs)->di)
#elif defined(__TARGET_ARCH_arm64)
#define CALL_NUMBER(regs) ((struct user_pt_regs *)(regs))->regs[8]
#define THIRD_ARGUMENT(regs) ((struct user_pt_regs *)(regs))->regs[2]
#define FOURTH_ARGUMENT(regs) ((struct user_pt_regs *)(regs))->regs[3]

#define READ_ENTRY(entry, regs)                                                                          \
	do {                                                                                             \
		bpf_probe_read_kernel(&(entry)->argument, 8, &((struct user_pt_regs *)(regs))->regs[0]); \
		bpf_probe_read_kernel(&(entry)->call, 8, &CALL_NUMBER(regs));                            \
		bpf_probe_read_kernel(&(entry)->instruction, 8, &((struct user_pt_regs *)(regs))->pc);   \
	} while (0)
#endif

/* Those of the current task; 0: unknown. */
static __always_inline struct pt_regs *user_regs(void)
{
	if (!bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return 0;
	return (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
}

/* One of them. */
#define USER_REG(regs, which)                                                       \
	({                                                                          \
		u64 value_ = 0;                                                     \
		bpf_probe_read_kernel(&value_, sizeof(value_), &which(regs));       \
		value_;                                                             \
	})

/*
 * A number for the place where the current task entered the kernel: the instruction, the system call, and its
 * first argument, which is the descriptor or the address of a lock. 0: unknown, as for a kernel thread.
 */
static __always_inline u64 entry_site(void)
{
	struct pt_regs *regs = user_regs();
	struct entry entry;

	if (!regs)
		return 0;
	READ_ENTRY(&entry, regs);
	if (!entry.instruction)
		return 0;
	return (entry.instruction * 0x9e3779b97f4a7c15ULL ^ entry.argument) * 0x9e3779b97f4a7c15ULL ^ entry.call;
}

#endif
