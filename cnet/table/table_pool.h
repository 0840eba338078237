/* A pool of items of equal size, without gaps.
 *
 *   slot     the number of an item: 0, 1, ... without a gap
 *   chunk    a power of two of items, 16 MiB or more of addresses
 *
 * Memory is the kernel's until an item is first touched, so a small pool is small. Whoever removes
 * an item moves the last one into its place, so what eviction frees is at the end, and is given
 * back: chunk by chunk, and the rest of the last one by madvise. An item whose size is a multiple
 * of a cache line begins with one.
 */
#ifndef HARP_EMBEDDING_POOL_H
#define HARP_EMBEDDING_POOL_H

#include <stddef.h>
#include <stdint.h>

struct table_pool {
    uint8_t **chunks;
    size_t item_bytes, chunk_bytes;
    uint32_t shift; /* of a slot, to its chunk */
    uint32_t count, chunk_count;
};

void table_pool_open(struct table_pool *pool, size_t item_bytes);
void table_pool_close(struct table_pool *pool);
size_t table_pool_bytes(const struct table_pool *pool);

/* Add an item at the end, with bytes of any value. Returns its slot, or -ENOMEM. */
int64_t table_pool_push(struct table_pool *pool);
/* Remove the last one. */
void table_pool_pop(struct table_pool *pool);
/* Give back what is behind the last item, within its chunk. */
void table_pool_trim(struct table_pool *pool);

static inline void *table_pool_item(const struct table_pool *pool, uint32_t slot)
{
    uint32_t within = slot & ((UINT32_C(1) << pool->shift) - 1);
    return pool->chunks[slot >> pool->shift] + within * pool->item_bytes;
}

#endif
