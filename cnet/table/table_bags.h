/* Membership of ids in bags. */
#ifndef HARP_EMBEDDING_BAGS_H
#define HARP_EMBEDDING_BAGS_H

#include "table/table.h"

static inline uint64_t table_bag_begin(const struct harp_embedding_bags *bags, uint64_t bag)
{
    if (!bags->offsets)
        return bags->bags ? bag * (bags->count / bags->bags) : 0;
    return bag < bags->bags ? (uint64_t)bags->offsets[bag] : bags->count;
}

/* Ids of a bag that count. */
static inline uint64_t table_bag_size(const struct harp_embedding_bags *bags, uint64_t bag)
{
    uint64_t begin = table_bag_begin(bags, bag), end = table_bag_begin(bags, bag + 1), padding = 0;
    for (uint64_t i = begin; bags->padded && i < end; i++)
        padding += bags->keys[i] == bags->padding;
    return end - begin - padding;
}

/* Read bags from `first` to `last`, which no other thread writes meanwhile. */
void table_read_bags(const struct harp_embedding_bags *bags, uint64_t first, uint64_t last);
/* Add the gradients of those ids that are a shard's to what waits. Returns 0 or -ENOMEM. */
int table_add_bags(const struct harp_embedding_bags *bags, uint32_t part);

#endif
