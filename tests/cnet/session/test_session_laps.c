/* Numbers that go round: what was recorded long ago changes nothing when it comes again. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "session_pair.h"
#include "session_skip.h"

enum { MESSAGES = 12, BYTES = 3 * PAIR_SEGMENT };

static struct harp_frame recorded[4][64];
static uint32_t recorded_n[4];
static bool recording;

static bool record_frame(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair;
    uint32_t which = frame->header.type == HARP_ACK ? 2u + to : to;
    bool numbered = frame->header.type >= HARP_DATA && frame->header.type <= HARP_PROBE;
    if (recording && numbered && recorded_n[which] < 64)
        recorded[which][recorded_n[which]++] = *frame;
    return true;
}

static uint8_t out[BYTES], in[2 * MESSAGES][BYTES];
static uint32_t received_before[2];

static void begin_to_exchange(struct pair *pair)
{
    int eager;
    memset(out, 0x5a, sizeof out);
    for (uint8_t side = 0; side < 2; side++) {
        received_before[side] = pair->received[side];
        for (uint32_t m = 0; m < MESSAGES; m++) {
            uint8_t *to = in[side * MESSAGES + m];
            memset(to, 0, BYTES);
            if (!pair->config[side].stream_frames)
                assert(harp_session_post(pair->end[side], to, BYTES, m, &eager));
            assert(harp_session_message(pair->end[!side], out, BYTES, m));
        }
    }
}

static void finish_exchange(struct pair *pair)
{
    pair_pass(pair, 20 * MS);
    for (uint8_t side = 0; side < 2; side++) {
        assert(pair->received[side] == received_before[side] + MESSAGES);
        for (uint32_t m = 0; m < MESSAGES && !pair->config[side].stream_frames; m++)
            assert(memcmp(in[side * MESSAGES + m], out, BYTES) == 0);
        if (pair->config[side].stream_frames)
            harp_session_returned(pair->end[side], pair->lent_n[side]);
        pair->lent_n[side] = 0;
    }
    pair_pass(pair, MS);
}

static void exchange_message(struct pair *pair)
{
    begin_to_exchange(pair);
    finish_exchange(pair);
}

static struct pair *make_after_exchange(uint32_t first, uint32_t streamed)
{
    struct pair *pair = pair_make(2);
    memset(recorded_n, 0, sizeof recorded_n);
    pair->config[0].first = pair->config[1].first = first;
    pair->config[0].stream_frames = pair->config[1].stream_frames = streamed;
    pair->passes = record_frame;
    recording = true;
    pair_connect(pair);
    exchange_message(pair);
    recording = false;
    return pair;
}

static void replay_all(struct pair *pair)
{
    for (uint32_t which = 0; which < 4; which++)
        for (uint32_t i = 0; i < recorded_n[which]; i++)
            pair_deliver(pair, which % 2, &recorded[which][i]);
}

static void check_alive(const struct pair *pair)
{
    for (int side = 0; side < 2; side++)
        assert(pair->closed[side].type == HARP_EVENT_NONE);
}

/* Once around or half, in packets and in messages, and close to where each sign changes. */
static void test_records_before_a_wrap_change_nothing(uint32_t first, uint32_t streamed)
{
    static const uint64_t far[] = {UINT64_C(1) << 31, UINT64_C(3) << 30, UINT64_C(1) << 32,
                                   UINT64_C(5) << 31};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++)
        for (int messages = 0; messages < 2; messages++) {
            struct pair *pair = make_after_exchange(first, streamed);
            for (int side = 0; side < 2; side++) {
                skip_packets(pair->end[side], far[i] + 2 * HARP_SENT_SLOTS);
                if (messages)
                    skip_messages(pair->end[side], far[i] + HARP_MESSAGES);
            }
            replay_all(pair);
            pair_pass(pair, 50 * MS);
            check_alive(pair);
            exchange_message(pair);
            check_alive(pair);
            pair_free(pair);
        }
}

/* A path may rest while messages go round on another: its old ACKs hold, but say nothing new. */
static void test_old_credit_of_a_path_that_rests_is_no_news(uint32_t streamed)
{
    static const uint64_t far[] = {UINT64_C(1) << 31, (UINT64_C(1) << 31) + HARP_MESSAGES,
                                   (UINT64_C(1) << 32) - HARP_MESSAGES};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        struct pair *pair = make_after_exchange(9, streamed);
        for (int side = 0; side < 2; side++)
            skip_messages(pair->end[side], far[i]);
        begin_to_exchange(pair);
        replay_all(pair);
        check_alive(pair);
        finish_exchange(pair);
        check_alive(pair);
        pair_free(pair);
    }
}

/* Messages, packets and credit run through the wrap while they are in use. */
static void test_traffic_goes_on_through_every_wrap(uint32_t streamed)
{
    static const uint64_t wraps[] = {UINT64_C(1) << 31, UINT64_C(1) << 32, UINT64_C(3) << 31,
                                     UINT64_C(1) << 33};
    struct pair *pair = make_after_exchange(0, streamed);
    uint64_t messages = MESSAGES, packets = 0;
    for (size_t i = 0; i < sizeof wraps / sizeof *wraps; i++) {
        uint64_t to_messages = wraps[i] - HARP_MESSAGES, to_packets = wraps[i] - HARP_SENT_SLOTS;
        uint64_t by_messages = (to_messages - messages) / HARP_MESSAGES * HARP_MESSAGES;
        uint64_t by_packets = (to_packets - packets) / HARP_SENT_SLOTS * HARP_SENT_SLOTS;
        for (int side = 0; side < 2; side++) {
            skip_messages(pair->end[side], by_messages);
            skip_packets(pair->end[side], by_packets);
        }
        messages += by_messages, packets += by_packets;
        for (int turn = 0; turn < 60; turn++, messages += MESSAGES)
            exchange_message(pair);
        packets = pair->end[0]->paths[0].sent.next;
        check_alive(pair);
    }
    assert(harp_session_count(pair->end[0])->data_again == 0);
    pair_free(pair);
}

int main(void)
{
    static const uint32_t firsts[] = {0, 1, INT32_MAX - 20, UINT32_MAX - 20, UINT32_MAX};
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        test_records_before_a_wrap_change_nothing(firsts[i], 0);
        test_records_before_a_wrap_change_nothing(firsts[i], 300);
    }
    test_old_credit_of_a_path_that_rests_is_no_news(0);
    test_old_credit_of_a_path_that_rests_is_no_news(300);
    test_traffic_goes_on_through_every_wrap(0);
    test_traffic_goes_on_through_every_wrap(300);
    return 0;
}
