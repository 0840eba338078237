#include "table/table_shard.h"
#include "table/table_loops.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int table_shard_open(struct table_shard *shard, const struct harp_embedding_how *how)
{
    memset(shard, 0, sizeof *shard);
    shard->how = *how;
    table_pool_open(&shard->heads, sizeof(struct harp_record));
    table_pool_open(&shard->values, (how->dim + how->state) * sizeof(float));
    table_pool_open(&shard->where, sizeof(uint32_t));
    table_pool_open(&shard->owners, sizeof(struct table_owner));
    if (how->admit_count > 1) {
        shard->counters = calloc(how->admit_bytes, 1);
        if (!shard->counters)
            return -ENOMEM;
    }
    return table_index_open(&shard->index);
}

void table_shard_close(struct table_shard *shard)
{
    table_index_close(&shard->index);
    table_pool_close(&shard->heads);
    table_pool_close(&shard->values);
    table_pool_close(&shard->where);
    table_pool_close(&shard->owners);
    free(shard->slots);
    free(shard->sums);
    free(shard->counters);
}

size_t table_shard_bytes(const struct table_shard *shard)
{
    return sizeof *shard + table_index_bytes(&shard->index) + table_pool_bytes(&shard->heads) +
           table_pool_bytes(&shard->values) + table_pool_bytes(&shard->where) +
           table_pool_bytes(&shard->owners) +
           shard->room * (sizeof *shard->slots + shard->how.dim * sizeof *shard->sums) +
           (shard->counters ? shard->how.admit_bytes : 0);
}

int64_t table_shard_push_value(struct table_shard *shard, uint32_t slot)
{
    int64_t value = table_pool_push(&shard->values);
    if (value < 0)
        return value;
    if (table_pool_push(&shard->owners) < 0) {
        table_pool_pop(&shard->values);
        return -ENOMEM;
    }
    *table_owner(shard, (uint32_t)value) = (struct table_owner){slot, shard->epoch};
    *table_where(shard, slot) = (uint32_t)value;
    return value;
}

void table_shard_drop_value(struct table_shard *shard, uint32_t value)
{
    uint32_t last = shard->values.count - 1;
    if (value != last) {
        memcpy(table_pool_item(&shard->values, value), table_pool_item(&shard->values, last),
               shard->values.item_bytes);
        *table_owner(shard, value) = *table_owner(shard, last);
        *table_where(shard, table_owner(shard, value)->slot) = value;
    }
    table_pool_pop(&shard->values);
    table_pool_pop(&shard->owners);
}

/* Add values of a slot that is new. Returns 0 or -ENOMEM. */
static int push_values(struct table_shard *shard, uint32_t slot)
{
    if (!shard->capped)
        return table_pool_push(&shard->values) < 0 ? -ENOMEM : 0;
    if (table_pool_push(&shard->where) < 0)
        return -ENOMEM;
    if (table_shard_push_value(shard, slot) >= 0)
        return 0;
    table_pool_pop(&shard->where);
    return -ENOMEM;
}

/* Add a head and values. Returns their slot, or -ENOMEM. */
static int64_t push_record(struct table_shard *shard)
{
    int64_t slot = table_pool_push(&shard->heads);
    if (slot < 0 || push_values(shard, (uint32_t)slot) == 0)
        return slot;
    table_pool_pop(&shard->heads);
    return -ENOMEM;
}

int64_t table_shard_place(struct table_shard *shard, int64_t key, uint64_t hash)
{
    if (table_index_room(&shard->index, hash) < 0)
        return -ENOMEM;
    int64_t slot = push_record(shard);
    if (slot >= 0)
        table_index_add(&shard->index, key, hash, (uint32_t)slot);
    return slot;
}

int64_t table_shard_insert(struct table_shard *shard, int64_t key, uint64_t hash)
{
    const struct harp_embedding_how *how = &shard->how;
    int64_t slot = table_shard_place(shard, key, hash);
    if (slot < 0)
        return slot;
    struct harp_record *head = table_head(shard, (uint32_t)slot);
    *head = (struct harp_record){.key = key, .used = how->now, .born = how->now};
    head->changed = TABLE_DIRTY;
    float *row = table_row(shard, (uint32_t)slot);
    table_loops()->first_row(row, how->dim, key, how->seed, how->bound);
    for (uint32_t i = 0; i < how->state; i++)
        row[how->dim + i] = how->first_state;
    return slot;
}

/* The values of the last slot become those of another one, whose went. */
static void move_values(struct table_shard *shard, uint32_t slot, uint32_t last)
{
    if (!shard->capped) {
        memcpy(table_row(shard, slot), table_row(shard, last), shard->values.item_bytes);
        return;
    }
    uint32_t where = *table_where(shard, last);
    *table_where(shard, slot) = where;
    if (!(where & TABLE_COLD))
        table_owner(shard, where)->slot = slot;
}

void table_shard_remove(struct table_shard *shard, uint32_t slot, uint64_t hash)
{
    struct harp_record *gone = table_head(shard, slot);
    uint32_t mark = gone->changed & ~TABLE_DIRTY, last = shard->heads.count - 1;
    if (mark)
        shard->slots[mark - 1] = TABLE_NOWHERE;
    table_index_remove(&shard->index, gone->key, hash);
    if (slot != last) {
        *gone = *table_head(shard, last);
        move_values(shard, slot, last);
        table_index_move(&shard->index, gone->key, harp_embedding_hash(gone->key), slot);
        mark = gone->changed & ~TABLE_DIRTY;
        if (mark)
            shard->slots[mark - 1] = slot;
    }
    table_pool_pop(&shard->heads);
    table_pool_pop(shard->capped ? &shard->where : &shard->values);
}

void table_shard_trim(struct table_shard *shard)
{
    table_pool_trim(&shard->heads);
    table_pool_trim(&shard->values);
    table_pool_trim(&shard->where);
    table_pool_trim(&shard->owners);
    table_pool_trim(&shard->index.segments);
}

/* A counting Bloom filter (Fan, Cao, Almeida, Broder: "Summary cache", ToN 2000) with four
 * counters a key; only the lowest are raised (Estan and Varghese's conservative update, SIGCOMM
 * 2002). A count is never too low, so a key is never admitted too late. */
bool table_shard_admits(struct table_shard *shard, uint64_t hash)
{
    if (!shard->counters)
        return true;
    uint8_t *places[4], least = UINT8_MAX;
    uint64_t step = harp_embedding_mix(hash) | 1;
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t at = hash + i * step;
        places[i] = &shard->counters[((at >> 32) * shard->how.admit_bytes) >> 32];
        least = *places[i] < least ? *places[i] : least;
    }
    if (least + 1U >= shard->how.admit_count)
        return true;
    for (uint32_t i = 0; i < 4; i++)
        if (*places[i] == least)
            *places[i] = least + 1;
    return false;
}
