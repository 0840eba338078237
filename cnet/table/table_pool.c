#define _GNU_SOURCE
#include "table/table_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Chunks of this size fit the 65,530 mappings of a process (vm.max_map_count of the kernel's
 * Documentation/admin-guide/sysctl/vm.rst) up to 1 TiB. */
enum { LEAST_CHUNK_BYTES = 16 << 20, MMU_PAGE = 4096 };

void table_pool_open(struct table_pool *pool, size_t item_bytes)
{
    memset(pool, 0, sizeof *pool);
    pool->item_bytes = item_bytes;
    while (pool->item_bytes << pool->shift < LEAST_CHUNK_BYTES)
        pool->shift++;
    pool->chunk_bytes = ((pool->item_bytes << pool->shift) + MMU_PAGE - 1) / MMU_PAGE * MMU_PAGE;
}

void table_pool_close(struct table_pool *pool)
{
    for (uint32_t i = 0; i < pool->chunk_count; i++)
        munmap(pool->chunks[i], pool->chunk_bytes);
    free(pool->chunks);
    memset(pool, 0, sizeof *pool);
}

size_t table_pool_bytes(const struct table_pool *pool)
{
    return pool->count * pool->item_bytes + pool->chunk_count * sizeof *pool->chunks;
}

static int add_chunk(struct table_pool *pool)
{
    size_t n = pool->chunk_count;
    uint8_t **chunks = realloc(pool->chunks, (n + 1) * sizeof *chunks);
    if (!chunks)
        return -ENOMEM;
    pool->chunks = chunks;
    void *chunk = mmap(NULL, pool->chunk_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (chunk == MAP_FAILED)
        return -ENOMEM;
    if (n) /* a pool that has a chunk full is large: let its pages be large, too */
        madvise(chunk, pool->chunk_bytes, MADV_HUGEPAGE);
    chunks[pool->chunk_count++] = chunk;
    return 0;
}

int64_t table_pool_push(struct table_pool *pool)
{
    if (pool->count >> pool->shift == pool->chunk_count && add_chunk(pool) < 0)
        return -ENOMEM;
    assert(pool->count < UINT32_MAX);
    return pool->count++;
}

void table_pool_pop(struct table_pool *pool)
{
    assert(pool->count);
    pool->count--;
    /* A chunk stays in reserve, so that an item that comes and goes does not map one each time. */
    if (pool->chunk_count >= 2 && pool->count <= (pool->chunk_count - 2) << pool->shift)
        munmap(pool->chunks[--pool->chunk_count], pool->chunk_bytes);
}

void table_pool_trim(struct table_pool *pool)
{
    for (uint32_t i = pool->count >> pool->shift; i < pool->chunk_count; i++) {
        size_t first = (size_t)i << pool->shift, kept = 0;
        if (pool->count > first)
            kept = (pool->count - first) * pool->item_bytes;
        kept = (kept + MMU_PAGE - 1) / MMU_PAGE * MMU_PAGE;
        if (kept < pool->chunk_bytes)
            madvise(pool->chunks[i] + kept, pool->chunk_bytes - kept, MADV_DONTNEED);
    }
}
