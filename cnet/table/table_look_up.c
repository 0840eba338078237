#include <string.h>

#include "table/table_bags.h"
#include "table/table_block.h"

enum { RING = 4 }; /* blocks whose rows are known */

/* A look-up goes over its ids block by block. While the rows of a block are added up, those of the
 * next one are being fetched, and the groups of the two behind it. Ids are numbered from its first
 * one on. */
struct look_up {
    const struct harp_embedding_bags *bags;
    const struct table_loops *loops;
    const int64_t *keys;
    const float *weights; /* of each id, or NULL */
    uint32_t dim;
    uint64_t end, begun, found;   /* ids: all; those with groups, and with rows, being fetched */
    struct table_block blocks[2]; /* in turn: those that are begun and not found */
    const float *rows[RING * TABLE_BLOCK]; /* of ids; NULL where there is none */
    bool missing[RING];                    /* whether a block has such an id */
    bool in_lines;                         /* rows are whole lines of the cache */
};

static void begin_block(struct look_up *call)
{
    uint64_t left = call->end - call->begun;
    uint32_t n = left < TABLE_BLOCK ? (uint32_t)left : TABLE_BLOCK;
    struct table_block *block = &call->blocks[call->begun / TABLE_BLOCK % 2];
    if (n)
        table_block_begin(block, call->bags->table, call->keys + call->begun, n);
    call->begun += n;
}

static void find_block(struct look_up *call)
{
    struct table_block *block = &call->blocks[call->found / TABLE_BLOCK % 2];
    const float **rows = &call->rows[call->found % (RING * TABLE_BLOCK)];
    size_t floats = call->dim;
    bool all = table_block_find(block);
    for (uint32_t i = 0; i < block->n; i++) {
        rows[i] = NULL;
        if (!all && block->slots[i] == TABLE_NOWHERE)
            continue;
        rows[i] = table_row(block->shards[i], block->slots[i]);
        for (size_t at = 0; at < floats; at += 16)
            __builtin_prefetch(rows[i] + at);
        if (!call->in_lines)
            __builtin_prefetch(rows[i] + floats - 1);
    }
    call->missing[call->found / TABLE_BLOCK % RING] = !all;
    call->found += block->n;
}

/* Have the rows of the block that begins with id `i`, and fetch what comes behind it. */
static void have_block(struct look_up *call, uint64_t i)
{
    while (call->found < call->end && call->found < i + 2 * TABLE_BLOCK) {
        while (call->begun < call->end && call->begun < call->found + 2 * TABLE_BLOCK)
            begin_block(call);
        find_block(call);
        begin_block(call);
    }
}

static void add_rows(const struct look_up *call, const float *const *rows, uint64_t i, uint64_t n,
                     float *to, bool goes_on)
{
    if (call->weights)
        call->loops->sum_weighted(to, rows, call->weights + i, n, call->dim);
    else
        call->loops->sum_rows(to, rows, n, call->dim, goes_on);
}

/* Add ids one by one, where some are padding or have no row. Returns how many count. */
static uint64_t add_each(const struct look_up *call, uint64_t i, uint64_t n, float *to,
                         bool goes_on)
{
    const struct harp_embedding_how *how = &call->bags->table->how;
    float fresh[TABLE_DIM_MOST];
    uint64_t counted = 0;
    for (uint64_t end = i + n; i < end; i++) {
        if (call->bags->padded && call->keys[i] == call->bags->padding)
            continue;
        const float *row = call->rows[i % (RING * TABLE_BLOCK)];
        if (!row) {
            call->loops->first_row(fresh, how->dim, call->keys[i], how->seed, how->bound);
            row = fresh;
        }
        add_rows(call, &row, i, 1, to, goes_on || counted);
        counted++;
    }
    return counted;
}

/* Add the ids of a bag, from `i` to `end`. Returns how many count. */
static uint64_t read_bag(struct look_up *call, uint64_t i, uint64_t end, float *to)
{
    uint64_t counted = 0;
    for (uint64_t n; i < end; i += n) {
        if (i % TABLE_BLOCK == 0)
            have_block(call, i);
        uint64_t block_end = (i / TABLE_BLOCK + 1) * TABLE_BLOCK;
        n = (end < block_end ? end : block_end) - i;
        if (call->bags->padded || call->missing[i / TABLE_BLOCK % RING]) {
            counted += add_each(call, i, n, to, counted);
        } else {
            add_rows(call, &call->rows[i % (RING * TABLE_BLOCK)], i, n, to, counted);
            counted += n;
        }
    }
    return counted;
}

void table_read_bags(const struct harp_embedding_bags *bags, uint64_t first, uint64_t last)
{
    uint64_t begin = table_bag_begin(bags, first), end = table_bag_begin(bags, last);
    struct look_up call = {.bags = bags,
                           .loops = table_loops(),
                           .keys = bags->keys + begin,
                           .weights = bags->weights ? bags->weights + begin : NULL,
                           .dim = bags->table->how.dim,
                           .in_lines = bags->table->how.dim % 16 == 0 &&
                                       bags->table->shards[0].values.item_bytes % 64 == 0,
                           .end = end - begin};
    uint64_t at = 0, each = bags->offsets ? 0 : bags->count / bags->bags;
    for (uint64_t bag = first; bag < last; bag++) {
        float *to = bags->rows + bag * bags->stride;
        uint64_t bag_end = each ? at + each : table_bag_begin(bags, bag + 1) - begin;
        if (bags->weights)
            memset(to, 0, call.dim * sizeof *to);
        uint64_t counted = read_bag(&call, at, bag_end, to);
        if (!counted)
            memset(to, 0, call.dim * sizeof *to);
        for (uint32_t j = 0; bags->mean && counted && j < call.dim; j++)
            to[j] /= (float)counted;
        at = bag_end;
    }
}
