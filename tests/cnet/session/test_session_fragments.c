/* Fragments of a chunk that no sender makes: each ends the connection, once. */
#include <assert.h>

#include "session_pair.h"

#define SIZE (20 * PAIR_SEGMENT + 1000)

static uint8_t arrived[SIZE];

/* A fragment of the first message, as who holds the keys may write it. */
static enum harp_verdict put_fragment(struct pair *pair, uint32_t packet, uint32_t offset,
                                      uint16_t length, uint32_t size)
{
    struct harp_header header = {.version = HARP_VERSION,
                                 .type = HARP_DATA,
                                 .flags = 2,
                                 .connection = pair->config[1].connection,
                                 .epoch = pair->config[1].epoch,
                                 .packet = pair->config[0].first + 10 + packet,
                                 .message = pair->config[0].first,
                                 .offset = offset,
                                 .length = length,
                                 .size = size};
    return pair_inject(pair, 1, &header);
}

static struct pair *begin_receive(uint32_t stream_frames)
{
    int eager;
    struct pair *pair = pair_make(1);
    pair->config[1].stream_frames = stream_frames;
    pair_connect(pair);
    assert(stream_frames || harp_session_post(pair->end[1], arrived, SIZE, 0, &eager));
    assert(put_fragment(pair, 0, 0, 768, SIZE) == HARP_PLACE);
    assert(put_fragment(pair, 0, 0, 768, SIZE) == HARP_DROP); /* it came twice */
    pair_pass(pair, MS);
    assert(!pair->closed[1].type);
    return pair;
}

static void expect_a_protocol_error(struct pair *pair)
{
    pair_pass(pair, 100 * MS);
    assert(pair->closed[1].reason == HARP_REASON_PROTOCOL && !pair->closed[1].by_peer);
    pair_free(pair);
}

static void test_fragments_that_no_sender_makes(void)
{
    struct pair *pair = begin_receive(0);
    assert(put_fragment(pair, 0, 768, 640, SIZE - 1) == HARP_DROP); /* another message size */
    expect_a_protocol_error(pair);
    pair = begin_receive(0);
    assert(put_fragment(pair, 1, PAIR_SEGMENT + 128, 768, SIZE) == HARP_DROP); /* begins nowhere */
    expect_a_protocol_error(pair);
    pair = begin_receive(0);
    assert(put_fragment(pair, 1, PAIR_SEGMENT, 640, SIZE) == HARP_DROP); /* too short */
    expect_a_protocol_error(pair);
    pair = begin_receive(1);
    assert(put_fragment(pair, 1, PAIR_SEGMENT, 768, SIZE) == HARP_DROP); /* there is one frame */
    expect_a_protocol_error(pair);
}

int main(void)
{
    test_fragments_that_no_sender_makes();
    return 0;
}
