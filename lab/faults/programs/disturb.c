/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causes the fault of a scene until it is killed: disturb FAULT CPU OTHER_CPU [ARGUMENT...]
 *
 *   task            uses the CPU for 20 to 40 ms, sleeps for 10 to 20; an ordinary task named hog
 *   fifo            3 to 9 ms, 10 to 30 ms; SCHED_FIFO
 *   burn            uses the CPU all the time, named burner
 *   stop TID...     stops the reader's process for 2 to 8 ms
 *   migrate TID...  a SCHED_FIFO task takes the CPU for 6 ms; after 2 ms the readers are migrated to OTHER_CPU
 *   interrupts_off  interrupts of the CPU are off for 2 to 6 ms, in a task named cli
 *   interrupts FILE a device's interrupt handler takes 2 to 6 ms; reading FILE triggers it
 *   timers          thousands of timers of the CPU expire at once
 *   softirqs RECEIVER_NS SENDER_NS DEVICE_IP SENDER_IP
 *                   bursts of packets that are expensive to receive, through another device
 *
 * With DISTURB_PAUSE_MS in the environment it rests for so long in between, whatever the fault.
 *
 * Exit status 77: not supported by the kernel or the machine; the reason is on standard error.
 */
#include "common.h"
#include "hold_cpu.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

static int cpu, other_cpu;

/* Between two disturbances. */
static void rest(uint64_t least, uint64_t most)
{
	const char *given = getenv("DISTURB_PAUSE_MS");

	nap(given ? strtoull(given, NULL, 10) * MS : random_between(least, most));
}

static void hog(const char *name, int fifo, uint64_t least, uint64_t most, uint64_t pause)
{
	be_named(name);
	pin(cpu);
	if (fifo)
		be_fifo(fifo);
	else
		be_important();
	for (;;) {
		spin(random_between(least, most));
		if (pause)
			nap(random_between(pause, 2 * pause));
	}
}

/* Runs on the other CPU, in real time. */
static void conduct(void)
{
	be_named("disturb");
	pin(other_cpu);
	be_fifo(46);
}

static void stop(char **tids)
{
	pid_t process = atoi(tids[0]);

	conduct();
	for (;;) {
		rest(10 * MS, 20 * MS);
		kill(process, SIGSTOP);
		nap(random_between(2 * MS, 8 * MS));
		kill(process, SIGCONT);
	}
}

static _Atomic uint64_t turn;

static void *run_each_turn(void *unused)
{
	uint64_t seen = 0;

	be_named("hog");
	pin(cpu);
	be_fifo(50);
	for (;;) {
		while (turn == seen)
			nap(200 * US);
		seen = turn;
		spin(6 * MS);
	}
	return unused;
}

static void migrate(char **tids)
{
	pthread_t thread;

	conduct();
	pthread_create(&thread, NULL, run_each_turn, NULL);
	for (;;) {
		rest(10 * MS, 20 * MS);
		turn++;
		nap(2500 * US);
		for (char **tid = tids; *tid; tid++)
			pin_task(atoi(*tid), other_cpu);
		nap(8 * MS);
		for (char **tid = tids; *tid; tid++)
			pin_task(atoi(*tid), cpu);
	}
}

static int wake_fds[2];

static void *be_woken(void *unused)
{
	char c;

	prctl(PR_SET_NAME, "woken");
	pin(other_cpu);
	while (read(wake_fds[0], &c, 1) == 1)
		;
	return unused;
}

static void interrupts_off(void)
{
	pthread_t thread;
	struct hold hold;

	be_named("cli");
	check(pipe(wake_fds), "pipe");
	pthread_create(&thread, NULL, be_woken, NULL);
	/* Loading takes the CPU for a while. The tracepoint is called with interrupts off, by the waker. */
	pin(other_cpu);
	hold_prepare(&hold);
	hold_attach(&hold, "sched_waking", cpu, gettid(), -1);
	pin(cpu);
	be_fifo(50);
	for (;;) {
		rest(10 * MS, 25 * MS);
		*hold.armed = random_between(2 * MS, 6 * MS);
		check(write(wake_fds[1], "", 1), "pipe");
	}
}

/* include/linux/interrupt.h */
#define BLOCK_SOFTIRQ 4

