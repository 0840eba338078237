/* Bytes in flight to a port that holds little: of one path, of several, of several sessions. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "session_pair.h"

#define FRAME (PAIR_SEGMENT + HARP_HEADER_BYTES)
#define SIZE (400 * PAIR_SEGMENT)
#define HOLDS (24u << 10)

static uint8_t from[SIZE], to[2][SIZE];
static uint64_t most_bytes; /* that end 0 of any pair has had in flight together */
static struct pair *pairs[2];

static uint64_t in_flight(const struct pair *pair)
{
    struct harp_path_info info;
    uint64_t bytes = 0;
    for (uint8_t p = 0; pair && p < pair->config[0].paths; p++)
        if (harp_session_path_info(pair->end[0], p, &info))
            bytes += info.bytes_in_flight;
    return bytes;
}

static bool note_flight(struct pair *pair, uint8_t side, const struct harp_frame *frame)
{
    (void)pair, (void)side, (void)frame;
    most_bytes = harp_max(most_bytes, in_flight(pairs[0]) + in_flight(pairs[1]));
    return true;
}

static struct pair *connect_to_holder(int i, uint16_t paths, uint32_t holds_bytes)
{
    struct pair *pair = pair_make(paths);
    pair->config[1].holds_bytes = holds_bytes;
    pair_connect(pair);
    pair->passes = note_flight;
    pairs[i] = pair;
    most_bytes = 0;
    return pair;
}

static void begin_message(int i)
{
    int eager;
    memset(to[i], 0, SIZE);
    assert(harp_session_post(pairs[i]->end[1], to[i], SIZE, 0, &eager));
    assert(harp_session_message(pairs[i]->end[0], from, SIZE, 0));
}

static void free_pair(int i)
{
    pair_free(pairs[i]);
    pairs[i] = NULL;
}

static uint64_t most_of_one(uint16_t paths, uint32_t holds_bytes)
{
    connect_to_holder(0, paths, holds_bytes);
    begin_message(0);
    pair_pass(pairs[0], S);
    assert(pairs[0]->sent[0] == 1 && memcmp(from, to[0], SIZE) == 0);
    assert(harp_session_count(pairs[0]->end[0])->data_again == 0);
    free_pair(0);
    return most_bytes;
}

static void test_codes_say_what_they_can(void)
{
    struct harp_parameters announced = {.segment = 0};
    uint32_t before = 0;
    for (uint16_t code = 1; code < HARP_CHUNK_ALIGN; code++) {
        announced.segment = 1408 | code;
        uint32_t bytes = harp_parameters_hold_bytes(&announced);
        assert(bytes > before && (before == 0 || bytes <= before + before / 8));
        assert(harp_holds_code(bytes) == code && harp_holds_code(bytes - 1) == code - 1);
        before = bytes;
    }
    assert(harp_holds_code(0) == 0 && harp_holds_code(UINT32_MAX) == HARP_CHUNK_ALIGN - 1);
    announced.segment = 1408;
    assert(harp_parameters_hold_bytes(&announced) == 0);
}

static void test_one_path_has_no_more_in_flight_than_the_port_holds(void)
{
    uint64_t most = most_of_one(1, HOLDS);
    assert(most <= HOLDS && most > HOLDS - FRAME);
}

static void test_paths_to_one_port_share_what_it_holds(void)
{
    uint64_t most = most_of_one(4, HOLDS);
    assert(most <= HOLDS + 3 * FRAME && most > HOLDS / 2); /* each path may have a frame */
}

static void test_the_window_counts_where_the_peer_announces_nothing(void)
{
    assert(most_of_one(1, 0) > 63 * FRAME);
}

static void test_a_port_that_holds_less_than_a_frame_gets_one_after_the_other(void)
{
    connect_to_holder(0, 1, 0);
    struct harp_far_buffer far = {0};
    harp_session_share_buffer(pairs[0]->end[0], 0, &far);
    far.holds_bytes = FRAME - 1;
    begin_message(0);
    pair_pass(pairs[0], S);
    assert(pairs[0]->sent[0] == 1 && most_bytes == FRAME);
    free_pair(0);
}

static bool is_through(const struct pair *pair)
{
    return pair->sent[0] == 1;
}

/* Both pairs' time goes on together. */
static uint64_t pass_both_until(bool (*until)(const struct pair *), int which)
{
    uint64_t began_ns = pairs[which]->now_ns;
    for (int i = 0; i < 1000000 && !until(pairs[which]); i++) {
        pair_pass(pairs[0], 5 * US);
        pair_pass(pairs[1], 5 * US);
    }
    assert(until(pairs[which]));
    return pairs[which]->now_ns - began_ns;
}

static void test_sessions_share_what_the_port_holds(void)
{
    struct harp_far_buffer far = {0};
    for (int i = 0; i < 2; i++)
        harp_session_share_buffer(connect_to_holder(i, 1, HOLDS)->end[0], 0, &far);
    assert(far.holds_bytes == HOLDS);
    begin_message(0);
    pair_pass(pairs[0], 30 * US);
    pairs[1]->now_ns = pairs[0]->now_ns;
    assert(in_flight(pairs[0]) > HOLDS - FRAME);
    begin_message(1); /* comes to a buffer that is taken */
    pass_both_until(is_through, 0);
    assert(most_bytes <= HOLDS + FRAME && far.in_flight_bytes == in_flight(pairs[1]));
    pass_both_until(is_through, 1);
    assert(far.in_flight_bytes == 0 && far.users == 0);
    free_pair(0);
    free_pair(1);
}

static bool is_closed(const struct pair *pair)
{
    return pair->closed[0].type == HARP_EVENT_CLOSED;
}

static void test_a_session_that_ends_leaves_the_buffer_to_others(void)
{
    struct harp_far_buffer far = {0};
    for (int i = 0; i < 2; i++)
        harp_session_share_buffer(connect_to_holder(i, 1, HOLDS)->end[0], 0, &far);
    begin_message(0);
    pair_pass(pairs[0], 30 * US);
    assert(far.users == 1);
    harp_session_close(pairs[0]->end[0], pairs[0]->now_ns, HARP_REASON_DONE, NULL);
    pass_both_until(is_closed, 0);
    assert(far.in_flight_bytes == 0 && far.users == 0);
    begin_message(1);
    pass_both_until(is_through, 1);
    assert(most_bytes > HOLDS - FRAME);
    free_pair(0);
    free_pair(1);
}

int main(void)
{
    for (uint32_t i = 0; i < SIZE; i++)
        from[i] = (uint8_t)(i * 31 + i / 4096);
    test_codes_say_what_they_can();
    test_one_path_has_no_more_in_flight_than_the_port_holds();
    test_paths_to_one_port_share_what_it_holds();
    test_the_window_counts_where_the_peer_announces_nothing();
    test_a_port_that_holds_less_than_a_frame_gets_one_after_the_other();
    test_sessions_share_what_the_port_holds();
    test_a_session_that_ends_leaves_the_buffer_to_others();
    return 0;
}
