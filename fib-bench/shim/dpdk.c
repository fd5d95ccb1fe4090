/*
 * DPDK's longest-prefix-match tables as `fib-bench compare` drives them.
 *
 * Every table has a heap of its own: anonymous memory that the kernel is asked to back with 2 MiB pages, added to the
 * EAL as external memory. So no hugetlbfs is needed, the table is at its best, and its memory can be counted and given
 * back. Passes and dependent chains run here, so that nothing but DPDK's own calls stands between two lookups.
 *
 * A miss is next hop 0 everywhere. Addresses are in host order (IPv4) and network order (IPv6), as DPDK wants them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_fib.h>
#include <rte_fib6.h>
#include <rte_lpm.h>
#include <rte_lpm6.h>
#include <rte_malloc.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define BATCH_MAX 4096

enum kind { KIND_FIB, KIND_FIB6, KIND_LPM, KIND_LPM6 };

struct table {
    enum kind kind;
    union {
        struct rte_fib *fib;
        struct rte_fib6 *fib6;
        struct rte_lpm *lpm;
        struct rte_lpm6 *lpm6;
    };
    char heap[32];
    void *memory;
    size_t memory_bytes;
    int socket;
    bool added;
};

/* 0, or a negative errno. To be called once, from the thread that uses the tables. */
int shim_init(void)
{
    char *argv[] = {
        "fib-bench", "--no-huge", "--no-pci", "--no-telemetry", "--no-shconf", "--iova-mode=va", "-m", "256",
        "--log-level=3", "--force-max-simd-bitwidth=512", "-l", "0", NULL,
    };
    char core[16];
    /* The EAL pins this thread to the core it is given; the caller undoes that. Any core that we may use will do. */
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0)
        for (int i = 0; i < CPU_SETSIZE && i < RTE_MAX_LCORE; i++)
            if (CPU_ISSET(i, &allowed)) {
                snprintf(core, sizeof(core), "%d", i);
                argv[11] = core;
            }
    return rte_eal_init(12, argv) < 0 ? -rte_errno : 0;
}

static void give_back(struct table *table)
{
    if (table->added)
        rte_malloc_heap_memory_remove(table->heap, table->memory, table->memory_bytes);
    if (table->socket >= 0)
        rte_malloc_heap_destroy(table->heap);
    if (table->memory != MAP_FAILED)
        munmap(table->memory, table->memory_bytes);
    free(table);
}

