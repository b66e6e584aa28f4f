/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends datagrams at times that are fixed in advance, whatever becomes of them (open loop):
 *
 *   datagrams figures=FILE to=ADDRESS [port=9000] [rate=2000] [burst=1] [size=64] [flows=1] [peers=1] [cpu=N] [fifo=N]
 *
 * `rate` datagrams per second, `burst` of them at once, from as many source ports as `flows`, to as many addresses
 * from `to` on as `peers`. Each carries its intended send time.
 */
#include "options.h"
#include <sys/socket.h>

#define MOST_FLOWS 64
#define MOST_BYTES 9000

int main(int argc, char **argv)
{
	static char data[MOST_BYTES];
	int sockets[MOST_FLOWS];

	option_list = argv + 1;
	long rate = number("rate", 2000), burst = number("burst", 1), size = number("size", 64);
	long flows = number("flows", 1), peers = number("peers", 1);
	struct figures *figures = figures_open(option("figures", "figures"));
	struct sockaddr_in to = address(option("to", "127.0.0.1"), option("port", "9000"));
	uint32_t first = ntohl(to.sin_addr.s_addr);

	if (argc < 3 || flows > MOST_FLOWS || size > MOST_BYTES)
		fail("usage: see the source");
	be_named("datagrams");
	be_placed();
	for (int i = 0; i < flows; i++)
		sockets[i] = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
	say_ready();
	uint64_t each = 1000000000ULL * burst / rate, count = 0;

	for (uint64_t at = now_ns() + each;; at += each) {
		sleep_until(at);
		for (int i = 0; i < burst; i++, count++) {
			memcpy(data, &at, sizeof(at));
			to.sin_addr.s_addr = htonl(first + count % peers);
			count_sent(figures, at);
			/* One that the kernel refuses is lost. */
			sendto(sockets[count % flows], data, size, MSG_DONTWAIT, (void *)&to, sizeof(to));
		}
	}
}
