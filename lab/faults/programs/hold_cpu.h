/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A BPF program without a library: at a raw tracepoint on one CPU it runs for some
 * milliseconds, once each time it is armed. In `sched_waking` interrupts are off; a disk's
 * handler raises its softirq, or completes the request, between its observable start and end.
 */
#ifndef FAULTS_HOLD_CPU_H
#define FAULTS_HOLD_CPU_H

#include "common.h"
#include <linux/bpf.h>
#include <sys/mman.h>

struct hold {
	/* Milliseconds to hold the CPU, or 0. */
	volatile uint64_t *armed;
	int map;
};

static long bpf(int command, union bpf_attr *attr)
{
	return syscall(__NR_bpf, command, attr, sizeof(*attr));
}

#define INSN(c, d, s, o, i) ((struct bpf_insn){ .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i) })
#define CALL(f) INSN(BPF_JMP | BPF_CALL, 0, 0, 0, f)
/* The distance from an instruction to the second to last, where the program ends. */
#define END(from) (46 - (from) - 1)
#define CLOCK_4 CLOCK_2, CLOCK_2
#define CLOCK_2 CALL(BPF_FUNC_ktime_get_ns), CALL(BPF_FUNC_ktime_get_ns)
#define MOVR(d, s) INSN(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define MOVI(d, i) INSN(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)

/*
 * `tid`: only if this is the current thread; 0 is any. `first`: only if this is the tracepoint's first argument;
 * negative is any.
 */
static int hold_program(int map, int cpu, int tid, int first)
{
	struct bpf_insn code[] = {
		INSN(BPF_LDX | BPF_MEM | BPF_DW, 0, 1, 0, 0),
		INSN(BPF_ALU64 | BPF_AND | BPF_K, 0, 0, 0, first < 0 ? 0 : -1),
		INSN(BPF_JMP | BPF_JNE | BPF_K, 0, 0, END(-1), first < 0 ? 0 : first),
		CALL(BPF_FUNC_get_smp_processor_id), INSN(BPF_JMP | BPF_JNE | BPF_K, 0, 0, END(1), cpu),
		CALL(BPF_FUNC_get_current_pid_tgid), INSN(BPF_ALU | BPF_MOV | BPF_X, 0, 0, 0, 0),
		/* With tid 0 this compares 0 with 0. */
		INSN(BPF_ALU64 | BPF_AND | BPF_K, 0, 0, 0, tid ? -1 : 0), INSN(BPF_JMP | BPF_JNE | BPF_K, 0, 0, END(5), tid),
		MOVI(1, 0), INSN(BPF_STX | BPF_MEM | BPF_W, 10, 1, -4, 0),
		INSN(BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_FD, 0, map), INSN(0, 0, 0, 0, 0),
		MOVR(2, 10), INSN(BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -4),
		CALL(BPF_FUNC_map_lookup_elem), INSN(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, END(13), 0),
		/* r6: the time to hold the CPU, exchanged with 0 so that the next call does nothing. */
		INSN(BPF_LDX | BPF_MEM | BPF_DW, 6, 0, 0, 0), INSN(BPF_JMP | BPF_JEQ | BPF_K, 6, 0, END(15), 0),
		MOVI(1, 0), INSN(BPF_STX | BPF_MEM | BPF_DW, 0, 1, 0, 0),
		CALL(BPF_FUNC_ktime_get_ns), MOVR(7, 0), INSN(BPF_ALU64 | BPF_ADD | BPF_X, 7, 6, 0, 0),
		/* Bounded for the verifier (at most 8,192 branches), so it reads the clock several times per iteration. */
		MOVI(8, 0),
		CALL(BPF_FUNC_ktime_get_ns), INSN(BPF_JMP | BPF_JGT | BPF_X, 0, 7, END(23), 0),
		CLOCK_4, CLOCK_4, CLOCK_4, CLOCK_4, CLOCK_4,
		INSN(BPF_ALU64 | BPF_ADD | BPF_K, 8, 0, 0, 1), INSN(BPF_JMP | BPF_JLT | BPF_K, 8, 0, -24, 7000),
		MOVI(0, 0), INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	};
	static char log[65536];
	union bpf_attr attr = {
		.prog_type = BPF_PROG_TYPE_RAW_TRACEPOINT,
		.insns = (uint64_t)(unsigned long)code,
		.insn_cnt = sizeof(code) / sizeof(code[0]),
		.license = (uint64_t)(unsigned long)"Apache-2.0",
	};
	int program = bpf(BPF_PROG_LOAD, &attr);

	if (program < 0) {
		attr.log_buf = (uint64_t)(unsigned long)log;
		attr.log_size = sizeof(log);
		attr.log_level = 1;
		program = bpf(BPF_PROG_LOAD, &attr);
		if (program < 0) {
			fprintf(stderr, "BPF program: %s\n%.2000s\n", strerror(errno), log);
			exit(77);
		}
	}
	return program;
}

static void hold_prepare(struct hold *hold)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_ARRAY,
			       .key_size = 4, .value_size = 8, .max_entries = 1, .map_flags = BPF_F_MMAPABLE };
	int fd = bpf(BPF_MAP_CREATE, &map);

	if (fd < 0) {
		perror("BPF map");
		exit(77);
	}
	hold->armed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (hold->armed == MAP_FAILED)
		fail("BPF map");
	hold->map = fd;
}

/* At several tracepoints, of which the first that is called holds the CPU. */
static void hold_attach(struct hold *hold, const char *tracepoint, int cpu, int tid, int first)
{
	int program = hold_program(hold->map, cpu, tid, first);
	union bpf_attr link = { .raw_tracepoint = { .name = (uint64_t)(unsigned long)tracepoint,
						    .prog_fd = program } };

	/* Attached until this process exits. */
	check(bpf(BPF_RAW_TRACEPOINT_OPEN, &link), tracepoint);
}

#endif
