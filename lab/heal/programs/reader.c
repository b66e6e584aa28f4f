/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives datagrams and counts how late each is:
 *
 *   reader figures=FILE [port=9000] [cpu=N] [threads=1] [work_us=0] [lock=0] [session_ms=0] [rcvbuf=N]
 *          [fifo=N] [stall_ms=0] [stall_every_ms=1000]
 *
 * Each of `threads` has a socket of its own (SO_REUSEPORT), and computes for `work_us` on each datagram.
 * `lock`: another thread holds, for 8 of each 40 ms, a mutex that each datagram takes.
 * `stall_ms`: it computes for so long each `stall_every_ms`, after a datagram.
 * `session_ms`: the socket is closed and opened again that often, as by a server with sessions.
 */
#include "options.h"
#include <pthread.h>
#include <sys/socket.h>

static struct figures *figures;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int open_socket(void)
{
	struct sockaddr_in at = address("0.0.0.0", option("port", "9000"));
	int on = 1, fd = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");

	int bytes = number("rcvbuf", 0);

	check(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)), "SO_REUSEPORT");
	if (bytes)
		check(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), "SO_RCVBUF");
	check(bind(fd, (void *)&at, sizeof(at)), "bind");
	return fd;
}

static void stall(void)
{
	static _Thread_local uint64_t last;
	uint64_t now = now_ns();

	if (!number("stall_ms", 0) || now - last < number("stall_every_ms", 1000) * MS)
		return;
	if (last)
		spin(number("stall_ms", 0) * MS);
	last = now;
}

static int receive(int fd, int flags)
{
	char data[9000];
	uint64_t intended;

	if (recv(fd, data, sizeof(data), flags) < (ssize_t)sizeof(intended))
		return 0;
	memcpy(&intended, data, sizeof(intended));
	if (number("lock", 0)) {
		pthread_mutex_lock(&mutex);
		pthread_mutex_unlock(&mutex);
	}
	count_arrived(figures, intended, now_ns());
	spin(number("work_us", 0) * US);
	stall();
	return 1;
}

static void *read_socket(void *unused)
{
	uint64_t session = number("session_ms", 0) * MS, end = now_ns() + session;
	int fd = open_socket();

	be_placed();
	for (;;) {
		receive(fd, 0);
		if (!session || now_ns() < end)
			continue;
		/* The next session's socket first, so that no datagram finds none. */
		int next = open_socket();

		while (receive(fd, MSG_DONTWAIT))
			;
		close(fd);
		fd = next;
		end = now_ns() + session;
	}
	return unused;
}

static void *hold_lock(void *unused)
{
	be_important();
	for (;;) {
		pthread_mutex_lock(&mutex);
		nap(8 * MS);
		pthread_mutex_unlock(&mutex);
		nap(32 * MS);
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	option_list = argv + 1;
	if (argc < 2)
		fail("usage: see the source");
	figures = figures_open(option("figures", "figures"));
	be_named("reader");
	for (int i = 0; i < number("threads", 1); i++)
		pthread_create(&thread, NULL, read_socket, NULL);
	if (number("lock", 0))
		pthread_create(&thread, NULL, hold_lock, NULL);
	say_ready();
	pthread_join(thread, NULL);
	return 0;
}
