#include "base/chunks.h"

#include <assert.h>
#include <string.h>

static uint64_t *word_of(const struct harp_chunks *chunks, uint32_t chunk)
{
    return &chunks->ring[harp_chunks_word(chunks, chunk)];
}

static uint64_t bit_of(uint32_t chunk)
{
    return UINT64_C(1) << chunk % 64;
}

void harp_chunks_init(struct harp_chunks *chunks, uint64_t *ring, uint16_t words)
{
    *chunks = (struct harp_chunks){.ring = ring, .words = words};
}

bool harp_chunks_add(struct harp_chunks *chunks, uint32_t chunk)
{
    assert(harp_chunks_within(chunks, chunk));
    if (harp_chunks_has(chunks, chunk))
        return false;
    bool in_order = chunk == chunks->low && chunks->done == chunks->low;
    chunks->done++;
    if (in_order) {
        chunks->low++;
        return true;
    }
    if (!chunks->clear)
        memset(chunks->ring, 0, chunks->words * sizeof *chunks->ring);
    chunks->clear = true;
    *word_of(chunks, chunk) |= bit_of(chunk);
    for (; *word_of(chunks, chunks->low) & bit_of(chunks->low); chunks->low++)
        *word_of(chunks, chunks->low) &= ~bit_of(chunks->low);
    return true;
}
