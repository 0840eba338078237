#include "table/table_bags.h"
#include "table/table_block.h"

/* Ids of one shard go through four stages, block by block, so that the cache's misses overlap:
 *
 *   fetch_groups   of the index
 *   fetch_heads    of records; the stage before has found their slots
 *   fetch_sums     that wait already
 *   add_block      inserts what is not there, counts, and adds gradients to sums
 */
enum { STAGES = 4 };

struct add_block {
    struct table_block ids;
    int64_t keys[TABLE_BLOCK];
    const float *gradients[TABLE_BLOCK];
    float weights[TABLE_BLOCK];
};

struct add_call {
    struct table_shard *shard;
    uint64_t full;                   /* blocks that are through the first stage */
    uint32_t n;                      /* ids of the one that is being filled */
    struct add_block blocks[STAGES]; /* in turn */
};

static struct add_block *block_of(struct add_call *call, uint64_t ago)
{
    return &call->blocks[(call->full + STAGES - ago) % STAGES];
}

static void fetch_heads(struct add_call *call, struct add_block *block)
{
    table_block_find(&block->ids);
    for (uint32_t i = 0; i < block->ids.n; i++)
        if (block->ids.slots[i] != TABLE_NOWHERE)
            __builtin_prefetch(table_head(call->shard, block->ids.slots[i]), 1);
}

static void fetch_sums(struct add_call *call, struct add_block *block)
{
    uint32_t dim = call->shard->how.dim;
    for (uint32_t i = 0; i < block->ids.n; i++) {
        if (block->ids.slots[i] == TABLE_NOWHERE)
            continue;
        uint32_t mark = table_head(call->shard, block->ids.slots[i])->changed & ~TABLE_DIRTY;
        if (!mark)
            continue;
        const float *sum = call->shard->sums + (size_t)(mark - 1) * dim;
        for (uint32_t at = 0; at < dim; at += 16)
            __builtin_prefetch(sum + at, 1);
    }
}

static int add_block(struct add_call *call, struct add_block *block)
{
    uint32_t places[TABLE_BLOCK], n = 0;
    int64_t place = 0;
    for (uint32_t i = 0; i < block->ids.n; i++) {
        place = table_pending_place(call->shard, block->keys[i], block->ids.hashes[i],
                                    block->ids.slots[i]);
        if (place < 0)
            break;
        if (place == TABLE_NOWHERE)
            continue;
        places[n] = (uint32_t)place;
        block->gradients[n] = block->gradients[i];
        block->weights[n++] = block->weights[i];
    }
    struct table_addends addends = {call->shard->sums, places, block->gradients, block->weights, n};
    table_loops()->add_gradients(&addends, call->shard->how.dim);
    block->ids.n = 0;
    return place < 0 ? (int)place : 0;
}

/* Move all blocks on by a stage. */
static int end_block(struct add_call *call)
{
    struct add_block *block = block_of(call, 0);
    table_block_fetch(&block->ids, block->keys, call->n);
    fetch_heads(call, block_of(call, 1));
    fetch_sums(call, block_of(call, 2));
    int failed = add_block(call, block_of(call, 3));
    call->full++;
    call->n = 0;
    return failed;
}

static int add_id(struct add_call *call, int64_t key, uint64_t hash, const float *gradient,
                  float weight)
{
    struct add_block *block = block_of(call, 0);
    uint32_t i = call->n++;
    block->keys[i] = key;
    block->ids.hashes[i] = hash;
    block->ids.shards[i] = call->shard;
    block->gradients[i] = gradient;
    block->weights[i] = weight;
    return call->n == TABLE_BLOCK ? end_block(call) : 0;
}

int table_add_bags(const struct harp_embedding_bags *bags, uint32_t part)
{
    struct harp_embedding *table = bags->table;
    struct add_call call = {.shard = &table->shards[part]};
    uint64_t hashes[TABLE_BLOCK], end = table_bag_begin(bags, bags->bags);
    int failed = 0;
    for (uint64_t bag = 0; bag < bags->bags && !failed; bag++) {
        float share = bags->mean ? 1 / (float)table_bag_size(bags, bag) : 1;
        uint64_t bag_end = table_bag_begin(bags, bag + 1);
        for (uint64_t i = table_bag_begin(bags, bag); i < bag_end && !failed; i++) {
            if (i % TABLE_BLOCK == 0)
                table_loops()->hash_keys(bags->keys + i,
                                         end - i < TABLE_BLOCK ? (uint32_t)(end - i) : TABLE_BLOCK,
                                         hashes);
            uint64_t hash = hashes[i % TABLE_BLOCK];
            if (harp_embedding_part(hash, table->how.shards) == part &&
                !(bags->padded && bags->keys[i] == bags->padding))
                failed = add_id(&call, bags->keys[i], hash, bags->rows + bag * bags->stride,
                                bags->weights ? share * bags->weights[i] : share);
        }
    }
    for (uint32_t stage = 0; stage < STAGES && !failed; stage++)
        failed = end_block(&call);
    return failed;
}
