/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives the packets of a scene:
 *
 *   reader KIND udp|tcp ADDRESS PORT CPU [answer] [compute] [lock] [memory=FILE] [loss] [OTHER=...]
 *
 * KIND: recv, recvmmsg, poll, select, epoll_lt, epoll_et, uring_poll, uring_multishot, threads, busy.
 * Prints one line of JSON when it is ready: its receiving threads, and the others.
 * Exits at the end of its standard input, and prints how many bytes and calls it received.
 *
 * Options: `answer` sends 64 bytes for each 64 received; `compute` sometimes uses the CPU for some
 * milliseconds; `lock` takes a mutex that another thread sometimes holds; `memory` touches
 * pages of a mapped file; `loss` attaches a filter to its socket that drops one TCP segment in 100; `pipe` and
 * `nanosleep` sometimes wait for something else.
 */
#include "common.h"
#include "uring.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define MESSAGE 64
#define BUFFER 65536
#define BATCH 16
#define THREADS 4

static int receive_cpu, helper_cpu;
static int answers, computes, locks, loses, sleeps, waits_for_pipe;
static int pipe_fds[2];
static char *pages;
static size_t page_count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t bytes, calls;
static _Atomic int ready_threads;
static pid_t tids[THREADS], helper_tid;

/* Work of some milliseconds, or waiting for something other than the socket. */
static void something_else(void)
{
	char c;

	if (computes)
		spin(random_between(2 * MS, 8 * MS));
	if (sleeps)
		nap(random_between(2 * MS, 8 * MS));
	if (waits_for_pipe && read(pipe_fds[0], &c, 1) != 1)
		fail("pipe");
	if (pages)
		for (int i = 0; i < 32; i++)
			((volatile char *)pages)[4096 * random_between(0, page_count - 1)];
}

/* The application's work on received data. */
static void work(int fd, ssize_t got)
{
	static _Thread_local uint64_t next_work;
	static _Atomic uint64_t unanswered;
	char answer[MESSAGE] = { 0 };

	bytes += got;
	calls++;
	if (locks) {
		pthread_mutex_lock(&mutex);
		pthread_mutex_unlock(&mutex);
	}
	if (now_ns() >= next_work) {
		something_else();
		next_work = now_ns() + random_between(10 * MS, 30 * MS);
	}
	if (answers) {
		unanswered += got;
		while (unanswered >= MESSAGE) {
			unanswered -= MESSAGE;
			if (send(fd, answer, MESSAGE, MSG_NOSIGNAL) < 0)
				fail("answer");
		}
	}
}

static void ended(ssize_t n)
{
	if (n == 0)
		exit(0);
	if (errno != EAGAIN && errno != EINTR)
		fail("receive");
}

static ssize_t receive(int fd, int flags)
{
	static _Thread_local char buffer[BUFFER];
	ssize_t n = recv(fd, buffer, sizeof(buffer), flags);

	if (n > 0)
		work(fd, n);
	else
		ended(n);
	return n;
}

static void by_recv(int fd)
{
	for (;;)
		receive(fd, 0);
}

