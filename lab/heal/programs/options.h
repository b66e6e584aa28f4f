/* SPDX-License-Identifier: Apache-2.0 */
/* Options of the programs: `name=value` arguments, each with a default, and what most of them share. */
#ifndef HEAL_OPTIONS_H
#define HEAL_OPTIONS_H

#include "figures.h"

static char **option_list;

static inline const char *option(const char *name, const char *otherwise)
{
	size_t length = strlen(name);

	for (char **argument = option_list; *argument; argument++)
		if (!strncmp(*argument, name, length) && (*argument)[length] == '=')
			return *argument + length + 1;
	return otherwise;
}

static inline long number(const char *name, long otherwise)
{
	const char *text = option(name, NULL);

	return text ? strtol(text, NULL, 0) : otherwise;
}

/* `cpu=N` (default: any), `fifo=PRIORITY` (default: an ordinary task, above other sessions' tasks). */
static inline void be_placed(void)
{
	if (number("cpu", -1) >= 0)
		pin(number("cpu", -1));
	if (number("fifo", 0))
		be_fifo(number("fifo", 0));
	else
		be_important();
}

static inline void sleep_until(uint64_t at)
{
	struct timespec t = { at / 1000000000ULL, at % 1000000000ULL };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* As many files as the hard limit allows: a burst of connections needs some thousands. */
static inline void allow_files(void)
{
	struct rlimit limit;

	check(getrlimit(RLIMIT_NOFILE, &limit), "RLIMIT_NOFILE");
	limit.rlim_cur = limit.rlim_max;
	check(setrlimit(RLIMIT_NOFILE, &limit), "RLIMIT_NOFILE");
}

/* The test waits for this line. */
static inline void say_ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

#endif
