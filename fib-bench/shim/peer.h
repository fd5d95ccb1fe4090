/* What every peer's program does: it reads lines "<loop> <bursts>" and answers each with "<sum> <nanoseconds>" of that loop.
 * A loop makes `bursts` times one acquire load of the root pointer and one load that depends on it, so that loops differ
 * in their reports only. The sum tells that all loads were made. A program of its own is linked as users link, which decides
 * how fast thread-local words are reached; a library that is opened late would be slower. */
#ifndef FIB_BENCH_PEER_H
#define FIB_BENCH_PEER_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

typedef uint64_t *const *root_t;
typedef uint64_t (*loop_t)(root_t root, uint64_t bursts);

static inline __attribute__((always_inline)) uint64_t burst_body(root_t root)
{
	return *__atomic_load_n(root, __ATOMIC_ACQUIRE);
}

/* The same compiler's bare load: a C peer is compared with this one, not with the Rust loop. */
static uint64_t bare_loop(root_t root, uint64_t bursts)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < bursts; i++)
		sum += burst_body(root);
	return sum;
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Answers until the input ends. A loop is called through a pointer that the compiler cannot follow. */
static int serve(const loop_t *loops, unsigned count)
{
	static uint64_t value = 3;
	static uint64_t *root = &value;
	unsigned which;
	uint64_t bursts;

	while (scanf("%u %" SCNu64, &which, &bursts) == 2 && which < count) {
		loop_t volatile loop = loops[which];
		uint64_t start = now_ns();
		uint64_t sum = loop(&root, bursts);
		uint64_t end = now_ns();
		printf("%" PRIu64 " %" PRIu64 "\n", sum, end - start);
		fflush(stdout);
	}
	return 0;
}

#endif
