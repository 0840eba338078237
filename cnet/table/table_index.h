/* The index of a shard: from the hash of a key to the slot of its record.
 *
 *   directory   2^depth pointers, chosen by the top bits of a hash
 *   segment     64 groups; it is split in two when it is four fifths full, alone
 *   group       one line of the cache: 7 tags and 7 slots
 *
 *     directory  | 00 | 01 | 10 | 11 |
 *                   |    |     \   /
 *     segments      A    B       C            C knows one bit, A and B know two
 *
 * This is extendible hashing (Fagin, Nievergelt, Pippenger, Strong: "Extendible hashing - a fast
 * access method for dynamic files", TODS 1979): growth moves at most 448 entries at once, and
 * doubling the directory copies 8 bytes for some 250 rows. Segments that ran empty are merged, and
 * the directory is halved.
 *
 * A tag is the upper half of the hash. Its top bits choose the segment and its lowest six the
 * group, so segments are split and merged without a look at a key. A look-up costs one miss of the
 * cache; the record, which has the whole key, shows where a tag deceives: at 10 M rows for one in
 * some 500 keys that are not there.
 *
 * A group that is full sends an entry to the next one and counts it (`overflow`), as Facebook's F14
 * does; so a search ends at the first group that sent none on, and removal leaves no tombstone.
 *
 * Owner: one thread writes; any number of threads read while none writes.
 */
#ifndef HARP_EMBEDDING_INDEX_H
#define HARP_EMBEDDING_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TABLE_WAYS = 7, TABLE_GROUPS = 64 };

struct table_group {
    uint32_t tags[TABLE_WAYS];
    uint32_t slots[TABLE_WAYS];
    uint32_t used; /* a bit for each way */
    uint32_t overflow;
};

struct table_segment {
    _Alignas(64) struct table_group groups[TABLE_GROUPS];
    uint32_t count;
    uint32_t depth; /* bits of the hash that all its entries share */
};

/* Bits that the directory may use: 2^26 segments hold all slots that there are. */
enum { TABLE_DEPTH = 26 };

struct table_index {
    struct table_segment **directory;
    uint32_t depth;
    uint32_t at_depth[TABLE_DEPTH + 1]; /* segments of each depth */
};

/* Return 0 or -ENOMEM. */
int table_index_open(struct table_index *index);
void table_index_close(struct table_index *index);
size_t table_index_bytes(const struct table_index *index);

/* Make room for one entry. Returns 0, or -ENOMEM; the entries are as before. */
int table_index_room(struct table_index *index, uint64_t hash);
/* Add an entry where there is room. */
void table_index_add(struct table_index *index, uint64_t hash, uint32_t slot);
/* Give an entry another slot. */
void table_index_move(struct table_index *index, uint64_t hash, uint32_t from, uint32_t to);
void table_index_remove(struct table_index *index, uint64_t hash, uint32_t slot);

static inline struct table_segment *table_index_segment(const struct table_index *index,
                                                        uint64_t hash)
{
    return index->directory[(hash >> 1) >> (63 - index->depth)];
}

static inline uint32_t table_index_group(uint64_t hash)
{
    return (uint32_t)(hash >> 32) % TABLE_GROUPS;
}

static inline void table_index_prefetch(const struct table_index *index, uint64_t hash)
{
    __builtin_prefetch(&table_index_segment(index, hash)->groups[table_index_group(hash)]);
}

/* The ways of a group that have this tag, a bit for each. */
static inline uint32_t table_group_match(const struct table_group *group, uint32_t tag)
{
    uint32_t found = 0;
    for (uint32_t way = 0; way < TABLE_WAYS; way++)
        found |= (uint32_t)(group->tags[way] == tag) << way;
    return found & group->used;
}

/* A walk over the slots that may hold a key. */
struct table_walk {
    const struct table_segment *segment;
    uint32_t group, tag, found, left;
};

static inline struct table_walk table_index_walk(const struct table_index *index, uint64_t hash)
{
    struct table_walk walk = {table_index_segment(index, hash), table_index_group(hash),
                              (uint32_t)(hash >> 32), 0, TABLE_GROUPS - 1};
    walk.found = table_group_match(&walk.segment->groups[walk.group], walk.tag);
    return walk;
}

/* Write the next slot to `slot`. Returns whether there is one. */
static inline bool table_walk_next(struct table_walk *walk, uint32_t *slot)
{
    const struct table_group *group = &walk->segment->groups[walk->group];
    while (!walk->found) {
        if (!group->overflow || !walk->left--)
            return false;
        walk->group = (walk->group + 1) % TABLE_GROUPS;
        group = &walk->segment->groups[walk->group];
        walk->found = table_group_match(group, walk->tag);
    }
    *slot = group->slots[__builtin_ctz(walk->found)];
    walk->found &= walk->found - 1;
    return true;
}

#endif
