#include "table/table.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "table/table_cold.h"
#include "table/table_crew.h"
#include "table/table_state.h"

enum {
    AT_ONCE = 1024,   /* rows of a capped table that a write has in memory */
    FEW_RECORDS = 512 /* less work than waking a thread is */
};

struct harp_embedding *harp_embedding_open(const struct harp_embedding_how *how)
{
    static atomic_uint tables;
    assert(how->dim >= 1 && how->dim <= TABLE_DIM_MOST && how->shards >= 1);
    assert(how->admit_count <= UINT8_MAX && how->admit_bytes <= UINT32_MAX);
    struct harp_embedding *table = calloc(1, sizeof *table + how->shards * sizeof *table->shards);
    if (!table)
        return NULL;
    table->how = *how;
    table->number = atomic_fetch_add(&tables, 1);
    for (uint32_t i = 0; i < how->shards; i++)
        if (table_shard_open(&table->shards[i], how) < 0) {
            harp_embedding_close(table);
            return NULL;
        }
    return table;
}

void harp_embedding_close(struct harp_embedding *table)
{
    if (table && table->cold)
        table_cold_close(table);
    for (uint32_t i = 0; table && i < table->how.shards; i++)
        table_shard_close(&table->shards[i]);
    free(table);
}

uint64_t harp_embedding_rows(const struct harp_embedding *table)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < table->how.shards; i++)
        rows += table->shards[i].heads.count;
    return rows;
}

uint64_t harp_embedding_resident(const struct harp_embedding *table)
{
    return table_cold_resident(table);
}

uint64_t harp_embedding_pages_read(const struct harp_embedding *table)
{
    table_cold_lock(table);
    uint64_t pages = table->cold ? table->cold->pages_read : 0;
    table_cold_unlock(table);
    return pages;
}

uint64_t harp_embedding_page_bytes(const struct harp_embedding *table)
{
    return table->cold ? table->cold->page_bytes : 0;
}

uint64_t harp_embedding_bytes(const struct harp_embedding *table)
{
    uint64_t bytes = sizeof *table + (table->cold ? table_cold_bytes(table->cold) : 0);
    for (uint32_t i = 0; i < table->how.shards; i++)
        bytes += table_shard_bytes(&table->shards[i]);
    return bytes;
}

void harp_embedding_set_clock(struct harp_embedding *table, uint32_t now)
{
    table->how.now = now;
    for (uint32_t i = 0; i < table->how.shards; i++)
        table->shards[i].how.now = now;
}

struct apply_call {
    struct harp_embedding *const *tables;
    const struct harp_embedding_step *steps;
    uint64_t n;
    atomic_bool wrong;
};

static void check_pending(void *with, uint32_t worker, uint32_t workers)
{
    struct apply_call *call = with;
    for (uint64_t t = 0; t < call->n; t++)
        for (uint32_t i = 0; i < call->tables[t]->how.shards; i++)
            if (table_is_of(call->tables[t], i, worker, workers) &&
                !table_pending_finite(&call->tables[t]->shards[i], call->steps[t].scale))
                atomic_store(&call->wrong, true);
}

static void apply_pending(void *with, uint32_t worker, uint32_t workers)
{
    struct apply_call *call = with;
    for (uint64_t t = 0; t < call->n; t++)
        for (uint32_t i = 0; i < call->tables[t]->how.shards; i++)
            if (table_is_of(call->tables[t], i, worker, workers))
                table_pending_apply(&call->tables[t]->shards[i], &call->steps[t]);
}

int harp_embedding_apply(struct harp_embedding *const *tables,
                         const struct harp_embedding_step *steps, uint64_t n, uint32_t threads)
{
    struct apply_call call = {.tables = tables, .steps = steps, .n = n};
    uint64_t waiting = 0;
    for (uint64_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < tables[t]->how.shards; i++)
            waiting += tables[t]->shards[i].pending;
    if (waiting < FEW_RECORDS)
        threads = 1;
    table_cold_lock_rows(tables, n);
    table_crew_run(check_pending, &call, threads);
    if (!atomic_load(&call.wrong))
        table_crew_run(apply_pending, &call, threads);
    table_cold_unlock_rows(tables, n);
    return atomic_load(&call.wrong) ? -EDOM : 0;
}

