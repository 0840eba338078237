/* NCCL's use of the memory that it registers, as far as its size and the user's settings
 * tell: whether a GPU may read it while a message comes. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "base/sequence.h"
#include "plugin.h"

/* NCCL's buffers of each protocol (computeBuffSizes, src/init.cc of 2.30), of NCCL_STEPS steps. */
#define SIMPLE_BYTES (UINT64_C(1) << 22)
#define LL_BYTES (UINT64_C(8) * 512 * STEPS * 16)
#define LL128_BYTES (UINT64_C(120) * 640 * STEPS * 8)
#define STEPS 8

/* The size that the user, or else NCCL, gives a protocol's buffers. */
static uint64_t bytes_of_buffer(const char *name, uint64_t bytes)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : bytes;
}

uint32_t buffers_read_early_most(void)
{
    uint64_t ll = harp_max(bytes_of_buffer("NCCL_LL_BUFFSIZE", LL_BYTES), LL_BYTES);
    uint64_t ll128 = harp_max(bytes_of_buffer("NCCL_LL128_BUFFSIZE", LL128_BYTES), LL128_BYTES);
    return (uint32_t)harp_min(harp_max(ll, ll128) / STEPS, HARP_MESSAGE_MAX);
}

/* NCCL registers the buffer of each protocol by itself (src/transport/net.cc of 2.12 to 2.30), and
 * Simple's by its size is not LL's: nobody reads that one before the message is there. All other
 * memory may be. */
bool buffers_watched(size_t bytes)
{
    return bytes != bytes_of_buffer("NCCL_BUFFSIZE", SIMPLE_BYTES) ||
           bytes == bytes_of_buffer("NCCL_LL_BUFFSIZE", LL_BYTES) ||
           bytes == bytes_of_buffer("NCCL_LL128_BUFFSIZE", LL128_BYTES);
}
