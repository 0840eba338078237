/* Both ends of a comm in one thread: which send goes into which buffer when the sending end is
 * ahead of the receiving one.
 */
#define _GNU_SOURCE
#include "both_ends.h"

/* Tag 5 is sent on and on; then the first buffer to be posted has tag 7. */
static void test_other_tag_waits(void)
{
    void *sends[AHEAD], *seven, *receives[AHEAD], *send = NULL;
    bool came = false;
    connect_ends();
    for (int i = 0; i < AHEAD; i++) {
        size_t size = i < AHEAD - 1 ? SMALL + (size_t)i : LARGE;
        sends[i] = send_now(out + i * SMALL, size, 5);
        CHECK(sends[i], "a send of the run has to wait");
    }
    seven = begin_receive(in, SMALL, 7);
    for (int i = 0; i < AHEAD; i++)
        receives[i] = begin_receive(in + SMALL + i * LARGE, LARGE, 5);
    while (!send) {
        expect_soon("the send of tag 7");
        send = send_now(out + 777, SMALL, 7);
        came = came || is_done(seven, NULL);
    }
    while (!came)
        came = is_done(seven, NULL);
    CHECK(memcmp(in, out + 777, SMALL) == 0, "tag 7 got other bytes");
    wait_for(send);
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

/* A group takes what was sent as single messages and is all that will come. */
static void closed_before_group(void)
{
    void *data[2] = {in, in + SMALL}, *memories[2], *request = NULL;
    size_t room[2] = {SMALL, SMALL};
    int tags[2] = {5, 5};
    connect_ends();
    memories[0] = memories[1] = in_memory;
    for (int i = 0; i < 2; i++)
        wait_for(send_now(out + i * SMALL, SMALL, 5));
    close_ends(true, false);
    GOOD(net->irecv(receiving, 2, data, room, tags, memories, NULL, &request));
    CHECK(request, "irecv of a group gave no request");
    CHECK(wait_for(request) == SMALL && memcmp(in, out, 2 * SMALL) == 0, "a group is another");
    close_ends(false, true);
}

/* The run has one tag, so a group that has no other belongs to it: it takes what was sent and done
 * before, though nobody calls isend any more. */
static void group_of_the_run_needs_no_isend(void)
{
    connect_ends();
    for (int i = 0; i < 3; i++)
        wait_for(send_now(out + i * SMALL, SMALL, 5));
    wait_for(receive_group(2, in, SMALL, (int[]){5, 5}));
    wait_for(begin_receive(in + 2 * SMALL, SMALL, 5));
    CHECK(memcmp(in, out, 3 * SMALL) == 0, "the groups have other bytes");
    close_ends(true, true);
}

/* Send the message that a receive with another tag waits for. */
static void finish_with_seven(void *seven)
{
    void *send = NULL;
    bool came = false;
    while (!(send = send_now(out + 777, SMALL, 7)))
        came = came || is_done(seven, NULL);
    while (!came)
        came = is_done(seven, NULL);
    wait_for(send);
    close_ends(true, true);
}

/* The end of the run is answered by whatever the sending end calls: here only test. */
static void run_ends_while_the_sender_only_tests(void)
{
    connect_ends();
    void *sends[2] = {send_now(out, SMALL, 5), send_now(out + SMALL, LARGE, 5)};
    void *seven = begin_receive(in, SMALL, 7);
    void *first = begin_receive(in + SMALL, SMALL, 5),
         *second = begin_receive(in + 2 * SMALL, LARGE, 5);
    bool came[4] = {false};
    while (!came[0] || !came[1] || !came[2] || !came[3]) {
        came[0] = came[0] || is_done(first, NULL);
        came[1] = came[1] || is_done(second, NULL);
        came[2] = came[2] || is_done(sends[0], NULL);
        came[3] = came[3] || is_done(sends[1], NULL);
    }
    CHECK(memcmp(in + SMALL, out, SMALL + LARGE) == 0, "the run's end has other bytes");
    finish_with_seven(seven);
}

/* What went before the run ended finds its buffers though nobody calls the sending end any more. */
static void buffers_of_the_run_need_no_sender(void)
{
    connect_ends();
    for (int i = 0; i < 2; i++)
        wait_for(send_now(out + i * SMALL, SMALL, 5));
    void *seven = begin_receive(in + 2 * SMALL, SMALL, 7);
    wait_for(receive_group(2, in, SMALL, (int[]){5, 5}));
    CHECK(memcmp(in, out, 2 * SMALL) == 0, "the run's messages are others");
    finish_with_seven(seven);
}

/* As many sends as there can be, all ahead of their buffers when the run ends. */
static void all_requests_are_ahead(void)
{
    enum { MOST = NCCL_REQUESTS * NCCL_RECEIVES_MAX };
    void *sends[MOST], *receives[NCCL_REQUESTS] = {NULL};
    int sent = 0, posted = 0, taken = 0;
    connect_ends();
    while (sent < MOST && (sends[sent] = send_now(out + sent, (size_t)sent + 1, 5)))
        sent++;
    CHECK(sent == MOST, "%d sends of %d were taken", sent, MOST);
    CHECK(!send_now(out, SMALL, 5), "a send more than there may be was taken");
    void *seven = begin_receive(in, SMALL, 7), *send = NULL;
    bool came = false;
    for (int tested = 0; taken < MOST || !came;) {
        for (; posted < MOST && posted - taken < NCCL_REQUESTS - 1; posted++)
            receives[posted % NCCL_REQUESTS] = begin_receive(in + SMALL + 1000 * posted, 1000, 5);
        int size[NCCL_RECEIVES_MAX];
        if (taken < posted && is_done(receives[taken % NCCL_REQUESTS], size)) {
            CHECK(size[0] == taken + 1, "message %d has %d bytes", taken, size[0]);
            CHECK(memcmp(in + SMALL + 1000 * taken, out + taken, (size_t)size[0]) == 0,
                  "message %d has other bytes", taken);
            taken++;
        }
        if (tested < MOST)
            tested += is_done(sends[tested], NULL);
        else if (!send)
            send = send_now(out, SMALL, 7);
        came = came || is_done(seven, NULL);
    }
    wait_for(send);
    close_ends(true, true);
}

/* What may come early is bounded: beyond it sends wait for their buffers, which may be large. */
static void more_than_may_be_early_waits_for_its_buffer(void)
{
    void *send, *after = NULL;
    connect_ends();
    CHECK(!send_now(out, 2 * LARGE, 5), "6 MB were taken, for which no buffer is known");
    void *request = begin_receive(in, 2 * LARGE, 5);
    while (!(send = send_now(out, 2 * LARGE, 5)))
        is_done(request, NULL);
    while (!after)
        after = send_now(out + LARGE, LARGE, 5);
    CHECK(!send_now(out, LARGE, 5), "two sends of 3 MB were taken, for which no buffer is known");
    wait_for_both(send, request);
    CHECK(memcmp(in, out, 2 * LARGE) == 0, "6 MB are others");
    wait_for_both(after, begin_receive(in, LARGE, 5));
    CHECK(memcmp(in, out + LARGE, LARGE) == 0, "3 MB are others");
    close_ends(true, true);
}

/* A send whose tag only a later group has is taken, and stays behind the first group's. */
static void send_for_a_later_group_is_taken(void)
{
    connect_ends();
    void *groups[2] = {receive_group(2, in, SMALL, (int[]){5, 7}),
                       receive_group(2, in + 2 * SMALL, SMALL, (int[]){9, 5})};
    void *sends[4] = {NULL};
    const int tags[4] = {5, 9, 5, 7};
    for (int i = 0; i < 4; i++)
        while (!(sends[i] = send_now(out + i * SMALL, SMALL, tags[i])))
            is_done(groups[0], NULL);
    CHECK(!send_now(out, SMALL, 9), "a second send of tag 9 was taken; there is one buffer");
    wait_for(groups[0]);
    wait_for(groups[1]);
    const int sent[4] = {0, 3, 1, 2};
    for (int i = 0; i < 4; i++) {
        CHECK(memcmp(in + i * SMALL, out + sent[i] * SMALL, SMALL) == 0, "buffer %d is another's",
              i);
        wait_for(sends[i]);
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

/* Tags that the run lacks find no sender any more; what came before its end is there. */
static void closed_before_the_run_ended(void)
{
    enum nccl_result result = NCCL_SUCCESS;
    int is_done = 0;
    connect_ends();
    wait_for(send_now(out, SMALL, 5));
    close_ends(true, false);
    void *seven = begin_receive(in, SMALL, 7), *five = begin_receive(in + SMALL, SMALL, 5);
    CHECK(wait_for(five) == SMALL && memcmp(in + SMALL, out, SMALL) == 0, "another message");
    while (result == NCCL_SUCCESS && !is_done) {
        expect_soon("an error");
        result = net->test(seven, &is_done, NULL);
    }
    CHECK(result == NCCL_REMOTE_ERROR, "a receive that nobody sends for gave %d", result);
    close_ends(false, true);
}

int main(void)
{
    begin_both_ends();
    for (int round = 0; round < 5; round++) {
        test_other_tag_waits();
        group_of_the_run_needs_no_isend();
        run_ends_while_the_sender_only_tests();
        buffers_of_the_run_need_no_sender();
        all_requests_are_ahead();
        more_than_may_be_early_waits_for_its_buffer();
        send_for_a_later_group_is_taken();
        send_to_who_has_closed_fails_in_test();
        closed_before_received();
        closed_and_too_short();
        closed_before_group();
        closed_before_the_run_ended();
    }
    end_both_ends();
    return 0;
}
