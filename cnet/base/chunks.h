/* A set of the chunks of a message that are done, in memory that does not grow with the message.
 *
 * A message of 1 GiB has three quarters of a million chunks, and 256 messages may be open each way;
 * a bit for each chunk of each would be 24 MiB a direction. So the map is a window that slides: it
 * begins at the lowest chunk that is not done and is HARP_CHUNK_WINDOW wide, a ring of 512 bytes.
 * An owner with little memory may have a smaller ring, and a smaller window.
 *
 *      done        low      window       low + 4096            total
 *  |111111111111111|0 1 1 0 1 1 0 0 ... 0|  nobody sends here yet  |
 *
 * The sender's low is never above the receiver's, since a chunk has arrived before it is
 * acknowledged. So a sender that stays inside its own window stays inside the receiver's as well
 * (docs/inside/wire.md makes that a rule), and 4,096 chunks are 5.8 MB of one message in flight at
 * the least payload, 34 MiB at 8,832 bytes.
 */
#ifndef HARP_CHUNKS_H
#define HARP_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

#define HARP_CHUNK_WINDOW 4096
#define HARP_CHUNK_WORDS (HARP_CHUNK_WINDOW / 64)

/* Chunks that come in order leave the ring alone: as long as none beyond `low` is done, no bit is
 * set and none is read. So a message costs no clearing, and one in order no cache line of the ring.
 */
struct harp_chunks {
    uint64_t *ring; /* `words` words of the owner's memory */
    uint32_t low;   /* all chunks below are done */
    uint32_t done;  /* how many are */
    uint32_t total;
    uint16_t words; /* of 64 chunks each: a power of two, at most HARP_CHUNK_WORDS */
    bool clear;     /* the ring was cleared once; since then its bits go as `low` passes them */
};

/* Number of chunks of a message of `size` bytes; 1 for an empty message, which is sent too. */
static inline uint32_t harp_chunks_of(uint32_t size, uint16_t segment)
{
    return size > segment ? (size - 1) / segment + 1 : 1;
}

/* A map in `words` words of memory, which hold anything. */
void harp_chunks_init(struct harp_chunks *chunks, uint64_t *ring, uint16_t words);

/* The word that holds the bit of `chunk`, in this map's ring or in one of the same shape. */
static inline uint32_t harp_chunks_word(const struct harp_chunks *chunks, uint32_t chunk)
{
    return chunk / 64 & (chunks->words - 1u);
}

/* Start anew, for a message of `total` chunks. */
static inline void harp_chunks_start(struct harp_chunks *chunks, uint32_t total)
{
    chunks->clear = chunks->clear && chunks->done == chunks->low;
    chunks->low = chunks->done = 0;
    chunks->total = total;
}

/* Whether `chunk` is not beyond the window; those below `low` are within. */
static inline bool harp_chunks_within(const struct harp_chunks *chunks, uint32_t chunk)
{
    uint32_t window = 64u * chunks->words;
    return chunk < chunks->total && (chunk < chunks->low || chunk - chunks->low < window);
}

/* Whether `chunk`, which must be within the window, is done. */
static inline bool harp_chunks_has(const struct harp_chunks *chunks, uint32_t chunk)
{
    if (chunk < chunks->low || chunks->done == chunks->low)
        return chunk < chunks->low;
    return chunks->ring[harp_chunks_word(chunks, chunk)] >> chunk % 64 & 1;
}

/* `chunk`, within the window, is done; false if it was before. */
bool harp_chunks_add(struct harp_chunks *chunks, uint32_t chunk);

static inline bool harp_chunks_complete(const struct harp_chunks *chunks)
{
    return chunks->done == chunks->total;
}

#endif
