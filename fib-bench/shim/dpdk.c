/* The loop of a reader of DPDK's rte_rcu_qsbr: online all the time, a quiescent state a burst. Needs no EAL. */
#include <stdlib.h>

#include <rte_rcu_qsbr.h>

#include "peer.h"

uint64_t fib_bench_dpdk_bare(fib_bench_root root, uint64_t bursts)
{
	return bare_loop(root, bursts);
}

/* 0 when there is no memory: a sum of loads that are not 0 cannot be. */
uint64_t fib_bench_dpdk_qsbr(fib_bench_root root, uint64_t bursts)
{
	uint64_t sum = 0;
	size_t size = rte_rcu_qsbr_get_memsize(1);
	struct rte_rcu_qsbr *v = aligned_alloc(RTE_CACHE_LINE_SIZE, RTE_ALIGN_CEIL(size, RTE_CACHE_LINE_SIZE));
	if (v == NULL)
		return 0;
	if (rte_rcu_qsbr_init(v, 1) != 0 || rte_rcu_qsbr_thread_register(v, 0) != 0) {
		free(v);
		return 0;
	}
	rte_rcu_qsbr_thread_online(v, 0);
	for (uint64_t i = 0; i < bursts; i++) {
		sum += burst_body(root);
		rte_rcu_qsbr_quiescent(v, 0);
	}
	rte_rcu_qsbr_thread_offline(v, 0);
	free(v);
	return sum;
}
