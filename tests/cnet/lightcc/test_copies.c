/* Small messages that leave from copies, between two engines of this process. */
#include "lightcc/copies.h"

#include <string.h>

#include "../engine/engine_two.h"

static struct copies copies;

static struct harp_completion next_completion(int side)
{
    struct harp_completion done;
    while (!harp_poll(connections[side], &done, 1))
        go_on();
    return done;
}

static void test_a_message_leaves_as_it_was_and_its_copy_is_free_when_it_is_there(void)
{
    uint8_t got[COPIES][8];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COPIES; i++) {
            uint8_t *copy = copies_next(&copies);
            CHECK(copy && copy == copies_next(&copies), "no copy, or one that is taken already");
            memset(copy, 64 * round + i, 8);
            CHECK(copies_send(&copies, connections[0], 8), "not sent");
            CHECK(harp_receive(connections[1], got[i], 8, (uint64_t)i), "not posted");
        }
        CHECK(!copies_next(&copies), "more copies than there are");
        for (int i = 0; i < COPIES; i++) {
            struct harp_completion done = next_completion(0);
            CHECK(done.type == HARP_COMPLETION_SENT, "type %u", done.type);
            copies_sent(&copies, done.context);
            CHECK(next_completion(1).type == HARP_COMPLETION_RECEIVED, "nothing came");
            CHECK(got[i][0] == 64 * round + i && got[i][7] == 64 * round + i, "message %d", i);
        }
    }
}

static void test_a_copy_that_cannot_leave_is_the_next_again(void)
{
    harp_connection_close(connections[1]);
    CHECK(next_completion(0).type == HARP_COMPLETION_CLOSED, "not closed");
    const uint8_t *copy = copies_next(&copies);
    CHECK(!copies_send(&copies, connections[0], 8) && copies_next(&copies) == copy, "it was sent");
    harp_connection_close(connections[0]);
}

int main(void)
{
    connect_two(HARP_PROGRESS_INLINE, -1, harp_port_udp_open);
    copies_start(&copies);
    test_a_message_leaves_as_it_was_and_its_copy_is_free_when_it_is_there();
    test_a_copy_that_cannot_leave_is_the_next_again();
    for (int i = 0; i < 2; i++)
        harp_engine_close(engines[i]);
    return 0;
}
