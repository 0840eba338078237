/* A table against an array of what each key must have, under random calls, on several threads.
 *
 * usage: test_table THREADS OPERATIONS FOLDER
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "store/page_file.h"
#include "table/table.h"
#include "table/table_cold.h"
#include "table/table_hash.h"
#include "table/table_loops.h"

/* A row is a line of the cache and some floats more. */
enum { KEYS = 6000, DIM = 19, BATCH = 3000 };

static uint64_t drawn = 7;
static uint32_t threads;
static const char *folder;
static struct harp_embedding *table;
static struct {
    bool there;
    uint32_t count; /* gradients */
    float row[DIM];
} expected[KEYS];

static uint32_t draw_below(uint32_t n)
{
    drawn = harp_embedding_mix(drawn + 0x9E3779B97F4A7C15);
    return harp_embedding_part(drawn, n);
}

/* Keys that differ in few bits, in either half, and the largest and smallest. */
static int64_t key_of(uint32_t i)
{
    return i == 0 ? INT64_MIN : i == 1 ? INT64_MAX : (int64_t)((uint64_t)(i - 2) << (i % 2 * 40));
}

static uint32_t number_of(int64_t key)
{
    if (key == INT64_MIN || key == INT64_MAX)
        return key == INT64_MAX;
    return (uint32_t)(key >> (key >> 40 ? 40 : 0)) + 2;
}

static void reset_row(uint32_t i)
{
    expected[i].there = false;
    expected[i].count = 0;
    harp_embedding_first_row(expected[i].row, DIM, key_of(i), 11, 0.5F);
}

static void add_batch(uint32_t n, uint32_t range)
{
    static int64_t keys[BATCH];
    static float gradients[BATCH * DIM];
    uint32_t chosen[BATCH];
    for (uint32_t i = 0; i < n; i++) {
        chosen[i] = draw_below(range);
        keys[i] = key_of(chosen[i]);
        for (uint32_t j = 0; j < DIM; j++)
            gradients[i * DIM + j] = (float)draw_below(16); /* sums are exact */
    }
    struct harp_embedding_bags bags = {table, keys, NULL, NULL,  gradients, n,
                                       n,     DIM,  0,    false, false};
    struct harp_embedding_step step = {.optimizer = HARP_EMBEDDING_SGD, .rate = 1, .scale = 1};
    CHECK(!harp_embedding_add(&bags, 1, threads), "add");
    static float sums[KEYS][DIM];
    memset(sums, 0, sizeof sums);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < DIM; j++)
            sums[chosen[i]][j] += gradients[i * DIM + j];
    bool drop = draw_below(4) == 0;
    if (drop)
        harp_embedding_drop(table);
    else
        CHECK(!harp_embedding_apply(&table, &step, 1, threads), "apply");
    for (uint32_t i = 0; i < n; i++) {
        expected[chosen[i]].there = true;
        expected[chosen[i]].count++;
    }
    for (uint32_t k = 0; !drop && k < range; k++)
        for (uint32_t j = 0; j < DIM; j++)
            expected[k].row[j] -= sums[k][j];
}

static void remove_batch(uint32_t n, uint32_t range)
{
    static int64_t keys[BATCH];
    static uint8_t gone[BATCH];
    uint32_t chosen[BATCH];
    for (uint32_t i = 0; i < n; i++)
        keys[i] = key_of(chosen[i] = draw_below(range));
    harp_embedding_remove(table, keys, n, gone);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(gone[i] == expected[chosen[i]].there, "key %u", chosen[i]);
        reset_row(chosen[i]);
    }
}

static void look_up_batch(uint32_t n, uint32_t range)
{
    static int64_t keys[BATCH], offsets[BATCH];
    static float rows[BATCH * DIM];
    uint32_t chosen[BATCH], bags = n / 2;
    for (uint32_t i = 0; i < n; i++)
        keys[i] = key_of(chosen[i] = draw_below(range));
    for (uint32_t i = 0; i < bags; i++)
        offsets[i] = i * (n / bags);
    struct harp_embedding_bags look = {table, keys, offsets, NULL,  rows, n,
                                       bags,  DIM,  0,       false, false};
    CHECK(!harp_embedding_look_up(&look, 1, threads), "%s", harp_embedding_why());
    for (uint32_t bag = 0; bag < bags; bag++) {
        uint32_t end = bag + 1 < bags ? (uint32_t)offsets[bag + 1] : n;
        for (uint32_t j = 0; j < DIM; j++) {
            float sum = 0;
            for (uint32_t i = (uint32_t)offsets[bag]; i < end; i++)
                sum += expected[chosen[i]].row[j];
            CHECK(rows[bag * DIM + j] == sum, "bag %u: %g %g", bag, rows[bag * DIM + j], sum);
        }
    }
}

