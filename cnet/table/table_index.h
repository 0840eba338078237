/* The index of a shard: from a key to the slot of its record.
 *
 *   directory   2^depth pointers, chosen by the top bits of a hash
 *   segment     64 groups; it is split in two when it is four fifths full, alone
 *   group       one line of the cache: 5 keys and 5 slots
 *
 *     directory  | 00 | 01 | 10 | 11 |
 *                   |    |     \   /
 *     segments      A    B       C            C knows one bit, A and B know two
 *
 * This is extendible hashing (Fagin, Nievergelt, Pippenger, Strong: "Extendible hashing - a fast
 * access method for dynamic files", TODS 1979): growth moves at most 256 entries at once, and
 * doubling the directory copies 8 bytes for some 180 rows. Segments that ran empty are merged, and
 * the directory is halved. Segments lie in a pool without gaps (table_pool.h), so that their pages
 * are large and go back to the kernel.
 *
 * The top bits of a hash choose the segment, and bits 32 to 37 the group. A group has whole keys,
 * so a look-up is decided by one line of the cache, and touches no record that is not the key's.
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

#include "table/table_pool.h"

enum { TABLE_WAYS = 5, TABLE_GROUPS = 64 };
/* No slot has this number. */
#define TABLE_NOWHERE UINT32_C(0xFFFFFFFF)

struct table_group {
    int64_t keys[TABLE_WAYS];
    uint32_t slots[TABLE_WAYS];
    uint16_t used; /* a bit for each way */
    uint16_t overflow;
};

struct table_segment {
    _Alignas(64) struct table_group groups[TABLE_GROUPS];
    uint64_t prefix; /* a hash whose first `depth` bits all its entries share */
    uint32_t count;
    uint32_t depth;
};

/* Bits that the directory may use: 2^26 segments hold all slots that there are. */
enum { TABLE_DEPTH = 26 };

struct table_index {
    struct table_segment **directory;
    struct table_pool segments;
    uint32_t depth;
    uint32_t at_depth[TABLE_DEPTH + 1]; /* segments of each depth */
};

/* Return 0 or -ENOMEM. */
int table_index_open(struct table_index *index);
void table_index_close(struct table_index *index);
size_t table_index_bytes(const struct table_index *index);

/* Make room for one entry. Returns 0, or -ENOMEM; the entries are as before. */
int table_index_room(struct table_index *index, uint64_t hash);
/* Add a key that is not there, where there is room. */
void table_index_add(struct table_index *index, int64_t key, uint64_t hash, uint32_t slot);
/* Give a key that is there another slot. */
void table_index_move(struct table_index *index, int64_t key, uint64_t hash, uint32_t slot);
void table_index_remove(struct table_index *index, int64_t key, uint64_t hash);

static inline struct table_segment *table_index_segment(const struct table_index *index,
                                                        uint64_t hash)
{
    return index->directory[(hash >> 1) >> (63 - index->depth)];
}

static inline uint32_t table_index_group(uint64_t hash)
{
    return (uint32_t)(hash >> 32) % TABLE_GROUPS;
}

/* The group that a key lies in, or near. */
static inline struct table_group *table_index_home(const struct table_index *index, uint64_t hash)
{
    return &table_index_segment(index, hash)->groups[table_index_group(hash)];
}

/* The way of a key, a bit for it; 0 if it is not in the group. */
static inline uint32_t table_group_match(const struct table_group *group, int64_t key)
{
    uint32_t found = 0;
    for (uint32_t way = 0; way < TABLE_WAYS; way++)
        found |= (uint32_t)(group->keys[way] == key) << way;
    return found & group->used;
}

/* The slot of a key, or TABLE_NOWHERE. */
static inline uint32_t table_index_find(const struct table_index *index, int64_t key, uint64_t hash)
{
    const struct table_segment *segment = table_index_segment(index, hash);
    uint32_t at = table_index_group(hash);
    for (uint32_t step = 0; step < TABLE_GROUPS; step++) {
        const struct table_group *group = &segment->groups[(at + step) % TABLE_GROUPS];
        uint32_t found = table_group_match(group, key);
        if (found)
            return group->slots[__builtin_ctz(found)];
        if (!group->overflow)
            break;
    }
    return TABLE_NOWHERE;
}

#endif
