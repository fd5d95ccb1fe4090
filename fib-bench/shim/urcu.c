/* The loops of liburcu's readers: memb and bp with a read-side section a burst, qsbr with a quiescent state a burst.
 * The sections are inlined, as a program that cares would have it (the functions are short enough for any license). */
#define _LGPL_SOURCE
#define URCU_INLINE_SMALL_FUNCTIONS

#include <urcu/urcu-memb.h>
#include <urcu/urcu-qsbr.h>
#include <urcu/urcu-bp.h>

#include "peer.h"

uint64_t fib_bench_urcu_bare(fib_bench_root root, uint64_t bursts)
{
	return bare_loop(root, bursts);
}

uint64_t fib_bench_urcu_memb(fib_bench_root root, uint64_t bursts)
{
	uint64_t sum = 0;
	urcu_memb_register_thread();
	for (uint64_t i = 0; i < bursts; i++) {
		urcu_memb_read_lock();
		sum += burst_body(root);
		urcu_memb_read_unlock();
	}
	urcu_memb_unregister_thread();
	return sum;
}

uint64_t fib_bench_urcu_qsbr(fib_bench_root root, uint64_t bursts)
{
	uint64_t sum = 0;
	urcu_qsbr_register_thread();
	for (uint64_t i = 0; i < bursts; i++) {
		sum += burst_body(root);
		urcu_qsbr_quiescent_state();
	}
	urcu_qsbr_unregister_thread();
	return sum;
}

uint64_t fib_bench_urcu_bp(fib_bench_root root, uint64_t bursts)
{
	uint64_t sum = 0;
	/* Registers by itself in the first section, and unregisters when the thread ends. */
	for (uint64_t i = 0; i < bursts; i++) {
		urcu_bp_read_lock();
		sum += burst_body(root);
		urcu_bp_read_unlock();
	}
	return sum;
}
