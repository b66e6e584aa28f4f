/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the programs of the fault scenes: CPUs, policies, clocks, random pauses, errors. */
#ifndef FAULTS_COMMON_H
#define FAULTS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000ULL
#define US 1000ULL

static inline void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static inline long check(long result, const char *what)
{
	if (result < 0)
		fail(what);
	return result;
}

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static inline void pin_task(pid_t tid, int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	/* The thread may have exited in between. */
	if (sched_setaffinity(tid, sizeof(cpus), &cpus) < 0 && errno != ESRCH)
		fail("sched_setaffinity");
}

static inline void pin(int cpu)
{
	pin_task(0, cpu);
}

static inline void be_fifo(int priority)
{
	struct sched_param param = { .sched_priority = priority };

	check(sched_setscheduler(0, SCHED_FIFO, &param), "SCHED_FIFO");
}

static inline void be_named(const char *name)
{
	prctl(PR_SET_NAME, name);
	/* Nothing outlives the scene. */
	prctl(PR_SET_PDEATHSIG, 9);
}

/*
 * Above other tasks of the machine, and equal to each other: other tasks would
 * otherwise be the cause of most late packets.
 */
static inline void be_important(void)
{
	if (setpriority(PRIO_PROCESS, 0, -19) < 0)
		fail("nice");
}

/* Busy loop. */
static inline void spin(uint64_t ns)
{
	uint64_t end = now_ns() + ns;

	while (now_ns() < end)
		;
}

static inline void nap(uint64_t ns)
{
	struct timespec t = { ns / 1000000000ULL, ns % 1000000000ULL };

	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

/* The same sequence in each run (xorshift64). */
static inline uint64_t random_between(uint64_t low, uint64_t high)
{
	static _Thread_local uint64_t state = 88172645463325252ULL;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return low + state % (high - low + 1);
}

static inline struct sockaddr_in address(const char *ip, const char *port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };

	if (inet_pton(AF_INET, ip, &in.sin_addr) != 1) {
		fprintf(stderr, "not an address: %s\n", ip);
		exit(1);
	}
	return in;
}

#endif
