/* Readers of liburcu: memb and bp with a read-side section a burst, qsbr with a quiescent state a burst.
 * The sections are inlined, as a program that cares would have it (the functions are short enough for any license). */
#define _LGPL_SOURCE
#define URCU_INLINE_SMALL_FUNCTIONS

#include <urcu/urcu-memb.h>
#include <urcu/urcu-qsbr.h>
#include <urcu/urcu-bp.h>

#include "peer.h"

static uint64_t memb_loop(root_t root, uint64_t bursts)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < bursts; i++) {
		urcu_memb_read_lock();
		sum += burst_body(root);
		urcu_memb_read_unlock();
	}
	return sum;
}

static uint64_t qsbr_loop(root_t root, uint64_t bursts)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < bursts; i++) {
		sum += burst_body(root);
		urcu_qsbr_quiescent_state();
	}
	return sum;
}

static uint64_t bp_loop(root_t root, uint64_t bursts)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < bursts; i++) {
		urcu_bp_read_lock();
		sum += burst_body(root);
		urcu_bp_read_unlock();
	}
	return sum;
}

int main(void)
{
	const loop_t loops[] = { bare_loop, memb_loop, qsbr_loop, bp_loop };
	int status;

	urcu_memb_register_thread();
	urcu_qsbr_register_thread();
	/* bp registers by itself in its first section. */
	status = serve(loops, sizeof(loops) / sizeof(loops[0]));
	urcu_qsbr_unregister_thread();
	urcu_memb_unregister_thread();
	return status;
}
