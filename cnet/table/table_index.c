#include "table/table_index.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A segment is split when it has more, and merged with its buddy when both have fewer. */
enum { MOST = TABLE_WAYS * TABLE_GROUPS * 4 / 5, FEW = TABLE_WAYS * TABLE_GROUPS / 4 };

static struct table_segment *new_segment(uint32_t depth)
{
    struct table_segment *segment = aligned_alloc(64, sizeof *segment);
    if (segment) {
        memset(segment, 0, sizeof *segment);
        segment->depth = depth;
    }
    return segment;
}

int table_index_open(struct table_index *index)
{
    memset(index, 0, sizeof *index);
    index->directory = malloc(sizeof *index->directory);
    struct table_segment *first = index->directory ? new_segment(0) : NULL;
    if (!first) {
        free(index->directory);
        index->directory = NULL;
        return -ENOMEM;
    }
    index->directory[0] = first;
    index->at_depth[0] = 1;
    return 0;
}

void table_index_close(struct table_index *index)
{
    for (size_t at = 0; index->directory && at < (size_t)1 << index->depth;) {
        struct table_segment *segment = index->directory[at];
        at += (size_t)1 << (index->depth - segment->depth);
        free(segment);
    }
    free(index->directory);
    index->directory = NULL;
}

size_t table_index_bytes(const struct table_index *index)
{
    size_t bytes = sizeof *index->directory << index->depth;
    for (uint32_t depth = 0; depth <= index->depth; depth++)
        bytes += index->at_depth[depth] * sizeof(struct table_segment);
    return bytes;
}

static void segment_add(struct table_segment *segment, uint32_t tag, uint32_t slot)
{
    uint32_t at = tag % TABLE_GROUPS;
    assert(segment->count < TABLE_WAYS * TABLE_GROUPS);
    while (segment->groups[at].used == (1U << TABLE_WAYS) - 1) {
        segment->groups[at].overflow++;
        at = (at + 1) % TABLE_GROUPS;
    }
    struct table_group *group = &segment->groups[at];
    uint32_t way = (uint32_t)__builtin_ctz(~group->used);
    group->used |= 1U << way;
    group->tags[way] = tag;
    group->slots[way] = slot;
    segment->count++;
}

/* Add those entries of `from` in which the bit of the tag that `mask` names is `value`. */
static void segment_copy(struct table_segment *to, const struct table_segment *from, uint32_t mask,
                         uint32_t value)
{
    for (uint32_t at = 0; at < TABLE_GROUPS; at++) {
        const struct table_group *group = &from->groups[at];
        for (uint32_t used = group->used; used; used &= used - 1) {
            uint32_t way = (uint32_t)__builtin_ctz(used);
            if ((group->tags[way] & mask) == value)
                segment_add(to, group->tags[way], group->slots[way]);
        }
    }
}

static size_t directory_place(const struct table_index *index, uint64_t hash)
{
    return (size_t)((hash >> 1) >> (63 - index->depth));
}

/* Let all of the directory that shares the first `depth` bits of `hash` point to a segment. */
static void directory_set(struct table_index *index, uint64_t hash, uint32_t depth,
                          struct table_segment *segment)
{
    size_t n = (size_t)1 << (index->depth - depth);
    size_t begin = directory_place(index, hash) & ~(n - 1);
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
    struct table_segment *old = table_index_segment(index, hash);
    if (old->depth == index->depth && directory_double(index) < 0)
        return -ENOMEM;
    struct table_segment *halves[2] = {new_segment(old->depth + 1), new_segment(old->depth + 1)};
    if (!halves[0] || !halves[1]) {
        free(halves[0]);
        free(halves[1]);
        return -ENOMEM;
    }
    uint32_t mask = UINT32_C(1) << (31 - old->depth);
    uint64_t bit = (uint64_t)mask << 32;
    for (uint32_t half = 0; half < 2; half++) {
        segment_copy(halves[half], old, mask, half * mask);
        directory_set(index, half ? hash | bit : hash & ~bit, old->depth + 1, halves[half]);
    }
    index->at_depth[old->depth]--;
    index->at_depth[old->depth + 1] += 2;
    free(old);
    return 0;
}

int table_index_room(struct table_index *index, uint64_t hash)
{
    while (table_index_segment(index, hash)->count >= MOST)
        if (split_segment(index, hash) < 0)
            return -ENOMEM;
    return 0;
}

void table_index_add(struct table_index *index, uint64_t hash, uint32_t slot)
{
    segment_add(table_index_segment(index, hash), (uint32_t)(hash >> 32), slot);
}

/* Find the way of an entry that is there; `group` becomes its group. */
static uint32_t entry_way(const struct table_segment *segment, uint32_t tag, uint32_t slot,
                          uint32_t *group)
{
    for (uint32_t step = 0; step < TABLE_GROUPS; step++) {
        *group = (tag + step) % TABLE_GROUPS;
        const struct table_group *here = &segment->groups[*group];
        for (uint32_t found = table_group_match(here, tag); found; found &= found - 1)
            if (here->slots[__builtin_ctz(found)] == slot)
                return (uint32_t)__builtin_ctz(found);
        assert(here->overflow);
    }
    assert(!"the entry is in its segment");
    return 0;
}

void table_index_move(struct table_index *index, uint64_t hash, uint32_t from, uint32_t to)
{
    struct table_segment *segment = table_index_segment(index, hash);
    uint32_t group, way = entry_way(segment, (uint32_t)(hash >> 32), from, &group);
    segment->groups[group].slots[way] = to;
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
        segment_copy(one, other, 0, 0);
        free(other);
        directory_set(index, hash, one->depth, one);
        while (index->depth && !index->at_depth[index->depth])
            directory_halve(index);
    }
}

void table_index_remove(struct table_index *index, uint64_t hash, uint32_t slot)
{
    struct table_segment *segment = table_index_segment(index, hash);
    uint32_t tag = (uint32_t)(hash >> 32), group;
    uint32_t way = entry_way(segment, tag, slot, &group);
    segment->groups[group].used &= ~(1U << way);
    for (uint32_t at = tag % TABLE_GROUPS; at != group; at = (at + 1) % TABLE_GROUPS)
        segment->groups[at].overflow--;
    segment->count--;
    merge_segments(index, hash);
}
