#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "table/table_crew.h"
#include "table/table_state.h"

int64_t harp_embedding_bags_wrong(const int64_t *offsets, uint64_t bags, uint64_t count)
{
    int64_t before = 0;
    for (uint64_t i = 0; i < bags; i++) {
        if (offsets[i] < before || offsets[i] > (int64_t)count || (!i && offsets[i]))
            return (int64_t)i;
        before = offsets[i];
    }
    return -1;
}

static uint64_t bag_begin(const struct harp_embedding_bags *bags, uint64_t bag)
{
    if (!bags->offsets)
        return bags->bags ? bag * (bags->count / bags->bags) : 0;
    return bag < bags->bags ? (uint64_t)bags->offsets[bag] : bags->count;
}

/* Ids of a bag that count. */
static uint64_t bag_size(const struct harp_embedding_bags *bags, uint64_t bag)
{
    uint64_t begin = bag_begin(bags, bag), end = bag_begin(bags, bag + 1), padding = 0;
    for (uint64_t i = begin; bags->padded && i < end; i++)
        padding += bags->keys[i] == bags->padding;
    return end - begin - padding;
}

/* A look-up passes over the ids three times, so that the cache's misses overlap: the first fetches
 * an id's group, the second, AHEAD ids behind it, its record, and the third reads it. */
enum { AHEAD = 16, RING = 2 * AHEAD };

struct look_up {
    const struct harp_embedding_bags *bags;
    size_t bytes; /* of head and row */
    uint64_t hashes[RING];
    uint32_t guesses[RING];
};

static void fetch_group(struct look_up *call, uint64_t i)
{
    uint64_t hash = harp_embedding_hash(call->bags->keys[i]);
    call->hashes[i % RING] = hash;
    __builtin_prefetch(&table_index_segment(&table_shard_of(call->bags->table, hash)->index, hash)
                            ->groups[table_index_group(hash)]);
}

static void fetch_record(struct look_up *call, uint64_t i)
{
    uint64_t hash = call->hashes[i % RING];
    const struct table_shard *shard = table_shard_of(call->bags->table, hash);
    uint32_t guess = table_shard_find(shard, call->bags->keys[i], hash);
    call->guesses[i % RING] = guess;
    if (guess != TABLE_NOWHERE)
        for (size_t at = 0; at < call->bytes; at += 64)
            __builtin_prefetch((const char *)table_row(shard, guess) + at);
}

/* The row of an id; a first row is written to `fresh`. */
static const float *read_row(struct look_up *call, uint64_t i, float *fresh)
{
    const struct harp_embedding *table = call->bags->table;
    int64_t key = call->bags->keys[i];
    uint64_t hash = call->hashes[i % RING];
    const struct table_shard *shard = table_shard_of(table, hash);
    uint32_t slot = call->guesses[i % RING];
    if (slot != TABLE_NOWHERE)
        return table_row(shard, slot);
    harp_embedding_first_row(fresh, table->how.dim, key, table->how.seed, table->how.bound);
    return fresh;
}

static void add_row(float *restrict to, const float *restrict row, uint32_t dim, float weight)
{
    for (uint32_t j = 0; j < dim; j++)
        to[j] += weight * row[j];
}

static void sum_rows(float *restrict to, const float *restrict row, uint32_t dim)
{
    for (uint32_t j = 0; j < dim; j++)
        to[j] += row[j];
}

static void read_id(struct look_up *call, uint64_t i, float *to, bool first)
{
    const struct harp_embedding_bags *bags = call->bags;
    float fresh[TABLE_DIM_MOST];
    uint32_t dim = bags->table->how.dim;
    const float *row = read_row(call, i, fresh);
    if (bags->weights)
        add_row(to, row, dim, bags->weights[i]);
    else if (first)
        memcpy(to, row, dim * sizeof *to);
    else
        sum_rows(to, row, dim);
}

static void divide_row(float *to, uint32_t dim, uint64_t n)
{
    for (uint32_t j = 0; n && j < dim; j++)
        to[j] /= (float)n;
}

/* Walk over bags beside the ids: what is left to be read of the one at hand. */
static void read_bags(struct look_up *call, uint64_t bag, uint64_t last)
{
    const struct harp_embedding_bags *bags = call->bags;
    uint32_t dim = bags->table->how.dim;
    uint64_t end = bag_begin(bags, last), ahead = bag_begin(bags, bag), behind = ahead;
    for (; bag < last; bag++) {
        float *to = bags->rows + bag * bags->stride;
        uint64_t n = 0, bag_end = bag_begin(bags, bag + 1);
        memset(to, 0, dim * sizeof *to);
        for (uint64_t i = bag_begin(bags, bag); i < bag_end; i++) {
            for (; ahead < end && ahead < i + RING; ahead++)
                fetch_group(call, ahead);
            for (; behind < ahead && behind <= i + AHEAD; behind++)
                fetch_record(call, behind);
            if (bags->padded && bags->keys[i] == bags->padding)
                continue;
            read_id(call, i, to, n++ == 0);
        }
        if (bags->mean)
            divide_row(to, dim, n);
    }
}

struct batch_call {
    const struct harp_embedding_bags *features;
    uint64_t n;
    atomic_ullong next; /* task of look-ups */
    atomic_int failed;
};

/* A feature's bags are cut into tasks of about this many ids. */
enum { TASK_IDS = 2048 };

static uint64_t feature_tasks(const struct harp_embedding_bags *bags)
{
    uint64_t most = (bags->count + bags->bags) / TASK_IDS + 1;
    return most < bags->bags ? most : bags->bags;
}

