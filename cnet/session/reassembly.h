/* Reassembly: chunks with some fragments still missing.
 *
 * A small table by message and chunk. ACKs report whole chunks only, and the sender repeats a lost
 * chunk with all of its fragments. So a full table may forget an older entry, which costs a round
 * trip at most.
 *
 *     (free)   -- fragment ------------------------------------------> FILLING
 *     FILLING  -- fragment ------------------------------------------> FILLING
 *     FILLING  -- the last one --------------------------------------> (free): the chunk is there
 *     FILLING  -- its place or its buffer goes to another chunk -----> (free): forgotten
 *
 * Owner: the session. No function allocates.
 */
#ifndef HARP_REASSEMBLY_H
#define HARP_REASSEMBLY_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/wire.h"

#define HARP_REASSEMBLIES 64
_Static_assert(HARP_REASSEMBLIES <= 64, "`busy` has a bit for each");

struct harp_reassembly_entry {
    uint64_t come; /* a bit for each fragment */
    uint32_t message;
    uint32_t size; /* of the message */
    uint32_t chunk;
    uint8_t fragments; /* of a whole chunk; 1: the chunk now comes in one frame */
    bool marked;       /* a fragment came with a congestion mark */
};

struct harp_reassembly {
    uint64_t busy; /* a bit for each entry that is in use */
    struct harp_reassembly_entry entries[HARP_REASSEMBLIES];
};

/* The entry of a chunk, or -1. */
int harp_reassembly_find(const struct harp_reassembly *table, uint32_t message, uint32_t chunk);

/* The entry of this header's chunk, which has number `chunk` in its message. A missing one is made,
 * in place of another if the table is full. Fragments of another size, from before the path's frame
 * size changed, are forgotten. */
int harp_reassembly_begin(struct harp_reassembly *table, const struct harp_header *header,
                          uint32_t chunk, uint8_t fragments);

/* Forget all of a message. */
void harp_reassembly_forget(struct harp_reassembly *table, uint32_t message);

/* The chunk is there. */
static inline void harp_reassembly_end(struct harp_reassembly *table, int entry)
{
    table->busy &= ~(UINT64_C(1) << entry);
}

static inline uint32_t harp_reassembly_count(const struct harp_reassembly *table)
{
    return (uint32_t)__builtin_popcountll(table->busy);
}

#endif
