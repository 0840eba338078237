/* The measuring loop, in virtual time: both ends of a run, a turn of each in alternation. */
#include <string.h>

#include "engine/perf.h"
#include "engine_world.h"

enum { WINDOW = 4, MESSAGES = 50, FRAMES = 32, MOST_BYTES = 20000 };

static struct harp_connection_config settings;
static struct harp_connection *ends[2];
static uint8_t memory[2][2 * WINDOW * MOST_BYTES];
static uint64_t samples_ns[MESSAGES];
static uint32_t frames[2][FRAMES];

static struct harp_listening *listening;
static struct harp_handle handle;

static void listen_for(bool streamed, bool drafts)
{
    harp_connection_defaults(&settings);
    settings.stream_frames = streamed ? FRAMES : 0;
    settings.draft_frames = drafts ? FRAMES : 0;
    listening = world_listen(&settings, &handle);
}

static void connect_ends(void)
{
    world_connect(listening, &handle, &settings, &ends[0], &ends[1]);
}

/* Until both engines have forgotten it, and have its frames again. */
static void close_ends(void)
{
    for (int i = 0; i < 2; i++)
        harp_connection_close(ends[i]);
    for (int turn = 0; turn < 600; turn++)
        world_turn(WORLD_SECOND_NS / 10);
}

static struct harp_perf request_run(int end, enum harp_perf_role role, uint32_t size)
{
    return (struct harp_perf){.role = role,
                              .size = size,
                              .window = WINDOW,
                              .streamed = settings.stream_frames > 0,
                              .drafts = settings.draft_frames > 0,
                              .messages = MESSAGES,
                              .memory = memory[end],
                              .samples_ns = samples_ns,
                              .frames = frames[end],
                              .frames_room = FRAMES};
}

/* Until both ends are through, each in a state that is not MORE. */
static void run_both(struct harp_perf perf[2], uint32_t state[2])
{
    uint64_t end_ns = world_ns + 10 * WORLD_SECOND_NS;
    state[0] = state[1] = HARP_PERF_MORE;
    while (state[0] == HARP_PERF_MORE || state[1] == HARP_PERF_MORE) {
        for (int i = 0; i < 2; i++)
            state[i] = harp_perf_run(ends[i], world_engines[i], &perf[i], 0);
        world_turn(WORLD_STEP_NS); /* an end that is through still answers */
        CHECK(world_ns < end_ns, "no end in ten seconds");
        if (state[0] > HARP_PERF_DONE || state[1] > HARP_PERF_DONE)
            break;
    }
}

static void test_a_run_moves_all_messages(enum harp_perf_role role, uint32_t size)
{
    bool echoed = role == HARP_PERF_PING;
    uint32_t state[2];
    connect_ends();
    struct harp_perf perf[2] = {request_run(0, role, size),
                                request_run(1, echoed ? HARP_PERF_PONG : HARP_PERF_RECEIVE, size)};
    memset(samples_ns, 0, sizeof samples_ns);
    run_both(perf, state);
    CHECK(state[0] == HARP_PERF_DONE && state[1] == HARP_PERF_DONE, "%u, %u", state[0], state[1]);
    CHECK(perf[0].sent_done == MESSAGES && perf[1].received == MESSAGES, "size %u", size);
    uint64_t back = echoed ? MESSAGES : 0;
    CHECK(perf[0].received == back && perf[1].sent_done == back, "size %u", size);
    for (int i = 0; i < MESSAGES; i++)
        CHECK((samples_ns[i] > 0) == echoed, "sample %d is %llu", i,
              (unsigned long long)samples_ns[i]);
    CHECK(perf[0].end_ns >= perf[0].begin_ns && perf[0].begin_ns > 0, "its time");
    close_ends();
}

/* A size that the ends have not agreed on, and a number that is another message's. */
static void test_another_message_ends_the_run(void)
{
    uint32_t state[2];
    connect_ends();
    struct harp_perf perf[2] = {request_run(0, HARP_PERF_SEND, 100),
                                request_run(1, HARP_PERF_RECEIVE, 200)};
    run_both(perf, state);
    CHECK(state[1] == HARP_PERF_BAD, "state %u", state[1]);
    close_ends();
    connect_ends();
    perf[0] = request_run(0, HARP_PERF_SEND, 100), perf[1] = request_run(1, HARP_PERF_RECEIVE, 100);
    perf[0].sent = perf[0].sent_done = 1; /* begins with the second one */
    run_both(perf, state);
    CHECK(state[1] == HARP_PERF_BAD, "state %u", state[1]);
    close_ends();
}

static void test_a_peer_that_closes_ends_the_run(void)
{
    connect_ends();
    struct harp_perf perf = request_run(0, HARP_PERF_SEND, 100);
    uint32_t state = HARP_PERF_MORE;
    harp_connection_close(ends[1]);
    for (int turn = 0; turn < 1000 && state == HARP_PERF_MORE; turn++) {
        state = harp_perf_run(ends[0], world_engines[0], &perf, 0);
        world_turn(WORLD_STEP_NS);
    }
    CHECK(state == HARP_PERF_CLOSED, "state %u", state);
    harp_connection_close(ends[0]);
}

int main(void)
{
    const uint32_t sizes[] = {0, 1, 8, 4000, MOST_BYTES};
    world_open(2);
    for (int kind = 2; kind >= 0; kind--) {
        listen_for(kind == 1, kind == 2);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            test_a_run_moves_all_messages(HARP_PERF_SEND, sizes[i]);
            test_a_run_moves_all_messages(HARP_PERF_PING, sizes[i]);
        }
    }
    test_another_message_ends_the_run();
    test_a_peer_that_closes_ends_the_run();
    world_close();
    return 0;
}
