/* The ring of packets that are sent and not settled. */
#include "session/sent.h"

#include <assert.h>

static void test_sent_ring(void)
{
    static struct harp_sent slots[HARP_SENT_SLOTS];
    struct harp_sent_ring ring;
    uint64_t first = UINT32_MAX - 5;
    harp_sent_init(&ring, slots, HARP_SENT_SLOTS, first);
    for (int i = 0; i < HARP_SENT_SLOTS; i++) {
        assert(harp_sent_has_room(&ring));
        harp_sent_add(&ring, (uint64_t)i, 100, 100);
    }
    assert(!harp_sent_has_room(&ring) && ring.in_flight == HARP_SENT_SLOTS);
    assert(!harp_sent_at(&ring, first - 1) && !harp_sent_at(&ring, first + HARP_SENT_SLOTS));
    harp_sent_lost(&ring, harp_sent_at(&ring, first));
    assert(harp_sent_has_room(&ring) && !harp_sent_at(&ring, first));
    harp_sent_acked(&ring, harp_sent_at(&ring, first + 1));
    harp_sent_lost(&ring, harp_sent_at(&ring, first + 2));
    harp_sent_trim(&ring, 2);
    assert(ring.tail == first + 2);
    harp_sent_acked(&ring, harp_sent_at(&ring, first + 2)); /* late: the loss was spurious */
    harp_sent_trim(&ring, 0);
    assert(ring.tail == first + 3 && ring.bytes_in_flight == 100 * (HARP_SENT_SLOTS - 3));
}

int main(void)
{
    test_sent_ring();
    return 0;
}
