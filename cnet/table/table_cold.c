#define _GNU_SOURCE
#include "table/table_cold.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "store/page_file.h"
#include "table/table_block.h"

enum { LEAST_ROUND = 64, FIRST_PAGES = 16, WIDEST_PAGE = 64 << 10 };

/* Choose the smallest page in which records leave at most an eighth unused. */
static void choose_page(struct table_cold *cold)
{
    size_t bytes = HARP_STORE_ALIGN;
    while (bytes < cold->record_bytes ||
           (bytes < WIDEST_PAGE && bytes % cold->record_bytes > bytes / 8))
        bytes += HARP_STORE_ALIGN;
    cold->page_bytes = bytes;
    cold->per_page = (uint32_t)(bytes / cold->record_bytes);
    cold->sparse = cold->per_page / 3;
}

static int open_buffers(struct table_cold *cold)
{
    size_t rounds = cold->round.most, records = rounds * cold->per_page;
    cold->round.buffer_bytes = 2 * rounds * cold->page_bytes;
    void *buffer = mmap(NULL, cold->round.buffer_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cold->round.buffer = buffer == MAP_FAILED ? NULL : buffer;
    cold->round.wanted = calloc(rounds, sizeof *cold->round.wanted);
    cold->round.victims = calloc(records, sizeof *cold->round.victims);
    cold->round.reads = calloc(rounds, sizeof *cold->round.reads);
    cold->round.writes = calloc(rounds, sizeof *cold->round.writes);
    cold->pages.empty = calloc(FIRST_PAGES, sizeof *cold->pages.empty);
    cold->pages.live = calloc(FIRST_PAGES, sizeof *cold->pages.live);
    bool all = cold->round.buffer && cold->round.wanted && cold->round.victims &&
               cold->round.reads && cold->round.writes && cold->pages.empty && cold->pages.live;
    return all ? 0 : -ENOMEM;
}

int harp_embedding_cap(struct harp_embedding *table, const char *folder, uint64_t memory_bytes)
{
    assert(!table->cold);
    struct table_cold *cold = calloc(1, sizeof *cold);
    if (!cold)
        return -ENOMEM;
    table->cold = cold;
    pthread_mutex_init(&cold->io, NULL);
    pthread_mutex_init(&cold->rows, NULL);
    cold->record_bytes = sizeof(int64_t) + table->shards[0].values.item_bytes;
    choose_page(cold);
    uint64_t bytes = memory_bytes / 8 < TABLE_ROUND_BYTES ? memory_bytes / 8 : TABLE_ROUND_BYTES;
    cold->round.most = (uint32_t)(bytes / cold->page_bytes);
    cold->round.most = cold->round.most < LEAST_ROUND ? LEAST_ROUND : cold->round.most;
    cold->most = memory_bytes / table->shards[0].values.item_bytes;
    cold->epoch = 2;
    if (open_buffers(cold) < 0)
        return -ENOMEM;
    cold->file =
        harp_page_file_open(folder, cold->page_bytes, FIRST_PAGES, HARP_PAGE_IO_AUTO, table_why());
    if (!cold->file)
        return -EIO;
    cold->pages.n = cold->pages.empty_n = FIRST_PAGES;
    for (uint32_t i = 0; i < FIRST_PAGES; i++)
        cold->pages.empty[i] = FIRST_PAGES - 1 - i;
    for (uint32_t i = 0; i < table->how.shards; i++)
        table->shards[i].capped = true;
    return 0;
}

void table_cold_swap(struct table_cold *cold, struct table_cold *other)
{
    size_t locks = offsetof(struct table_cold, file); /* others may wait for them */
    struct table_cold kept;
    char *one = (char *)cold + locks, *two = (char *)other + locks,
         *between = (char *)&kept + locks;
    size_t bytes = sizeof kept - locks;
    memcpy(between, one, bytes);
    memcpy(one, two, bytes);
    memcpy(two, between, bytes);
}

void table_cold_close(struct harp_embedding *table)
{
    struct table_cold *cold = table->cold;
    harp_page_file_close(cold->file);
    if (cold->round.buffer)
        munmap(cold->round.buffer, cold->round.buffer_bytes);
    free(cold->round.wanted);
    free(cold->round.victims);
    free(cold->round.reads);
    free(cold->round.writes);
    free(cold->pages.empty);
    free(cold->pages.live);
    pthread_mutex_destroy(&cold->io);
    pthread_mutex_destroy(&cold->rows);
    free(cold);
    table->cold = NULL;
}

size_t table_cold_bytes(const struct table_cold *cold)
{
    size_t records = (size_t)cold->round.most * cold->per_page;
    return sizeof *cold + cold->round.buffer_bytes + records * sizeof *cold->round.victims +
           cold->round.most * (sizeof *cold->round.wanted + sizeof *cold->round.reads +
                               sizeof *cold->round.writes) +
           cold->pages.n * (sizeof *cold->pages.empty + sizeof *cold->pages.live) +
           (cold->file ? harp_page_file_bytes(cold->file) : 0);
}

/* A walk over the ids of features, all of one table, block by block. */
struct id_walk {
    struct harp_embedding *table;
    const struct harp_embedding_bags *features;
    uint64_t n, feature, at;
    uint64_t absent, cold; /* ids so far that are not there, or on disk */
    uint32_t epoch;
    bool wants; /* `io` is held, and rows on disk are noted in `wanted` */
};

/* Note which rows of a block are wanted from disk, and that the others are used. */
static void note_block(struct id_walk *walk, const struct table_block *block)
{
    const struct harp_embedding_bags *bags = &walk->features[walk->feature];
    struct table_cold *cold = walk->table->cold;
    for (uint32_t i = 0; i < block->n; i++)
        if (block->slots[i] != TABLE_NOWHERE)
            __builtin_prefetch(table_where(block->shards[i], block->slots[i]));
    for (uint32_t i = 0; i < block->n; i++) {
        if (bags->padded && block->keys[i] == bags->padding)
            continue;
        if (block->slots[i] == TABLE_NOWHERE) {
            walk->absent++;
            continue;
        }
        uint32_t where = *table_where(block->shards[i], block->slots[i]);
        if (!(where & TABLE_COLD)) {
            table_owner(block->shards[i], where)->epoch = walk->epoch;
            continue;
        }
        walk->cold++;
        if (walk->wants)
            cold->round.wanted[cold->round.wanted_n++] = (struct table_wanted){
                where & ~TABLE_COLD, (uint32_t)(block->shards[i] - walk->table->shards),
                block->slots[i]};
    }
}

/* Walk on until a round is full, or, where nothing can be wanted, to the first row on disk. Returns
 * whether that was all. */
static bool walk_ids(struct id_walk *walk)
{
    const struct table_cold *cold = walk->table->cold;
    uint64_t absent = walk->absent + (uint64_t)cold->round.most * cold->per_page / 2;
    struct table_block block;
    for (; walk->feature < walk->n; walk->feature++, walk->at = 0) {
        const struct harp_embedding_bags *bags = &walk->features[walk->feature];
        while (walk->at < bags->count) {
            uint64_t left = bags->count - walk->at;
            uint32_t n = left < TABLE_BLOCK ? (uint32_t)left : TABLE_BLOCK;
            if (walk->wants &&
                (cold->round.wanted_n + n > cold->round.most || walk->absent + n > absent))
                return false;
            table_block_begin(&block, walk->table, bags->keys + walk->at, n);
            table_block_find(&block);
            note_block(walk, &block);
            walk->at += n;
            if (walk->cold && !walk->wants)
                return false;
        }
    }
    return true;
}

/* Begin a call, under `rows`. */
static void next_epoch(struct harp_embedding *table)
{
    struct table_cold *cold = table->cold;
    bool over = ++cold->epoch == UINT32_MAX - 1;
    if (over)
        cold->epoch = 2;
    for (uint32_t i = 0; i < table->how.shards; i++) {
        struct table_shard *shard = &table->shards[i];
        shard->epoch = cold->epoch;
        for (uint32_t value = 0; over && value < shard->values.count; value++)
            table_owner(shard, value)->epoch = 0;
    }
}

static struct id_walk begin_walk(struct harp_embedding *table,
                                 const struct harp_embedding_bags *features, uint64_t n, bool wants)
{
    next_epoch(table);
    return (struct id_walk){
        .table = table, .features = features, .n = n, .epoch = table->cold->epoch, .wants = wants};
}

/* Under both locks: have all rows in memory, and room for new ones. */
static int have_rows(struct harp_embedding *table, const struct harp_embedding_bags *features,
                     uint64_t n, bool insert)
{
    struct table_cold *cold = table->cold;
    struct id_walk walk = begin_walk(table, features, n, true);
    cold->call = walk.epoch;
    int failed = 0;
    for (bool all = false; !all && !failed;) {
        all = walk_ids(&walk);
        uint64_t inserts = insert ? walk.absent : 0;
        if (cold->round.wanted_n || table_cold_resident(table) + inserts > cold->most)
            failed = table_cold_round(table, inserts);
    }
    return failed;
}

/* Lock a table with what features want of it: `rows` is enough if they want nothing from disk. */
static int begin_table(struct harp_embedding *table, const struct harp_embedding_bags *features,
                       uint64_t n, bool insert)
{
    struct table_cold *cold = table->cold;
    pthread_mutex_lock(&cold->rows);
    struct id_walk walk = begin_walk(table, features, n, false);
    walk_ids(&walk);
    uint64_t inserts = insert ? walk.absent : 0;
    if (!walk.cold && (!inserts || table_cold_resident(table) + inserts <= cold->most))
        return 0;
    pthread_mutex_unlock(&cold->rows);
    table_cold_lock(table);
    int failed = have_rows(table, features, n, insert);
    if (failed)
        table_cold_unlock(table);
    else
        cold->io_held = true;
    return failed;
}

static void end_table(struct harp_embedding *table)
{
    struct table_cold *cold = table->cold;
    bool io = cold->io_held;
    cold->io_held = false;
    pthread_mutex_unlock(&cold->rows);
    if (io)
        pthread_mutex_unlock(&cold->io);
}

/* Where the features of the table of features[i] end. All threads lock tables by address. */
static uint64_t end_of_table(const struct harp_embedding_bags *features, uint64_t n, uint64_t i)
{
    const struct harp_embedding *table = features[i].table;
    while (i < n && features[i].table == table)
        i++;
    assert(i == n || features[i].table > table);
    return i;
}

void table_cold_end(const struct harp_embedding_bags *features, uint64_t n)
{
    for (uint64_t i = 0; i < n; i = end_of_table(features, n, i))
        if (features[i].table->cold)
            end_table(features[i].table);
}

int table_cold_begin(const struct harp_embedding_bags *features, uint64_t n, bool insert)
{
    for (uint64_t i = 0, end; i < n; i = end) {
        end = end_of_table(features, n, i);
        if (!features[i].table->cold)
            continue;
        int failed = begin_table(features[i].table, features + i, end - i, insert);
        if (!failed)
            continue;
        table_cold_end(features, i);
        return failed;
    }
    return 0;
}

int harp_embedding_warm(const struct harp_embedding_bags *features, uint64_t n)
{
    int failed = 0;
    for (uint64_t i = 0, end; i < n && !failed; i = end) {
        end = end_of_table(features, n, i);
        if (!features[i].table->cold)
            continue;
        failed = begin_table(features[i].table, features + i, end - i, false);
        if (!failed)
            end_table(features[i].table);
    }
    return failed;
}

static bool is_first_of_capped(struct harp_embedding *const *tables, uint64_t i)
{
    return tables[i]->cold && (!i || tables[i] != tables[i - 1]);
}

void table_cold_lock_rows(struct harp_embedding *const *tables, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        assert(!i || tables[i] >= tables[i - 1]);
        if (is_first_of_capped(tables, i))
            pthread_mutex_lock(&tables[i]->cold->rows);
    }
}

