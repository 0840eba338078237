/* A peer that is killed, as ICMP tells of it, in virtual time.
 *
 * The connecting engine's port is mem with two differences: a datagram to a closed port goes
 * nowhere, and its sender may learn so by a notice that quotes it. As Linux does it
 * (inet_peer_xrlim_allow: icmp_ratelimit 1000 ms, XRLIM_BURST_FACTOR 6), a host gets six of these
 * at once after a pause and then one a second.
 */
#include <stddef.h>
#include <string.h>

#include "engine/engine_state.h"
#include "engine_world.h"

enum { CONNECTIONS_MAX = 64, SLOTS_MAX = 4096, NOTICES_MAX = 64, BURST = 6 };
#define RATE_NS WORLD_SECOND_NS

static struct harp_port_ops ops;
static uint8_t *slots[SLOTS_MAX];
static uint32_t slots_n, notices_n;
static struct harp_notice notices[NOTICES_MAX];
static uint64_t tokens_ns = BURST * RATE_NS, asked_ns;
static bool closed_port, forged;
static struct harp_address peer;
static uint64_t refusals;

/* Whether the peer's kernel answers now. */
static bool is_answered(void)
{
    uint64_t more_ns = tokens_ns + world_ns - asked_ns;
    tokens_ns = more_ns < BURST * RATE_NS ? more_ns : BURST * RATE_NS;
    asked_ns = world_ns;
    if (tokens_ns < RATE_NS)
        return false;
    tokens_ns -= RATE_NS;
    return true;
}

static uint8_t *take_slot(struct harp_port *port, int hop, uint32_t bytes)
{
    if (!closed_port)
        return world_mem->slot(port, hop, bytes);
    static uint8_t nowhere[SLOTS_MAX][64];
    static uint8_t large[1 << 17];
    CHECK(slots_n < SLOTS_MAX, "too many datagrams before a flush");
    slots[slots_n] = bytes <= sizeof nowhere[0] ? nowhere[slots_n] : large;
    return slots[slots_n++];
}

static void flush_with_notices(struct harp_port *port, uint64_t now_ns)
{
    for (uint32_t i = 0; i < slots_n; i++) {
        if (!is_answered() || notices_n == NOTICES_MAX)
            continue;
        struct harp_notice *notice = &notices[notices_n++];
        *notice = (struct harp_notice){.type = HARP_NOTICE_REFUSED, .about = peer};
        memcpy(notice->quote, slots[i], sizeof notice->quote);
        refusals++;
    }
    slots_n = 0;
    world_mem->flush(port, now_ns);
}

static bool next_notice(struct harp_port *port, struct harp_notice *notice)
{
    (void)port;
    if (forged) { /* all that one can write who saw nothing, a thousand times a second */
        static uint64_t forged_ns;
        *notice = (struct harp_notice){.type = HARP_NOTICE_REFUSED, .about = peer};
        world_chance(NULL, notice->quote, sizeof notice->quote);
        bool due = world_ns - forged_ns >= 1000000;
        forged_ns = due ? world_ns : forged_ns;
        return due;
    }
    if (!notices_n)
        return false;
    *notice = notices[--notices_n];
    return true;
}

static int open_port(struct harp_port **port, const struct harp_port_config *config, char *why)
{
    int error = world_open_mem(port, config, why, &ops);
    if (error)
        return error;
    ops.slot = take_slot;
    ops.flush = flush_with_notices;
    ops.notice = next_notice;
    (*port)->holds_back = false; /* as a network, it loses */
    return 0;
}

static struct harp_connection *from[CONNECTIONS_MAX], *to[CONNECTIONS_MAX];
static struct harp_listening *listening;
static uint32_t connections_n;

static void begin_connections(uint32_t connections)
{
    struct harp_connection_config settings;
    struct harp_handle handle;
    harp_connection_defaults(&settings);
    closed_port = forged = false;
    notices_n = 0;
    tokens_ns = BURST * RATE_NS;
    asked_ns = world_ns;
    connections_n = connections;
    world_port = open_port;
    world_open(CONNECTIONS_MAX);
    listening = world_listen(&settings, &handle);
    peer = handle.addresses[0];
    for (uint32_t i = 0; i < connections; i++)
        world_connect(listening, &handle, &settings, &from[i], &to[i]);
}

