/* When what has arrived is acknowledged. */
#include <assert.h>

#include "session_pair.h"

static bool has_received(const struct pair *pair)
{
    return pair->received[1] == 1;
}

/* Two ends, of which the second has just got a message. */
static struct pair *just_received(void)
{
    static uint8_t bytes[8], to[8];
    struct pair *pair = pair_make(1);
    int eager;
    pair_connect(pair);
    assert(harp_session_post(pair->end[1], to, sizeof to, 0, &eager));
    assert(harp_session_message(pair->end[0], bytes, sizeof bytes, 0));
    assert(pair_until(pair, MS, has_received));
    return pair;
}

static void test_an_answer_takes_the_acknowledgement_along(void)
{
    static uint8_t answer[8];
    struct harp_frame frames[8];
    struct pair *pair = just_received();
    assert(harp_session_message(pair->end[1], answer, sizeof answer, 0));
    assert(harp_session_send(pair->end[1], pair->now_ns, frames, 8) == 2);
    assert(frames[0].header.type == HARP_ACK && frames[1].header.type == HARP_DATA);
    pair_free(pair);
}

static void test_without_an_answer_it_goes_soon(void)
{
    struct harp_frame frames[8];
    struct pair *pair = just_received();
    assert(harp_session_send(pair->end[1], pair->now_ns, frames, 8) == 0);
    assert(harp_session_send(pair->end[1], pair->now_ns + 2 * US, frames, 8) == 1);
    assert(frames[0].header.type == HARP_ACK);
    pair_free(pair);
}

static void test_it_can_go_along_with_what_others_send(void)
{
    struct harp_frame frames[8];
    struct pair *pair = just_received();
    assert(!harp_session_ack_along(pair->end[0]));
    assert(harp_session_ack_along(pair->end[1]));
    assert(harp_session_send(pair->end[1], pair->now_ns, frames, 8) == 1);
    assert(frames[0].header.type == HARP_ACK && !harp_session_ack_along(pair->end[1]));
    pair_free(pair);
}

int main(void)
{
    test_it_can_go_along_with_what_others_send();
    test_an_answer_takes_the_acknowledgement_along();
    test_without_an_answer_it_goes_soon();
    return 0;
}
