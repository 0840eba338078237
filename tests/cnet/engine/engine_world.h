/* Engines over the mem port in virtual time, which only the test drives: each run is the same. Or,
 * with world_is_udp, over UDP on the loopback, for whose datagrams time waits.
 */
#ifndef ENGINE_WORLD_H
#define ENGINE_WORLD_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "engine/engine_state.h"
#include "virtual/random.h"

#define WORLD_STEP_NS UINT64_C(100000)
#define WORLD_SECOND_NS UINT64_C(1000000000)

static uint64_t world_ns = WORLD_SECOND_NS;
static uint64_t world_random = 1;
static char world_why[HARP_WHY_BYTES];
static struct harp_engine *world_engines[2]; /* the connecting one, the listening one */
static int (*world_port)(struct harp_port **port, const struct harp_port_config *config,
                         char *why) = harp_port_mem_open; /* of the connecting one */

static bool world_is_udp;
static uint32_t world_ports_n = 1; /* of each engine */

static inline uint64_t world_clock(void *context)
{
    (void)context;
    return world_ns;
}

static inline void world_chance(void *context, void *bytes, size_t count)
{
    (void)context;
    for (size_t i = 0; i < count; i++) {
        ((uint8_t *)bytes)[i] = (uint8_t)virtual_draw(&world_random);
    }
}

static inline void world_open(uint32_t connections)
{
    for (int i = 0; i < 2; i++) {
        struct harp_engine_config config;
        harp_engine_defaults(&config);
        config.progress = HARP_PROGRESS_MANUAL;
        config.frames = 64;
        config.connections = connections;
        config.world = (struct harp_world){world_clock, world_chance, NULL};
        config.ports_n = world_ports_n;
        for (uint32_t p = 0; p < world_ports_n; p++) {
            config.ports[p].open = i ? harp_port_mem_open : world_port;
            if (world_is_udp) {
                config.ports[p].open = harp_port_udp_open;
                harp_address_parse("127.0.0.1", &config.ports[p].config.local);
            }
            config.ports[p].config.locals = 1;
        }
        CHECK(harp_engine_open(&world_engines[i], &config, world_why) == 0, "%s", world_why);
    }
}

static inline void world_close(void)
{
    for (int i = 0; i < 2; i++)
        harp_engine_close(world_engines[i]);
}

/* One turn of each engine; returns how many datagrams are under way after it. */
static inline uint64_t world_drive(void)
{
    uint64_t under_way = 0;
    for (int i = 0; i < 2; i++)
        harp_engine_drive(world_engines[i]);
    for (uint32_t p = 0; p < world_ports_n; p++)
        for (int i = 0; i < 2; i++)
            under_way += world_engines[i]->ports[p]->counters.sent -
                         world_engines[!i]->ports[p]->counters.received;
    return under_way;
}

/* One turn of each engine, after which `step_ns` pass. The loopback delivers a datagram in the call
 * that sends it, but on a busy host some milliseconds later; what has not come then is lost. */
static inline void world_turn(uint64_t step_ns)
{
    const struct timespec nap = {.tv_nsec = 100000};
    static uint64_t lost;
    uint64_t under_way = world_drive();
    for (int tries = 0; world_is_udp && under_way > lost && tries < 10000; tries++) {
        nanosleep(&nap, NULL);
        under_way = world_drive();
    }
    lost = under_way;
    world_ns += step_ns;
}

static inline void world_run(uint64_t time_ns)
{
    for (uint64_t end_ns = world_ns + time_ns; world_ns < end_ns;)
        world_turn(WORLD_STEP_NS);
}

/* The next completion of a connection, which must come within a second. */
static inline struct harp_completion world_next(struct harp_connection *connection)
{
    struct harp_completion done;
    uint64_t end_ns = world_ns + WORLD_SECOND_NS;
    while (!harp_poll(connection, &done, 1)) {
        CHECK(world_ns < end_ns, "no completion within a second");
        world_turn(WORLD_STEP_NS);
    }
    return done;
}

/* For a port that differs from mem here and there: mem, with operations that the caller may change.
 * world_mem has those of mem. */
static const struct harp_port_ops *world_mem;

static inline int world_open_mem(struct harp_port **port, const struct harp_port_config *config,
                                 char *why, struct harp_port_ops *ops)
{
    int error = harp_port_mem_open(port, config, why);
    if (error)
        return error;
    world_mem = (*port)->ops;
    *ops = *world_mem;
    (*port)->ops = ops;
    return 0;
}

static inline struct harp_listening *world_listen(const struct harp_connection_config *settings,
                                                  struct harp_handle *handle)
{
    struct harp_listening *listening;
    CHECK(harp_listen(world_engines[1], settings, &listening, handle, world_why) == 0, "%s",
          world_why);
    return listening;
}

/* Connect to what the listening engine listens with, and accept there. */
static inline void world_connect(struct harp_listening *listening, const struct harp_handle *handle,
                                 const struct harp_connection_config *settings,
                                 struct harp_connection **from, struct harp_connection **to)
{
    CHECK(harp_connect(world_engines[0], handle, settings, from, world_why) == 0, "%s", world_why);
    CHECK(world_next(*from).type == HARP_COMPLETION_CONNECTED, "not connected");
    while (!(*to = harp_accept(listening)))
        world_turn(WORLD_STEP_NS);
    CHECK(world_next(*to).type == HARP_COMPLETION_CONNECTED, "not accepted");
}

#endif
