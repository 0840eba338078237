/* Streamed receives and scattered sends. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "session_pair.h"

#define FRAMES 40

static uint8_t expected_byte(uint32_t i)
{
    return (uint8_t)(i * 7 + i / 1000);
}

static uint8_t *make_filled(uint32_t size)
{
    uint8_t *bytes = malloc(size + !size);
    for (uint32_t i = 0; i < size; i++)
        bytes[i] = expected_byte(i);
    return bytes;
}

static struct pair *make_streaming(void)
{
    struct pair *pair = pair_make(2);
    pair->config[1].stream_frames = FRAMES;
    pair_connect(pair);
    return pair;
}

/* Number of chunks of `message` in the frames lent since `from`; each must be new. */
static uint32_t chunks_of(const struct pair *pair, uint32_t message)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pair->lent_n[1]; i++) {
        const struct pair_lent *lent = &pair->lent[1][i];
        if (lent->header.message != message)
            continue;
        n++;
        assert(lent->first == expected_byte(lent->header.offset));
        assert(lent->last == expected_byte(lent->header.offset + lent->header.length - 1));
        for (uint32_t j = 0; j < i; j++)
            assert(pair->lent[1][j].header.message != message ||
                   pair->lent[1][j].header.offset != lent->header.offset);
    }
    return n;
}

static void test_credit_counts_frames(void)
{
    struct pair *pair = make_streaming();
    uint32_t size = 100 * PAIR_SEGMENT - 5;
    uint8_t *bytes = make_filled(size);
    uint32_t first = pair->config[0].first;
    assert(harp_session_message(pair->end[0], bytes, size, 8));
    assert(harp_session_message(pair->end[0], bytes, 10, 9));
    pair_pass(pair, 300 * MS);
    assert(pair->lent_n[1] == FRAMES && chunks_of(pair, first) == FRAMES);
    harp_session_returned(pair->end[1], 25);
    pair_pass(pair, 300 * MS);
    assert(pair->lent_n[1] == FRAMES + 25 && pair->sent[0] == 0);
    harp_session_returned(pair->end[1], 35);
    pair_pass(pair, 300 * MS); /* the small message has no more right than a large one */
    assert(pair->lent_n[1] == 100 && pair->received[1] == 1 && pair->sent[0] == 1);
    assert(pair->last_received[1].size == size && pair->last_received[1].message == first);
    assert(pair->last_sent[0].message == first && pair->last_sent[0].context == 8);
    harp_session_returned(pair->end[1], 1);
    pair_pass(pair, 10 * MS);
    assert(pair->received[1] == 2 && pair->last_received[1].message == first + 1);
    assert(chunks_of(pair, first) == 100 && chunks_of(pair, first + 1) == 1);
    assert(pair->sent[0] == 2 && !pair->closed[0].reason);
    free(bytes);
    pair_free(pair);
}

static void test_an_application_that_stalls_is_not_a_dead_path(void)
{
    struct pair *pair = make_streaming();
    uint8_t *bytes = make_filled(100 * PAIR_SEGMENT);
    assert(harp_session_message(pair->end[0], bytes, 100 * PAIR_SEGMENT, 0));
    pair_pass(pair, 20 * S);
    const struct harp_session_counters *count = harp_session_count(pair->end[0]);
    assert(pair->lent_n[1] == FRAMES && count->paths_died == 0 && count->data_again == 0);
    assert(!pair->closed[0].type && !pair->closed[1].type);
    harp_session_returned(pair->end[1], FRAMES);
    pair_pass(pair, 10 * MS);
    harp_session_returned(pair->end[1], 100 - 2 * FRAMES);
    pair_pass(pair, 10 * MS);
    assert(pair->received[1] == 1);
    free(bytes);
    pair_free(pair);
}

static bool every_third_is_lost(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    return (pair->frames[to][frame->header.type]) % 3 != 0;
}

/* More than 256 messages, through loss, by frames that come back one by one. */
static void test_many_messages_through_loss(void)
{
    struct pair *pair = pair_make(2);
    pair->config[0].stream_frames = 7;
    pair->config[1].stream_frames = 7;
    pair_connect(pair);
    pair->passes = every_third_is_lost;
    uint8_t *bytes = make_filled(3 * PAIR_SEGMENT);
    uint32_t asked[2] = {0, 0}, returned[2] = {0, 0},
             sizes[5] = {0, 1, 128, 1409, 3 * PAIR_SEGMENT};
    for (uint32_t turns = 0; pair->received[0] < 700 || pair->received[1] < 700; turns++) {
        assert(turns < 100000);
        for (uint8_t side = 0; side < 2; side++) {
            uint32_t size = sizes[asked[side] % 5];
            if (asked[side] < 700 && harp_session_message(pair->end[side], bytes, size, 0))
                asked[side]++;
            assert(pair->lent_n[side] - returned[side] <= 7);
            if (returned[side] < pair->lent_n[side] && turns % 2) {
                harp_session_returned(pair->end[side], 1);
                returned[side]++;
            }
        }
        pair_pass(pair, 100 * US);
    }
    assert(pair->lent_n[0] == 140 * 8 && pair->lent_n[1] == 140 * 8);
    pair->passes = NULL;
    pair_pass(pair, 400 * MS);
    assert(pair->sent[0] == 700 && pair->sent[1] == 700);
    free(bytes);
    pair_free(pair);
}

