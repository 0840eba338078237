/* The measuring loop over a socket: both ends in one thread, a call of each in alternation. */
#define _GNU_SOURCE
#include "engine/perf_tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

enum { WINDOW = 3, MESSAGES = 40, MOST_BYTES = 300000 };

static int sockets[2];
static uint8_t memory[2][WINDOW * MOST_BYTES];
static uint64_t samples_ns[MESSAGES];

/* Calls that find nothing to do return at once here, as after a timeout of a blocking socket. */
static void open_sockets(void)
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0, "pair");
}

static struct harp_perf_tcp request_run(int end, enum harp_perf_role role, uint32_t size)
{
    return (struct harp_perf_tcp){.role = role,
                                  .size = size,
                                  .window = WINDOW,
                                  .messages = MESSAGES,
                                  .memory = memory[end],
                                  .samples_ns = samples_ns};
}

static void run_both(struct harp_perf_tcp perf[2], uint32_t state[2])
{
    state[0] = state[1] = HARP_PERF_MORE;
    for (int turn = 0; turn < 1000000; turn++) {
        for (int i = 0; i < 2; i++)
            if (state[i] == HARP_PERF_MORE)
                state[i] = harp_perf_tcp_run(sockets[i], &perf[i], 0);
        if ((state[0] != HARP_PERF_MORE && state[1] != HARP_PERF_MORE) ||
            state[0] > HARP_PERF_DONE || state[1] > HARP_PERF_DONE)
            return;
    }
    CHECK(false, "no end: %u, %u", state[0], state[1]);
}

static void test_a_run_moves_all_messages(enum harp_perf_role role, uint32_t size)
{
    bool echoed = role == HARP_PERF_PING;
    uint32_t state[2];
    open_sockets();
    struct harp_perf_tcp perf[2] = {
        request_run(0, role, size),
        request_run(1, echoed ? HARP_PERF_PONG : HARP_PERF_RECEIVE, size)};
    memset(samples_ns, 0, sizeof samples_ns);
    run_both(perf, state);
    CHECK(state[0] == HARP_PERF_DONE && state[1] == HARP_PERF_DONE, "%u, %u", state[0], state[1]);
    CHECK(perf[0].done == MESSAGES && perf[1].done == MESSAGES, "size %u", size);
    for (int i = 0; i < MESSAGES; i++)
        CHECK((samples_ns[i] > 0) == echoed, "sample %d", i);
    close(sockets[0]);
    close(sockets[1]);
}

/* Bytes that the kernel has taken are no bytes that have arrived. */
static void test_a_sender_is_through_when_the_receiver_says_so(void)
{
    struct harp_perf_tcp send, receive;
    open_sockets();
    send = request_run(0, HARP_PERF_SEND, 8), receive = request_run(1, HARP_PERF_RECEIVE, 8);
    for (int turn = 0; turn < 1000; turn++)
        CHECK(harp_perf_tcp_run(sockets[0], &send, 0) == HARP_PERF_MORE, "nobody has them");
    CHECK(send.done == MESSAGES, "all have left");
    while (harp_perf_tcp_run(sockets[1], &receive, 0) == HARP_PERF_MORE)
        ;
    CHECK(harp_perf_tcp_run(sockets[0], &send, 0) == HARP_PERF_DONE, "now they are there");
    close(sockets[0]);
    close(sockets[1]);
}

static void test_another_number_ends_the_run(void)
{
    uint32_t state[2];
    open_sockets();
    struct harp_perf_tcp perf[2] = {request_run(0, HARP_PERF_SEND, 100),
                                    request_run(1, HARP_PERF_RECEIVE, 100)};
    perf[0].done = 1; /* begins with the second one */
    run_both(perf, state);
    CHECK(state[1] == HARP_PERF_BAD, "state %u", state[1]);
    close(sockets[0]);
    close(sockets[1]);
}

static void test_a_peer_that_goes_ends_the_run(void)
{
    struct harp_perf_tcp perf;
    open_sockets();
    close(sockets[1]);
    perf = request_run(0, HARP_PERF_RECEIVE, 100);
    CHECK(harp_perf_tcp_run(sockets[0], &perf, 0) == HARP_PERF_CLOSED && !perf.error, "an end");
    perf = request_run(0, HARP_PERF_SEND, 100);
    CHECK(harp_perf_tcp_run(sockets[0], &perf, 0) == HARP_PERF_CLOSED, "no end");
    CHECK(perf.error == EPIPE, "errno %d", perf.error);
    close(sockets[0]);
}

int main(void)
{
    const uint32_t sizes[] = {1, 7, 8, 1000, MOST_BYTES};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        test_a_run_moves_all_messages(HARP_PERF_SEND, sizes[i]);
        test_a_run_moves_all_messages(HARP_PERF_PING, sizes[i]);
    }
    test_a_sender_is_through_when_the_receiver_says_so();
    test_another_number_ends_the_run();
    test_a_peer_that_goes_ends_the_run();
    return 0;
}