static uint64_t count_there(void)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < KEYS; i++)
        n += expected[i].there;
    return n;
}

static struct harp_record heads[KEYS];

/* Every record that is read is one that must be there. Returns how many there are, in `heads`. */
static uint32_t read_all(uint32_t shards)
{
    static float values[KEYS * DIM];
    uint64_t n = 0;
    for (uint32_t shard = 0; shard < shards; shard++) {
        int64_t more = harp_embedding_read(table, shard, 0, KEYS - n, heads + n, values + n * DIM);
        CHECK(more >= 0, "%s", harp_embedding_why());
        n += (uint64_t)more;
    }
    CHECK(n == count_there() && n == harp_embedding_rows(table), "%lu", (unsigned long)n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = number_of(heads[i].key);
        CHECK(expected[k].there && expected[k].count == heads[i].count, "key %u", k);
        CHECK(!memcmp(expected[k].row, values + i * DIM, sizeof expected[k].row), "key %u", k);
    }
    return (uint32_t)n;
}

/* Rows that had few gradients go. */
static void evict_rows(uint32_t shards, uint32_t least)
{
    static int64_t keys[KEYS];
    static uint8_t gone[KEYS];
    uint32_t n = read_all(shards), going = 0;
    for (uint32_t i = 0; i < n; i++)
        if (heads[i].count < least) {
            keys[going++] = heads[i].key;
            reset_row(number_of(heads[i].key));
        }
    CHECK(harp_embedding_remove(table, keys, going, gone) == going, "evict");
}

/* As a checkpoint is saved and loaded: an empty table gets all records, and takes the place of the
 * table that they were read from. */
static void save_and_load(const struct harp_embedding_how *how, uint32_t rows)
{
    static float values[KEYS * DIM];
    struct harp_embedding *other = harp_embedding_open(how);
    if (rows)
        CHECK(!harp_embedding_cap(other, folder, rows * DIM * sizeof(float)), "%s",
              harp_embedding_why());
    CHECK(!harp_embedding_reserve(other, harp_embedding_rows(table)), "%s", harp_embedding_why());
    for (uint32_t shard = 0; shard < how->shards; shard++) {
        int64_t n = harp_embedding_read(table, shard, 0, KEYS, heads, values);
        CHECK(n >= 0 && !harp_embedding_write(other, heads, values, (uint64_t)n, threads), "%s",
              harp_embedding_why());
    }
    harp_embedding_swap(table, other);
    CHECK(harp_embedding_rows(other) == harp_embedding_rows(table), "rows");
    harp_embedding_close(other);
}

/* Rows come from disk beside calls of the other thread. */
static atomic_bool warming;

static void *warm_some(void *unused)
{
    uint64_t at = 1;
    static int64_t keys[BATCH];
    while (atomic_load(&warming)) {
        for (uint32_t i = 0; i < BATCH / 10; i++)
            keys[i] = key_of(harp_embedding_part(at = harp_embedding_mix(at + 1), KEYS));
        struct harp_embedding_bags bags = {.table = table, .keys = keys, .count = BATCH / 10};
        CHECK(!harp_embedding_warm(&bags, 1), "%s", harp_embedding_why());
    }
    return unused;
}

