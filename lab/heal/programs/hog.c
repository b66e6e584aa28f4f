/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses a CPU: hog [name=hog] [busy_us=1000] [pause_us=0] [tasks=1] [cpu=N] [fifo=N]
 *
 * Each of `tasks` processes computes for `busy_us`, then sleeps for `pause_us`.
 */
#include "options.h"

int main(int argc, char **argv)
{
	option_list = argv + 1;
	if (argc < 2)
		fail("usage: see the source");
	be_placed();
	say_ready();
	for (int i = 1; i < number("tasks", 1); i++)
		if (!fork())
			break;
	be_named(option("name", "hog"));
	for (;;) {
		spin(number("busy_us", 1000) * US);
		if (number("pause_us", 0))
			nap(number("pause_us", 0) * US);
	}
}
