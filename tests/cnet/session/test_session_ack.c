/* Times at which arrivals are acknowledged. */
#include <assert.h>

#include "session/session_state.h"
#include "session_pair.h"
#include "virtual/random.h"

static uint32_t wanted;

static bool has_received(const struct pair *pair)
{
    return pair->received[1] == wanted;
}

static void post_buffer(struct pair *pair)
{
    static uint8_t to[PAIR_SEGMENT];
    int eager;
    assert(harp_session_post(pair->end[1], to, sizeof to, 0, &eager));
}

/* The second end has just got one more message. */
static void receive_one(struct pair *pair)
{
    static uint8_t bytes[8];
    wanted = pair->received[1] + 1;
    assert(harp_session_message(pair->end[0], bytes, sizeof bytes, 0));
    assert(pair_until(pair, MS, has_received));
}

static struct pair *just_received(void)
{
    struct pair *pair = pair_make(1);
    pair->config[1].app_drives = true;
    pair_connect(pair);
    post_buffer(pair);
    receive_one(pair);
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

/* Where it waits for the last of several messages, it acknowledges all of them. */
static void test_one_ack_covers_messages_in_a_row(void)
{
    struct harp_frame frames[8];
    struct pair *pair = pair_make(1);
    pair->config[1].ack.soon_ns = 4 * US;
    pair->config[1].ack.after_last = true;
    pair->delay_ns = US;
    pair_connect(pair);
    for (int i = 0; i < HARP_EAGER; i++)
        post_buffer(pair);
    pair_pass(pair, 100 * US); /* the peer knows of them */
    uint64_t before = pair->frames[0][HARP_ACK];
    for (int i = 0; i < 4; i++) {
        receive_one(pair);
        pair_pass(pair, 2 * US);
    }
    assert(pair->frames[0][HARP_ACK] == before);
    assert(harp_session_send(pair->end[1], pair->now_ns + 2 * US, frames, 8) == 1);
    assert(frames[0].header.type == HARP_ACK);
    pair_free(pair);
}

/* It waits for no message without end, and small ones need not stop for want of credit. */
static void test_messages_without_end_are_acknowledged_meanwhile(void)
{
    struct pair *pair = pair_make(1);
    pair->config[1].ack.soon_ns = 4 * US;
    pair->config[1].ack.after_last = true;
    pair->delay_ns = US;
    pair_connect(pair);
    uint64_t before = pair->frames[0][HARP_ACK];
    for (int i = 0; i < 100; i++) {
        post_buffer(pair);
        receive_one(pair);
        pair_pass(pair, US);
    }
    uint64_t acks = pair->frames[0][HARP_ACK] - before;
    assert(acks >= 10 && acks <= 34);
    pair_free(pair);
}

/* Over a network an ACK alone is a packet and a call of the kernel: there it waits longer. */
static void test_an_answer_that_takes_a_while_takes_it_along(void)
{
    static uint8_t answer[8];
    struct harp_frame frames[8];
    struct pair *pair = pair_make(1);
    pair->config[1].ack.soon_ns = pair->config[1].ack.along_ns = 20 * US;
    pair_connect(pair);
    post_buffer(pair);
    receive_one(pair);
    assert(harp_session_send(pair->end[1], pair->now_ns + 10 * US, frames, 8) == 0);
    assert(harp_session_message(pair->end[1], answer, sizeof answer, 0));
    assert(harp_session_send(pair->end[1], pair->now_ns + 10 * US, frames, 8) == 2);
    assert(frames[0].header.type == HARP_ACK && frames[1].header.type == HARP_DATA);
    pair_free(pair);
}

/* How long the other end waits with the ACK of a message of this size, up to a millisecond. */
static uint64_t acknowledged_after_ns(struct pair *pair, uint32_t size)
{
    static uint8_t message[PAIR_SEGMENT];
    post_buffer(pair);
    pair_pass(pair, MS); /* the peer knows of it */
    uint64_t before = pair->frames[0][HARP_ACK], begun_ns = pair->now_ns;
    assert(harp_session_message(pair->end[0], message, size, 0));
    while (pair->frames[0][HARP_ACK] == before && pair->now_ns < begun_ns + MS)
        pair_pass(pair, US);
    return pair->now_ns - begun_ns;
}

/* A sender that keeps copies of its short messages waits for no ACK; all others do, those of empty
 * messages among them. */
static void test_short_messages_wait_only_where_no_sender_does(void)
{
    for (int patient = 0; patient < 2; patient++) {
        struct pair *pair = pair_make(1);
        pair->config[1].loss.ack_delay_ns = pair->config[0].loss.ack_delay_ns = 500 * US;
        pair->config[1].ack.soon_ns = 20 * US;
        pair->config[1].ack.patient_bytes = patient ? 256 : 0;
        pair->config[1].ack.patient_ns = 100 * US;
        pair_connect(pair);
        for (uint32_t size = 0; size <= 512; size += 256) {
            uint64_t waited_ns = acknowledged_after_ns(pair, size);
            bool waits = patient && size <= 256;
            assert(waits ? waited_ns >= 90 * US && waited_ns <= 130 * US : waited_ns <= 30 * US);
        }
        pair_free(pair);
    }
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

/* Whether the next message is acknowledged without waiting for an answer. */
static bool is_at_once(struct pair *pair)
{
    post_buffer(pair);
    pair_pass(pair, 100 * US); /* the peer knows of it */
    uint64_t before = pair->frames[0][HARP_ACK];
    receive_one(pair);
    pair_pass(pair, US);
    return pair->frames[0][HARP_ACK] > before;
}

/* An application that drives the session stops when it has what it waits for. */
static void test_who_goes_quiet_acknowledges_at_once_and_who_answers_does_not(void)
{
    static uint8_t answer[8];
    struct pair *pair = just_received();
    assert(!is_at_once(pair));
    pair->stopped[1] = true;
    pair_pass(pair, 300 * US);
    pair->stopped[1] = false;
    assert(is_at_once(pair));
    assert(is_at_once(pair));
    assert(harp_session_message(pair->end[1], answer, sizeof answer, 0));
    harp_session_ack_along(pair->end[1]); /* as the engine does where data goes out */
    assert(!is_at_once(pair));
    pair_free(pair);
}

/* More is waited for, so it will be driven. */
static void test_an_end_that_waits_for_more_does_not_go_quiet(void)
{
    struct pair *pair = just_received();
    pair->stopped[1] = true;
    pair_pass(pair, 300 * US);
    pair->stopped[1] = false;
    post_buffer(pair);
    assert(!is_at_once(pair));
    pair_free(pair);
}

/* The cost of an ACK does not depend on the bytes in flight: of some 600 packets, with a few lost
 * or late ones among them at any time, it looks at those that it names and at a few words. */
static uint64_t acks_taken;
static uint32_t loss_permille;

static bool passes_with_loss(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    static uint64_t random = 1;
    (void)pair;
    acks_taken += to == 0 && frame->header.type == HARP_ACK;
    return !virtual_chance(&random, loss_permille);
}

static void keep_busy(struct pair *pair, uint64_t for_ns)
{
    static uint8_t bytes[1 << 20];
    uint64_t stop_ns = pair->now_ns + for_ns;
    for (uint64_t m = 0; pair->now_ns < stop_ns; m++) {
        int eager;
        while (harp_session_post(pair->end[1], bytes, sizeof bytes, m, &eager) &&
               harp_session_message(pair->end[0], bytes, sizeof bytes, m))
            ;
        pair_pass(pair, 50 * US);
    }
}

static void test_the_steps_of_an_ack_are_bounded_under_loss(void)
{
    for (loss_permille = 0; loss_permille <= 10; loss_permille += loss_permille ? 9 : 1) {
        struct pair *pair = pair_make(1);
        for (int side = 0; side < 2; side++)
            pair->config[side].window.initial_bytes = 600 * (PAIR_SEGMENT + HARP_HEADER_BYTES);
        pair->delay_ns = 100 * US;
        pair_connect(pair);
        pair->passes = passes_with_loss;
        acks_taken = 0;
        keep_busy(pair, 20 * MS);
        struct harp_session *session = pair->end[0];
        uint64_t packets = session->paths[0].sent.next - session->config.first;
        assert(packets > 20000 && acks_taken > 1000);
        assert(loss_permille == 0 || harp_session_count(session)->data_again > 0);
        assert(session->ack.steps < packets + packets / 10 + 16 * acks_taken);
        pair_free(pair);
    }
}

int main(void)
{
    test_the_steps_of_an_ack_are_bounded_under_loss();

    test_short_messages_wait_only_where_no_sender_does();
    test_it_can_go_along_with_what_others_send();
    test_an_answer_takes_the_acknowledgement_along();
    test_without_an_answer_it_goes_soon();
    test_one_ack_covers_messages_in_a_row();
    test_messages_without_end_are_acknowledged_meanwhile();
    test_an_answer_that_takes_a_while_takes_it_along();
    test_who_goes_quiet_acknowledges_at_once_and_who_answers_does_not();
    test_an_end_that_waits_for_more_does_not_go_quiet();
    return 0;
}
