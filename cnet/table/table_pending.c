#include "table/table_shard.h"

#include <errno.h>
#include <stdlib.h>

static int pending_grow(struct table_shard *shard)
{
    if (shard->pending < shard->room)
        return 0;
    uint32_t room = shard->room ? 2 * shard->room : 256;
    uint32_t *slots = realloc(shard->slots, room * sizeof *slots);
    if (slots)
        shard->slots = slots;
    float *sums = realloc(shard->sums, (size_t)room * shard->how.dim * sizeof *sums);
    if (sums)
        shard->sums = sums;
    if (!slots || !sums)
        return -ENOMEM;
    shard->room = room;
    return 0;
}

/* The slot of a key that has a gradient; TABLE_NOWHERE if it is not admitted. */
static int64_t pending_slot(struct table_shard *shard, int64_t key, uint64_t hash)
{
    uint32_t slot = table_shard_find(shard, key, hash);
    if (slot != TABLE_NOWHERE || !table_shard_admits(shard, hash))
        return slot;
    return table_shard_insert(shard, key, hash);
}

int table_pending_add(struct table_shard *shard, int64_t key, uint64_t hash, const float *gradient,
                      float weight)
{
    int64_t slot = pending_slot(shard, key, hash);
    if (slot == TABLE_NOWHERE)
        return 0;
    if (slot < 0 || pending_grow(shard) < 0)
        return -ENOMEM;
    uint32_t dim = shard->how.dim;
    struct harp_record *record = table_head(shard, (uint32_t)slot);
    record->count += record->count < UINT32_MAX;
    record->used = shard->how.now;
    uint32_t mark = record->changed & ~TABLE_DIRTY;
    record->changed |= TABLE_DIRTY;
    if (mark) {
        float *sum = shard->sums + (size_t)(mark - 1) * dim;
        for (uint32_t i = 0; i < dim; i++)
            sum[i] += weight * gradient[i];
        return 0;
    }
    float *sum = shard->sums + (size_t)shard->pending * dim;
    for (uint32_t i = 0; i < dim; i++)
        sum[i] = weight * gradient[i];
    shard->slots[shard->pending++] = (uint32_t)slot;
    record->changed += shard->pending;
    return 0;
}

bool table_pending_finite(const struct table_shard *shard, float scale)
{
    size_t n = (size_t)shard->pending * shard->how.dim;
    float zero = 0; /* becomes NaN with the first value that is not finite, and stays it */
    for (size_t i = 0; i < n; i++)
        zero += 0 * (shard->sums[i] * scale);
    return zero == 0;
}

static void prefetch_record(const struct table_shard *shard, uint32_t slot)
{
    const char *values = (const char *)table_row(shard, slot);
    for (size_t at = 0; at < shard->values.item_bytes; at += 64)
        __builtin_prefetch(values + at, 1);
    __builtin_prefetch(table_head(shard, slot), 1);
}

void table_pending_apply(struct table_shard *shard, const struct harp_embedding_step *step)
{
    enum { AHEAD = 8 };
    uint32_t dim = shard->how.dim;
    for (uint32_t i = 0; i < shard->pending; i++) {
        if (i + AHEAD < shard->pending && shard->slots[i + AHEAD] != TABLE_NOWHERE)
            prefetch_record(shard, shard->slots[i + AHEAD]);
        if (shard->slots[i] == TABLE_NOWHERE)
            continue;
        float *row = table_row(shard, shard->slots[i]);
        table_update(row, row + dim, shard->sums + (size_t)i * dim, dim, step);
        table_head(shard, shard->slots[i])->changed = TABLE_DIRTY;
    }
    shard->pending = 0;
}

void table_pending_drop(struct table_shard *shard)
{
    for (uint32_t i = 0; i < shard->pending; i++)
        if (shard->slots[i] != TABLE_NOWHERE)
            table_head(shard, shard->slots[i])->changed &= TABLE_DIRTY;
    shard->pending = 0;
}