static bool make_heap(struct table *table, size_t bytes, unsigned number)
{
    table->memory_bytes = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    /* Mapped with a page too many, so that an aligned stretch can be cut out. */
    size_t mapped = table->memory_bytes + HUGE_PAGE;
    char *start = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return false;
    char *aligned = (char *)(((uintptr_t)start + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
    if (aligned > start)
        munmap(start, aligned - start);
    size_t behind = start + mapped - (aligned + table->memory_bytes);
    if (behind > 0)
        munmap(aligned + table->memory_bytes, behind);
    table->memory = aligned;
    madvise(table->memory, table->memory_bytes, MADV_HUGEPAGE);
    snprintf(table->heap, sizeof(table->heap), "fib-bench-%u", number);
    if (rte_malloc_heap_create(table->heap) != 0)
        return false;
    table->socket = rte_malloc_heap_get_socket(table->heap);
    if (table->socket < 0)
        return false;
    unsigned pages = table->memory_bytes / HUGE_PAGE;
    table->added =
        rte_malloc_heap_memory_add(table->heap, table->memory, table->memory_bytes, NULL, pages, HUGE_PAGE) == 0;
    return table->added;
}

/*
 * A table of `kind`, for that many routes and groups of 256 entries, in a heap of `heap_bytes`. `nh_log2` is the
 * logarithm of a next hop's bytes (rte_fib, rte_fib6). NULL with `*error` set to a positive errno when it cannot be made.
 */
struct table *shim_new(int kind, int nh_log2, uint32_t routes, uint32_t groups, size_t heap_bytes, int *error)
{
    static unsigned next_number;
    char name[24];
    struct table *table = calloc(1, sizeof(*table));
    *error = ENOMEM;
    if (table == NULL)
        return NULL;
    table->kind = kind;
    table->memory = MAP_FAILED;
    table->socket = -1;
    unsigned number = next_number++;
    snprintf(name, sizeof(name), "t%u", number);
    if (!make_heap(table, heap_bytes, number)) {
        *error = rte_errno ? rte_errno : ENOMEM;
        give_back(table);
        return NULL;
    }
    switch (table->kind) {
    case KIND_FIB: {
        struct rte_fib_conf conf = { .type = RTE_FIB_DIR24_8, .default_nh = 0, .max_routes = routes };
        conf.dir24_8.nh_sz = (enum rte_fib_dir24_8_nh_sz)nh_log2;
        conf.dir24_8.num_tbl8 = groups;
        table->fib = rte_fib_create(name, table->socket, &conf);
        break;
    }
    case KIND_FIB6: {
        struct rte_fib6_conf conf = { .type = RTE_FIB6_TRIE, .default_nh = 0, .max_routes = routes };
        conf.trie.nh_sz = (enum rte_fib_trie_nh_sz)nh_log2;
        conf.trie.num_tbl8 = groups;
        table->fib6 = rte_fib6_create(name, table->socket, &conf);
        break;
    }
    case KIND_LPM: {
        struct rte_lpm_config config = { .max_rules = routes, .number_tbl8s = groups };
        table->lpm = rte_lpm_create(name, table->socket, &config);
        break;
    }
    case KIND_LPM6: {
        struct rte_lpm6_config config = { .max_rules = routes, .number_tbl8s = groups };
        table->lpm6 = rte_lpm6_create(name, table->socket, &config);
        break;
    }
    }
    if (table->fib == NULL) {
        *error = rte_errno ? rte_errno : ENOMEM;
        give_back(table);
        return NULL;
    }
    *error = 0;
    return table;
}

void shim_free(struct table *table)
{
    switch (table->kind) {
    case KIND_FIB: rte_fib_free(table->fib); break;
    case KIND_FIB6: rte_fib6_free(table->fib6); break;
    case KIND_LPM: rte_lpm_free(table->lpm); break;
    case KIND_LPM6: rte_lpm6_free(table->lpm6); break;
    }
    give_back(table);
}

/* Bytes taken from the table's heap. */
size_t shim_memory(const struct table *table)
{
    struct rte_malloc_socket_stats stats;
    return rte_malloc_get_socket_stats(table->socket, &stats) == 0 ? stats.heap_allocsz_bytes : 0;
}

/* Chooses the vector or the scalar lookup; 0, or negative when the machine has no such variant. */
int shim_select(struct table *table, int vector)
{
    switch (table->kind) {
    case KIND_FIB:
        return rte_fib_select_lookup(
            table->fib, vector ? RTE_FIB_LOOKUP_DIR24_8_VECTOR_AVX512 : RTE_FIB_LOOKUP_DIR24_8_SCALAR_MACRO);
    case KIND_FIB6:
        return rte_fib6_select_lookup(
            table->fib6, vector ? RTE_FIB6_LOOKUP_TRIE_VECTOR_AVX512 : RTE_FIB6_LOOKUP_TRIE_SCALAR);
    default:
        return vector ? -ENOTSUP : 0;
    }
}

int shim_add_v4(struct table *table, uint32_t addr, uint8_t len, uint32_t next_hop)
{
    return table->kind == KIND_FIB ? rte_fib_add(table->fib, addr, len, next_hop)
                                   : rte_lpm_add(table->lpm, addr, len, next_hop);
}

int shim_delete_v4(struct table *table, uint32_t addr, uint8_t len)
{
    return table->kind == KIND_FIB ? rte_fib_delete(table->fib, addr, len) : rte_lpm_delete(table->lpm, addr, len);
}

int shim_add_v6(struct table *table, const uint8_t addr[16], uint8_t len, uint32_t next_hop)
{
    return table->kind == KIND_FIB6 ? rte_fib6_add(table->fib6, addr, len, next_hop)
                                    : rte_lpm6_add(table->lpm6, addr, len, next_hop);
}

int shim_delete_v6(struct table *table, const uint8_t addr[16], uint8_t len)
{
    return table->kind == KIND_FIB6 ? rte_fib6_delete(table->fib6, addr, len)
                                    : rte_lpm6_delete(table->lpm6, addr, len);
}

/* The answers of one bulk call as plain next hops. */
static void keep_u64(const uint64_t *answers, uint32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)answers[i];
}

static void keep_lpm(const uint32_t *answers, uint32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = answers[i] & RTE_LPM_LOOKUP_SUCCESS ? answers[i] & 0xffffff : 0;
}

static void keep_lpm6(const int32_t *answers, uint32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = answers[i] < 0 ? 0 : (uint32_t)answers[i];
}

/*
 * Looks up `n` addresses in calls of `batch` (at most BATCH_MAX). The answers of a call go into one buffer that the
 * next call overwrites, as in a forwarding loop; when `out` is not NULL they are copied there too.
 */
void shim_pass_v4(struct table *table, const uint32_t *addrs, size_t n, size_t batch, uint32_t *out)
{
    static uint64_t wide[BATCH_MAX] __rte_cache_aligned;
    static uint32_t narrow[BATCH_MAX] __rte_cache_aligned;
    for (size_t i = 0; i < n; i += batch) {
        size_t count = n - i < batch ? n - i : batch;
        if (table->kind == KIND_FIB) {
            rte_fib_lookup_bulk(table->fib, (uint32_t *)(uintptr_t)(addrs + i), wide, count);
            if (out != NULL)
                keep_u64(wide, out + i, count);
        } else {
            rte_lpm_lookup_bulk(table->lpm, addrs + i, narrow, count);
            if (out != NULL)
                keep_lpm(narrow, out + i, count);
        }
        __asm__ volatile("" ::: "memory");
    }
}

void shim_pass_v6(struct table *table, uint8_t (*addrs)[16], size_t n, size_t batch, uint32_t *out)
{
    static uint64_t wide[BATCH_MAX] __rte_cache_aligned;
    static int32_t narrow[BATCH_MAX] __rte_cache_aligned;
    for (size_t i = 0; i < n; i += batch) {
        size_t count = n - i < batch ? n - i : batch;
        if (table->kind == KIND_FIB6) {
            rte_fib6_lookup_bulk(table->fib6, addrs + i, wide, count);
            if (out != NULL)
                keep_u64(wide, out + i, count);
        } else {
            rte_lpm6_lookup_bulk_func(table->lpm6, addrs + i, narrow, count);
            if (out != NULL)
                keep_lpm6(narrow, out + i, count);
        }
        __asm__ volatile("" ::: "memory");
    }
}

/* Looks up the addresses one by one, each made to wait for the answer before it (next hops are below 2^31). The sum. */
uint64_t shim_chain_v4(struct table *table, const uint32_t *addrs, size_t n)
{
    uint64_t sum = 0;
    uint32_t answer = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t addr = addrs[i] ^ (uint32_t)((int32_t)answer >> 31);
        if (table->kind == KIND_FIB) {
            uint64_t wide = 0;
            rte_fib_lookup_bulk(table->fib, &addr, &wide, 1);
            answer = (uint32_t)wide;
        } else {
            uint32_t next_hop = 0;
            answer = rte_lpm_lookup(table->lpm, addr, &next_hop) == 0 ? next_hop : 0;
        }
        sum += answer;
    }
    return sum;
}

uint64_t shim_chain_v6(struct table *table, uint8_t (*addrs)[16], size_t n)
{
    uint64_t sum = 0;
    uint32_t answer = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t half[2];
        memcpy(half, addrs[i], 16);
        half[0] ^= (uint64_t)(int64_t)((int32_t)answer >> 31);
        uint8_t addr[1][16];
        memcpy(addr[0], half, 16);
        if (table->kind == KIND_FIB6) {
            uint64_t wide = 0;
            rte_fib6_lookup_bulk(table->fib6, addr, &wide, 1);
            answer = (uint32_t)wide;
        } else {
            uint32_t next_hop = 0;
            answer = rte_lpm6_lookup(table->lpm6, addr[0], &next_hop) == 0 ? next_hop : 0;
        }
        sum += answer;
    }
    return sum;
}