static void look_up_tasks(void *with, uint32_t worker, uint32_t workers)
{
    (void)worker, (void)workers;
    struct batch_call *call = with;
    uint64_t first = 0, at = 0;
    for (;;) {
        uint64_t task = atomic_fetch_add(&call->next, 1);
        while (at < call->n && task >= first + feature_tasks(&call->features[at]))
            first += feature_tasks(&call->features[at++]);
        if (at == call->n)
            return;
        const struct harp_embedding_bags *bags = &call->features[at];
        uint64_t tasks = feature_tasks(bags), part = task - first;
        struct look_up look = {.bags = bags};
        look.bytes = bags->table->how.dim * sizeof(float);
        read_bags(&look, bags->bags * part / tasks, bags->bags * (part + 1) / tasks);
    }
}

static uint32_t threads_for(const struct harp_embedding_bags *features, uint64_t n,
                            uint32_t threads)
{
    uint64_t ids = 0;
    for (uint64_t i = 0; i < n; i++)
        ids += features[i].count + features[i].bags / 4;
    return ids < TASK_IDS ? 1 : threads; /* less work than waking a thread is */
}

void harp_embedding_look_up(const struct harp_embedding_bags *features, uint64_t n,
                            uint32_t threads)
{
    struct batch_call call = {.features = features, .n = n};
    table_crew_run(look_up_tasks, &call, threads_for(features, n, threads));
}

static bool finite_floats(const float *values, uint64_t n)
{
    float zero = 0; /* becomes NaN with the first value that is not finite, and stays it */
    for (uint64_t i = 0; i < n; i++)
        zero += 0 * values[i];
    return zero == 0;
}

static void check_gradients(void *with, uint32_t worker, uint32_t workers)
{
    struct batch_call *call = with;
    for (uint64_t f = 0; f < call->n; f++) {
        const struct harp_embedding_bags *bags = &call->features[f];
        uint64_t end = bags->bags * (worker + 1) / workers;
        bool fine = !bags->weights || worker || finite_floats(bags->weights, bags->count);
        for (uint64_t bag = bags->bags * worker / workers; fine && bag < end; bag++)
            fine = finite_floats(bags->rows + bag * bags->stride, bags->table->how.dim);
        if (!fine)
            atomic_store(&call->failed, -EDOM);
    }
}

enum { BLOCK = 64 };

/* Ids of one shard that come one after another. */
struct add_block {
    struct table_shard *shard;
    const struct harp_embedding_bags *bags;
    uint32_t n;
    struct {
        int64_t key;
        uint64_t hash, bag;
        float weight;
    } ids[BLOCK];
};

static int add_ids(struct add_block *block)
{
    struct table_shard *shard = block->shard;
    for (uint32_t i = 0; i < block->n; i++) {
        uint32_t guess = table_shard_find(shard, block->ids[i].key, block->ids[i].hash);
        if (guess != TABLE_NOWHERE)
            __builtin_prefetch(table_head(shard, guess));
    }
    int failed = 0;
    for (uint32_t i = 0; i < block->n && !failed; i++)
        failed = table_pending_add(shard, block->ids[i].key, block->ids[i].hash,
                                   block->bags->rows + block->ids[i].bag * block->bags->stride,
                                   block->ids[i].weight);
    block->n = 0;
    return failed;
}

/* Add the gradients of those ids of a feature that are the shard's. */
static int add_feature(const struct harp_embedding_bags *bags, uint32_t part)
{
    struct harp_embedding *table = bags->table;
    struct add_block block = {.shard = &table->shards[part], .bags = bags};
    int failed = 0;
    for (uint64_t bag = 0; bag < bags->bags && !failed; bag++) {
        float share = bags->mean ? 1 / (float)bag_size(bags, bag) : 1;
        uint64_t end = bag_begin(bags, bag + 1);
        for (uint64_t i = bag_begin(bags, bag); i < end && !failed; i++) {
            uint64_t hash = harp_embedding_hash(bags->keys[i]);
            if (harp_embedding_part(hash, table->how.shards) != part ||
                (bags->padded && bags->keys[i] == bags->padding))
                continue;
            __builtin_prefetch(
                &table_index_segment(&block.shard->index, hash)->groups[table_index_group(hash)]);
            block.ids[block.n].key = bags->keys[i];
            block.ids[block.n].hash = hash;
            block.ids[block.n].bag = bag;
            block.ids[block.n].weight = bags->weights ? share * bags->weights[i] : share;
            if (++block.n == BLOCK)
                failed = add_ids(&block);
        }
    }
    return failed ? failed : add_ids(&block);
}

static void add_features(void *with, uint32_t worker, uint32_t workers)
{
    struct batch_call *call = with;
    for (uint64_t f = 0; f < call->n; f++) {
        const struct harp_embedding *table = call->features[f].table;
        for (uint32_t part = 0; part < table->how.shards; part++) {
            if (!table_is_of(table, part, worker, workers))
                continue;
            int failed = add_feature(&call->features[f], part);
            if (failed)
                atomic_store(&call->failed, failed);
        }
    }
}

int harp_embedding_add(const struct harp_embedding_bags *features, uint64_t n, uint32_t threads)
{
    struct batch_call call = {.features = features, .n = n};
    threads = threads_for(features, n, threads);
    table_crew_run(check_gradients, &call, threads);
    if (!atomic_load(&call.failed))
        table_crew_run(add_features, &call, threads);
    return atomic_load(&call.failed);
}