/* With a cap of this many rows, or 0 for none. */
static void test_random_calls(uint32_t shards, uint32_t operations, uint32_t rows)
{
    pthread_t warmer;
    struct harp_embedding_how how = {
        .seed = 11, .dim = DIM, .bound = 0.5F, .shards = shards, .admit_count = 1};
    table = harp_embedding_open(&how);
    if (rows)
        CHECK(!harp_embedding_cap(table, folder, rows * DIM * sizeof(float)), "%s",
              harp_embedding_why());
    uint64_t empty = harp_embedding_bytes(table);
    atomic_store(&warming, rows > 0);
    if (rows)
        CHECK(!pthread_create(&warmer, NULL, warm_some, NULL), "a thread");
    for (uint32_t i = 0; i < KEYS; i++)
        reset_row(i);
    for (uint32_t done = 0; done < operations;) {
        uint32_t n = 2 + draw_below(BATCH - 2), what = draw_below(8), range = KEYS >> draw_below(4);
        what < 4    ? add_batch(n, range)
        : what < 6  ? look_up_batch(n, range)
        : what == 6 ? remove_batch(n, range)
        : n % 2     ? evict_rows(shards, 1 + draw_below(4))
                    : save_and_load(&how, rows);
        read_all(shards);
        done += n;
    }
    atomic_store(&warming, false);
    if (rows)
        CHECK(!pthread_join(warmer, NULL), "the thread");
    static int64_t keys[KEYS];
    static uint8_t gone[KEYS];
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = key_of(i);
    CHECK(harp_embedding_remove(table, keys, KEYS, gone) == count_there(), "remove all");
    CHECK(harp_embedding_bytes(table) < empty + (512 << 10), "memory of rows is given back");
    harp_embedding_close(table);
}

/* The vectors of Random123, file kat_vectors, of philox4x32 with 10 rounds. */
static void test_philox(void)
{
    uint32_t zero[4] = {0}, ones[4] = {~0U, ~0U, ~0U, ~0U};
    uint32_t pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    harp_philox(zero, 0);
    CHECK(zero[0] == 0x6627e8d5 && zero[1] == 0xe169c58d && zero[2] == 0xbc57ac4c &&
              zero[3] == 0x9b00dbd8,
          "zeros");
    harp_philox(ones, ~UINT64_C(0));
    CHECK(ones[0] == 0x408f276d && ones[1] == 0x41c83b0e && ones[2] == 0xa20bc7c6 &&
              ones[3] == 0x6d5451fd,
          "ones");
    harp_philox(pi, UINT64_C(0x299f31d0a4093822));
    CHECK(pi[0] == 0xd16cfe09 && pi[1] == 0x94fdcceb && pi[2] == 0x5001e420 && pi[3] == 0x24126ea1,
          "pi");
}

/* Each key that comes splits one segment at most, which has 256 entries; keys that go merge them
 * again. */
static void test_growth_moves_one_segment_at_a_time(void)
{
    enum { MANY = 200000 };
    struct table_index index;
    CHECK(!table_index_open(&index), "open");
    for (int64_t key = 0; key < MANY; key++) {
        uint64_t hash = harp_embedding_hash(key);
        uint32_t before = index.segments.count;
        CHECK(!table_index_room(&index, hash) && index.segments.count <= before + 1, "room");
        table_index_add(&index, key, hash, (uint32_t)key);
    }
    CHECK(index.segments.count > MANY / 256, "%u segments", index.segments.count);
    for (int64_t key = 0; key < MANY; key++) {
        uint64_t hash = harp_embedding_hash(key);
        CHECK(table_index_find(&index, key, hash) == (uint32_t)key, "key %ld", (long)key);
        table_index_remove(&index, key, hash);
        CHECK(table_index_find(&index, key, hash) == TABLE_NOWHERE, "key %ld", (long)key);
    }
    CHECK(index.segments.count == 1 && !index.depth, "%u segments are left", index.segments.count);
    table_index_close(&index);
}

static void test_values_that_are_not_finite_change_nothing(void)
{
    struct harp_embedding_how how = {.dim = DIM, .shards = 2, .admit_count = 1};
    table = harp_embedding_open(&how);
    int64_t keys[2] = {1, 2};
    float rows[2 * DIM] = {0};
    rows[7] = NAN;
    struct harp_embedding_bags bags = {table, keys, NULL, NULL, rows, 2, 2, DIM, 0, false, false};
    CHECK(harp_embedding_add(&bags, 1, threads) == -EDOM && !harp_embedding_rows(table), "NaN");
    rows[7] = 3e38F;
    struct harp_embedding_step step = {.optimizer = HARP_EMBEDDING_SGD, .rate = 1, .scale = 1};
    CHECK(!harp_embedding_add(&bags, 1, threads) && !harp_embedding_add(&bags, 1, threads), "add");
    CHECK(harp_embedding_apply(&table, &step, 1, threads) == -EDOM, "the sum is not finite");
    harp_embedding_look_up(&bags, 1, threads);
    CHECK(rows[7] == 0, "%g", rows[7]);
    harp_embedding_close(table);
}

