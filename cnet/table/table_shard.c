#include "table/table_shard.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int table_shard_open(struct table_shard *shard, const struct harp_embedding_how *how)
{
    memset(shard, 0, sizeof *shard);
    shard->how = *how;
    table_records_open(&shard->records, how->dim + how->state);
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
    table_records_close(&shard->records);
    free(shard->slots);
    free(shard->sums);
    free(shard->counters);
}

size_t table_shard_bytes(const struct table_shard *shard)
{
    return sizeof *shard + table_index_bytes(&shard->index) + table_records_bytes(&shard->records) +
           shard->room * (sizeof *shard->slots + shard->how.dim * sizeof *shard->sums) +
           (shard->counters ? shard->how.admit_bytes : 0);
}

int64_t table_shard_insert(struct table_shard *shard, int64_t key, uint64_t hash)
{
    const struct harp_embedding_how *how = &shard->how;
    if (table_index_room(&shard->index, hash) < 0)
        return -ENOMEM;
    int64_t slot = table_records_push(&shard->records);
    if (slot < 0)
        return slot;
    struct harp_record *record = table_record(&shard->records, (uint32_t)slot);
    *record = (struct harp_record){.key = key, .used = how->now, .born = how->now};
    record->changed = TABLE_DIRTY;
    float *row = table_row(record);
    harp_embedding_first_row(row, how->dim, key, how->seed, how->bound);
    for (uint32_t i = 0; i < how->state; i++)
        row[how->dim + i] = how->first_state;
    table_index_add(&shard->index, hash, (uint32_t)slot);
    return slot;
}

void table_shard_remove(struct table_shard *shard, uint32_t slot, uint64_t hash)
{
    struct table_records *records = &shard->records;
    struct harp_record *gone = table_record(records, slot);
    uint32_t mark = gone->changed & ~TABLE_DIRTY, last = records->count - 1;
    if (mark)
        shard->slots[mark - 1] = HARP_EMBEDDING_NONE;
    table_index_remove(&shard->index, hash, slot);
    if (slot != last) {
        struct harp_record *moved = table_record(records, last);
        table_index_move(&shard->index, harp_embedding_hash(moved->key), last, slot);
        memcpy(gone, moved, records->record_bytes);
        mark = gone->changed & ~TABLE_DIRTY;
        if (mark)
            shard->slots[mark - 1] = slot;
    }
    table_records_pop(records);
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
