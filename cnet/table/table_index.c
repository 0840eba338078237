#include "table/table_index.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "table/table_hash.h"

/* A segment is split when it has more, and merged with its buddy when both have fewer. */
enum { MOST = TABLE_WAYS * TABLE_GROUPS * 4 / 5, FEW = TABLE_WAYS * TABLE_GROUPS / 4 };

static struct table_segment *new_segment(struct table_index *index, uint64_t prefix, uint32_t depth)
{
    int64_t slot = table_pool_push(&index->segments);
    if (slot < 0)
        return NULL;
    struct table_segment *segment = table_pool_item(&index->segments, (uint32_t)slot);
    memset(segment, 0, sizeof *segment);
    segment->prefix = prefix;
    segment->depth = depth;
    return segment;
}

int table_index_open(struct table_index *index)
{
    memset(index, 0, sizeof *index);
    table_pool_open(&index->segments, sizeof(struct table_segment));
    index->directory = malloc(sizeof *index->directory);
    struct table_segment *first = index->directory ? new_segment(index, 0, 0) : NULL;
    if (!first) {
        table_index_close(index);
        return -ENOMEM;
    }
    index->directory[0] = first;
    index->at_depth[0] = 1;
    return 0;
}

void table_index_close(struct table_index *index)
{
    table_pool_close(&index->segments);
    free(index->directory);
    index->directory = NULL;
}

size_t table_index_bytes(const struct table_index *index)
{
    return (sizeof *index->directory << index->depth) + table_pool_bytes(&index->segments);
}

static void segment_add(struct table_segment *segment, int64_t key, uint64_t hash, uint32_t slot)
{
    uint32_t at = table_index_group(hash);
    assert(segment->count < TABLE_WAYS * TABLE_GROUPS);
    while (segment->groups[at].used == (1U << TABLE_WAYS) - 1) {
        segment->groups[at].overflow++;
        at = (at + 1) % TABLE_GROUPS;
    }
    struct table_group *group = &segment->groups[at];
    uint32_t way = (uint32_t)__builtin_ctz(~(uint32_t)group->used);
    group->used |= (uint16_t)(1U << way);
    group->keys[way] = key;
    group->slots[way] = slot;
    segment->count++;
}

/* Add those entries of `from` whose hashes have `value` in the bits of `mask`. */
static void segment_copy(struct table_segment *to, const struct table_segment *from, uint64_t mask,
                         uint64_t value)
{
    for (uint32_t at = 0; at < TABLE_GROUPS; at++) {
        const struct table_group *group = &from->groups[at];
        for (uint32_t used = group->used; used; used &= used - 1) {
            uint32_t way = (uint32_t)__builtin_ctz(used);
            uint64_t hash = harp_embedding_hash(group->keys[way]);
            if ((hash & mask) == value)
                segment_add(to, group->keys[way], hash, group->slots[way]);
        }
    }
}

static size_t directory_place(const struct table_index *index, uint64_t hash)
{
    return (size_t)((hash >> 1) >> (63 - index->depth));
}

/* Let all of the directory that shares a segment's prefix point to it. */
static void directory_set(struct table_index *index, struct table_segment *segment)
{
    size_t n = (size_t)1 << (index->depth - segment->depth);
    size_t begin = directory_place(index, segment->prefix);
    for (size_t at = begin; at < begin + n; at++)
        index->directory[at] = segment;
}

static int directory_double(struct table_index *index)
{
    size_t n = (size_t)1 << index->depth;
    struct table_segment **larger = malloc(2 * n * sizeof(struct table_segment *));
    if (!larger || index->depth == TABLE_DEPTH) {
        free(larger);
        return -ENOMEM;
    }
    for (size_t at = 0; at < 2 * n; at++)
        larger[at] = index->directory[at / 2];
    free(index->directory);
    index->directory = larger;
    index->depth++;
    return 0;
}