static void interrupts(const char *file)
{
	int fd = check(open(file, O_RDONLY | O_DIRECT), file);
	uint64_t misses = 0, tries = 0;
	struct hold hold;
	struct stat stat;
	char *block;

	pin(other_cpu);
	if (posix_memalign((void **)&block, 4096, 4096))
		fail("memory");
	check(fstat(fd, &stat), file);
	hold_prepare(&hold);
	/* With one queue the handler defers the request to a softirq, with several it completes the request itself. */
	hold_attach(&hold, "softirq_raise", cpu, 0, BLOCK_SOFTIRQ);
	hold_attach(&hold, "block_rq_complete", cpu, 0, -1);
	conduct();
	for (;;) {
		rest(10 * MS, 25 * MS);
		*hold.armed = random_between(2 * MS, 6 * MS);
		check(pread(fd, block, 4096, 4096 * random_between(0, stat.st_size / 4096 - 1)), file);
		nap(7 * MS);
		misses += *hold.armed != 0;
		if (++tries == 20 && misses > 15) {
			fprintf(stderr, "no device interrupts CPU %d when %s is read\n", cpu, file);
			exit(77);
		}
	}
}

static void timers(void)
{
	enum { COUNT = 8000 };
	static int fds[COUNT];
	struct rlimit files = { COUNT + 1000, COUNT + 1000 };

	check(setrlimit(RLIMIT_NOFILE, &files), "RLIMIT_NOFILE");
	be_named("timers");
	be_important();
	/* A timer expires on the CPU on which it was set. */
	pin(cpu);
	for (int i = 0; i < COUNT; i++)
		fds[i] = check(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd");
	for (;;) {
		uint64_t at = now_ns() + 30 * MS;
		struct itimerspec once = { .it_value = { at / 1000000000ULL, at % 1000000000ULL } };

		for (int i = 0; i < COUNT; i++)
			check(timerfd_settime(fds[i], TFD_TIMER_ABSTIME, &once, NULL), "timerfd");
		if (now_ns() < at)
			nap(at - now_ns());
		rest(20 * MS, 40 * MS);
	}
}

#define GROUP "239.7.7.7"
#define GROUP_PORT "7777"

static void enter(const char *netns)
{
	char path[256];

	snprintf(path, sizeof(path), "/run/netns/%s", netns);
	int fd = check(open(path, O_RDONLY), path);

	check(setns(fd, CLONE_NEWNET), path);
	close(fd);
}

/* Each datagram is delivered to enough sockets to take a tenth of a millisecond. */
static void softirqs(char **arguments)
{
	enum { LISTENERS = 200 };
	struct sockaddr_in group = address(GROUP, GROUP_PORT);
	struct ip_mreqn join = { 0 };
	char data[64] = { 0 };

	if (!arguments[0] || !arguments[1] || !arguments[2] || !arguments[3])
		exit(2);
	join.imr_multiaddr = group.sin_addr;
	enter(arguments[0]);
	join.imr_address = address(arguments[2], "0").sin_addr;
	for (int i = 0; i < LISTENERS; i++) {
		int on = 1, fd = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");

		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		/* Room for a few; dropping the rest costs as much. */
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &on, sizeof(on));
		check(bind(fd, (void *)&group, sizeof(group)), "bind");
		check(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof(join)), "join");
	}
	enter(arguments[1]);
	join.imr_address = address(arguments[3], "0").sin_addr;
	int fd = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");

	check(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &join, sizeof(join)), "multicast");
	conduct();
	for (;;) {
		/* Some milliseconds of work; a permanent backlog would be another fault. */
		for (int i = random_between(15, 40); i > 0; i--)
			sendto(fd, data, sizeof(data), 0, (void *)&group, sizeof(group));
		rest(15 * MS, 30 * MS);
	}
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: disturb FAULT CPU OTHER_CPU [ARGUMENT...]\n");
		return 2;
	}
	const char *fault = argv[1];

	cpu = atoi(argv[2]);
	other_cpu = atoi(argv[3]);
	if (!strcmp(fault, "task"))
		hog("hog", 0, 20 * MS, 40 * MS, 10 * MS);
	else if (!strcmp(fault, "fifo"))
		hog("hog", 50, 3 * MS, 9 * MS, 10 * MS);
	else if (!strcmp(fault, "burn"))
		hog("burner", 0, 1 * MS, 1 * MS, 0);
	else if (!strcmp(fault, "stop"))
		stop(argv + 4);
	else if (!strcmp(fault, "migrate"))
		migrate(argv + 4);
	else if (!strcmp(fault, "interrupts_off"))
		interrupts_off();
	else if (!strcmp(fault, "interrupts") && argc > 4)
		interrupts(argv[4]);
	else if (!strcmp(fault, "timers"))
		timers();
	else if (!strcmp(fault, "softirqs"))
		softirqs(argv + 4);
	fprintf(stderr, "no such fault: %s\n", fault);
	return 2;
}
