#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/page_file.h"
#include "table/table_cold.h"

/* Pages that are read at once, and after how many of them rows are taken: the others come
 * meanwhile, and look-ups of other threads get their turn. */
enum { DRAWS = 8, WINDOW = 56, TURN = 16 };
/* The epoch of a row that is about to go: unlike any other. */
#define TAKEN UINT32_MAX

char *table_why(void)
{
    static _Thread_local char why[HARP_STORE_WHY_BYTES];
    return why;
}

const char *harp_embedding_why(void)
{
    return table_why();
}

uint64_t table_cold_resident(const struct harp_embedding *table)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < table->how.shards; i++)
        rows += table->shards[i].values.count;
    return rows;
}

static uint32_t draw_below(struct table_cold *cold, uint32_t n)
{
    cold->drawn = harp_embedding_mix(cold->drawn + UINT64_C(0x9E3779B97F4A7C15));
    return harp_embedding_part(cold->drawn, n);
}

static bool row_waits(const struct table_shard *shard, uint32_t value)
{
    return table_head(shard, table_owner(shard, value)->slot)->changed & ~TABLE_DIRTY;
}

static void take_victim(struct table_cold *cold, struct harp_embedding *table, uint32_t shard,
                        uint32_t value)
{
    table_owner(&table->shards[shard], value)->epoch = TAKEN;
    cold->round.victims[cold->round.victims_n++] =
        (struct table_victim){.shard = shard, .value = value};
}

/* Of some rows drawn at random, take the one that was used longest ago, before `limit`. */
static bool draw_victim(struct harp_embedding *table, uint32_t limit)
{
    struct table_cold *cold = table->cold;
    uint32_t shard = draw_below(cold, table->how.shards), value = 0, epoch = limit;
    const struct table_shard *from = &table->shards[shard];
    for (uint32_t i = 0; from->values.count && i < DRAWS; i++) {
        uint32_t drawn = draw_below(cold, from->values.count);
        if (table_owner(from, drawn)->epoch >= epoch)
            continue;
        epoch = table_owner(from, drawn)->epoch;
        value = drawn;
    }
    if (epoch == limit || row_waits(from, value))
        return false;
    take_victim(cold, table, shard, value);
    return true;
}

/* Take the next row that was used before `limit`, going over at most `left` of them. */
static bool sweep_victim(struct harp_embedding *table, uint32_t limit, uint64_t *left)
{
    struct table_cold *cold = table->cold;
    while (*left) {
        const struct table_shard *from = &table->shards[cold->hand.shard];
        if (cold->hand.value >= from->values.count) {
            cold->hand.shard = (cold->hand.shard + 1) % table->how.shards;
            cold->hand.value = 0;
            --*left;
            continue;
        }
        uint32_t value = cold->hand.value++;
        --*left;
        if (table_owner(from, value)->epoch < limit && !row_waits(from, value)) {
            take_victim(cold, table, cold->hand.shard, value);
            return true;
        }
    }
    return false;
}

static int compare_victims(const void *one, const void *other)
{
    const struct table_victim *a = one, *b = other;
    return a->shard != b->shard ? (a->shard < b->shard ? -1 : 1)
                                : (a->value > b->value ? -1 : a->value < b->value);
}

/* Choose rows that go, so that `n` fit: whole pages of them, if there are as many. */
static void choose_victims(struct harp_embedding *table, uint64_t n)
{
    struct table_cold *cold = table->cold;
    uint64_t resident = table_cold_resident(table),
             room = (uint64_t)cold->round.most * cold->per_page;
    cold->round.victims_n = 0;
    n = resident + n > cold->most ? resident + n - cold->most : 0;
    n = (n + cold->per_page - 1) / cold->per_page * cold->per_page;
    n = n < room ? n : room;
    for (uint32_t limit = cold->call - 1; limit <= cold->call; limit++) {
        uint64_t left = resident + table->how.shards;
        while (cold->round.victims_n < n &&
               (draw_victim(table, limit) || sweep_victim(table, limit, &left)))
            ;
    }
    qsort(cold->round.victims, cold->round.victims_n, sizeof *cold->round.victims, compare_victims);
}