void harp_embedding_drop(struct harp_embedding *table)
{
    table_cold_lock_rows(&table, 1);
    for (uint32_t i = 0; i < table->how.shards; i++)
        table_pending_drop(&table->shards[i]);
    table_cold_unlock_rows(&table, 1);
}

uint64_t harp_embedding_remove(struct harp_embedding *table, const int64_t *keys, uint64_t n,
                               uint8_t *gone)
{
    uint64_t removed = 0;
    table_cold_lock(table);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t hash = harp_embedding_hash(keys[i]);
        struct table_shard *shard = &table->shards[harp_embedding_part(hash, table->how.shards)];
        uint32_t slot = table_shard_find(shard, keys[i], hash);
        gone[i] = slot != TABLE_NOWHERE;
        if (!gone[i])
            continue;
        if (shard->capped)
            table_cold_drop(table->cold, shard, slot);
        table_shard_remove(shard, slot, hash);
        removed++;
    }
    for (uint32_t i = 0; removed && i < table->how.shards; i++)
        table_shard_trim(&table->shards[i]);
    table_cold_unlock(table);
    return removed;
}

int64_t harp_embedding_read(const struct harp_embedding *table, uint32_t shard, uint32_t at,
                            uint64_t n, struct harp_record *heads, float *values)
{
    assert(shard < table->how.shards);
    const struct table_shard *from = &table->shards[shard];
    uint32_t floats = table->how.dim + table->how.state;
    table_cold_lock(table);
    uint64_t left = from->heads.count > at ? from->heads.count - at : 0;
    int failed = 0;
    n = n < left ? n : left;
    for (uint64_t i = 0; heads && i < n; i++)
        heads[i] = *table_head(from, (uint32_t)(at + i));
    if (values && from->capped)
        failed = table_cold_read(table, shard, at, n, values);
    for (uint64_t i = 0; values && !from->capped && i < n; i++)
        memcpy(values + i * floats, table_row(from, (uint32_t)(at + i)), floats * sizeof(float));
    table_cold_unlock(table);
    return failed ? failed : (int64_t)n;
}

int harp_embedding_reserve(struct harp_embedding *table, uint64_t rows)
{
    if (!table->cold)
        return 0;
    table_cold_lock(table);
    int failed = table_cold_reserve(table, rows);
    table_cold_unlock(table);
    return failed;
}

void harp_embedding_swap(struct harp_embedding *table, struct harp_embedding *other)
{
    assert(table != other && table->how.shards == other->how.shards &&
           !table->cold == !other->cold);
    assert(table->shards[0].values.item_bytes == other->shards[0].values.item_bytes);
    table_cold_lock(table);
    table_cold_lock(other);
    for (uint32_t i = 0; i < table->how.shards; i++) {
        struct table_shard *one = &table->shards[i], *two = &other->shards[i], kept = *one;
        *one = *two;
        *two = kept;
        two->counters = one->counters;
        one->counters = kept.counters;
    }
    if (table->cold)
        table_cold_swap(table->cold, other->cold);
    table_cold_unlock(other);
    table_cold_unlock(table);
}

struct write_call {
    struct harp_embedding *table;
    const struct harp_record *heads;
    const float *values;
    uint64_t n;
    atomic_int failed;
};

/* A record on its way: the group of the index that its key lies in is being fetched. */
struct record_ahead {
    struct table_shard *shard;
    uint64_t i, hash;
};

static void write_record(struct write_call *call, const struct record_ahead *ahead)
{
    struct table_shard *shard = ahead->shard;
    const struct harp_record *record = &call->heads[ahead->i];
    size_t bytes = shard->values.item_bytes;
    int64_t slot = table_shard_find(shard, record->key, ahead->hash);
    uint32_t mark = 0;
    if (slot == TABLE_NOWHERE)
        slot = table_shard_place(shard, record->key, ahead->hash);
    else
        mark = table_head(shard, (uint32_t)slot)->changed & ~TABLE_DIRTY;
    if (slot < 0) {
        atomic_store(&call->failed, -ENOMEM);
        return;
    }
    struct harp_record *head = table_head(shard, (uint32_t)slot);
    *head = *record;
    head->changed = mark;
    memcpy(table_row(shard, (uint32_t)slot), (const char *)call->values + ahead->i * bytes, bytes);
}