/* All send at the same time, so all have heard something at the same time. */
static void exchange_messages(uint32_t messages)
{
    static char byte;
    for (uint32_t i = 0; i < messages * connections_n; i++)
        CHECK(harp_receive(to[i % connections_n], &byte, 1, 0) &&
                  harp_send(from[i % connections_n], &byte, 1, 0),
              "not handed over");
    for (uint32_t i = 0; i < messages * connections_n; i++) {
        CHECK(world_next(from[i % connections_n]).type == HARP_COMPLETION_SENT, "not sent");
        CHECK(world_next(to[i % connections_n]).type == HARP_COMPLETION_RECEIVED, "not received");
    }
}

/* Only the connecting engine still lives. */
static void run_alone(uint64_t time_ns)
{
    for (uint64_t end_ns = world_ns + time_ns; world_ns < end_ns; world_ns += WORLD_STEP_NS)
        harp_engine_drive(world_engines[0]);
}

static bool has_ended(struct harp_connection *connection)
{
    struct harp_completion done;
    while (harp_poll(connection, &done, 1))
        if (done.type == HARP_COMPLETION_CLOSED) {
            CHECK(done.reason == HARP_REASON_REFUSED, "it ended for reason %u", done.reason);
            return true;
        }
    return false;
}

/* How long it takes until all know that the peer's process is gone. */
static uint64_t time_to_notice_ns(uint32_t connections, uint64_t silence_ns, bool busy)
{
    static char message[4096];
    begin_connections(connections);
    exchange_messages(2);
    world_run(silence_ns);
    for (uint32_t i = 0; busy && i < connections; i++)
        for (int m = 0; m < 20; m++)
            CHECK(harp_send(from[i], message, sizeof message, 0), "not sent");
    if (busy)
        harp_engine_drive(world_engines[0]);
    closed_port = true;
    uint64_t start_ns = world_ns;
    for (uint32_t ended = 0; ended < connections; ended += has_ended(from[ended])) {
        run_alone(WORLD_STEP_NS);
        CHECK(world_ns - start_ns < 60 * WORLD_SECOND_NS, "%u of %u know", ended, connections);
    }
    uint64_t took_ns = world_ns - start_ns;
    world_close();
    return took_ns;
}

static void test_a_killed_peer_is_noticed(uint32_t connections, bool busy)
{
    for (uint64_t silence_ns = 0; silence_ns < 2 * WORLD_SECOND_NS; silence_ns += 130000000) {
        uint64_t took_ns = time_to_notice_ns(connections, silence_ns, busy);
        CHECK(took_ns <= 1500000000, "%u connections, %s: %llu ms", connections,
              busy ? "busy" : "idle", (unsigned long long)took_ns / 1000000);
    }
}

/* A firewall that is loaded anew refuses all for 0.4 s, time and again: nobody ends. */
static void test_a_firewall_loaded_anew_ends_nothing(uint32_t connections)
{
    begin_connections(connections);
    for (int round = 0; round < 20; round++) {
        exchange_messages(1);
        world_run(77000000 * (uint64_t)round);
        closed_port = true;
        world_run(400000000);
        closed_port = false;
        world_run(1200000000);
        for (uint32_t i = 0; i < connections; i++)
            CHECK(!has_ended(from[i]), "connection %u ended in round %d", i, round);
    }
    CHECK(refusals, "nothing was refused");
    world_close();
}

/* An ICMP sender that cannot quote a frame of ours ends nothing. */
static void test_forged_refusals_end_nothing(uint32_t connections)
{
    begin_connections(connections);
    exchange_messages(1);
    forged = true;
    for (int i = 0; i < 50; i++) {
        world_run(100000000);
        for (uint32_t c = 0; c < connections; c++)
            CHECK(!has_ended(from[c]), "connection %u ended", c);
    }
    exchange_messages(1);
    world_close();
}

int main(void)
{
    for (uint32_t connections = 1; connections <= CONNECTIONS_MAX; connections *= 8) {
        test_a_killed_peer_is_noticed(connections, false);
        test_a_killed_peer_is_noticed(connections, true);
    }
    test_a_firewall_loaded_anew_ends_nothing(1);
    test_a_firewall_loaded_anew_ends_nothing(8);
    test_forged_refusals_end_nothing(8);
    return 0;
}
