/* Both ends of a comm in one thread: the sending end is ahead of the receiving one, or has closed.
 */
#define _GNU_SOURCE
#include "both_ends.h"
#include "engine/engine.h"

/* Short messages and a long one go before any buffer is posted. */
static void sends_ahead_find_their_buffers(void)
{
    void *sends[AHEAD], *receives[AHEAD];
    connect_ends();
    for (int i = 0; i < AHEAD; i++) {
        size_t size = i < AHEAD - 1 ? SMALL + (size_t)i : LARGE;
        sends[i] = send_now(out + i * SMALL, size, 5);
        CHECK(sends[i], "a send without a buffer has to wait");
    }
    for (int i = 0; i < AHEAD; i++)
        receives[i] = begin_receive(in + SMALL + i * LARGE, LARGE, 5);
    for (int i = 0; i < AHEAD; i++) {
        int size = wait_for(receives[i]);
        CHECK(size == (i < AHEAD - 1 ? SMALL + i : LARGE), "receive %d has %d bytes", i, size);
        CHECK(memcmp(in + SMALL + i * LARGE, out + i * SMALL, (size_t)size) == 0,
              "receive %d has other bytes", i);
        wait_for(sends[i]);
    }
    close_ends(true, true);
}

/* Small messages are sent, and done, and the sending end closes, before a buffer is posted. */
static void closed_before_received(void)
{
    enum { MESSAGES = 5 };
    enum nccl_result result = NCCL_SUCCESS;
    int is_done = 0;
    connect_ends();
    for (int i = 0; i < MESSAGES; i++)
        wait_for(send_now(out + i * SMALL, SMALL, 5));
    close_ends(true, false);
    struct timespec nap = {.tv_nsec = 20000000};
    nanosleep(&nap, NULL); /* most of the time its end is known by then; right it is either way */
    for (int i = 0; i < MESSAGES; i++) {
        CHECK(wait_for(begin_receive(in + i * SMALL, SMALL, 5)) == SMALL, "message %d is short", i);
        CHECK(memcmp(in + i * SMALL, out + i * SMALL, SMALL) == 0, "message %d is another", i);
    }
    void *data = in, *request = NULL;
    size_t size = SMALL;
    int tag = 5;
    while (result == NCCL_SUCCESS && !is_done) {
        expect_soon("the end");
        if (!request)
            result = net->irecv(receiving, 1, &data, &size, &tag, &in_memory, NULL, &request);
        else
            result = net->test(request, &is_done, NULL);
    }
    CHECK(result == NCCL_REMOTE_ERROR, "a receive after the end gave %d", result);
    close_ends(false, true);
}

/* A message that came before the end and does not fit its buffer is an error, not a hang. */
static void closed_and_too_short(void)
{
    enum nccl_result result = NCCL_SUCCESS;
    int is_done = 0;
    connect_ends();
    wait_for(send_now(out, SMALL, 5));
    close_ends(true, false);
    struct timespec nap = {.tv_nsec = 20000000};
    nanosleep(&nap, NULL);
    void *request = begin_receive(in, SMALL - 1, 5);
    while (result == NCCL_SUCCESS && !is_done) {
        expect_soon("an error");
        result = net->test(request, &is_done, NULL);
    }
    CHECK(result == NCCL_INVALID_USAGE, "too short a receive gave %d", result);
    close_ends(false, true);
}

/* As many long sends as there can be, all ahead of their buffers. */
static void all_requests_are_ahead(void)
{
    enum { LONG = HARP_SHORT_BYTES + 1 };
    void *sends[NCCL_REQUESTS];
    connect_ends();
    for (int i = 0; i < NCCL_REQUESTS; i++)
        CHECK((sends[i] = send_now(out + i, LONG + (size_t)i, 5)), "send %d was not taken", i);
    CHECK(!send_now(out, LONG, 5), "a send more than there may be was taken");
    for (int i = 0; i < NCCL_REQUESTS; i++) {
        void *receive = begin_receive(in, OUT_BYTES, 5);
        wait_for_both(sends[i], receive);
        CHECK(memcmp(in, out + i, LONG + (size_t)i) == 0, "message %d has other bytes", i);
    }
    close_ends(true, true);
}

/* The other end's close is an error of the send's test, not of isend. */
static void send_to_who_has_closed_fails_in_test(void)
{
    enum nccl_result result = NCCL_SUCCESS;
    int is_done = 0;
    connect_ends();
    begin_receive(in, LARGE, 5);
    close_ends(false, true);
    for (void *send = NULL; result == NCCL_SUCCESS && !is_done; expect_soon("an error")) {
        if (!send)
            GOOD(net->isend(sending, out, LARGE, 5, out_memory, NULL, &send));
        else
            result = net->test(send, &is_done, NULL);
    }
    CHECK(result == NCCL_REMOTE_ERROR, "the test of a send to nobody gave %d", result);
    void *again = NULL;
    GOOD(net->isend(sending, out, SMALL, 7, out_memory, NULL, &again));
    CHECK(again, "isend gave no request after the end");
    CHECK(net->test(again, &is_done, NULL) == NCCL_REMOTE_ERROR && !is_done, "a second error");
    close_ends(true, false);
}

int main(void)
{
    begin_both_ends();
    for (int round = 0; round < 5; round++) {
        sends_ahead_find_their_buffers();
        all_requests_are_ahead();
        send_to_who_has_closed_fails_in_test();
        closed_before_received();
        closed_and_too_short();
    }
    end_both_ends();
    return 0;
}
