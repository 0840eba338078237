/* Faults of links in the simulation of sessions, and the keys of two ends. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "end_keys.h"
#include "faults.h"
#include "virtual/random.h"
#include "virtual/session_ends.h"

enum { FRAME = 1250 }; /* 100 ns at 100 Gb/s */

static void test_a_line_sends_one_frame_after_the_other(void)
{
    struct virtual_line line = {0};
    uint64_t cost_ps = virtual_line_cost_ps(FRAME, 100000);
    CHECK(cost_ps == 100000, "1,250 bytes take 100 ns at 100 Gb/s");
    CHECK(virtual_line_send(&line, 5000000, cost_ps) == 5100000, "the line was free");
    CHECK(virtual_line_wait_ps(&line, 5000) == 100000, "the second waits for the first");
    CHECK(virtual_line_send(&line, 5000000, cost_ps) == 5200000, "and leaves after it");
    CHECK(virtual_line_wait_ps(&line, 6000) == 0, "it is idle again");
}

static struct dst_faulty_link make_link(void)
{
    return (struct dst_faulty_link){
        .faults = {
            .delay_ns = 1000, .byte_ps = 80, .queue_ns = 250, .loss = 100, .burst_length = 1}};
}

static void test_a_full_queue_drops_and_delay_adds(void)
{
    struct dst_faulty_link link = make_link();
    uint64_t random = 1;
    for (uint64_t i = 0; i < 3; i++) {
        struct dst_fate fate = dst_faults_pass(&link, &random, 0, false, FRAME);
        CHECK(!fate.dropped && !fate.lost && !fate.late, "frame %d passes", (int)i);
        CHECK(fate.at_ns == 100 * (i + 1) + 1000, "frame %d comes at %d", (int)i, (int)fate.at_ns);
    }
    CHECK(dst_faults_pass(&link, &random, 0, false, FRAME).dropped, "three wait 300 ns");
    CHECK(!dst_faults_pass(&link, &random, 100, false, FRAME).dropped, "and then 200 ns");
}

static void test_a_path_gets_longer_and_stays_so(void)
{
    struct dst_faulty_link link = make_link();
    uint64_t random = 1;
    link.faults.longer_at_ns = 1000000;
    link.faults.longer_ns = 300;
    CHECK(dst_faults_pass(&link, &random, 999999, false, FRAME).at_ns == 1001099, "too early");
    struct dst_fate fate = dst_faults_pass(&link, &random, 1001000, false, FRAME);
    CHECK(fate.at_ns == 1001000 + 100 + 1000 + 300, "comes at %d", (int)fate.at_ns);
    CHECK(fate.late, "its ACK may be waited for in vain");
    fate = dst_faults_pass(&link, &random, 9000000, false, FRAME);
    CHECK(fate.at_ns == 9000000 + 100 + 1000 + 300 && !fate.late, "for good, and known by then");
}

static void test_a_link_loses_about_the_share_that_is_set(void)
{
    struct dst_faulty_link link = make_link();
    uint64_t random = 1, lost = 0;
    for (uint64_t i = 0; i < 10000; i++)
        lost += dst_faults_pass(&link, &random, 1000 * i, true, FRAME).lost;
    CHECK(lost > 900 && lost < 1100, "%d of 10,000 lost at 100 permille", (int)lost);
    CHECK(!dst_faults_pass(&link, &random, 0, false, FRAME).lost, "lost without faults");
    link.faults.black = (struct dst_span){10, 20};
    CHECK(dst_faults_pass(&link, &random, 19, false, FRAME).lost, "not black");
    CHECK(!dst_faults_pass(&link, &random, 20, false, FRAME).lost, "black too long");
    link.faults.most_bytes = FRAME - 1;
    CHECK(dst_faults_pass(&link, &random, 1000000, false, FRAME).dropped, "too long a frame");
}

static void test_what_a_link_spoils_differs(void)
{
    struct dst_faulty_link link = make_link();
    link.faults.flip = 500;
    link.faults.cut = 500;
    uint64_t random = 1;
    for (int i = 0; i < 1000; i++) {
        uint8_t bytes[FRAME] = {0}, zeros[FRAME] = {0};
        bool spoilt;
        size_t n = dst_faults_spoil(&link, &random, bytes, FRAME, &spoilt);
        CHECK(n == FRAME || spoilt, "cut and not said");
        CHECK(spoilt == (n < FRAME || memcmp(bytes, zeros, FRAME) != 0), "turn %d", i);
    }
}

static bool are_equal(const struct harp_key *a, const struct harp_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Both ends of a session that was made of a FIRST and its ACCEPT. */
static void test_both_ends_find_the_same_keys(void)
{
    struct harp_session_config config[2];
    struct dst_keys keys[2] = {{.secret = {1, 2}, .listener = 77},
                               {.secret = {1, 2}, .listener = 77, .listening = true}};
    struct harp_frame frame;
    struct harp_key key[2];
    struct harp_place place;
    virtual_configure_pair(config, 1408, 1);
    struct harp_session *up = virtual_session_connect(&config[0], 1000);
    CHECK(!dst_keys_find(&keys[0], &config[0], up, HARP_DATA, true, &key[0]), "too early");
    CHECK(harp_session_send(up, 1000, &frame, 1) == 1, "no FIRST");
    struct harp_session *down = virtual_session_accept(&config[1], 1000, &frame.header, frame.body);
    CHECK(down && virtual_session_knows_peer(down), "FIRST makes the other end");
    CHECK(harp_session_send(down, 1000, &frame, 1) == 1, "no ACCEPT");
    CHECK(!virtual_session_accept(&config[1], 0, &frame.header, frame.body), "ACCEPT makes none");
    for (int end = 0; end < 2; end++)
        CHECK(dst_keys_find(&keys[end], &config[end], end ? down : up, HARP_ACCEPT, end == 1,
                            &key[end]),
              "end %d has no key of ACCEPT", end);
    CHECK(are_equal(&key[0], &key[1]), "keys of ACCEPT differ");
    harp_session_receive(up, 1000, 0, &frame.header, frame.body, false, &place);
    for (int down_sends = 0; down_sends < 2; down_sends++) {
        dst_keys_find(&keys[0], &config[0], up, HARP_DATA, !down_sends, &key[0]);
        dst_keys_find(&keys[1], &config[1], down, HARP_DATA, down_sends, &key[1]);
        CHECK(are_equal(&key[0], &key[1]), "keys of DATA differ");
    }
    free(up);
    free(down);
}

int main(void)
{
    test_a_line_sends_one_frame_after_the_other();
    test_a_full_queue_drops_and_delay_adds();
    test_a_path_gets_longer_and_stays_so();
    test_a_link_loses_about_the_share_that_is_set();
    test_what_a_link_spoils_differs();
    test_both_ends_find_the_same_keys();
}