static struct harp_header make_data_header(const struct pair *pair, uint32_t packet,
                                           uint32_t message)
{
    return (struct harp_header){.version = HARP_VERSION,
                                .type = HARP_DATA,
                                .connection = pair->config[1].connection,
                                .epoch = pair->config[1].epoch,
                                .packet = packet,
                                .message = pair->config[0].first + message,
                                .length = 64,
                                .size = 64};
}

static void test_violations(void)
{
    struct pair *pair = make_streaming();
    uint32_t packet = pair->config[0].first + 20;
    for (uint32_t m = 0; m < FRAMES; m++) {
        struct harp_header header = make_data_header(pair, packet++, m);
        assert(pair_inject(pair, 1, &header) == HARP_PLACE);
    }
    struct harp_header again = make_data_header(pair, packet++, 5);
    assert(pair_inject(pair, 1, &again) == HARP_DROP); /* a duplicate needs no frame */
    pair_pass(pair, US);
    assert(!pair->closed[1].type);
    struct harp_header one_more = make_data_header(pair, packet++, FRAMES);
    assert(pair_inject(pair, 1, &one_more) == HARP_DROP);
    pair_pass(pair, MS);
    assert(pair->closed[1].reason == HARP_REASON_PROTOCOL && !pair->closed[1].by_peer);
    assert(pair->closed[0].type == HARP_EVENT_CLOSED);
    pair_free(pair);

    pair = make_streaming();
    struct harp_header far = make_data_header(pair, pair->config[0].first + 20, HARP_MESSAGES);
    assert(pair_inject(pair, 1, &far) == HARP_DROP);
    pair_pass(pair, MS);
    assert(pair->closed[1].reason == HARP_REASON_PROTOCOL);
    pair_free(pair);
}

static void test_posting_is_refused(void)
{
    struct pair *pair = make_streaming();
    uint8_t byte;
    int eager;
    assert(!harp_session_post(pair->end[1], &byte, 1, 0, &eager) && eager == -1);
    assert(harp_session_post(pair->end[0], &byte, 1, 0, &eager)); /* the other direction posts */
    pair_free(pair);
}

static void test_scattered(void)
{
    struct pair *pair = pair_make(1);
    pair_connect(pair);
    uint32_t size = 2 * PAIR_SEGMENT + 100;
    uint8_t *bytes = make_filled(size), *got = calloc(1, size);
    assert(harp_session_segment(pair->end[0]) == PAIR_SEGMENT);
    const uint8_t *chunks[3];
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t length = i < 2 ? PAIR_SEGMENT : 100;
        uint8_t *piece = malloc(length); /* a read beyond it is an error of the sanitizer */
        memcpy(piece, bytes + i * PAIR_SEGMENT, length);
        chunks[i] = piece;
    }
    int eager;
    assert(harp_session_post(pair->end[1], got, size, 4, &eager));
    assert(harp_session_message_frames(pair->end[0], chunks, size, 6));
    pair_pass(pair, MS);
    assert(pair->received[1] == 1 && memcmp(got, bytes, size) == 0);
    assert(pair->sent[0] == 1 && pair->last_sent[0].context == 6);
    for (uint32_t i = 0; i < 3; i++)
        free((uint8_t *)chunks[i]);
    free(bytes);
    free(got);
    pair_free(pair);
}

/* Nothing but 8 small messages is sent without credit. */
static void test_without_credit(void)
{
    struct pair *pair = pair_make(1);
    pair_connect(pair);
    uint8_t *bytes = make_filled(2 * PAIR_SEGMENT);
    for (uint32_t i = 0; i < 20; i++)
        assert(harp_session_message(pair->end[0], bytes, i == 3 ? PAIR_SEGMENT + 1 : 64, 0));
    pair_pass(pair, 500 * MS);
    assert(harp_session_count(pair->end[1])->placed == HARP_EAGER - 1 && pair->sent[0] == 3);
    assert(!pair->closed[0].type && !pair->closed[1].type);
    free(bytes);
    pair_free(pair);
}

static bool loses_acks(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair;
    return to != 0 || frame->header.type != HARP_ACK;
}

static bool has_arrived(const struct pair *pair)
{
    return pair->received[1] == 1;
}

/* The news of credit is lost. The sender asks for it long before the keep-alive, which comes after
 * 400 ms at the earliest. */
static void test_lost_credit_is_asked_for(void)
{
    struct pair *pair = pair_make(1);
    pair->config[0].dead_ns = pair->config[1].dead_ns = 30 * S;
    pair_connect(pair);
    uint32_t size = 2 * PAIR_SEGMENT;
    uint8_t *bytes = make_filled(size), *got = malloc(size);
    assert(harp_session_message(pair->end[0], bytes, size, 0));
    pair_pass(pair, 20 * MS);
    pair->passes = loses_acks;
    int eager;
    assert(harp_session_post(pair->end[1], got, size, 0, &eager));
    pair_pass(pair, 50 * MS);
    assert(!has_arrived(pair));
    pair->passes = NULL;
    assert(pair_until(pair, 150 * MS, has_arrived));
    free(bytes);
    free(got);
    pair_free(pair);
}

int main(void)
{
    test_credit_counts_frames();
    test_an_application_that_stalls_is_not_a_dead_path();
    test_many_messages_through_loss();
    test_violations();
    test_posting_is_refused();
    test_scattered();
    test_without_credit();
    test_lost_credit_is_asked_for();
    return 0;
}
