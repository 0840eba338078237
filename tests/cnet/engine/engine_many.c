/* Many connections on one engine, in virtual time.
 *
 *     engine_many turns IDLE   what turns look at while one connection of IDLE + 1 is busy
 *     engine_many share        four senders to one engine get even shares
 *     engine_many quiet IDLE   idle connections to one process ask it together for signs of life
 *     engine_many udp IDLE     IDLE connections over UDP on the loopback are made and live
 */
#include <string.h>

#include "engine/engine_state.h"
#include "engine_world.h"

enum { SENDERS = 4, AHEAD = 32, MESSAGE_BYTES = 1 << 18 };

static struct harp_listening *listening;
static struct harp_handle handle;
static struct harp_connection_config settings;

static void connect_one(struct harp_connection **from, struct harp_connection **to)
{
    world_connect(listening, &handle, &settings, from, to);
}

static void open_world(uint32_t connections)
{
    world_open(connections);
    harp_connection_defaults(&settings);
    listening = world_listen(&settings, &handle);
}

static uint64_t count_visits(void)
{
    return world_engines[0]->stats.stats->engine.visits +
           world_engines[1]->stats.stats->engine.visits;
}

/* The cost of an answer does not depend on silent connections beside it. */
static void test_turns(uint32_t idle)
{
    enum { ROUNDS = 2000 };
    struct harp_connection *from, *to;
    char byte = 'x', got;
    open_world(idle + 1);
    for (uint32_t i = 0; i <= idle; i++)
        connect_one(&from, &to);
    world_run(WORLD_SECOND_NS / 100); /* all rows are written */
    uint64_t before = count_visits();
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct harp_completion done = {0};
        CHECK(harp_receive(to, &got, 1, 0) && harp_send(from, &byte, 1, 0), "not handed over");
        for (bool sent = false, received = false; !sent || !received;) {
            world_turn(1000); /* so short that no sign of life is due meanwhile */
            while (harp_poll(to, &done, 1))
                received |= done.type == HARP_COMPLETION_RECEIVED;
            while (harp_poll(from, &done, 1))
                sent |= done.type == HARP_COMPLETION_SENT;
        }
    }
    CHECK(count_visits() - before < 10 * ROUNDS, "%u round trips looked at %llu connections",
          ROUNDS, (unsigned long long)(count_visits() - before));
    world_close();
}

/* Each sender has always more to send; the receiving engine's ring is what they share. */
static void test_share(void)
{
    static uint8_t out[MESSAGE_BYTES], in[MESSAGE_BYTES];
    struct harp_connection *from[SENDERS], *to[SENDERS];
    uint32_t got[SENDERS] = {0}, least = UINT32_MAX, most = 0, all = 0;
    open_world(SENDERS);
    for (uint32_t i = 0; i < SENDERS; i++)
        connect_one(&from[i], &to[i]);
    while (all < 100 * SENDERS) {
        for (uint32_t i = 0; i < SENDERS; i++) {
            struct harp_completion done;
            while (to[i]->app.receives_open < AHEAD && harp_receive(to[i], in, sizeof in, 0))
                ;
            while (from[i]->app.sends_open < AHEAD && harp_send(from[i], out, sizeof out, 0))
                ;
            while (harp_poll(from[i], &done, 1))
                ;
            while (harp_poll(to[i], &done, 1)) {
                got[i]++;
                all++;
            }
        }
        world_turn(WORLD_STEP_NS);
    }
    for (uint32_t i = 0; i < SENDERS; i++) {
        least = got[i] < least ? got[i] : least;
        most = got[i] > most ? got[i] : most;
    }
    CHECK(2 * least >= most, "one got %u messages, another %u", most, least);
    world_close();
}

/* Datagrams that idle connections send within `time_ns`; *most: within one millisecond. */
static uint64_t count_signs_of_life(uint64_t time_ns, uint64_t *most)
{
    uint64_t start = world_engines[0]->ports[0]->counters.sent, before = start;
    *most = 0;
    for (uint64_t end_ns = world_ns + time_ns; world_ns < end_ns;) {
        world_run(1000000);
        uint64_t now = world_engines[0]->ports[0]->counters.sent;
        *most = now - before > *most ? now - before : *most;
        before = now;
    }
    return before - start;
}

/* All have heard something at the same moment. One of them asks the peer's process often enough
 * that its end is noticed soon; each by itself only as often as its own patience wants it. */
static void test_quiet(uint32_t idle)
{
    struct harp_connection **from = calloc(idle, sizeof(struct harp_connection *)), *to;
    static char byte;
    uint64_t most, sent;
    open_world(idle);
    for (uint32_t i = 0; i < idle; i++) {
        connect_one(&from[i], &to);
        CHECK(harp_receive(to, &byte, 1, 0), "not posted");
    }
    for (uint32_t i = 0; i < idle; i++)
        CHECK(harp_send(from[i], &byte, 1, 0), "not sent");
    world_run(WORLD_SECOND_NS / 10);
    sent = count_signs_of_life(3 * WORLD_SECOND_NS, &most);
    CHECK(sent >= 3 && sent < 100, "%llu signs of life", (unsigned long long)sent);
    sent = count_signs_of_life(30 * WORLD_SECOND_NS, &most);
    CHECK(sent >= 3 * idle, "only %llu signs of life", (unsigned long long)sent);
    CHECK(most <= 16, "%llu of %llu in one millisecond", (unsigned long long)most,
          (unsigned long long)sent);
    for (uint32_t i = 0; i < idle; i++)
        CHECK(!from[i]->state.ended, "connection %u has ended", i);
    free(from);
    world_close();
}

/* A turn of a millisecond, as on a busy core. Few datagrams for each connection suffice. */
static void turn_and_count(uint32_t connections)
{
    world_turn(WORLD_SECOND_NS / 1000);
    uint64_t sent = world_engines[0]->ports[0]->counters.sent;
    CHECK(sent < 8 * (uint64_t)connections, "%llu datagrams", (unsigned long long)sent);
}

/* Signs of life of connections that are there must not drown the handshakes of the others. */
static void test_udp(uint32_t idle)
{
    enum { AT_ONCE = 50 };
    struct harp_connection *from[AT_ONCE], *to;
    struct harp_completion done;
    world_is_udp = true;
    open_world(idle);
    for (uint32_t made = 0; made < idle; made += AT_ONCE) {
        for (uint32_t i = 0; i < AT_ONCE; i++)
            CHECK(harp_connect(world_engines[0], &handle, &settings, &from[i], world_why) == 0,
                  "%s", world_why);
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            while (!harp_poll(from[i], &done, 1))
                turn_and_count(idle);
            CHECK(done.type == HARP_COMPLETION_CONNECTED, "not connected");
            while (!(to = harp_accept(listening)))
                turn_and_count(idle);
            CHECK(world_next(to).type == HARP_COMPLETION_CONNECTED, "not accepted");
        }
    }
    world_close();
}

int main(int count, char **arguments)
{
    CHECK(count >= 2, "usage: engine_many turns IDLE | share | quiet IDLE | udp IDLE");
    if (!strcmp(arguments[1], "share"))
        test_share();
    else if (!strcmp(arguments[1], "turns"))
        test_turns((uint32_t)atoi(arguments[2]));
    else if (!strcmp(arguments[1], "udp"))
        test_udp((uint32_t)atoi(arguments[2]));
    else
        test_quiet((uint32_t)atoi(arguments[2]));
    return 0;
}
