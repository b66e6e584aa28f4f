/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends over TCP at times that are fixed in advance (open loop), and counts how late the answers are:
 *
 *   client MODE figures=FILE to=ADDRESS [port=9000] [rate=2000] [burst=1] [connections=16] [size=65536] [cpu=N] [fifo=N]
 *
 * MODE: `requests` of 64 bytes, on open connections; `connects`, each request on a new connection; `stream`, messages of
 * `size` bytes on one connection, which `server sink` counts. `burst` requests at once.
 */
#include "options.h"
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define REQUEST 64
#define MOST_FDS 65536
/* A message that could not be written for so long is not sent: it is lost. */
#define TOO_LATE (500 * MS)
/* A client gives a connection up after so long. */
#define PATIENCE (3000 * MS)

static struct figures *figures;
static struct sockaddr_in to;
static int epoll;
/* Bytes of an answer that is not complete, and its beginning, by file descriptor. */
static struct {
	char data[REQUEST];
	size_t got;
} answers[MOST_FDS];
static uint64_t intended_of[MOST_FDS];
/* New connections, oldest first. */
static struct {
	int fd;
	uint64_t intended;
} opened[MOST_FDS];
static uint64_t opened_head, opened_tail;

static int connection(int flags)
{
	int on = 1, fd = check(socket(AF_INET, SOCK_STREAM | flags, 0), "socket");

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(fd, (void *)&to, sizeof(to)) < 0 && errno != EINPROGRESS)
		fail("connect");
	return fd;
}

static void watch(int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };

	answers[fd].got = 0;
	check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

static int send_request(int fd, uint64_t intended)
{
	char data[REQUEST] = { 0 };

	memcpy(data, &intended, sizeof(intended));
	return send(fd, data, sizeof(data), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(data);
}

/* Returns the number of complete answers, or -1 if the connection has ended. */
static int take_answers(int fd)
{
	char data[REQUEST * 64];
	ssize_t got = recv(fd, data, sizeof(data), MSG_DONTWAIT);
	int complete = 0;

	if (got <= 0)
		return got < 0 && errno == EAGAIN ? 0 : -1;
	for (ssize_t i = 0; i < got; i++) {
		uint64_t intended;

		answers[fd].data[answers[fd].got++] = data[i];
		if (answers[fd].got < REQUEST)
			continue;
		memcpy(&intended, answers[fd].data, sizeof(intended));
		count_arrived(figures, intended, now_ns());
		answers[fd].got = 0;
		complete++;
	}
	return complete;
}

static void end_connection(int fd)
{
	struct linger now = { 1, 0 };

	/* No port is left in TIME_WAIT. */
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(fd);
	intended_of[fd] = 0;
}

static void open_connection(uint64_t intended)
{
	int fd = connection(SOCK_NONBLOCK);

	intended_of[fd] = intended;
	watch(fd, EPOLLOUT);
	opened[opened_head % MOST_FDS].fd = fd;
	opened[opened_head++ % MOST_FDS].intended = intended;
}

/* Ends connections without an answer. */
static void give_up(uint64_t before)
{
	for (; opened_tail < opened_head; opened_tail++) {
		int fd = opened[opened_tail % MOST_FDS].fd;
		uint64_t intended = opened[opened_tail % MOST_FDS].intended;

		if (intended >= before)
			return;
		if (intended_of[fd] == intended)
			end_connection(fd);
	}
}

/* Handles what has arrived until `end`. */
static void handle(uint64_t end, int connects)
{
	struct epoll_event events[64];

	for (uint64_t now = now_ns(); now < end; now = now_ns()) {
		struct timespec timeout = { (end - now) / 1000000000ULL, (end - now) % 1000000000ULL };
		int ready = epoll_pwait2(epoll, events, 64, &timeout, NULL);

		for (int i = 0; i < ready; i++) {
			int fd = events[i].data.fd;

			if (events[i].events & EPOLLOUT) {
				struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

				if (send_request(fd, intended_of[fd]))
					epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
				else
					end_connection(fd);
				continue;
			}
			int complete = take_answers(fd);

			if (connects ? complete : complete < 0)
				end_connection(fd);
		}
	}
}

static void requests(uint64_t each, int burst, int connects)
{
	int count = number("connections", 16), fds[1024], next = 0;

	epoll = check(epoll_create1(0), "epoll_create1");
	for (int i = 0; i < count && !connects; i++)
		watch(fds[i] = connection(0), EPOLLIN);
	say_ready();
	for (uint64_t at = now_ns() + each;; at += each) {
		handle(at, connects);
		for (int i = 0; i < burst; i++) {
			count_sent(figures, at);
			if (connects)
				open_connection(at);
			else
				send_request(fds[next++ % count], at);
		}
		give_up(at - PATIENCE);
	}
}

static void stream(uint64_t each, size_t size)
{
	char *data = calloc(1, size);
	uint64_t header[2] = { 0, size };
	int fd = connection(0);

	say_ready();
	for (uint64_t at = now_ns() + each;; at += each) {
		sleep_until(at);
		count_sent(figures, at);
		if (now_ns() > at + TOO_LATE)
			continue;
		header[0] = at;
		memcpy(data, header, sizeof(header));
		for (size_t sent = 0; sent < size;)
			sent += check(send(fd, data + sent, size - sent, MSG_NOSIGNAL), "stream");
	}
}

int main(int argc, char **argv)
{
	option_list = argv + 1;
	if (argc < 3)
		fail("usage: see the source");
	figures = figures_open(option("figures", "figures"));
	to = address(option("to", "127.0.0.1"), option("port", "9000"));
	be_named("client");
	allow_files();
	be_placed();
	long burst = number("burst", 1);
	uint64_t each = 1000000000ULL * burst / number("rate", 2000);

	if (!strcmp(argv[1], "stream"))
		stream(each, number("size", 65536));
	else
		requests(each, burst, !strcmp(argv[1], "connects"));
	return 0;
}
