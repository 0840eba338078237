/* Declarations that the files of a table share. Files call downwards:
 *
 *   table_batch.c   look-ups and gradients of many ids
 *   table.c         a table: its shards, removal, reading and writing of records
 *   table_cold.h    rows on disk
 *   table_shard.h   a shard
 */
#ifndef HARP_EMBEDDING_STATE_H
#define HARP_EMBEDDING_STATE_H

#include "table/table_shard.h"

/* A row of it lies on the stack while a first row is added to a bag. */
enum { TABLE_DIM_MOST = 4096 };

struct harp_embedding {
    struct harp_embedding_how how;
    uint32_t number;         /* of the table among all */
    struct table_cold *cold; /* if it is capped */
    struct table_shard shards[];
};

static inline const struct table_shard *table_shard_of(const struct harp_embedding *table,
                                                       uint64_t hash)
{
    return &table->shards[harp_embedding_part(hash, table->how.shards)];
}

/* Whether a shard is a worker's: small tables are spread over the crew. */
static inline bool table_is_of(const struct harp_embedding *table, uint32_t shard, uint32_t worker,
                               uint32_t workers)
{
    return (table->number + shard) % workers == worker;
}

#endif
