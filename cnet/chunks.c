#include "chunks.h"

#include <assert.h>
#include <string.h>

static uint64_t *word_of(const struct harp_chunks *chunks, uint32_t chunk)
{
    return &chunks->ring[chunk / 64 % HARP_CHUNK_WORDS];
}

static uint64_t bit_of(uint32_t chunk)
{
    return UINT64_C(1) << chunk % 64;
}

uint32_t harp_chunks_of(uint32_t size, uint16_t segment)
{
    return size ? (size - 1) / segment + 1 : 1;
}

void harp_chunks_init(struct harp_chunks *chunks, uint64_t *ring, uint32_t total)
{
    *chunks = (struct harp_chunks){.ring = ring, .total = total};
    memset(ring, 0, HARP_CHUNK_WORDS * sizeof *ring);
}

bool harp_chunks_within(const struct harp_chunks *chunks, uint32_t chunk)
{
    return chunk < chunks->total &&
           (chunk < chunks->low || chunk - chunks->low < HARP_CHUNK_WINDOW);
}

bool harp_chunks_has(const struct harp_chunks *chunks, uint32_t chunk)
{
    assert(harp_chunks_within(chunks, chunk));
#ifdef HARP_BUG_NO_DEDUPE
    return false;
#endif
    return chunk < chunks->low || *word_of(chunks, chunk) & bit_of(chunk);
}

bool harp_chunks_add(struct harp_chunks *chunks, uint32_t chunk)
{
    if (harp_chunks_has(chunks, chunk))
        return false;
    *word_of(chunks, chunk) |= bit_of(chunk);
    chunks->done++;
    for (; *word_of(chunks, chunks->low) & bit_of(chunks->low); chunks->low++)
        *word_of(chunks, chunks->low) &= ~bit_of(chunks->low);
    return true;
}

bool harp_chunks_complete(const struct harp_chunks *chunks)
{
    return chunks->done == chunks->total;
}
