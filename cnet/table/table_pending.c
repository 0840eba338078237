#include "table/table_loops.h"
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

int64_t table_pending_place(struct table_shard *shard, int64_t key, uint64_t hash, uint32_t slot)
{
    if (slot == TABLE_NOWHERE)
        slot = table_shard_find(shard, key, hash);
    if (slot == TABLE_NOWHERE) {
        if (!table_shard_admits(shard, hash))
            return TABLE_NOWHERE;
        int64_t made = table_shard_insert(shard, key, hash);
        if (made < 0)
            return made;
        slot = (uint32_t)made;
    }
    struct harp_record *head = table_head(shard, slot);
    uint32_t mark = head->changed & ~TABLE_DIRTY;
    if (!mark && pending_grow(shard) < 0)
        return -ENOMEM;
    head->count += head->count < UINT32_MAX;
    head->used = shard->how.now;
    head->changed |= TABLE_DIRTY;
    if (mark)
        return mark - 1;
    shard->slots[shard->pending++] = slot;
    head->changed += shard->pending;
    return TABLE_BEGINS | (shard->pending - 1);
}

bool table_pending_finite(const struct table_shard *shard, float scale)
{
    return table_loops()->finite(shard->sums, (uint64_t)shard->pending * shard->how.dim, scale);
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
    const struct table_loops *loops = table_loops();
    uint32_t dim = shard->how.dim;
    for (uint32_t i = 0; i < shard->pending; i++) {
        if (i + AHEAD < shard->pending && shard->slots[i + AHEAD] != TABLE_NOWHERE)
            prefetch_record(shard, shard->slots[i + AHEAD]);
        if (shard->slots[i] == TABLE_NOWHERE)
            continue;
        float *row = table_row(shard, shard->slots[i]);
        loops->update(row, row + dim, shard->sums + (size_t)i * dim, dim, step);
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
