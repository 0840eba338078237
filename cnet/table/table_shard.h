/* A shard: the records of the keys that one core owns, their index, and gradients that wait.
 *
 * A record is a head and values, the row and then the optimizer's state, under one slot in two
 * pools: a look-up reads rows and no heads, and a row whose size is a multiple of a line of the
 * cache has no line beside others.
 *
 * A capped table has values in memory for some slots only, in an order of their own (table_cold.h).
 *
 *   table_shard.c    records by key: find, insert, remove
 *   table_pending.c  gradients summed by key, until a step applies them
 *
 * Files call downwards. Owner: one thread writes; any number of threads read while none writes.
 */
#ifndef HARP_EMBEDDING_SHARD_H
#define HARP_EMBEDDING_SHARD_H

#include "table/table.h"
#include "table/table_hash.h"
#include "table/table_index.h"
#include "table/table_pool.h"

#define TABLE_DIRTY (UINT32_C(1) << 31)
#define TABLE_BEGINS (UINT32_C(1) << 31)

/* In `where`: the rest is a place on disk. */
#define TABLE_COLD (UINT32_C(1) << 31)

/* The slot that has a place in `values`, where a table is capped. */
struct table_owner {
    uint32_t slot, epoch; /* the call that used it last */
};

struct table_shard {
    struct table_index index;
    struct table_pool heads, values;
    struct harp_embedding_how how;
    /* Gradients that wait: `sums` has a row for each slot of `slots`; a record's mark is its place
     * here and one. TABLE_NOWHERE: the row was removed meanwhile. */
    uint32_t *slots;
    float *sums;
    uint32_t pending, room;
    uint8_t *counters; /* of keys that are not admitted yet, or NULL */
    bool capped;
    struct table_pool where, owners; /* if capped (table_cold.h) */
    uint32_t epoch;
};

int table_shard_open(struct table_shard *shard, const struct harp_embedding_how *how);
void table_shard_close(struct table_shard *shard);
size_t table_shard_bytes(const struct table_shard *shard);

/* Insert a key that is not there; head and values have any bits. Returns its slot, or -ENOMEM. */
int64_t table_shard_place(struct table_shard *shard, int64_t key, uint64_t hash);
/* The same with its first row. */
int64_t table_shard_insert(struct table_shard *shard, int64_t key, uint64_t hash);
/* Have values of a slot in memory, of any bits. Returns their place, or -ENOMEM. */
int64_t table_shard_push_value(struct table_shard *shard, uint32_t slot);
/* Remove a place of values: the last one takes it. */
void table_shard_drop_value(struct table_shard *shard, uint32_t value);
/* Remove a record; the last one takes its slot. If capped, its values went before. */
void table_shard_remove(struct table_shard *shard, uint32_t slot, uint64_t hash);
/* Give back the memory behind the last record. */
void table_shard_trim(struct table_shard *shard);
/* Count a key that is not there. Returns whether it may be inserted now. */
bool table_shard_admits(struct table_shard *shard, uint64_t hash);

static inline struct harp_record *table_head(const struct table_shard *shard, uint32_t slot)
{
    return table_pool_item(&shard->heads, slot);
}

static inline uint32_t *table_where(const struct table_shard *shard, uint32_t slot)
{
    return table_pool_item(&shard->where, slot);
}

static inline struct table_owner *table_owner(const struct table_shard *shard, uint32_t value)
{
    return table_pool_item(&shard->owners, value);
}

/* Of a capped table, the row is in memory. */
static inline float *table_row(const struct table_shard *shard, uint32_t slot)
{
    if (shard->capped)
        slot = *table_where(shard, slot);
    return table_pool_item(&shard->values, slot);
}

static inline uint32_t table_shard_find(const struct table_shard *shard, int64_t key, uint64_t hash)
{
    return table_index_find(&shard->index, key, hash);
}

/* Count a gradient of a key, whose slot may be known. Returns the place of the sum that it belongs
 * to, with TABLE_BEGINS if it is the sum's first one; TABLE_NOWHERE if the key is not admitted;
 * -ENOMEM. */
int64_t table_pending_place(struct table_shard *shard, int64_t key, uint64_t hash, uint32_t slot);
bool table_pending_finite(const struct table_shard *shard, float scale);
void table_pending_apply(struct table_shard *shard, const struct harp_embedding_step *step);
void table_pending_drop(struct table_shard *shard);

#endif