enum { LONGEST = 100, SOME = 7 };

struct answers {
    uint64_t hashes[LONGEST];
    float sum[LONGEST], more[LONGEST], weighted[LONGEST], first[LONGEST];
    float added[SOME][LONGEST], rows[5][LONGEST], states[5][2 * LONGEST];
};

static float draw_float(void)
{
    return ((float)draw_below(1 << 20) - (1 << 19)) / (float)(1 + draw_below(1000));
}

static void run_loops(const struct table_loops *loops, uint32_t dim, struct answers *answers)
{
    float values[SOME][LONGEST] = {{0}}, weights[SOME];
    const float *rows[SOME];
    int64_t drawn_keys[LONGEST];
    const uint32_t places[SOME] = {TABLE_BEGINS, TABLE_BEGINS | 1, 0, 1, 1, TABLE_BEGINS | 2, 0};
    memset(answers, 0, sizeof *answers);
    drawn = dim;
    for (uint32_t i = 0; i < SOME; i++) {
        weights[i] = draw_float();
        rows[i] = values[i];
        for (uint32_t j = 0; j < dim; j++)
            values[i][j] = draw_float();
    }
    for (uint32_t j = 0; j < dim; j++)
        drawn_keys[j] = (int64_t)harp_embedding_mix(drawn++);
    loops->hash_keys(drawn_keys, dim, answers->hashes);
    loops->sum_rows(answers->sum, rows, SOME, dim, false);
    loops->sum_rows(answers->more, rows, SOME, dim, false);
    loops->sum_rows(answers->more, rows + 1, SOME - 1, dim, true);
    loops->sum_weighted(answers->weighted, rows, weights, SOME, dim);
    loops->first_row(answers->first, dim, drawn_keys[0], drawn, 0.3F);
    struct table_addends addends = {answers->added[0], places, rows, weights, SOME};
    loops->add_gradients(&addends, dim);
    for (uint32_t optimizer = 0; optimizer < 5; optimizer++) {
        struct harp_embedding_step step = {(enum harp_embedding_optimizer)optimizer,
                                           0.1F,
                                           1e-8F,
                                           0.5F,
                                           0.1F,
                                           0.001F,
                                           1,
                                           0.01F,
                                           0.1F};
        memcpy(answers->rows[optimizer], values[1], sizeof values[1]);
        for (uint32_t i = 0; i < 3; i++)
            loops->update(answers->rows[optimizer], answers->states[optimizer], values[i], dim,
                          &step);
    }
}

/* Against plain C, by dims that fill lines and those that do not. */
static void test_every_form_gives_the_same_bits(void)
{
    static const uint32_t dims[] = {1, 4, 5, 8, 16, 19, 32, 33, 48, 64, LONGEST};
    static struct answers expected_answers, answers;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        run_loops(&table_loops_portable, dims[i], &expected_answers);
        float row[LONGEST];
        harp_embedding_first_row(row, dims[i], (int64_t)harp_embedding_mix(drawn - dims[i]), drawn,
                                 0.3F);
        CHECK(!memcmp(row, expected_answers.first, dims[i] * sizeof *row), "first row");
        for (size_t form = 0; table_loops_name(form); form++) {
            table_loops_use(form);
            run_loops(table_loops(), dims[i], &answers);
            CHECK(!memcmp(&answers, &expected_answers, sizeof answers), "%s, dim %u",
                  table_loops_name(form), dims[i]);
        }
    }
}

