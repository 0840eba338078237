/* Messages that arrive: where each chunk belongs, and when a message is whole. */
#include "session/inbox.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

enum { MESSAGES = 16, WORDS = 2, SEGMENT = 128 };

static struct harp_inbox inbox;

static void open_inbox(uint32_t first)
{
    free(inbox.slots);
    harp_inbox_init(&inbox, malloc(harp_inbox_bytes(MESSAGES, WORDS)), MESSAGES, WORDS, first,
                    SEGMENT);
}

static struct harp_header make_chunk(uint32_t message, uint32_t chunk, uint32_t size)
{
    uint32_t left = size - chunk * SEGMENT;
    return (struct harp_header){.type = HARP_DATA,
                                .message = message,
                                .offset = chunk * SEGMENT,
                                .length = (uint16_t)(left < SEGMENT ? left : SEGMENT),
                                .size = size};
}

static enum harp_fit fit_chunk(uint32_t message, uint32_t chunk, uint32_t size)
{
    struct harp_header header = make_chunk(message, chunk, size);
    return harp_inbox_fit(&inbox, &header);
}

/* Put a chunk where it fits; true if its message is whole by that. */
static bool place_chunk(uint32_t message, uint32_t chunk, uint32_t size, enum harp_fit wanted)
{
    struct harp_header header = make_chunk(message, chunk, size);
    assert(harp_inbox_fit(&inbox, &header) == wanted);
    return harp_inbox_placed(&inbox, &header, wanted);
}

static int post_buffer(uint32_t capacity)
{
    bool too_long;
    int slot = harp_inbox_post(&inbox, NULL, capacity, inbox.posted, &too_long);
    assert(!too_long);
    return slot;
}

/* All chunks of a full inbox, in any order and some twice, against a table of what has come. */
static void test_messages_in_any_order_are_reported_in_theirs(uint32_t first)
{
    enum { CHUNKS = 30 };
    static bool come[MESSAGES][CHUNKS];
    uint32_t chunks[MESSAGES], left[MESSAGES], whole = 0, reported = 0;
    memset(come, 0, sizeof come);
    open_inbox(first);
    for (uint32_t m = 0; m < MESSAGES; m++) {
        chunks[m] = left[m] = 1 + draw_below(CHUNKS);
        assert(harp_inbox_has_room(&inbox) && post_buffer(CHUNKS * SEGMENT) == -1);
    }
    assert(!harp_inbox_has_room(&inbox) && !harp_inbox_pop(&inbox));
    while (reported < MESSAGES) {
        uint32_t m = draw_below(MESSAGES), chunk = draw_below(chunks[m]);
        uint32_t size = chunks[m] * SEGMENT - 5;
        if (come[m][chunk]) {
            assert(fit_chunk(first + m, chunk, size) == HARP_FIT_DUPLICATE);
        } else {
            come[m][chunk] = true;
            bool last = --left[m] == 0;
            assert(place_chunk(first + m, chunk, size, HARP_FIT_BUFFER) == last);
            whole += last;
        }
        for (const struct harp_incoming *popped; (popped = harp_inbox_pop(&inbox)); reported++) {
            assert(left[reported] == 0 && popped->context == (uint32_t)(first + reported));
            assert(popped->size == chunks[reported] * SEGMENT - 5);
        }
        assert(reported == MESSAGES || left[reported] > 0);
        assert(inbox.complete == first + whole);
    }
}

static void test_a_small_message_waits_for_its_buffer(void)
{
    bool too_long;
    open_inbox(UINT32_MAX - 2);
    uint32_t first = UINT32_MAX - 2;
    assert(place_chunk(first + 1, 0, 100, HARP_FIT_EAGER));
    assert(fit_chunk(first + 1, 0, 100) == HARP_FIT_DUPLICATE);
    assert(fit_chunk(first + 1, 0, 101) == HARP_FIT_BROKEN);
    assert(place_chunk(first + HARP_EAGER - 1, 0, SEGMENT, HARP_FIT_EAGER));
    assert(fit_chunk(first + HARP_EAGER, 0, 100) == HARP_FIT_BROKEN);
    assert(fit_chunk(first, 0, SEGMENT + 1) == HARP_FIT_BROKEN);
    assert(post_buffer(1) == -1);
    assert(harp_inbox_post(&inbox, NULL, 99, 0, &too_long) == -1 && too_long);
    assert(post_buffer(100) == (int)((first + 1) % HARP_EAGER));
    assert(!harp_inbox_pop(&inbox)); /* the one before it has not come */
    assert(place_chunk(first, 0, 1, HARP_FIT_BUFFER));
    assert(harp_inbox_pop(&inbox)->size == 1 && harp_inbox_pop(&inbox)->size == 100);
    assert(!harp_inbox_pop(&inbox) && fit_chunk(first, 0, 1) == HARP_FIT_DUPLICATE);
}

static void test_what_no_sender_may_send_is_refused(void)
{
    open_inbox(7);
    post_buffer(1000);
    post_buffer(HARP_MESSAGE_MAX);
    struct harp_header odd = make_chunk(7, 1, 1000);
    odd.length--;
    assert(harp_inbox_fit(&inbox, &odd) == HARP_FIT_BROKEN);
    odd.length++, odd.offset++;
    assert(harp_inbox_fit(&inbox, &odd) == HARP_FIT_BROKEN);
    assert(fit_chunk(7, 0, 1001) == HARP_FIT_TOO_LONG);
    assert(!place_chunk(7, 3, 1000, HARP_FIT_BUFFER));
    assert(fit_chunk(7, 0, 999) == HARP_FIT_BROKEN); /* of another size than before */
    assert(fit_chunk(8, 64 * WORDS - 1, HARP_MESSAGE_MAX) == HARP_FIT_BUFFER);
    assert(fit_chunk(8, 64 * WORDS, HARP_MESSAGE_MAX) == HARP_FIT_BEYOND);
    assert(fit_chunk(8, HARP_CHUNK_WINDOW, HARP_MESSAGE_MAX) == HARP_FIT_BROKEN);
}

/* As many chunks as frames are lent, and as many more as come back. */
static void test_streamed_chunks_come_as_long_as_frames_are_lent(void)
{
    open_inbox(3);
    harp_inbox_stream(&inbox, 3);
    assert(place_chunk(4, 0, 100, HARP_FIT_STREAM)); /* nothing is posted */
    assert(!place_chunk(3, 1, 300, HARP_FIT_STREAM));
    assert(!place_chunk(3, 0, 300, HARP_FIT_STREAM));
    assert(fit_chunk(3, 2, 300) == HARP_FIT_BROKEN);
    assert(fit_chunk(3, 1, 300) == HARP_FIT_DUPLICATE);
    harp_inbox_returned(&inbox, 1);
    assert(place_chunk(3, 2, 300, HARP_FIT_STREAM));
    assert(harp_inbox_pop(&inbox)->size == 300 && harp_inbox_pop(&inbox)->size == 100);
    harp_inbox_returned(&inbox, 3);
    assert(fit_chunk(5 + MESSAGES - 1, 0, 100) == HARP_FIT_STREAM);
    assert(fit_chunk(5 + MESSAGES, 0, 100) == HARP_FIT_BROKEN);
}

int main(void)
{
    test_messages_in_any_order_are_reported_in_theirs(0);
    test_messages_in_any_order_are_reported_in_theirs(UINT32_MAX - MESSAGES / 2);
    test_a_small_message_waits_for_its_buffer();
    test_what_no_sender_may_send_is_refused();
    test_streamed_chunks_come_as_long_as_frames_are_lent();
    free(inbox.slots);
    return 0;
}
