#define _GNU_SOURCE
#include "engine/engine_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "ports/port_chaos.h"
#include "wire/crc32c.h"

#define FRAME_BYTES_LEAST 2048

void harp_engine_defaults(struct harp_engine_config *config)
{
    *config = (struct harp_engine_config){.name = "harp",
                                          .cpu = -1,
                                          .node = HARP_ARENA_LOCAL,
                                          .frames = 4096,
                                          .frame_bytes = 4096,
                                          .connections = 1024,
                                          .spin_ns = 50000,
                                          .quiet_ns = 200000};
}

static int check_config(const struct harp_engine_config *config, char *why)
{
    if (config->ports_n < 1 || config->ports_n > HARP_PORTS_MAX)
        return snprintf(why, HARP_WHY_BYTES, "an engine has 1 to %d ports, not %u", HARP_PORTS_MAX,
                        config->ports_n),
               -EINVAL;
    if (config->frame_bytes < FRAME_BYTES_LEAST || config->frame_bytes % 64 || config->frames < 1)
        return snprintf(why, HARP_WHY_BYTES,
                        "frames need at least %d bytes, a multiple of 64, and there is at least "
                        "one of them",
                        FRAME_BYTES_LEAST),
               -EINVAL;
    if (config->connections < 1 || config->connections > 1 << 20)
        return snprintf(why, HARP_WHY_BYTES, "connections is %u: 1 to 1048576 are possible",
                        config->connections),
               -EINVAL;
    return 0;
}

static int take_memory(struct harp_engine *engine, char *why)
{
    const struct harp_engine_config *config = &engine->config;
    size_t need = harp_frames_need(config->frames, config->frame_bytes);
    int error = harp_arena_open(&engine->arena, need, config->node);
    if (error)
        return snprintf(why, HARP_WHY_BYTES, "no %zu MiB of memory for %u frames", need >> 20,
                        config->frames),
               error;
    error = harp_frames_open(&engine->frames, &engine->arena, config->frames, config->frame_bytes);
    engine->connections.at = calloc(config->connections, sizeof *engine->connections.at);
    engine->connections.free = malloc(config->connections * sizeof *engine->connections.free);
    engine->owner = malloc(config->frames * sizeof *engine->owner);
    if (error || !engine->connections.at || !engine->connections.free || !engine->owner ||
        !harp_engine_peers_open(engine) ||
        !harp_table_open(&engine->lookup.ids, config->connections) ||
        !harp_table_open(&engine->lookup.attempts, config->connections) ||
        !harp_schedule_open(&engine->due.schedule, config->connections) ||
        !harp_ready_set_open(&engine->due.calls, config->connections) ||
        !harp_index_queue_open(&engine->due.draftless, config->connections) ||
        !harp_index_queue_open(&engine->due.unpublished, config->connections) ||
        harp_stats_create(&engine->stats, config->name) != 0)
        return snprintf(why, HARP_WHY_BYTES, "no memory for %u connections", config->connections),
               -ENOMEM;
    memset(engine->owner, 0xff, config->frames * sizeof *engine->owner);
    engine->recorder = &engine->stats.stats->recorder;
    return 0;
}

static int open_port(struct harp_engine *engine, const struct harp_engine_port *wanted, char *why)
{
    struct harp_port_config config = wanted->config;
    struct harp_port *port;
    config.frames = &engine->frames;
    config.arena = &engine->arena;
    config.placing = (struct harp_placing){.place = harp_engine_place, .engine = engine};
    int error = wanted->open(&port, &config, why);
    if (error)
        return error;
    if (port->payload_max < HARP_PAYLOAD_LEAST) {
        snprintf(why, HARP_WHY_BYTES,
                 "the MTU of port %s leaves %u bytes to a datagram, and the protocol needs %d: an "
                 "MTU of 252 is enough",
                 port->ops->name, port->payload_max, HARP_PAYLOAD_LEAST);
        port->ops->close(port);
        return -EMSGSIZE;
    }
    if (wanted->faults) {
        struct harp_chaos faults;
        struct harp_port *inner = port;
        error = harp_chaos_parse(wanted->faults, &faults, why);
        if (!error)
            error = harp_port_chaos_open(&port, inner, &faults, why);
        if (error) {
            inner->ops->close(inner);
            return error;
        }
    }
    harp_recorder_add(engine->recorder, harp_engine_clock(engine), HARP_RECORD_PORT, 0,
                      engine->ports_n, port->payload_max);
    engine->ports[engine->ports_n++] = port;
    return 0;
}