static void test_finite(void)
{
    float values[50] = {0};
    for (size_t form = 0; table_loops_name(form); form++) {
        table_loops_use(form);
        for (uint32_t i = 0; i < 50; i++) {
            CHECK(table_loops()->finite(values, 50, 1), "zeros");
            values[i] = i % 2 ? NAN : -INFINITY;
            CHECK(!table_loops()->finite(values, 50, 1), "%u", i);
            values[i] = 1e38F;
            CHECK(table_loops()->finite(values, 50, 3), "%u", i);
            CHECK(!table_loops()->finite(values, 50, 4), "%u: the product is not finite", i);
            values[i] = 0;
        }
    }
}

/* Batches of other rows than those in memory. */
static void test_a_cap_is_kept(void)
{
    enum { CAP = 400, FEW = 100 };
    struct harp_embedding_how how = {
        .seed = 11, .dim = DIM, .bound = 0.5F, .shards = 3, .admit_count = 1};
    table = harp_embedding_open(&how);
    CHECK(!harp_embedding_cap(table, folder, CAP * DIM * sizeof(float)), "cap");
    for (uint32_t i = 0; i < KEYS; i++)
        reset_row(i);
    for (uint32_t times = 0; times < 200; times++) {
        add_batch(FEW, KEYS);
        look_up_batch(FEW, KEYS);
        CHECK(harp_embedding_resident(table) <= CAP, "%lu rows",
              (unsigned long)harp_embedding_resident(table));
    }
    CHECK(harp_embedding_rows(table) > 3 * CAP, "more rows than the cap");
    read_all(how.shards);
    harp_embedding_close(table);
}

static void look_up_keys(const uint32_t *chosen, uint32_t n)
{
    static int64_t keys[BATCH];
    static float rows[BATCH * DIM];
    for (uint32_t i = 0; i < n; i++)
        keys[i] = key_of(chosen[i]);
    struct harp_embedding_bags look = {table, keys, NULL, NULL, rows, n, n, DIM, 0, false, false};
    CHECK(!harp_embedding_look_up(&look, 1, threads), "%s", harp_embedding_why());
}

/* Some rows are used in every fourth call, others at random: rows that go are not. */
static void test_rows_that_are_used_often_stay_in_memory(void)
{
    enum { CAP = 400, ALL = 3000, OFTEN = 50, FEW = 60, TIMES = 200 };
    struct harp_embedding_how how = {
        .seed = 11, .dim = DIM, .bound = 0.5F, .shards = 2, .admit_count = 1};
    uint32_t often[OFTEN], others[FEW];
    uint64_t read = 0, read_for_others = 0;
    table = harp_embedding_open(&how);
    CHECK(!harp_embedding_cap(table, folder, CAP * DIM * sizeof(float)), "cap");
    for (uint32_t i = 0; i < KEYS; i++)
        reset_row(i);
    for (uint32_t times = 0; times < 40; times++)
        add_batch(300, ALL);
    for (uint32_t i = 0; i < OFTEN; i++)
        often[i] = i;
    for (uint32_t times = 0; times < 5 * TIMES; times++) {
        uint64_t before = harp_embedding_pages_read(table);
        for (uint32_t i = 0; i < FEW; i++)
            others[i] = OFTEN + draw_below(ALL - OFTEN);
        look_up_keys(times % 4 ? others : often, times % 4 ? FEW : OFTEN);
        *(times % 4 ? &read_for_others : &read) +=
            times < TIMES ? 0 : harp_embedding_pages_read(table) - before;
    }
    CHECK(read_for_others > TIMES * 3 * FEW / 2, "%lu pages", (unsigned long)read_for_others);
    CHECK(read < TIMES * OFTEN / 20, "%lu pages", (unsigned long)read);
    harp_embedding_close(table);
}

static void test_a_folder_that_is_not_there_is_an_error(void)
{
    struct harp_embedding_how how = {.dim = DIM, .shards = 2, .admit_count = 1};
    table = harp_embedding_open(&how);
    CHECK(harp_embedding_cap(table, "/nowhere", 1 << 20) == -EIO, "made");
    CHECK(strstr(harp_embedding_why(), "/nowhere: 16 pages"), "%s", harp_embedding_why());
    harp_embedding_close(table);
}

static void put_in_place(const char *path, int fd)
{
    int other = path ? open(path, O_RDWR | O_CLOEXEC) : fd;
    CHECK(other >= 0 && dup2(other, harp_page_file_fd(table->cold->file)) >= 0, "%s", path);
    close(other);
}