static uint8_t *record_of(const struct table_cold *cold, uint8_t *page, uint32_t i)
{
    return page + i * cold->record_bytes;
}

static uint8_t *write_buffer(const struct table_cold *cold)
{
    return cold->round.buffer + cold->round.most * cold->page_bytes;
}

static int add_pages(struct table_cold *cold, uint64_t more)
{
    if ((cold->pages.n + more) * cold->per_page >= TABLE_COLD) {
        snprintf(table_why(), HARP_STORE_WHY_BYTES, "a table has at most 2^31 rows on disk");
        return -ENOSPC;
    }
    uint32_t pages = cold->pages.n + (uint32_t)more;
    uint32_t *empty = realloc(cold->pages.empty, pages * sizeof *empty);
    if (empty)
        cold->pages.empty = empty;
    uint16_t *live = realloc(cold->pages.live, pages * sizeof *live);
    if (live)
        cold->pages.live = live;
    if (!empty || !live)
        return -ENOMEM;
    int failed = harp_page_file_grow(cold->file, (uint32_t)more, table_why());
    if (failed)
        return failed;
    for (uint32_t page = pages; page-- > cold->pages.n;) {
        cold->pages.live[page] = 0;
        cold->pages.empty[cold->pages.empty_n++] = page;
    }
    cold->pages.n = pages;
    return 0;
}

/* Each row that comes sends one away, in whole pages. Rows that come with it, from a page with few
 * others, leave that page empty, but only after the write: hence the pages of a round beside. */
int table_cold_reserve(struct harp_embedding *table, uint64_t rows)
{
    struct table_cold *cold = table->cold;
    uint64_t resident = table_cold_resident(table);
    if (resident + rows <= cold->most)
        return 0;
    uint64_t pages = (resident + rows - cold->most) / cold->per_page + 1 + cold->round.most;
    return pages <= cold->pages.empty_n ? 0 : add_pages(cold, pages - cold->pages.empty_n);
}

/* Copy the rows that go to pages, which are taken from the empty ones. */
static int fill_pages(struct harp_embedding *table)
{
    struct table_cold *cold = table->cold;
    cold->round.writes_n = 0;
    for (uint32_t i = 0; i < cold->round.victims_n; i++) {
        uint8_t *page = write_buffer(cold) + i / cold->per_page * cold->page_bytes;
        if (i % cold->per_page == 0) {
            int failed = cold->pages.empty_n ? 0 : add_pages(cold, cold->pages.n / 8 + 16);
            if (failed)
                return failed;
            cold->round.writes[cold->round.writes_n++] = cold->pages.empty[--cold->pages.empty_n];
        }
        struct table_victim *victim = &cold->round.victims[i];
        const struct table_shard *shard = &table->shards[victim->shard];
        int64_t key = table_head(shard, table_owner(shard, victim->value)->slot)->key;
        uint8_t *record = record_of(cold, page, i % cold->per_page);
        memcpy(record, &key, sizeof key);
        memcpy(record + sizeof key, table_pool_item(&shard->values, victim->value),
               shard->values.item_bytes);
        victim->place =
            cold->round.writes[cold->round.writes_n - 1] * cold->per_page + i % cold->per_page;
    }
    return 0;
}

