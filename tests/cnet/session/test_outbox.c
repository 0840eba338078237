/* Messages that leave: the order in which lost chunks go again. */
#include "session/outbox.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

/* Whichever messages have lost a chunk: the oldest's goes first, wherever the ring begins. */
static void test_lost_chunks_go_from_the_oldest_message_on(uint32_t first)
{
    static struct harp_outbox outbox;
    static bool lost[HARP_MESSAGES];
    struct harp_pick pick;
    void *memory = malloc(harp_outbox_bytes(HARP_MESSAGES, HARP_CHUNK_WORDS));
    harp_outbox_init(&outbox, memory, HARP_MESSAGES, HARP_CHUNK_WORDS, first, 128);
    harp_outbox_credit(&outbox, (uint64_t)first + HARP_MESSAGES, 0);
    for (uint32_t m = 0; m < HARP_MESSAGES; m++)
        assert(harp_outbox_add(&outbox, NULL, NULL, 200, m));
    for (uint32_t i = 0; i < 2 * HARP_MESSAGES && harp_outbox_pick(&outbox, &pick); i++)
        harp_outbox_take(&outbox, &pick);
    for (int turn = 0; turn < 20000; turn++) {
        uint32_t m = draw_below(HARP_MESSAGES), oldest = 0;
        if (draw_below(2)) {
            harp_outbox_lost(&outbox, first + m, 1);
            lost[m] = true;
        } else if (draw_below(2)) {
            assert(harp_outbox_found(&outbox, first + m, 1) == lost[m]);
            lost[m] = false;
        }
        while (oldest < HARP_MESSAGES && !lost[oldest])
            oldest++;
        bool any = harp_outbox_pick(&outbox, &pick);
        assert(any == (oldest < HARP_MESSAGES));
        assert(!any || (pick.message == first + oldest && pick.chunk == 1 && pick.again));
        if (any && draw_below(2)) {
            harp_outbox_take(&outbox, &pick);
            lost[oldest] = false;
        }
    }
    memset(lost, 0, sizeof lost);
    free(memory);
}

int main(void)
{
    test_lost_chunks_go_from_the_oldest_message_on(0);
    test_lost_chunks_go_from_the_oldest_message_on(UINT32_MAX - 100);
    return 0;
}
