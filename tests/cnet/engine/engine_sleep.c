/* Two threads answer each other over four engines each, and sleep in harp_engines_sleep whenever
 * there is nothing to do. No helper drives (quiet_ns is for ever) and no sleep ends by itself, so
 * that this ends only if each message wakes who waits for it, whichever engine it comes by. Who
 * does not sleep looks thousands of times for a message.
 */
#include <pthread.h>

#include "check.h"
#include "engine/engine.h"
#include "ports/port.h"

#define FOR_EVER_NS UINT64_C(3600000000000)
#define ROUNDS 200
#define LOOKS 64 /* for a message, on the average; timers make some */
#define KINDS 4  /* mem, udp, udp with several sockets, tcp with several flows */

struct side {
    struct harp_engine *engines[KINDS];
    struct harp_connection *connections[KINDS];
    bool answers;
    uint64_t looks;
};

static int (*const open_port[KINDS])(struct harp_port **port, const struct harp_port_config *config,
                                     char *why) = {harp_port_mem_open, harp_port_udp_open,
                                                   harp_port_udp_open, harp_port_tcp_open};
static const uint16_t paths[KINDS] = {1, 1, 4, 4};

static struct harp_engine *open_engine(int kind)
{
    struct harp_engine_config config;
    struct harp_engine *engine;
    char why[HARP_WHY_BYTES];
    harp_engine_defaults(&config);
    config.progress = HARP_PROGRESS_INLINE;
    config.quiet_ns = FOR_EVER_NS;
    config.frames = 256;
    config.ports_n = 1;
    config.ports[0].open = open_port[kind];
    config.ports[0].config.locals = paths[kind];
    CHECK(harp_address_parse("127.0.0.1", &config.ports[0].config.local), "address");
    CHECK(harp_engine_open(&engine, &config, why) == 0, "%s", why);
    return engine;
}

static void connect_sides(struct side *sides, int kind)
{
    struct harp_connection_config settings;
    struct harp_listening *listening;
    struct harp_handle handle;
    struct harp_completion done;
    char why[HARP_WHY_BYTES];
    harp_connection_defaults(&settings);
    settings.paths = paths[kind];
    for (int s = 0; s < 2; s++)
        sides[s].engines[kind] = open_engine(kind);
    CHECK(harp_listen(sides[1].engines[kind], &settings, &listening, &handle, why) == 0, "%s", why);
    CHECK(harp_connect(sides[0].engines[kind], &handle, &settings, &sides[0].connections[kind],
                       why) == 0,
          "%s", why);
    for (int connected = 0; connected < 2;) {
        for (int s = 0; s < 2; s++) {
            harp_engine_drive(sides[s].engines[kind]);
            if (sides[s].connections[kind])
                connected += (int)harp_poll(sides[s].connections[kind], &done, 1);
        }
        if (!sides[1].connections[kind])
            sides[1].connections[kind] = harp_accept(listening);
    }
    harp_unlisten(listening);
}

/* Drive both engines and sleep, until a message of this kind has come. */
static void await_message(struct side *side, int kind)
{
    for (;;) {
        bool moved = false;
        struct harp_completion done;
        side->looks++;
        for (int k = 0; k < KINDS; k++)
            moved |= harp_engine_drive(side->engines[k]);
        while (harp_poll(side->connections[kind], &done, 1)) {
            CHECK(done.type == HARP_COMPLETION_SENT || done.type == HARP_COMPLETION_RECEIVED,
                  "completion %u", done.type);
            if (done.type == HARP_COMPLETION_RECEIVED)
                return;
            moved = true;
        }
        if (!moved)
            harp_engines_sleep(side->engines, KINDS, -1, FOR_EVER_NS);
    }
}

static void send_word(struct side *side, int kind)
{
    static const char word[] = "word";
    CHECK(harp_send(side->connections[kind], word, sizeof word, 0), "not sent");
    harp_engine_drive(side->engines[kind]);
}

static void *take_turns(void *argument)
{
    struct side *side = argument;
    char heard[16];
    for (int round = 0; round < ROUNDS; round++) {
        int kind = round % KINDS;
        CHECK(harp_receive(side->connections[kind], heard, sizeof heard, 0), "not posted");
        if (!side->answers)
            send_word(side, kind);
        await_message(side, kind);
        if (side->answers)
            send_word(side, kind);
    }
    return NULL;
}

int main(void)
{
    struct side sides[2] = {{.answers = false}, {.answers = true}};
    pthread_t answering;
    for (int kind = 0; kind < KINDS; kind++)
        connect_sides(sides, kind);
    CHECK(pthread_create(&answering, NULL, take_turns, &sides[1]) == 0, "no thread");
    take_turns(&sides[0]);
    pthread_join(answering, NULL);
    for (int s = 0; s < 2; s++)
        CHECK(sides[s].looks <= (uint64_t)LOOKS * ROUNDS, "%llu looks for %d messages",
              (unsigned long long)sides[s].looks, ROUNDS);
    /* An engine does not sleep while a call waits to be driven. */
    send_word(&sides[0], 0);
    CHECK(harp_send(sides[0].connections[0], "x", 1, 0), "not sent");
    CHECK(!harp_engines_sleep(sides[0].engines, KINDS, -1, FOR_EVER_NS), "slept over a send");
    for (int s = 0; s < 2; s++)
        for (int kind = 0; kind < KINDS; kind++)
            harp_engine_close(sides[s].engines[kind]);
    return 0;
}
