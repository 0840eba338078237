#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/page_file.h"
#include "table/table_cold.h"

/* Pages that are moved at once, and after how many of them rows are taken: the others come
 * meanwhile, and look-ups of other threads get their turn. */
enum { WINDOW = 56, TURN = 16 };
/* Rows whose ages age_of_old() samples; one in OLD_PART of them, the oldest, may go. */
enum { SAMPLE = 64, OLD_PART = 8 };
/* Rows that are being fetched into the cache. */
enum { AHEAD = 8 };
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

/* Rows that were last used before this call are the oldest eighth, as a sample tells. */
static uint32_t age_of_old(struct harp_embedding *table)
{
    struct table_cold *cold = table->cold;
    uint32_t epochs[SAMPLE], n = 0;
    for (uint32_t i = 0; i < SAMPLE; i++) {
        const struct table_shard *from = &table->shards[draw_below(cold, table->how.shards)];
        if (!from->values.count)
            continue;
        uint32_t at = n++, epoch = table_owner(from, draw_below(cold, from->values.count))->epoch;
        for (; at && epochs[at - 1] > epoch; at--)
            epochs[at] = epochs[at - 1];
        epochs[at] = epoch;
    }
    return n ? epochs[n / OLD_PART] + 1 : 0;
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

/* How many rows go so that `n` fit: whole pages of them, as many as a round writes at most. */
static uint32_t rows_to_go(const struct harp_embedding *table, uint64_t n)
{
    const struct table_cold *cold = table->cold;
    uint64_t rows = table_cold_resident(table) + n,
             most = (uint64_t)cold->round.most * cold->per_page;
    rows = rows > cold->most ? rows - cold->most : 0;
    rows = (rows + cold->per_page - 1) / cold->per_page * cold->per_page;
    return (uint32_t)(rows < most ? rows : most);
}

/* Choose `n` rows that go, or as many as there are that may. */
static void choose_victims(struct harp_embedding *table, uint32_t n)
{
    struct table_cold *cold = table->cold;
    uint32_t old = n ? age_of_old(table) : 0, before = cold->call - 1;
    uint32_t limits[] = {old < before ? old : before, before, cold->call};
    cold->round.victims_n = 0;
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t left = table_cold_resident(table) + table->how.shards;
        while (cold->round.victims_n < n && sweep_victim(table, limits[i], &left))
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

/* Have empty pages, all before input and output begins. */
static int have_empty_pages(struct table_cold *cold, uint32_t n)
{
    uint32_t more = cold->pages.n / 8 + 16;
    if (n <= cold->pages.empty_n)
        return 0;
    n -= cold->pages.empty_n;
    return add_pages(cold, n > more ? n : more);
}

static void fetch_victim(const struct harp_embedding *table, const struct table_victim *victim)
{
    const struct table_shard *shard = &table->shards[victim->shard];
    const char *values = table_pool_item(&shard->values, victim->value);
    for (size_t at = 0; at < shard->values.item_bytes; at += 64)
        __builtin_prefetch(values + at);
    __builtin_prefetch(table_head(shard, table_owner(shard, victim->value)->slot));
}

/* Copy the rows that go to empty pages. */
static void fill_pages(struct harp_embedding *table)
{
    struct table_cold *cold = table->cold;
    for (uint32_t i = 0; i < cold->round.victims_n; i++) {
        uint8_t *page = write_buffer(cold) + i / cold->per_page * cold->page_bytes;
        if (i + AHEAD < cold->round.victims_n)
            fetch_victim(table, &cold->round.victims[i + AHEAD]);
        if (i % cold->per_page == 0)
            cold->round.writes[cold->round.writes_n++] = cold->pages.empty[--cold->pages.empty_n];
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
}

static uint8_t *read_buffer(const struct table_cold *cold, uint32_t i)
{
    return cold->round.buffer + i * cold->page_bytes;
}

/* Pages move in this order: the reads that begin first, all writes, the other reads. */
static bool is_write(const struct table_cold *cold, uint32_t move)
{
    return move >= cold->round.reads_first && move - cold->round.reads_first < cold->round.writes_n;
}

static uint32_t moved_page(const struct table_cold *cold, uint32_t move)
{
    if (is_write(cold, move))
        return cold->round.writes[move - cold->round.reads_first];
    return cold->round.reads[move < cold->round.reads_first ? move : move - cold->round.writes_n];
}

/* Begin to move pages, as many as are under way at once. Returns how many were begun so far. */
static uint32_t begin_moves(struct table_cold *cold, uint32_t begun, uint32_t done)
{
    uint32_t moves = cold->round.reads_n + cold->round.writes_n;
    harp_page_file_hold(cold->file);
    for (; begun < moves && begun < done + WINDOW; begun++) {
        uint32_t page = moved_page(cold, begun), first = cold->round.reads_first;
        if (is_write(cold, begun))
            harp_page_file_write(cold->file, page,
                                 write_buffer(cold) + (begun - first) * cold->page_bytes);
        else
            harp_page_file_read(
                cold->file, page,
                read_buffer(cold, begun < first ? begun : begun - cold->round.writes_n));
    }
    harp_page_file_release(cold->file);
    return begun;
}

/* Wait for moves up to `end`. Returns the first error, or the one before. */
static int wait_moves(struct table_cold *cold, uint32_t *done, uint32_t end, int failed)
{
    char ignored[HARP_STORE_WHY_BYTES];
    for (; *done < end; ++*done) {
        int error = harp_page_file_wait(cold->file, moved_page(cold, *done),
                                        failed ? ignored : table_why());
        failed = failed ? failed : error;
    }
    return failed;
}

int table_cold_read_pages(struct table_cold *cold)
{
    uint32_t begun = 0, done = 0;
    int failed = 0;
    cold->pages_read += cold->round.reads_n;
    while (done < cold->round.reads_n) {
        begun = begin_moves(cold, begun, done);
        failed = wait_moves(cold, &done, done + TURN < begun ? done + TURN : begun, failed);
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

/* Have a record in memory. Returns 0 or -ENOMEM. */
static int take_record(struct harp_embedding *table, const struct table_wanted *row,
                       const uint8_t *record, uint32_t epoch)
{
    struct table_shard *shard = &table->shards[row->shard];
    assert(*table_where(shard, row->slot) == (TABLE_COLD | row->place));
    int64_t value = table_shard_push_value(shard, row->slot);
    if (value < 0)
        return (int)value;
    memcpy(table_pool_item(&shard->values, (uint32_t)value), record + sizeof(int64_t),
           shard->values.item_bytes);
    table_owner(shard, (uint32_t)value)->epoch = epoch;
    table_cold_forget(table->cold, row->place);
    return 0;
}

/* Have all records of a page in memory, but for copies that were left behind. */
static int take_rest(struct harp_embedding *table, uint32_t page, const uint8_t *bytes)
{
    struct table_cold *cold = table->cold;
    int failed = 0;
    for (uint32_t i = 0; i < cold->per_page && cold->pages.live[page] && !failed; i++) {
        const uint8_t *record = bytes + i * cold->record_bytes;
        int64_t key;
        memcpy(&key, record, sizeof key);
        uint64_t hash = harp_embedding_hash(key);
        struct table_wanted row = {page * cold->per_page + i,
                                   harp_embedding_part(hash, table->how.shards), 0};
        const struct table_shard *shard = &table->shards[row.shard];
        row.slot = table_shard_find(shard, key, hash);
        if (row.slot != TABLE_NOWHERE && *table_where(shard, row.slot) == (TABLE_COLD | row.place))
            failed = take_record(table, &row, record, 0);
    }
    return failed;
}

/* Have the wanted rows of a page in memory, and few others. Returns 0 or -ENOMEM. */
static int take_page(struct harp_embedding *table, uint32_t i, uint32_t *at)
{
    struct table_cold *cold = table->cold;
    const struct table_wanted *wanted = cold->round.wanted;
    uint32_t page = cold->round.reads[i];
    const uint8_t *bytes = read_buffer(cold, i);
    int failed = 0;
    for (; *at < cold->round.wanted_n && wanted[*at].place / cold->per_page == page && !failed;
         ++*at) {
        if (*at + AHEAD < cold->round.wanted_n) {
            const struct table_wanted *next = &wanted[*at + AHEAD];
            __builtin_prefetch(table_where(&table->shards[next->shard], next->slot), 1);
        }
        failed = take_record(table, &wanted[*at],
                             bytes + wanted[*at].place % cold->per_page * cold->record_bytes,
                             cold->call);
    }
    if (cold->pages.live[page] <= cold->sparse && !failed)
        failed = take_rest(table, page, bytes);
    return failed;
}

/* Under `io` alone: move the pages of this round, and have rows in memory while others come. */
static int move_rows(struct harp_embedding *table, uint32_t begun)
{
    struct table_cold *cold = table->cold;
    uint32_t moves = cold->round.reads_n + cold->round.writes_n, done = 0, taken = 0, at = 0,
             written = cold->round.reads_first + cold->round.writes_n;
    bool parted = false;
    int failed = 0;
    do {
        begun = begin_moves(cold, begun, done);
        failed = wait_moves(cold, &done, done + TURN < begun ? done + TURN : begun, failed);
        if (done == moves)
            pthread_mutex_lock(&cold->rows);
        else if (failed || done < written || pthread_mutex_trylock(&cold->rows))
            continue;
        if (!parted)
            part_with_victims(table, !failed);
        parted = true;
        for (; taken < done - cold->round.writes_n && !failed; taken++)
            failed = take_page(table, taken, &at);
        pthread_mutex_unlock(&cold->rows);
    } while (done < moves);
    return failed;
}

int table_cold_round(struct harp_embedding *table, uint64_t inserts)
{
    struct table_cold *cold = table->cold;
    table_cold_pages_of_wanted(cold);
    uint32_t going = rows_to_go(table, inserts + rows_to_take(cold));
    int failed = have_empty_pages(cold, going / cold->per_page);
    if (!failed) {
        cold->pages_read += cold->round.reads_n;
        cold->round.reads_first = begin_moves(cold, 0, 0);
        choose_victims(table, going);
        fill_pages(table);
        pthread_mutex_unlock(&cold->rows);
        failed = move_rows(table, cold->round.reads_first);
        pthread_mutex_lock(&cold->rows);
    }
    cold->round.wanted_n = cold->round.reads_n = cold->round.reads_first = 0;
    cold->round.victims_n = cold->round.writes_n = 0;
    return failed;
}

void table_cold_forget(struct table_cold *cold, uint32_t place)
{
    uint32_t page = place / cold->per_page;
    assert(cold->pages.live[page]);
    if (!--cold->pages.live[page])
        cold->pages.empty[cold->pages.empty_n++] = page;
}
