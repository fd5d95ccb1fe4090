/* A reader of DPDK's rte_rcu_qsbr: online all the time, a quiescent state a burst. Needs no EAL. */
#include <stdlib.h>

#include <rte_rcu_qsbr.h>

#include "peer.h"

static struct rte_rcu_qsbr *qsbr;

static uint64_t qsbr_loop(root_t root, uint64_t bursts)
{
	struct rte_rcu_qsbr *v = qsbr;
	uint64_t sum = 0;
	for (uint64_t i = 0; i < bursts; i++) {
		sum += burst_body(root);
		rte_rcu_qsbr_quiescent(v, 0);
	}
	return sum;
}

int main(void)
{
	const loop_t loops[] = { bare_loop, qsbr_loop };
	size_t size = RTE_ALIGN_CEIL(rte_rcu_qsbr_get_memsize(1), RTE_CACHE_LINE_SIZE);
	int status;

	qsbr = aligned_alloc(RTE_CACHE_LINE_SIZE, size);
	if (qsbr == NULL || rte_rcu_qsbr_init(qsbr, 1) != 0 || rte_rcu_qsbr_thread_register(qsbr, 0) != 0)
		return 1;
	rte_rcu_qsbr_thread_online(qsbr, 0);
	status = serve(loops, sizeof(loops) / sizeof(loops[0]));
	rte_rcu_qsbr_thread_offline(qsbr, 0);
	free(qsbr);
	return status;
}
