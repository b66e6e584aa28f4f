/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends the packets of a scene: traffic SHAPE ADDRESS PORT SECONDS CPU
 *
 * SHAPE is single, bursts, continuous (UDP), stream or requests (TCP). Runs in real time, so that packets
 * are also sent during a fault. Prints how many messages were sent and, for requests, how
 * many answers arrived.
 */
#include "common.h"
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#define MESSAGE 64
#define CHUNK 4000
#define BURST 16
/* Maximum number of outstanding requests. */
#define OUTSTANDING 4

static char data[CHUNK];
static uint64_t sent, answered;

static void send_message(int fd)
{
	/* A full buffer of a shaped device or an exited reader loses a datagram, as on any network. */
	if (send(fd, data, MESSAGE, MSG_NOSIGNAL) == MESSAGE)
		sent++;
}

static void sleep_until(uint64_t at)
{
	struct timespec t = { at / 1000000000ULL, at % 1000000000ULL };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void datagrams(int fd, const char *shape, uint64_t end)
{
	uint64_t at = now_ns();

	while (at < end) {
		if (!strcmp(shape, "single")) {
			send_message(fd);
			at += random_between(1 * MS, 5 * MS);
		} else if (!strcmp(shape, "bursts")) {
			for (int i = 0; i < BURST; i++)
				send_message(fd);
			at += random_between(5 * MS, 20 * MS);
		} else {
			send_message(fd);
			at += 500 * US;
		}
		sleep_until(at);
	}
}

static void stream(int fd, uint64_t end)
{
	for (uint64_t at = now_ns(); at < end; at += 1 * MS) {
		if (send(fd, data, CHUNK, MSG_NOSIGNAL) < 0)
			fail("stream");
		sent++;
		sleep_until(at + 1 * MS);
	}
}

static void take_answers(int fd, int flags)
{
	static uint64_t bytes;
	char buffer[4096];
	ssize_t n = recv(fd, buffer, sizeof(buffer), flags);

	if (n == 0 || (n < 0 && errno != EAGAIN))
		fail("answers");
	if (n > 0)
		bytes += n;
	answered = bytes / MESSAGE;
}

/* Reads answers immediately, so that none waits for this end. */
static void requests(int fd, uint64_t end)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	uint64_t at = now_ns();

	while (at < end) {
		uint64_t now = now_ns();

		if (now >= at && sent - answered < OUTSTANDING) {
			send_message(fd);
			at = now + random_between(500 * US, 1500 * US);
			continue;
		}
		uint64_t wait = now < at ? at - now : 10 * MS;
		struct timespec timeout = { 0, wait };

		if (ppoll(&poll_fd, 1, &timeout, NULL) > 0)
			take_answers(fd, MSG_DONTWAIT);
	}
}

int main(int argc, char **argv)
{
	if (argc != 6) {
		fprintf(stderr, "usage: traffic SHAPE ADDRESS PORT SECONDS CPU\n");
		return 2;
	}
	const char *shape = argv[1];
	struct sockaddr_in to = address(argv[2], argv[3]);
	int tcp = !strcmp(shape, "stream") || !strcmp(shape, "requests"), on = 1;

	be_named("traffic");
	pin(atoi(argv[5]));
	be_fifo(45);
	int fd = check(socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0), "socket");

	if (tcp)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	check(connect(fd, (void *)&to, sizeof(to)), "connect");
	uint64_t end = now_ns() + strtoull(argv[4], NULL, 10) * 1000000000ULL;

	if (!tcp)
		datagrams(fd, shape, end);
	else if (!strcmp(shape, "stream"))
		stream(fd, end);
	else
		requests(fd, end);
	printf("{\"sent\": %llu, \"answered\": %llu}\n", (unsigned long long)sent,
	       (unsigned long long)answered);
	return 0;
}
