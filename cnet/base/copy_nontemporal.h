/* Copy past the caches: for a reader on a core that gets lines sooner from memory than from the
 * writer's cache (ports/port_mem.h says when), and to what is too large to stay in the cache, which
 * then need not be read before it is written.
 *
 * Non-temporal stores (x86 SSE2) are not ordered with others until a fence, which is the last thing
 * that the copy does: what is stored behind it is seen behind it. Elsewhere it is memcpy.
 */
#ifndef HARP_COPY_NONTEMPORAL_H
#define HARP_COPY_NONTEMPORAL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/prefetch.h"

#define HARP_NONTEMPORAL_LINE_BYTES 64

#if defined(__x86_64__)
#include <emmintrin.h>

/* `to` is aligned to a line. */
static inline void harp_copy_nontemporal(uint8_t *to, const uint8_t *from, size_t length)
{
    size_t head = -(uintptr_t)to % HARP_NONTEMPORAL_LINE_BYTES;
    head = head < length ? head : length;
    if (head)
        memcpy(to, from, head);
    to += head, from += head, length -= head;
    for (; length >= HARP_NONTEMPORAL_LINE_BYTES; length -= HARP_NONTEMPORAL_LINE_BYTES) {
        harp_prefetch_read(from);
        for (size_t i = 0; i < HARP_NONTEMPORAL_LINE_BYTES; i += sizeof(__m128i))
            _mm_stream_si128((__m128i *)(void *)(to + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
        to += HARP_NONTEMPORAL_LINE_BYTES;
        from += HARP_NONTEMPORAL_LINE_BYTES;
    }
    _mm_sfence();
    if (length)
        memcpy(to, from, length);
}
#else
static inline void harp_copy_nontemporal(uint8_t *to, const uint8_t *from, size_t length)
{
    if (length)
        memcpy(to, from, length);
}
#endif

#endif