/* Write those records that are of a worker's shards. */
static void write_records(void *with, uint32_t worker, uint32_t workers)
{
    enum { AHEAD = 16 };
    struct write_call *call = with;
    struct harp_embedding *table = call->table;
    struct record_ahead ahead[AHEAD];
    uint64_t n = 0;
    for (uint64_t i = 0; i < call->n; i++) {
        uint64_t hash = harp_embedding_hash(call->heads[i].key);
        uint32_t part = harp_embedding_part(hash, table->how.shards);
        if (!table_is_of(table, part, worker, workers))
            continue;
        struct record_ahead *one = &ahead[n % AHEAD];
        if (n++ >= AHEAD)
            write_record(call, one);
        *one = (struct record_ahead){&table->shards[part], i, hash};
        __builtin_prefetch(table_index_home(&one->shard->index, hash));
    }
    for (uint64_t i = n < AHEAD ? 0 : n - AHEAD; i < n; i++)
        write_record(call, &ahead[i % AHEAD]);
}

/* Have the rows of some records in memory. */
static int have_records(struct harp_embedding *table, const struct harp_record *heads, uint64_t n)
{
    int64_t keys[AT_ONCE];
    for (uint64_t i = 0; i < n; i++)
        keys[i] = heads[i].key;
    return table_cold_have(table, keys, n);
}

int harp_embedding_write(struct harp_embedding *table, const struct harp_record *heads,
                         const float *values, uint64_t n, uint32_t threads)
{
    size_t floats = table->how.dim + table->how.state;
    uint64_t most = table->cold && n > AT_ONCE ? AT_ONCE : n;
    int failed = 0;
    table_cold_lock(table);
    for (uint64_t i = 0, some; i < n && !failed; i += some) {
        some = n - i < most ? n - i : most;
        if (table->cold)
            failed = have_records(table, heads + i, some);
        if (failed)
            break;
        struct write_call call = {table, heads + i, values + i * floats, some, 0};
        table_crew_run(write_records, &call, some < FEW_RECORDS ? 1 : threads);
        failed = atomic_load(&call.failed);
    }
    table_cold_unlock(table);
    return failed;
}

void harp_embedding_saved(struct harp_embedding *table)
{
    table_cold_lock_rows(&table, 1);
    for (uint32_t i = 0; i < table->how.shards; i++) {
        const struct table_shard *shard = &table->shards[i];
        for (uint32_t slot = 0; slot < shard->heads.count; slot++)
            table_head(shard, slot)->changed &= ~TABLE_DIRTY;
    }
    table_cold_unlock_rows(&table, 1);
}

int64_t harp_embedding_distinct(const int64_t *keys, uint64_t n, int64_t *distinct, uint32_t *place)
{
    uint64_t mask = 15;
    while (mask < 2 * n)
        mask = 2 * mask + 1;
    uint32_t *seen = calloc(mask + 1, sizeof *seen); /* a place and one */
    if (!seen)
        return -ENOMEM;
    uint32_t found = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = harp_embedding_hash(keys[i]) & mask;
        while (seen[at] && distinct[seen[at] - 1] != keys[i])
            at = (at + 1) & mask;
        if (!seen[at]) {
            distinct[found] = keys[i];
            seen[at] = ++found;
        }
        place[i] = seen[at] - 1;
    }
    free(seen);
    return found;
}

void harp_embedding_owners(const int64_t *keys, uint64_t n, uint32_t parts, uint32_t *owners)
{
    for (uint64_t i = 0; i < n; i++)
        owners[i] = harp_embedding_part(harp_embedding_mix(harp_embedding_hash(keys[i])), parts);
}
