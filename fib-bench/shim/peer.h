/* What every peer's loop does, so that they differ in their reports only: `bursts` times one acquire load of the root
 * pointer and one load that depends on it. The sum is returned, so that no load can be left out. */
#ifndef FIB_BENCH_PEER_H
#define FIB_BENCH_PEER_H

#include <stdint.h>

typedef uint64_t *const *fib_bench_root;

static inline __attribute__((always_inline)) uint64_t burst_body(fib_bench_root root)
{
	return *__atomic_load_n(root, __ATOMIC_ACQUIRE);
}

/* The same compiler's bare load: a C peer is compared with this one, not with the Rust loop. */
static inline uint64_t bare_loop(fib_bench_root root, uint64_t bursts)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < bursts; i++)
		sum += burst_body(root);
	return sum;
}

#endif