/* Those that were written go; a row that was used or changed meanwhile stays. */
static void part_with_victims(struct harp_embedding *table, bool written)
{
    struct table_cold *cold = table->cold;
    for (uint32_t i = 0; i < cold->round.victims_n; i++) {
        const struct table_victim *victim = &cold->round.victims[i];
        struct table_shard *shard = &table->shards[victim->shard];
        struct table_owner *owner = table_owner(shard, victim->value);
        uint8_t *page = write_buffer(cold) + i / cold->per_page * cold->page_bytes;
        if (owner->epoch != TAKEN)
            continue;
        owner->epoch = 0;
        if (!written || row_waits(shard, victim->value) ||
            memcmp(record_of(cold, page, i % cold->per_page) + sizeof(int64_t),
                   table_pool_item(&shard->values, victim->value), shard->values.item_bytes) != 0)
            continue;
        *table_where(shard, owner->slot) = TABLE_COLD | victim->place;
        cold->pages.live[victim->place / cold->per_page]++;
        table_shard_drop_value(shard, victim->value);
    }
    for (uint32_t i = cold->round.writes_n; i-- > 0;)
        if (!cold->pages.live[cold->round.writes[i]])
            cold->pages.empty[cold->pages.empty_n++] = cold->round.writes[i];
    cold->round.victims_n = cold->round.writes_n = 0;
}

static int wait_page(struct table_cold *cold, uint32_t page, int failed)
{
    char ignored[HARP_STORE_WHY_BYTES];
    int error = harp_page_file_wait(cold->file, page, failed ? ignored : table_why());
    return failed ? failed : error;
}

static uint8_t *read_buffer(const struct table_cold *cold, uint32_t i)
{
    return cold->round.buffer + i * cold->page_bytes;
}

/* Begin to read pages, as many as are under way at once. Returns how many were begun so far. */
static uint32_t begin_reads(struct table_cold *cold, uint32_t begun, uint32_t done)
{
    harp_page_file_hold(cold->file);
    for (; begun < cold->round.reads_n && begun < done + WINDOW; begun++)
        harp_page_file_read(cold->file, cold->round.reads[begun], read_buffer(cold, begun));
    harp_page_file_release(cold->file);
    return begun;
}

int table_cold_read_pages(struct table_cold *cold)
{
    uint32_t begun = 0;
    int failed = 0;
    cold->pages_read += cold->round.reads_n;
    for (uint32_t i = 0; i < cold->round.reads_n; i++) {
        if (i % TURN == 0)
            begun = begin_reads(cold, begun, i);
        failed = wait_page(cold, cold->round.reads[i], failed);
    }
    return failed;
}

static int compare_wanted(const void *one, const void *other)
{
    const struct table_wanted *a = one, *b = other;
    return a->place < b->place ? -1 : a->place > b->place;
}

void table_cold_pages_of_wanted(struct table_cold *cold)
{
    uint32_t n = 0;
    qsort(cold->round.wanted, cold->round.wanted_n, sizeof *cold->round.wanted, compare_wanted);
    cold->round.reads_n = 0;
    for (uint32_t i = 0; i < cold->round.wanted_n; i++) {
        uint32_t page = cold->round.wanted[i].place / cold->per_page;
        if (n && cold->round.wanted[n - 1].place == cold->round.wanted[i].place)
            continue;
        cold->round.wanted[n++] = cold->round.wanted[i];
        if (!cold->round.reads_n || cold->round.reads[cold->round.reads_n - 1] != page)
            cold->round.reads[cold->round.reads_n++] = page;
    }
    cold->round.wanted_n = n;
}

/* Count the rows that are taken from the pages to read. */
static uint64_t rows_to_take(const struct table_cold *cold)
{
    uint64_t rows = 0;
    for (uint32_t i = 0, at = 0; i < cold->round.reads_n; i++) {
        uint32_t page = cold->round.reads[i], n = 0;
        for (; at < cold->round.wanted_n && cold->round.wanted[at].place / cold->per_page == page;
             at++)
            n++;
        rows += cold->pages.live[page] - n <= cold->sparse ? cold->pages.live[page] : n;
    }
    return rows;
}