static void by_recvmmsg(int fd)
{
	static char buffers[BATCH][4096];
	struct mmsghdr messages[BATCH];
	struct iovec vectors[BATCH];

	memset(messages, 0, sizeof(messages));
	for (int i = 0; i < BATCH; i++) {
		vectors[i] = (struct iovec){ buffers[i], sizeof(buffers[i]) };
		messages[i].msg_hdr.msg_iov = &vectors[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	for (;;) {
		int n = recvmmsg(fd, messages, BATCH, MSG_WAITFORONE, NULL);

		if (n <= 0)
			ended(n);
		for (int i = 0; i < n; i++)
			work(fd, messages[i].msg_len);
	}
}

static void by_poll(int fd)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	for (;;)
		if (poll(&poll_fd, 1, -1) > 0)
			receive(fd, 0);
}

static void by_select(int fd)
{
	for (;;) {
		fd_set set;

		FD_ZERO(&set);
		FD_SET(fd, &set);
		if (select(fd + 1, &set, NULL, NULL, NULL) > 0)
			receive(fd, 0);
	}
}

static void by_epoll(int fd, uint32_t trigger)
{
	struct epoll_event event = { .events = EPOLLIN | trigger };
	int epoll = check(epoll_create1(0), "epoll_create1");

	check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
	for (;;) {
		if (epoll_wait(epoll, &event, 1, -1) <= 0)
			continue;
		if (!trigger)
			receive(fd, 0);
		else
			while (receive(fd, MSG_DONTWAIT) > 0)
				;
	}
}

static void by_uring_poll(int fd)
{
	struct uring uring;

	uring_open(&uring, 8);
	for (;;) {
		struct io_uring_sqe *sqe = uring_sqe(&uring);

		sqe->opcode = IORING_OP_POLL_ADD;
		sqe->fd = fd;
		sqe->poll32_events = POLLIN;
		uring_enter(&uring, 1);
		while (uring_cqe(&uring))
			uring_seen(&uring);
		receive(fd, MSG_DONTWAIT);
	}
}

/* Receives into buffers that the kernel selects: one request, many completions. */
static void by_uring_multishot(int fd)
{
	enum { COUNT = 64, SIZE = 4096, GROUP = 1 };
	static char buffers[COUNT][SIZE];
	struct io_uring_cqe *cqe;
	struct uring uring;
	int armed = 0;

	uring_open(&uring, 2 * COUNT);
	uring_provide(&uring, buffers, SIZE, COUNT, 0, GROUP);
	for (;;) {
		if (!armed) {
			struct io_uring_sqe *sqe = uring_sqe(&uring);

			sqe->opcode = IORING_OP_RECV;
			sqe->fd = fd;
			sqe->ioprio = IORING_RECV_MULTISHOT;
			sqe->flags = IOSQE_BUFFER_SELECT;
			sqe->buf_group = GROUP;
			armed = 1;
		}
		uring_enter(&uring, 1);
		while ((cqe = uring_cqe(&uring))) {
			int result = cqe->res, flags = cqe->flags, receives = cqe->user_data == 0;

			uring_seen(&uring);
			if (!receives)
				continue;
			if (!(flags & IORING_CQE_F_MORE))
				armed = 0;
			if (result == 0)
				exit(0);
			if (result == -EINVAL) {
				fprintf(stderr, "no multishot receive in this kernel\n");
				exit(77);
			}
			if (result < 0)
				continue;
			work(fd, result);
			int buffer = flags >> IORING_CQE_BUFFER_SHIFT;

			uring_provide(&uring, buffers[buffer], SIZE, 1, buffer, GROUP);
		}
	}
}

static void by_busy_loop(int fd)
{
	int usecs = 50;

	setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &usecs, sizeof(usecs));
	for (;;)
		receive(fd, MSG_DONTWAIT);
}

static const char *kind;

static void *read_socket(void *argument)
{
	int fd = *(int *)argument;

	tids[ready_threads++] = gettid();
	prctl(PR_SET_NAME, "reader");
	be_important();
	pin(receive_cpu);
	if (!strcmp(kind, "recv") || !strcmp(kind, "threads"))
		by_recv(fd);
	else if (!strcmp(kind, "recvmmsg"))
		by_recvmmsg(fd);
	else if (!strcmp(kind, "poll"))
		by_poll(fd);
	else if (!strcmp(kind, "select"))
		by_select(fd);
	else if (!strcmp(kind, "epoll_lt"))
		by_epoll(fd, 0);
	else if (!strcmp(kind, "epoll_et"))
		by_epoll(fd, EPOLLET);
	else if (!strcmp(kind, "uring_poll"))
		by_uring_poll(fd);
	else if (!strcmp(kind, "uring_multishot"))
		by_uring_multishot(fd);
	else if (!strcmp(kind, "busy"))
		by_busy_loop(fd);
	fprintf(stderr, "no such reader: %s\n", kind);
	exit(2);
}

