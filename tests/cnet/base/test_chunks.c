/* The chunks of a message that have come, in a window that slides. */
#include "base/chunks.h"

#include <assert.h>
#include <string.h>

#include "draw.h"
#include "wire/wire.h"

static void test_chunks_slide(void)
{
    static uint64_t ring[HARP_CHUNK_WORDS];
    struct harp_chunks chunks;
    enum { N = 3 * HARP_CHUNK_WINDOW + 17 };
    memset(ring, 0xff, sizeof ring);
    harp_chunks_init(&chunks, ring, HARP_CHUNK_WORDS);
    harp_chunks_start(&chunks, 9);
    for (uint32_t chunk = 0; chunk < 7; chunk += 2) /* left incomplete */
        harp_chunks_add(&chunks, chunk);
    harp_chunks_start(&chunks, N);
    while (!harp_chunks_complete(&chunks)) {
        uint32_t chunk = chunks.low + draw_below(HARP_CHUNK_WINDOW);
        if (draw_below(4) == 0)
            chunk = chunks.low;
        if (!harp_chunks_within(&chunks, chunk))
            continue;
        bool had = harp_chunks_has(&chunks, chunk);
        assert(harp_chunks_add(&chunks, chunk) == !had);
        assert(harp_chunks_has(&chunks, chunk));
    }
    assert(chunks.low == N && !harp_chunks_within(&chunks, N));
    assert(harp_chunks_of(0, 128) == 1 && harp_chunks_of(128, 128) == 1);
    assert(harp_chunks_of(129, 128) == 2 && harp_chunks_of(HARP_MESSAGE_MAX, 128) == 1u << 23);
}

int main(void)
{
    test_chunks_slide();
    return 0;
}