void table_cold_unlock_rows(struct harp_embedding *const *tables, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (is_first_of_capped(tables, i))
            pthread_mutex_unlock(&tables[i]->cold->rows);
}

void table_cold_lock(const struct harp_embedding *table)
{
    if (!table->cold)
        return;
    pthread_mutex_lock(&table->cold->io);
    pthread_mutex_lock(&table->cold->rows);
}

void table_cold_unlock(const struct harp_embedding *table)
{
    if (!table->cold)
        return;
    pthread_mutex_unlock(&table->cold->rows);
    pthread_mutex_unlock(&table->cold->io);
}

int table_cold_have(struct harp_embedding *table, const int64_t *keys, uint64_t n)
{
    struct harp_embedding_bags bags = {.table = table, .keys = keys, .count = n};
    return have_rows(table, &bags, 1, true);
}

void table_cold_drop(struct table_cold *cold, struct table_shard *shard, uint32_t slot)
{
    uint32_t where = *table_where(shard, slot);
    if (where & TABLE_COLD)
        table_cold_forget(cold, where & ~TABLE_COLD);
    else
        table_shard_drop_value(shard, where);
}

/* Copy what the round read to `values` of slots from `first` on. */
static void copy_records(const struct table_cold *cold, uint32_t first, size_t bytes, float *values)
{
    for (uint32_t i = 0, at = 0; i < cold->round.reads_n; i++)
        for (; at < cold->round.wanted_n &&
               cold->round.wanted[at].place / cold->per_page == cold->round.reads[i];
             at++)
            memcpy((uint8_t *)values + (cold->round.wanted[at].slot - first) * bytes,
                   cold->round.buffer + i * cold->page_bytes +
                       cold->round.wanted[at].place % cold->per_page * cold->record_bytes +
                       sizeof(int64_t),
                   bytes);
}

int table_cold_read(const struct harp_embedding *table, uint32_t shard, uint32_t slot, uint64_t n,
                    float *values)
{
    struct table_cold *cold = table->cold;
    const struct table_shard *from = &table->shards[shard];
    size_t bytes = from->values.item_bytes;
    int failed = 0;
    for (uint64_t i = 0; i < n && !failed; i++) {
        uint32_t where = *table_where(from, (uint32_t)(slot + i));
        if (where & TABLE_COLD)
            cold->round.wanted[cold->round.wanted_n++] =
                (struct table_wanted){where & ~TABLE_COLD, shard, (uint32_t)(slot + i)};
        else
            memcpy((uint8_t *)values + i * bytes, table_pool_item(&from->values, where), bytes);
        if (cold->round.wanted_n < cold->round.most && i + 1 < n)
            continue;
        table_cold_pages_of_wanted(cold);
        failed = table_cold_read_pages(cold);
        if (!failed)
            copy_records(cold, slot, bytes, values);
        cold->round.wanted_n = cold->round.reads_n = 0;
    }
    return failed;
}
