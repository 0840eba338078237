#include "session/fragment.h"

bool harp_fragment_chunk(const struct harp_header *fragment, uint16_t segment,
                         struct harp_header *chunk)
{
    uint16_t bytes = harp_fragment_bytes(segment, fragment->flags);
    uint32_t within = fragment->offset % segment;
    *chunk = *fragment;
    chunk->flags = 0;
    chunk->offset = fragment->offset - within;
    if (fragment->offset >= fragment->size || within % bytes)
        return false;
    chunk->length = (uint16_t)harp_min(segment, fragment->size - chunk->offset);
    return fragment->length == harp_min(bytes, chunk->length - within);
}
