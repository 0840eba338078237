/* Calls of an application at a connection: what is refused, and until when. */
#include <string.h>

#include "engine_world.h"

enum { SHORT_BYTES = 32 };

static struct harp_listening *listening;
static struct harp_handle handle;
static struct harp_connection_config settings;
static struct harp_connection *from, *to;

static void connect_both(void)
{
    world_connect(listening, &handle, &settings, &from, &to);
}

static void close_both(void)
{
    harp_connection_close(from);
    harp_connection_close(to);
    world_run(10 * WORLD_STEP_NS);
}

static void test_nothing_is_taken_before_it_is_connected(void)
{
    char byte = 'x';
    CHECK(harp_connect(world_engines[0], &handle, &settings, &from, world_why) == 0, "%s",
          world_why);
    CHECK(!harp_send(from, &byte, 1, 0) && !harp_receive(from, &byte, 1, 0), "it is not there yet");
    CHECK(!harp_send_short(from, &byte, 1) && harp_segment(from) == 0, "it is not there yet");
    CHECK(world_next(from).type == HARP_COMPLETION_CONNECTED, "not connected");
    CHECK(harp_send(from, &byte, 1, 0) && harp_segment(from) > 0, "it is there");
    CHECK((to = harp_accept(listening)), "not accepted");
    close_both();
}

/* All that may be under way, each with its own context, and as many more once they are over. */
static void test_as_many_messages_as_may_be_under_way(void)
{
    static uint32_t out[HARP_MESSAGES], in[HARP_MESSAGES];
    connect_both();
    CHECK(!harp_send(from, out, HARP_MESSAGE_MAX + 1, 0), "longer than any message");
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < HARP_MESSAGES; i++) {
            out[i] = i + 1;
            CHECK(harp_send(from, &out[i], sizeof *out, i), "send %u", i);
            CHECK(harp_receive(to, &in[i], sizeof *in, 1000 + i), "receive %u", i);
        }
        CHECK(!harp_send(from, out, 1, 0) && !harp_receive(to, in, 1, 0), "one more");
        for (uint32_t i = 0; i < HARP_MESSAGES; i++) {
            struct harp_completion got = world_next(to);
            CHECK(got.type == HARP_COMPLETION_RECEIVED && got.context == 1000 + i, "message %u", i);
            CHECK(got.size == sizeof *in && in[i] == i + 1, "message %u is %u", i, in[i]);
        }
        for (uint32_t i = 0; i < HARP_MESSAGES; i++) {
            struct harp_completion sent = world_next(from);
            CHECK(sent.type == HARP_COMPLETION_SENT && sent.context == i, "message %u", i);
        }
        memset(in, 0, sizeof in);
    }
    close_both();
}

/* Copied at once: what the caller writes there afterwards is not sent. */
static void test_short_messages_are_copies(void)
{
    uint32_t taken = 0, value = 1, got = 0;
    connect_both();
    for (; harp_send_short(from, &value, sizeof value); value++)
        taken++;
    CHECK(taken == HARP_SHORTS, "%u are under way", taken);
    value = 0;
    for (uint32_t i = 1; i <= taken; i++) {
        CHECK(harp_receive(to, &got, sizeof got, i), "post");
        CHECK(world_next(to).context == i && got == i, "%u came as number %u", got, i);
    }
    world_run(10 * WORLD_STEP_NS);
    CHECK(harp_send_short(from, &value, sizeof value), "they are over");
    close_both();
}

static void test_after_the_end_nothing_is_taken_and_the_reason_is_said(void)
{
    char byte = 'x', why[HARP_WHY_BYTES] = "";
    struct harp_completion done;
    connect_both();
    harp_connection_close(to);
    CHECK(world_next(from).type == HARP_COMPLETION_CLOSED, "not closed");
    CHECK(!harp_send(from, &byte, 1, 0) && !harp_receive(from, &byte, 1, 0), "it is over");
    CHECK(harp_poll(from, &done, 1) == 0, "and that was the last one");
    harp_connection_why(from, why);
    CHECK(strlen(why) > 10, "\"%s\" is no reason", why);
    harp_connection_close(from);
}

int main(void)
{
    world_open(8);
    harp_connection_defaults(&settings);
    settings.short_bytes = SHORT_BYTES;
    listening = world_listen(&settings, &handle);
    test_nothing_is_taken_before_it_is_connected();
    test_as_many_messages_as_may_be_under_way();
    test_short_messages_are_copies();
    test_after_the_end_nothing_is_taken_and_the_reason_is_said();
    world_close();
    return 0;
}