static void directory_halve(struct table_index *index)
{
    index->depth--;
    size_t n = (size_t)1 << index->depth;
    for (size_t at = 0; at < n; at++)
        index->directory[at] = index->directory[2 * at];
    struct table_segment **smaller = realloc(index->directory, n * sizeof(struct table_segment *));
    if (smaller) /* else it stays as large as it was */
        index->directory = smaller;
}

static int split_segment(struct table_index *index, uint64_t hash)
{
    struct table_segment *low = table_index_segment(index, hash);
    if (low->depth == index->depth && directory_double(index) < 0)
        return -ENOMEM;
    uint64_t bit = UINT64_C(1) << (63 - low->depth);
    struct table_segment both = *low;
    struct table_segment *high = new_segment(index, low->prefix | bit, low->depth + 1);
    if (!high)
        return -ENOMEM;
    memset(low, 0, sizeof *low);
    low->prefix = both.prefix;
    low->depth = high->depth;
    segment_copy(low, &both, bit, 0);
    segment_copy(high, &both, bit, bit);
    directory_set(index, high);
    index->at_depth[both.depth]--;
    index->at_depth[high->depth] += 2;
    return 0;
}

int table_index_room(struct table_index *index, uint64_t hash)
{
    while (table_index_segment(index, hash)->count >= MOST)
        if (split_segment(index, hash) < 0)
            return -ENOMEM;
    return 0;
}

void table_index_add(struct table_index *index, int64_t key, uint64_t hash, uint32_t slot)
{
    segment_add(table_index_segment(index, hash), key, hash, slot);
}

/* Find the way of a key that is there; `at` becomes its group. */
static uint32_t entry_way(const struct table_segment *segment, int64_t key, uint64_t hash,
                          uint32_t *at)
{
    *at = table_index_group(hash);
    for (uint32_t step = 0; step < TABLE_GROUPS; step++) {
        const struct table_group *group = &segment->groups[*at];
        uint32_t found = table_group_match(group, key);
        if (found)
            return (uint32_t)__builtin_ctz(found);
        assert(group->overflow);
        *at = (*at + 1) % TABLE_GROUPS;
    }
    assert(!"the key is in its segment");
    return 0;
}

void table_index_move(struct table_index *index, int64_t key, uint64_t hash, uint32_t slot)
{
    struct table_segment *segment = table_index_segment(index, hash);
    uint32_t at, way = entry_way(segment, key, hash, &at);
    segment->groups[at].slots[way] = slot;
}

/* Remove a segment that the directory does not point to. The last one takes its place. */
static void drop_segment(struct table_index *index, struct table_segment *gone)
{
    struct table_segment *last = table_pool_item(&index->segments, index->segments.count - 1);
    if (gone != last) {
        *gone = *last;
        directory_set(index, gone);
    }
    table_pool_pop(&index->segments);
}

/* Make one segment of two that ran empty, again and again. */
static void merge_segments(struct table_index *index, uint64_t hash)
{
    for (;;) {
        struct table_segment *one = table_index_segment(index, hash);
        if (!one->depth || one->count > FEW)
            return;
        uint64_t bit = UINT64_C(1) << (64 - one->depth);
        struct table_segment *other = table_index_segment(index, hash ^ bit);
        if (other->depth != one->depth || other->count > FEW)
            return;
        index->at_depth[one->depth] -= 2;
        index->at_depth[--one->depth]++;
        one->prefix &= ~bit;
        segment_copy(one, other, 0, 0);
        directory_set(index, one);
        drop_segment(index, other);
        while (index->depth && !index->at_depth[index->depth])
            directory_halve(index);
    }
}

void table_index_remove(struct table_index *index, int64_t key, uint64_t hash)
{
    struct table_segment *segment = table_index_segment(index, hash);
    uint32_t group, way = entry_way(segment, key, hash, &group);
    segment->groups[group].used &= (uint16_t)~(1U << way);
    for (uint32_t at = table_index_group(hash); at != group; at = (at + 1) % TABLE_GROUPS)
        segment->groups[at].overflow--;
    segment->count--;
    merge_segments(index, hash);
}