/* Holds the mutex, or writes to the pipe, at independent times. */
static void *help(void *unused)
{
	helper_tid = gettid();
	prctl(PR_SET_NAME, "helper");
	be_important();
	pin(helper_cpu);
	for (;;) {
		if (locks) {
			pthread_mutex_lock(&mutex);
			nap(random_between(2 * MS, 8 * MS));
			pthread_mutex_unlock(&mutex);
			nap(random_between(5 * MS, 15 * MS));
		} else {
			nap(random_between(2 * MS, 8 * MS));
			if (write(pipe_fds[1], "", 1) != 1)
				return unused;
		}
	}
}

/* Drops one segment with data in 100, before TCP sees it, as if it had been lost in the network. */
static void lose_segments(int fd)
{
	struct sock_filter code[] = {
		/* Payload after the TCP header: SYN, pure ACKs and FIN pass. */
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 12),
		BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 2),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x3c),
		BPF_STMT(BPF_MISC | BPF_TAX, 0),
		BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
		BPF_JUMP(BPF_JMP | BPF_JGT | BPF_X, 0, 0, 4),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, SKF_AD_OFF + SKF_AD_RANDOM),
		BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, 100),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, 0),
		BPF_STMT(BPF_RET | BPF_K, 0xffffffff),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	check(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), "filter");
}

static void map_pages(const char *file)
{
	int fd = check(open(file, O_RDONLY), file);
	struct stat stat;

	check(fstat(fd, &stat), file);
	page_count = stat.st_size / 4096;
	pages = mmap(NULL, stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (pages == MAP_FAILED)
		fail(file);
	/* Without read-ahead: each page faults separately. */
	madvise(pages, stat.st_size, MADV_RANDOM);
}

static void option(const char *text)
{
	if (!strcmp(text, "answer"))
		answers = 1;
	else if (!strcmp(text, "compute"))
		computes = 1;
	else if (!strcmp(text, "lock"))
		locks = 1;
	else if (!strcmp(text, "loss"))
		loses = 1;
	else if (!strcmp(text, "nanosleep"))
		sleeps = 1;
	else if (!strcmp(text, "pipe"))
		waits_for_pipe = 1;
	else if (!strncmp(text, "memory=", 7))
		map_pages(text + 7);
	else {
		fprintf(stderr, "no such option: %s\n", text);
		exit(2);
	}
}

/* The socket to read: for TCP, the accepted connection. */
static int open_socket(int tcp, struct sockaddr_in *at)
{
	int on = 1, size = 4 << 20;
	int fd = check(socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0), "socket");

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (!tcp)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	check(bind(fd, (void *)at, sizeof(*at)), "bind");
	if (!tcp)
		return fd;
	check(listen(fd, 1), "listen");
	printf("{\"listens\": true}\n");
	fflush(stdout);
	int connection = check(accept(fd, NULL, NULL), "accept");

	setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return connection;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	char c;

	if (argc < 7) {
		fprintf(stderr, "usage: reader KIND udp|tcp ADDRESS PORT CPU HELPER_CPU [OPTION...]\n");
		return 2;
	}
	kind = argv[1];
	struct sockaddr_in at = address(argv[3], argv[4]);

	receive_cpu = atoi(argv[5]);
	helper_cpu = atoi(argv[6]);
	for (int i = 7; i < argc; i++)
		option(argv[i]);
	be_named("reader-main");
	pin(helper_cpu);
	int fd = open_socket(!strcmp(argv[2], "tcp"), &at);

	if (loses)
		lose_segments(fd);
	check(pipe(pipe_fds), "pipe");
	if (locks || waits_for_pipe)
		pthread_create(&thread, NULL, help, NULL);
	int threads = strcmp(kind, "threads") ? 1 : THREADS;

	for (int i = 0; i < threads; i++) {
		pthread_create(&thread, NULL, read_socket, &fd);
		while (ready_threads <= i)
			sched_yield();
	}
	printf("{\"readers\": [");
	for (int i = 0; i < threads; i++)
		printf("%s%d", i ? ", " : "", tids[i]);
	printf("], \"helper\": %d}\n", helper_tid);
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	printf("{\"bytes\": %llu, \"calls\": %llu}\n", (unsigned long long)bytes, (unsigned long long)calls);
	return 0;
}
