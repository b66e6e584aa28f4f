/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepts TCP connections: server MODE [figures=FILE] [port=9000] [cpu=N] [fifo=N] [work_us=0] [backlog=4096]
 *                                 [listen_ms=0]
 *
 * MODE: `echo` answers each 64 bytes with the same; `sink` reads messages (intended send time, length) and counts how
 * late each is complete. `work_us`: computes that long for each request. `listen_ms`: calls listen() again that often,
 * as a server that is reloaded.
 */
#include "options.h"
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define REQUEST 64
#define MOST_FDS 65536
#define CHUNK (256 << 10)

/* What of a message has been read, by file descriptor. */
static struct message {
	uint64_t header[2], got;
} messages[MOST_FDS];
static struct figures *figures;
static int sinks;

/* Answers requests, as many as are complete. */
static int echo(int fd)
{
	static char data[REQUEST * 256];
	ssize_t got = recv(fd, data, sizeof(data), MSG_DONTWAIT);

	if (got <= 0)
		return got < 0 && errno == EAGAIN;
	for (ssize_t i = 0; i < got / REQUEST; i++)
		spin(number("work_us", 0) * US);
	return send(fd, data, got, MSG_NOSIGNAL) == got;
}

static int sink(int fd)
{
	static char data[CHUNK];
	struct message *message = &messages[fd];
	const size_t header = sizeof(message->header);
	ssize_t got = recv(fd, data, sizeof(data), MSG_DONTWAIT);

	if (got <= 0)
		return got < 0 && errno == EAGAIN;
	for (char *next = data, *end = data + got; next < end;) {
		size_t some = end - next, wanted = message->got < header ? header : message->header[1];

		if (some > wanted - message->got)
			some = wanted - message->got;
		if (message->got < header)
			memcpy((char *)message->header + message->got, next, some);
		message->got += some;
		next += some;
		if (message->got >= header && message->got == message->header[1]) {
			count_arrived(figures, message->header[0], now_ns());
			message->got = 0;
		}
	}
	return 1;
}

static void accept_all(int listener, int epoll)
{
	int fd, on = 1;

	while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
		struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		messages[fd].got = 0;
		check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
	}
}

int main(int argc, char **argv)
{
	struct epoll_event events[64];
	int on = 1;

	option_list = argv + 1;
	if (argc < 2)
		fail("usage: see the source");
	sinks = !strcmp(argv[1], "sink");
	figures = sinks ? figures_open(option("figures", "figures")) : NULL;
	be_named("server");
	allow_files();
	be_placed();
	struct sockaddr_in at = address("0.0.0.0", option("port", "9000"));
	int listener = check(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), "socket");
	int epoll = check(epoll_create1(0), "epoll_create1");
	struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };
	int backlog = number("backlog", 4096), again_ms = number("listen_ms", 0);
	uint64_t again = now_ns() + again_ms * MS;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	check(bind(listener, (void *)&at, sizeof(at)), "bind");
	check(listen(listener, backlog), "listen");
	check(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event), "epoll_ctl");
	say_ready();
	for (;;) {
		int ready = epoll_wait(epoll, events, 64, again_ms ? again_ms : -1);

		for (int i = 0; i < ready; i++) {
			int fd = events[i].data.fd;

			if (fd == listener)
				accept_all(listener, epoll);
			else if (!(sinks ? sink(fd) : echo(fd)))
				close(fd);
		}
		if (again_ms && now_ns() >= again) {
			check(listen(listener, backlog), "listen");
			again = now_ns() + again_ms * MS;
		}
	}
}