/* Have a record in memory, if it is not a copy that was left behind. */
static int take_record(struct harp_embedding *table, const uint8_t *record, uint32_t place,
                       uint32_t epoch)
{
    struct table_cold *cold = table->cold;
    int64_t key;
    memcpy(&key, record, sizeof key);
    uint64_t hash = harp_embedding_hash(key);
    struct table_shard *shard = &table->shards[harp_embedding_part(hash, table->how.shards)];
    uint32_t slot = table_shard_find(shard, key, hash);
    if (slot == TABLE_NOWHERE || *table_where(shard, slot) != (TABLE_COLD | place))
        return 0;
    int64_t value = table_shard_push_value(shard, slot);
    if (value < 0)
        return (int)value;
    memcpy(table_pool_item(&shard->values, (uint32_t)value), record + sizeof key,
           shard->values.item_bytes);
    table_owner(shard, (uint32_t)value)->epoch = epoch;
    table_cold_forget(cold, place);
    return 0;
}

/* Have the wanted rows of a page in memory, and few others. Returns 0 or -ENOMEM. */
static int take_page(struct harp_embedding *table, uint32_t i, uint32_t *at)
{
    struct table_cold *cold = table->cold;
    uint32_t page = cold->round.reads[i], begin = page * cold->per_page;
    uint8_t *bytes = read_buffer(cold, i);
    int failed = 0;
    for (; *at < cold->round.wanted_n && cold->round.wanted[*at].place / cold->per_page == page &&
           !failed;
         ++*at)
        failed = take_record(table, record_of(cold, bytes, cold->round.wanted[*at].place - begin),
                             cold->round.wanted[*at].place, cold->call);
    bool few = cold->pages.live[page] <= cold->sparse;
    for (uint32_t j = 0; few && j < cold->per_page && cold->pages.live[page] && !failed; j++)
        failed = take_record(table, record_of(cold, bytes, j), begin + j, 0);
    return failed;
}

static int end_writes(struct harp_embedding *table)
{
    struct table_cold *cold = table->cold;
    int failed = 0;
    for (uint32_t i = 0; i < cold->round.writes_n; i++)
        failed = wait_page(cold, cold->round.writes[i], failed);
    pthread_mutex_lock(&cold->rows);
    part_with_victims(table, !failed);
    pthread_mutex_unlock(&cold->rows);
    return failed;
}

/* Under `io` alone: write and read the pages of this round. Rows are taken while others come. */
static int move_rows(struct harp_embedding *table)
{
    struct table_cold *cold = table->cold;
    uint32_t at = 0, done = 0;
    cold->pages_read += cold->round.reads_n;
    harp_page_file_hold(cold->file);
    for (uint32_t i = 0; i < cold->round.writes_n; i++)
        harp_page_file_write(cold->file, cold->round.writes[i],
                             write_buffer(cold) + i * cold->page_bytes);
    harp_page_file_release(cold->file);
    uint32_t begun = begin_reads(cold, 0, 0);
    int failed = end_writes(table);
    while (done < cold->round.reads_n && !failed) {
        begun = begin_reads(cold, begun, done);
        uint32_t first = done, end = done + TURN < begun ? done + TURN : begun;
        for (; done < end; done++)
            failed = wait_page(cold, cold->round.reads[done], failed);
        pthread_mutex_lock(&cold->rows);
        for (; first < end && !failed; first++)
            failed = take_page(table, first, &at);
        pthread_mutex_unlock(&cold->rows);
    }
    for (; done < begun; done++)
        failed = wait_page(cold, cold->round.reads[done], failed);
    return failed;
}

int table_cold_round(struct harp_embedding *table, uint64_t inserts)
{
    struct table_cold *cold = table->cold;
    table_cold_pages_of_wanted(cold);
    choose_victims(table, inserts + rows_to_take(cold));
    int failed = fill_pages(table);
    if (failed) {
        part_with_victims(table, false);
    } else {
        pthread_mutex_unlock(&cold->rows);
        failed = move_rows(table);
        pthread_mutex_lock(&cold->rows);
    }
    cold->round.wanted_n = cold->round.reads_n = 0;
    return failed;
}

void table_cold_forget(struct table_cold *cold, uint32_t place)
{
    uint32_t page = place / cold->per_page;
    assert(cold->pages.live[page]);
    if (!--cold->pages.live[page])
        cold->pages.empty[cold->pages.empty_n++] = page;
}
