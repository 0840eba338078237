/* Copy into memory that somebody polls while it is being filled.
 *
 * NCCL's GPUs read receive buffers before the network says that they are full. They know by flags:
 *
 *     LL     8 bytes: 4 of data, 4 of flag                     stored at once
 *     LL128  128 bytes: 120 of data, then 8 of flag            flag stored last
 *
 * memcpy promises neither: the C library copies the end of a block before its middle.
 * harp_copy_lines writes lines of 128 bytes in order, and the last 8 bytes of a line after its
 * others. Lines count from `to`, and 8-byte stores are whole where `to` is aligned to 8.
 *
 * Memory order: stores in order, also for a device that reads over a bus that keeps order. The
 * reader orders its loads itself, as NCCL's kernels do.
 */
#ifndef HARP_COPY_LINES_H
#define HARP_COPY_LINES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/prefetch.h"

#define HARP_LINE_BYTES 128
#define HARP_FLAG_BYTES 8

/* Stores before it are seen before those behind it. */
static inline void harp_stores_in_order(void)
{
#if defined(__aarch64__)
    __asm__ volatile("dmb ishst" ::: "memory");
#else /* x86 lets stores be seen in their order: only the compiler must not change it */
    __asm__ volatile("" ::: "memory");
#endif
}

static inline void harp_copy_lines(uint8_t *to, const uint8_t *from, size_t length)
{
    const size_t data = HARP_LINE_BYTES - HARP_FLAG_BYTES;
    for (; length >= HARP_LINE_BYTES; length -= HARP_LINE_BYTES) {
        harp_prefetch_write(to);
        harp_prefetch_write(to + HARP_LINE_BYTES / 2);
        memcpy(to, from, data); /* of constant size: a few wide stores */
        harp_stores_in_order();
        memcpy(to + data, from + data, HARP_FLAG_BYTES);
        harp_stores_in_order();
        to += HARP_LINE_BYTES;
        from += HARP_LINE_BYTES;
    }
    for (; length >= HARP_FLAG_BYTES; length -= HARP_FLAG_BYTES) {
        memcpy(to, from, HARP_FLAG_BYTES);
        harp_stores_in_order();
        to += HARP_FLAG_BYTES;
        from += HARP_FLAG_BYTES;
    }
    memcpy(to, from, length);
}

#endif
