/* Two ends of a session in one process, from FIRST until they know each other. */
#include "virtual/session_ends.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { SEGMENT = 1408, PATHS = 3 };

static const uint64_t now_ns = 1000000;

static void test_ends_differ_in_what_has_to(void)
{
    struct harp_session_config config[2];
    virtual_configure_pair(config, SEGMENT, PATHS);
    CHECK(config[0].connection != config[1].connection, "ids");
    CHECK(memcmp(config[0].nonce, config[1].nonce, sizeof config[0].nonce) != 0, "nonces");
    CHECK(config[0].seed != config[1].seed, "seeds");
    CHECK(config[0].listener == config[1].listener, "the listener");
    for (int end = 0; end < 2; end++)
        CHECK(config[end].segment == SEGMENT && config[end].paths == PATHS, "end %d", end);
}

/* The next frame of an end, which must be of this type. */
static struct harp_frame send_one(struct harp_session *end, uint8_t type)
{
    struct harp_frame frame;
    CHECK(harp_session_send(end, now_ns, &frame, 1) == 1, "nothing to send");
    CHECK(frame.header.type == type, "type %u, not %u", frame.header.type, type);
    return frame;
}

static void take_in(struct harp_session *end, const struct harp_frame *frame)
{
    struct harp_place place;
    CHECK(harp_session_receive(end, now_ns, 0, &frame->header, frame->body, false, &place) ==
              HARP_TAKEN,
          "not taken");
}

static void test_a_first_makes_the_other_end_and_an_accept_introduces_it(void)
{
    struct harp_session_config config[2];
    struct harp_event event;
    virtual_configure_pair(config, SEGMENT, PATHS);
    CHECK(!virtual_session_knows_peer(NULL), "nobody knows somebody");
    struct harp_session *from = virtual_session_connect(&config[0], now_ns);
    CHECK(from && !virtual_session_knows_peer(from), "nobody has answered");
    struct harp_frame first = send_one(from, HARP_FIRST);
    struct harp_session *to = virtual_session_accept(&config[1], now_ns, &first.header, first.body);
    CHECK(to && virtual_session_knows_peer(to), "FIRST says who it is");
    struct harp_frame accept = send_one(to, HARP_ACCEPT);
    take_in(from, &accept);
    CHECK(virtual_session_knows_peer(from), "and so does ACCEPT");
    harp_session_poll(from, &event);
    CHECK(event.type == HARP_EVENT_CONNECTED, "event %u", event.type);
    CHECK(harp_session_peer(from)->connection == config[1].connection, "another peer");
    CHECK(harp_session_peer(to)->connection == config[0].connection, "another peer");
    free(from);
    free(to);
}

static void test_no_other_frame_makes_an_end(void)
{
    struct harp_session_config config[2];
    virtual_configure_pair(config, SEGMENT, PATHS);
    struct harp_session *from = virtual_session_connect(&config[0], now_ns);
    struct harp_frame first = send_one(from, HARP_FIRST);
    first.header.type = HARP_ACCEPT;
    CHECK(!virtual_session_accept(&config[1], now_ns, &first.header, first.body), "an ACCEPT");
    first.header.type = HARP_FIRST;
    first.header.length--;
    CHECK(!virtual_session_accept(&config[1], now_ns, &first.header, first.body), "a part of one");
    free(from);
}

int main(void)
{
    test_ends_differ_in_what_has_to();
    test_a_first_makes_the_other_end_and_an_accept_introduces_it();
    test_no_other_frame_makes_an_end();
    return 0;
}
