/* The map of packets that have come, against a list. */
#include "session/sack.h"

#include <assert.h>
#include <string.h>

#include "draw.h"

static void test_sack_against_a_list(uint64_t first)
{
    enum { N = 6000 };
    static bool seen[N];
    struct harp_sack sack;
    memset(seen, 0, sizeof seen);
    harp_sack_init(&sack, first);
    uint32_t top = 0;
    for (int turn = 0; turn < 20000; turn++) {
        uint32_t p =
            draw_below(100) == 0 ? draw_below(N) : (top > 50 ? top - 50 : 0) + draw_below(80);
        if (p >= N)
            break;
        bool old = p + HARP_SACK_BITS <= top;
        assert(harp_sack_add(&sack, first + p) == (!old && !seen[p]));
        seen[p] = true;
        top = p > top ? p : top;
        assert(sack.largest == first + top);
    }
    uint8_t map[HARP_SACK_BYTES];
    uint16_t bits = harp_sack_write(&sack, sack.largest - HARP_SACK_BITS, map);
    for (uint32_t bit = 0; bit < bits && bit < HARP_SACK_BITS - 1 && bit < top; bit++)
        assert((harp_sack_word(map, bit / 64) >> bit % 64 & 1) == seen[top - 1 - bit]);
    for (uint32_t bit = bits; bit < HARP_SACK_BITS - 1 && bit < top; bit++)
        assert(!seen[top - 1 - bit]);
}

int main(void)
{
    test_sack_against_a_list(0);
    test_sack_against_a_list(UINT32_MAX - 2000);
    test_sack_against_a_list((UINT64_C(1) << 31) - 2000);
    return 0;
}
