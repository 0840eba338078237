/* Two engines and a connection between them, on this host by the real clock. */
#ifndef ENGINE_TWO_H
#define ENGINE_TWO_H

#include <sched.h>

#include "check.h"
#include "engine/engine.h"

static struct harp_engine *engines[2]; /* the connecting one, the listening one */
static struct harp_connection *connections[2];
static enum harp_progress progress_of_two;
static uint64_t quiet_ns_of_two;    /* 0: the default */
static uint32_t mtu_of_two;         /* 0: the interface's */
static uint32_t connections_of_two; /* that an engine has room for; 0: the default */
static uint64_t window_of_two;      /* fixed, bytes; 0: the default */

/* Drive both where that is ours to do, else let their threads run. */
static inline void go_on(void)
{
    if (progress_of_two == HARP_PROGRESS_THREAD) {
        sched_yield();
        return;
    }
    harp_engine_drive(engines[0]);
    harp_engine_drive(engines[1]);
}

/* The next completion of a side, which must be of this type. */
static inline void await_completion(int side, uint32_t type)
{
    struct harp_completion done;
    while (!harp_poll(connections[side], &done, 1))
        go_on();
    CHECK(done.type == type, "completion %u, not %u", done.type, type);
}

/* Connect the engines once more; the ends are `connections`. */
static inline void join_engines(const struct harp_connection_config *settings)
{
    struct harp_listening *listening;
    struct harp_handle handle;
    char why[HARP_WHY_BYTES];
    CHECK(harp_listen(engines[1], settings, &listening, &handle, why) == 0, "%s", why);
    CHECK(harp_connect(engines[0], &handle, settings, &connections[0], why) == 0, "%s", why);
    while (!(connections[1] = harp_accept(listening)))
        go_on();
    await_completion(0, HARP_COMPLETION_CONNECTED);
    await_completion(1, HARP_COMPLETION_CONNECTED);
}

static inline void connect_two(enum harp_progress progress, int cpu,
                               int (*open)(struct harp_port **port,
                                           const struct harp_port_config *config, char *why))
{
    struct harp_engine_config config;
    struct harp_connection_config settings;
    char why[HARP_WHY_BYTES];
    harp_engine_defaults(&config);
    harp_connection_defaults(&settings);
    if (window_of_two) {
        settings.cc = &harp_cc_fixed;
        settings.window = (struct harp_cc_config){
            .initial_bytes = window_of_two, .min_bytes = window_of_two, .max_bytes = window_of_two};
    }
    config.progress = progress_of_two = progress;
    config.cpu = cpu;
    config.quiet_ns = quiet_ns_of_two ? quiet_ns_of_two : config.quiet_ns;
    config.connections = connections_of_two ? connections_of_two : config.connections;
    config.frames = 256;
    config.ports_n = 1;
    config.ports[0].open = open;
    config.ports[0].config.locals = 1;
    config.ports[0].config.mtu = mtu_of_two;
    CHECK(harp_address_parse("127.0.0.1", &config.ports[0].config.local), "address");
    for (int i = 0; i < 2; i++)
        CHECK(harp_engine_open(&engines[i], &config, why) == 0, "%s", why);
    join_engines(&settings);
}

#endif
