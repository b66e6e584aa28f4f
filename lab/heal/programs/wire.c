/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wire with a delay between two network namespaces, for kernels without netem: a TUN device in each.
 *
 *   wire NETNS_A DEVICE_A NETNS_B DEVICE_B [delay_us=10000] [loss=0] [spike_us=0] [cpu=N] [fifo=N]
 *
 * Every packet arrives `delay_us` later on the other side, in order. One in `loss` is lost. `spike_us`: for 4 of each
 * 40 ms, packets take that much longer.
 */
#include "options.h"
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>

#define MOST_BYTES 65536
#define QUEUE 8192

struct packet {
	uint64_t at;
	size_t bytes;
	char *data;
};

struct way {
	int from, to;
	struct packet queue[QUEUE];
	uint64_t head, tail;
};

static int device(const char *netns, const char *name)
{
	char path[256];
	struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI };

	snprintf(path, sizeof(path), "/run/netns/%s", netns);
	check(setns(check(open(path, O_RDONLY | O_CLOEXEC), path), CLONE_NEWNET), path);
	int fd = check(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun");

	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	check(ioctl(fd, TUNSETIFF, &request), name);
	return fd;
}

static void take(struct way *way)
{
	static char data[MOST_BYTES];
	long loss = number("loss", 0);
	ssize_t bytes;

	while ((bytes = read(way->from, data, sizeof(data))) > 0) {
		uint64_t now = now_ns(), at = now + number("delay_us", 10000) * US;

		if (loss && random_between(1, loss) == 1)
			continue;
		if (now / MS % 40 < 4)
			at += number("spike_us", 0) * US;
		if (way->head - way->tail == QUEUE)
			continue;
		struct packet *packet = &way->queue[way->head % QUEUE];

		if (way->head > way->tail && at < way->queue[(way->head - 1) % QUEUE].at)
			at = way->queue[(way->head - 1) % QUEUE].at;
		*packet = (struct packet){ at, bytes, malloc(bytes) };
		memcpy(packet->data, data, bytes);
		way->head++;
	}
}

static void deliver(struct way *way, uint64_t now)
{
	while (way->tail < way->head && way->queue[way->tail % QUEUE].at <= now) {
		struct packet *packet = &way->queue[way->tail++ % QUEUE];

		/* A device that is down loses it, as a wire does. */
		if (write(way->to, packet->data, packet->bytes) < 0 && errno != EIO && errno != EINVAL)
			fail("write");
		free(packet->data);
	}
}

int main(int argc, char **argv)
{
	static struct way ways[2];

	if (argc < 5)
		fail("usage: see the source");
	option_list = argv + 5;
	int a = device(argv[1], argv[2]), b = device(argv[3], argv[4]);
	int timer = check(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), "timerfd");

	be_named("wire");
	be_placed();
	ways[0].from = ways[1].to = a;
	ways[1].from = ways[0].to = b;
	say_ready();
	for (;;) {
		struct pollfd fds[] = { { a, POLLIN, 0 }, { b, POLLIN, 0 }, { timer, POLLIN, 0 } };
		uint64_t next = UINT64_MAX, now = now_ns();

		for (int i = 0; i < 2; i++) {
			take(&ways[i]);
			deliver(&ways[i], now);
			if (ways[i].tail < ways[i].head && ways[i].queue[ways[i].tail % QUEUE].at < next)
				next = ways[i].queue[ways[i].tail % QUEUE].at;
		}
		if (next == UINT64_MAX)
			next = 0;
		struct itimerspec spec = { .it_value = { next / 1000000000ULL, next % 1000000000ULL } };

		check(timerfd_settime(timer, TFD_TIMER_ABSTIME, &spec, NULL), "timerfd");
		poll(fds, 3, -1);
	}
}