/* Give back what an engine has, as far as it was opened. */
static void let_go(struct harp_engine *engine)
{
    for (uint32_t p = 0; p < engine->ports_n; p++)
        engine->ports[p]->ops->close(engine->ports[p]);
    for (uint32_t i = 0; i < engine->connections.n; i++)
        if (engine->connections.at[i])
            harp_connection_free(engine->connections.at[i]);
    while (engine->listenings) {
        struct harp_listening *listening = engine->listenings;
        engine->listenings = listening->next;
        if (listening->fd >= 0)
            close(listening->fd);
        free(listening);
    }
    if (engine->stats.stats)
        harp_stats_destroy(&engine->stats);
    harp_engine_peers_close(engine);
    harp_table_close(&engine->lookup.ids);
    harp_table_close(&engine->lookup.attempts);
    harp_schedule_close(&engine->due.schedule);
    harp_ready_set_close(&engine->due.calls);
    harp_index_queue_close(&engine->due.draftless);
    harp_index_queue_close(&engine->due.unpublished);
    free(engine->connections.at);
    free(engine->connections.free);
    free(engine->owner);
    if (engine->arena.base)
        harp_arena_close(&engine->arena);
    free(engine);
}

int harp_engine_open(struct harp_engine **out, const struct harp_engine_config *config, char *why)
{
    int error = check_config(config, why);
    if (error)
        return error;
    struct harp_engine *engine = aligned_alloc(128, (sizeof *engine + 127) / 128 * 128);
    if (!engine)
        return snprintf(why, HARP_WHY_BYTES, "no memory for an engine"), -ENOMEM;
    memset(engine, 0, sizeof *engine);
    engine->config = *config;
    engine->generation = harp_generation;
    engine->drive.doorbell = -1;
    harp_engine_random(engine, &engine->epoch, sizeof engine->epoch);
    harp_engine_random(engine, &engine->lookup.hash_key, sizeof engine->lookup.hash_key);
    if (!config->world.now_ns)
        harp_crc32c_choose();
    error = take_memory(engine, why);
    for (uint32_t p = 0; !error && p < config->ports_n; p++)
        error = open_port(engine, &config->ports[p], why);
    engine->frames_spare = engine->frames.in_state[HARP_FRAME_FREE];
    if (!error) {
        engine->now_ns = harp_engine_clock(engine);
        harp_engine_publish(engine, 0);
        error = harp_engine_start(engine, why);
    }
    if (error) {
        let_go(engine);
        return error;
    }
    harp_engine_enlist(engine);
    *out = engine;
    return 0;
}

void harp_engine_close(struct harp_engine *engine)
{
    if (engine->generation != harp_generation)
        return; /* the parent's; its memory is not here */
    harp_engine_halt(engine);
    harp_engine_delist(engine);
    if (engine->failed) /* since the last turn that looked at what is not urgent */
        harp_engine_dump(engine);
    let_go(engine);
}

bool harp_engine_has_family(const struct harp_engine *engine, uint8_t family)
{
    for (uint32_t p = 0; p < engine->ports_n; p++)
        if (engine->ports[p]->locals[0].family == family)
            return true;
    return false;
}

const char *harp_engine_line(const struct harp_engine *engine, uint32_t index)
{
    if (index == 0)
        return engine->arena.line;
    return index <= engine->ports_n ? engine->ports[index - 1]->line : NULL;
}

const char *harp_engine_stats_path(const struct harp_engine *engine)
{
    return engine->stats.path;
}
