/* Late accepts: connections that wait at a listener while their other end closes. */
#include <string.h>

#include "engine_world.h"

static struct harp_listening *listening;
static struct harp_handle handle;
static struct harp_connection_config settings;

static struct harp_connection *connect_and_wait(void)
{
    struct harp_connection *connection;
    CHECK(harp_connect(world_engines[0], &handle, &settings, &connection, world_why) == 0, "%s",
          world_why);
    CHECK(world_next(connection).type == HARP_COMPLETION_CONNECTED, "not connected");
    world_run(10 * WORLD_STEP_NS);
    return connection;
}

/* The peer closes, and somebody accepts long after that: he learns of the end, and the connection
 * that came after it works. */
static void test_accept_after_the_peer_closed(void)
{
    struct harp_connection *early = connect_and_wait();
    char byte = 'x', got = 0;
    harp_connection_close(early);
    struct harp_connection *late = connect_and_wait();
    world_run(2 * WORLD_SECOND_NS);

    struct harp_connection *first = harp_accept(listening);
    CHECK(first, "the first connection is gone");
    CHECK(world_next(first).type == HARP_COMPLETION_CONNECTED, "not connected");
    CHECK(world_next(first).type == HARP_COMPLETION_CLOSED, "not closed");
    struct harp_connection *second = harp_accept(listening);
    CHECK(second, "the second connection is gone");
    CHECK(!harp_accept(listening), "there were two");
    CHECK(world_next(second).type == HARP_COMPLETION_CONNECTED, "not connected");
    CHECK(harp_receive(second, &got, 1, 0), "the second connection does not work");
    CHECK(harp_send(late, &byte, 1, 0), "nor does its other end");
    CHECK(world_next(second).type == HARP_COMPLETION_RECEIVED && got == byte, "not received");
    harp_connection_close(first);
    harp_connection_close(second);
    harp_connection_close(late);
}

/* The message of a peer that is done is received by who accepts it late. */
static void test_messages_of_a_peer_that_closed(void)
{
    struct harp_connection *early = connect_and_wait();
    struct harp_completion done;
    char byte = 'y', got = 0;
    CHECK(harp_send(early, &byte, 1, 0), "not sent");
    CHECK(world_next(early).type == HARP_COMPLETION_SENT, "nobody has the message");
    harp_connection_close(early);
    world_run(2 * WORLD_SECOND_NS);
    struct harp_connection *accepted = harp_accept(listening);
    CHECK(accepted, "the connection is gone");
    CHECK(world_next(accepted).type == HARP_COMPLETION_CONNECTED, "not connected");
    done = world_next(accepted);
    CHECK(done.type == HARP_COMPLETION_CLOSED && done.size == 1, "type %u, %u left", done.type,
          done.size);
    CHECK(harp_receive(accepted, &got, 1, 7), "not posted");
    done = world_next(accepted);
    CHECK(done.type == HARP_COMPLETION_RECEIVED && done.context == 7 && got == 'y', "not received");
    harp_connection_close(accepted);
}

/* More connect than may wait: the rest is refused, and leaves nothing behind. */
static void test_more_connect_than_may_wait(void)
{
    enum { MANY = HARP_MESSAGES + 10 };
    static struct harp_connection *made[MANY];
    uint32_t accepted = 0, refused = 0;
    for (uint32_t i = 0; i < MANY; i++)
        made[i] = connect_and_wait();
    world_run(2 * WORLD_SECOND_NS);
    for (struct harp_connection *one; (one = harp_accept(listening)); accepted++)
        harp_connection_close(one);
    world_run(2 * WORLD_SECOND_NS);
    for (uint32_t i = 0; i < MANY; i++) {
        struct harp_completion done = world_next(made[i]);
        CHECK(done.type == HARP_COMPLETION_CLOSED, "not closed");
        refused += done.reason == HARP_REASON_MEMORY;
        harp_connection_close(made[i]);
    }
    CHECK(accepted == HARP_MESSAGES && refused == MANY - HARP_MESSAGES, "%u accepted, %u refused",
          accepted, refused);
    CHECK(harp_engine_drain(world_engines[1], 0), "some have not ended");
}

int main(void)
{
    world_open(HARP_MESSAGES + 64);
    harp_connection_defaults(&settings);
    listening = world_listen(&settings, &handle);
    test_accept_after_the_peer_closed();
    test_messages_of_a_peer_that_closed();
    test_more_connect_than_may_wait();
    world_close();
    return 0;
}
