/* Fragments: a chunk cut for a path that takes no frame of a whole one (docs/inside/wire.md,
 * Fragments).
 *
 *     chunk    |<---------------- segment ---------------->|
 *     k = 3    |  fragment 0   |  fragment 1   | fragment 2|   multiples of 128, but for the last
 *
 * Only arithmetic: pmtu.h finds the k of a path, reassembly.h puts fragments together.
 */
#ifndef HARP_FRAGMENT_H
#define HARP_FRAGMENT_H

#include <stdbool.h>

#include "base/sequence.h"
#include "wire/wire.h"

/* Payload of each fragment but the last, of a whole chunk cut into `fragments`. */
static inline uint16_t harp_fragment_bytes(uint16_t segment, uint32_t fragments)
{
    uint32_t share = (segment + fragments - 1) / fragments;
    return (uint16_t)((share + HARP_CHUNK_ALIGN - 1) / HARP_CHUNK_ALIGN * HARP_CHUNK_ALIGN);
}

/* UDP payload of its frame. */
static inline uint16_t harp_fragment_frame_bytes(uint16_t segment, uint32_t fragments)
{
    return (uint16_t)(HARP_HEADER_BYTES + harp_fragment_bytes(segment, fragments));
}

/* The smallest number of fragments with frames of at most `frame_bytes`; the largest number
 * possible if no number is enough. */
static inline uint8_t harp_fragments_within(uint16_t segment, uint32_t frame_bytes)
{
    uint32_t most = harp_min(segment / HARP_CHUNK_ALIGN, HARP_FRAGMENTS_MAX), k = 1;
    while (k < most && harp_fragment_frame_bytes(segment, k) > frame_bytes)
        k++;
    return (uint8_t)k;
}

/* The chunk that a fragment belongs to, as its header would be in one frame. False if no chunk is
 * cut like this, as in a run, which whoever drives the session takes apart. */
static inline bool harp_fragment_chunk(const struct harp_header *fragment, uint16_t segment,
                                       struct harp_header *chunk)
{
    uint16_t bytes = harp_fragment_bytes(segment, fragment->flags);
    uint32_t within = fragment->offset % segment;
    *chunk = *fragment;
    chunk->flags = 0;
    chunk->offset = fragment->offset - within;
    if (fragment->flags > HARP_FRAGMENTS_MAX || fragment->offset >= fragment->size ||
        within % bytes)
        return false;
    chunk->length = (uint16_t)harp_min(segment, fragment->size - chunk->offset);
    return fragment->length == harp_min(bytes, chunk->length - within);
}

#endif
