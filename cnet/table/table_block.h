/* Ids that are looked for side by side, so that the cache's misses overlap.
 *
 * table_block_begin fetches the group of each id; table_block_find, called when other blocks have
 * been begun meanwhile, reads it and has the id's slot. Between the two, and later, keys may be
 * inserted: a slot that was found stays right, and TABLE_NOWHERE means that it must be looked for
 * again.
 */
#ifndef HARP_EMBEDDING_BLOCK_H
#define HARP_EMBEDDING_BLOCK_H

#include "table/table_loops.h"
#include "table/table_state.h"

enum { TABLE_BLOCK = 32 };

struct table_block {
    uint32_t n;
    const int64_t *keys;
    uint64_t hashes[TABLE_BLOCK];
    const struct table_shard *shards[TABLE_BLOCK];
    const struct table_group *groups[TABLE_BLOCK];
    uint32_t slots[TABLE_BLOCK];
};

/* Fetch the groups of `n` keys; the block has their hashes and shards already. */
static inline void table_block_fetch(struct table_block *block, const int64_t *keys, uint32_t n)
{
    block->keys = keys;
    block->n = n;
    for (uint32_t i = 0; i < n; i++) {
        block->groups[i] = table_index_home(&block->shards[i]->index, block->hashes[i]);
        __builtin_prefetch(block->groups[i]);
    }
}

static inline void table_block_begin(struct table_block *block, const struct harp_embedding *table,
                                     const int64_t *keys, uint32_t n)
{
    table_loops()->hash_keys(keys, n, block->hashes);
    for (uint32_t i = 0; i < n; i++)
        block->shards[i] = table_shard_of(table, block->hashes[i]);
    table_block_fetch(block, keys, n);
}

/* Returns whether all ids have slots. */
static inline bool table_block_find(struct table_block *block)
{
    bool missing = false;
    table_loops()->match_keys(block->groups, block->keys, block->n, block->slots);
    for (uint32_t i = 0; i < block->n; i++)
        missing |= block->slots[i] == TABLE_NOWHERE;
    if (!missing)
        return true;
    missing = false;
    for (uint32_t i = 0; i < block->n; i++) {
        if (block->slots[i] == TABLE_NOWHERE && block->groups[i]->overflow)
            block->slots[i] = table_shard_find(block->shards[i], block->keys[i], block->hashes[i]);
        missing |= block->slots[i] == TABLE_NOWHERE;
    }
    return !missing;
}

#endif