/* Of a disk that fails: the call changes nothing, and the next one is right. */
static void test_a_disk_that_fails_is_named(void)
{
    enum { CAP = 400, ALL = 3000 };
    static int64_t keys[ALL];
    static float rows[ALL * DIM];
    struct harp_embedding_how how = {
        .seed = 11, .dim = DIM, .bound = 0.5F, .shards = 2, .admit_count = 1};
    table = harp_embedding_open(&how);
    CHECK(!harp_embedding_cap(table, folder, CAP * DIM * sizeof(float)), "cap");
    for (uint32_t i = 0; i < ALL; i++)
        keys[i] = key_of(i);
    for (uint32_t i = 0; i < KEYS; i++)
        reset_row(i);
    for (uint32_t times = 0; times < 60; times++)
        add_batch(300, ALL);
    uint64_t there = harp_embedding_rows(table);
    struct harp_embedding_bags bags = {table, keys, NULL, NULL,  rows, ALL,
                                       ALL,   DIM,  0,    false, false};
    static const char *const paths[] = {"/proc/self/mem", "/dev/full"};
    for (uint32_t i = 0; i < 2; i++) {
        int kept = dup(harp_page_file_fd(table->cold->file));
        put_in_place(paths[i], -1);
        int failed = harp_embedding_look_up(&bags, 1, threads);
        CHECK(failed == (i ? -ENOSPC : -EIO) && strstr(harp_embedding_why(), folder), "%d: %s",
              failed, harp_embedding_why());
        CHECK(harp_embedding_add(&bags, 1, threads) < 0, "add");
        CHECK(harp_embedding_rows(table) == there, "nothing is inserted");
        put_in_place(NULL, kept);
    }
    for (uint32_t times = 0; times < 20; times++) {
        look_up_batch(300, ALL);
        add_batch(300, ALL);
    }
    read_all(how.shards);
    harp_embedding_close(table);
}

static uint32_t regions;

struct share {
    void (*work)(void *);
    void *with;
};

static void *work_at_share(void *given)
{
    const struct share *share = given;
    share->work(share->with);
    return NULL;
}

/* OpenMP that has one thread less than it is asked for, as where their number is limited. */
static void fewer_threads(void (*work)(void *), void *with, unsigned asked, unsigned flags)
{
    pthread_t others[8];
    struct share share = {work, with};
    CHECK(asked > 1 && asked - 2 <= 8 && !flags, "%u threads", asked);
    for (unsigned i = 0; i + 2 < asked; i++)
        CHECK(!pthread_create(&others[i], NULL, work_at_share, &share), "a thread");
    work(with);
    for (unsigned i = 0; i + 2 < asked; i++)
        CHECK(!pthread_join(others[i], NULL), "a thread");
    regions++;
}

static void test_all_is_done_by_fewer_threads_than_were_asked_for(void)
{
    uint32_t before = threads;
    harp_embedding_use_openmp(fewer_threads);
    for (threads = 2; threads <= 3; threads++)
        test_random_calls(3, 30000, 0);
    CHECK(regions > 20, "%u regions", regions);
    harp_embedding_use_openmp(NULL);
    threads = before;
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "arguments");
    threads = (uint32_t)atoi(argv[1]);
    folder = argv[3];
    test_philox();
    test_every_form_gives_the_same_bits();
    test_finite();
    test_growth_moves_one_segment_at_a_time();
    test_values_that_are_not_finite_change_nothing();
    test_a_folder_that_is_not_there_is_an_error();
    test_a_cap_is_kept();
    test_rows_that_are_used_often_stay_in_memory();
    test_a_disk_that_fails_is_named();
    test_random_calls(threads, (uint32_t)atoi(argv[2]), 0);
    test_random_calls(threads, (uint32_t)atoi(argv[2]) / 4, 3 * KEYS / 4);
    test_all_is_done_by_fewer_threads_than_were_asked_for();
    table_loops_use(0);
    test_random_calls(3, (uint32_t)atoi(argv[2]), 0);
    test_random_calls(3, (uint32_t)atoi(argv[2]) / 4, 50);
    return 0;
}
