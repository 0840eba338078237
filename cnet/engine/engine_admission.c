/* Admission of connections: checks of their settings; how they join an engine, with a share of its
 * frames, and leave it. */
#include "engine/engine_state.h"

#include <errno.h>
#include <stdio.h>

/* ---- Settings ---- */

#define SECOND_NS UINT64_C(1000000000)
/* Longer than a small message's round trip over `mem`: one ACK then covers several. */
#define MEM_ACK_SOON_NS UINT64_C(4000)
/* A flow of several that says nothing for so long is left to itself: after Linux's own least RTO
 * (TCP_RTO_MIN) frames are asked after, and the others take over soon enough. */
#define TCP_RTO_LEAST_NS UINT64_C(200000000)
#define TCP_DEAD_NS UINT64_C(600000000)
/* A stream loses nothing, so nobody waits for an ACK amid a message. */
#define STREAM_ACK_DELAY_NS UINT64_C(500000)
#define STREAM_ACK_EVERY 64
#define STREAM_ACK_PATIENT_NS UINT64_C(100000) /* some round trips: one ACK for many messages */
#define ACK_SOON_NS UINT64_C(20000) /* after a whole message, whose sender waits to be done */
#define DEAD_MOST_NS (30 * 24 * 3600 * SECOND_NS) /* and no sum of times overflows */

void harp_connection_defaults(struct harp_connection_config *config)
{
    *config = (struct harp_connection_config){
        .paths = 1, .dead_ns = 30 * SECOND_NS, .cc = &harp_cc_swift};
}

int harp_engine_check_config(const struct harp_engine *engine,
                             const struct harp_connection_config *config, char *why)
{
    if (engine->generation != harp_generation)
        return snprintf(why, HARP_WHY_BYTES,
                        "engine %s belongs to the parent of this process: open one here",
                        engine->config.name),
               -ECHILD;
    if (config->paths < 1 || config->paths > HARP_PATHS_MAX)
        return snprintf(why, HARP_WHY_BYTES, "paths is %u: 1 to %d are possible", config->paths,
                        HARP_PATHS_MAX),
               -EINVAL;
    if (config->dead_ns < SECOND_NS || config->dead_ns > DEAD_MOST_NS)
        return snprintf(why, HARP_WHY_BYTES,
                        "dead_ns is %llu: 1 s (1000000000) to 30 days are possible",
                        (unsigned long long)config->dead_ns),
               -EINVAL;
    if (config->short_bytes > HARP_SHORT_BYTES)
        return snprintf(why, HARP_WHY_BYTES, "short_bytes is %u: at most %d are possible",
                        config->short_bytes, HARP_SHORT_BYTES),
               -EINVAL;
    if (config->stream_frames > HARP_STREAM_MAX)
        return snprintf(why, HARP_WHY_BYTES, "stream_frames is %u: at most %u are possible",
                        config->stream_frames, HARP_STREAM_MAX),
               -EINVAL;
    return 0;
}

int harp_engine_check_frames(const struct harp_engine *engine,
                             const struct harp_connection_config *config, char *why)
{
    if ((uint64_t)config->stream_frames + config->draft_frames <= engine->frames_spare)
        return 0;
    snprintf(why, HARP_WHY_BYTES,
             "stream_frames %u and draft_frames %u are more than the %u frames that the engine has "
             "left of %u: open it with more",
             config->stream_frames, config->draft_frames, engine->frames_spare,
             engine->frames.count);
    return -ENOMEM;
}

void harp_engine_session_config(struct harp_engine *engine,
                                const struct harp_connection_config *from, uint32_t payload_max,
                                const struct harp_port *port, struct harp_session_config *config)
{
    uint32_t segment = payload_max - HARP_HEADER_BYTES;
    uint32_t in_frame = engine->frames.frame_bytes - HARP_FRAME_ROOM;
    if ((from->stream_frames || from->draft_frames) && segment > in_frame)
        segment = in_frame;
    if (segment > UINT16_MAX)
        segment = UINT16_MAX;
    harp_session_defaults(config, (uint16_t)(segment - segment % HARP_CHUNK_ALIGN), from->paths);
    config->stream_frames = from->stream_frames;
    config->dead_ns = from->dead_ns;
    config->cc = from->cc ? from->cc : config->cc;
    if (from->window.max_bytes)
        config->window = from->window;
    if (port->holds_back) { /* silence means that the other end is busy elsewhere, or gone */
        config->cc = &harp_cc_none;
        config->window.initial_bytes = config->window.max_bytes;
        config->loss.min_rto_ns = config->loss.dead_ns = config->dead_ns / 8;
        if (port->calls_kernel && from->paths > 1) { /* or, with other flows, that this one is */
            config->loss.min_rto_ns = TCP_RTO_LEAST_NS;
            config->loss.dead_ns = TCP_DEAD_NS;
            config->loss.silences = 0; /* longer than a busy host is away */
        }
    }
    if (port->holds_back && port->calls_kernel) /* TCP's own windows and buffers bound it */
        config->window.initial_bytes = config->window.max_bytes =
            (uint64_t)HARP_SENT_SLOTS * (HARP_HEADER_BYTES + config->segment);
    if (port->calls_kernel) {
        config->loss.ack_delay_ns = STREAM_ACK_DELAY_NS;
        config->ack.every = STREAM_ACK_EVERY;
        config->ack.patient_bytes = from->short_bytes;
        config->ack.patient_ns = STREAM_ACK_PATIENT_NS;
    }
    if (port->holds_back && !port->calls_kernel) {
        config->ack.along_ns = 0;
        config->ack.soon_ns = MEM_ACK_SOON_NS;
        config->ack.after_last = true;
    } else { /* an ACK alone costs a packet and a system call; one that goes with data, nothing */
        config->ack.soon_ns = config->ack.along_ns = ACK_SOON_NS;
    }
    config->holds_bytes = port->holds_bytes;
    config->app_drives = engine->config.progress == HARP_PROGRESS_INLINE;
    config->epoch = engine->epoch;
    harp_engine_random(engine, config->nonce, sizeof config->nonce);
    harp_engine_random(engine, &config->seed, sizeof config->seed);
    harp_engine_random(engine, &config->first, sizeof config->first);
    do
        harp_engine_random(engine, &config->connection, sizeof config->connection);
    while (!config->connection || harp_table_find(&engine->lookup.ids, config->connection));
}

bool harp_engine_omits_crc(const struct harp_connection_config *config,
                           const struct harp_port *port)
{
    bool by_itself = config->paths == 1 && port->offloads_sums;
    return port->ops->gather &&
           (config->crc == HARP_CRC_OFF || (config->crc == HARP_CRC_AUTO && by_itself));
}

/* ---- Joining and leaving ---- */

int harp_engine_adopt(struct harp_engine *engine, struct harp_connection *connection)
{
    uint32_t frames = connection->config.stream_frames + connection->config.draft_frames;
    if (frames > engine->frames_spare) {
        harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_NO_FRAMES, connection->id,
                          frames, engine->frames_spare);
        return -ENOMEM;
    }
    if (!harp_table_add(&engine->lookup.ids, connection->id, connection))
        return -ENOSPC;
    engine->frames_spare -= frames;
    connection->index = engine->connections.free_n
                            ? engine->connections.free[--engine->connections.free_n]
                            : engine->connections.n++;
    connection->state.since_ns = engine->now_ns;
    harp_count(&engine->stats.stats->engine.connections_opened, 1);
    harp_count(&engine->stats.stats->engine.connections, 1);
    engine->connections.at[connection->index] = connection;
    harp_engine_wake(engine, connection);
    return 0;
}

void harp_engine_reclaim_frames(struct harp_engine *engine,
                                const struct harp_connection *connection)
{
    struct harp_frames *frames = &engine->frames;
    if (!connection->config.stream_frames && !connection->config.draft_frames)
        return; /* it never had any */
    for (uint32_t frame = 0; frame < frames->count; frame++) {
        if (engine->owner[frame] != connection->index)
            continue;
        enum harp_frame_state state = frames->state[frame];
        if (state == HARP_FRAME_SENDING)
            harp_frames_move(frames, frame, state, HARP_FRAME_LEAVING);
        else if (state == HARP_FRAME_LENT || state == HARP_FRAME_DRAFT ||
                 state == HARP_FRAME_READY || state == HARP_FRAME_KEPT)
            harp_frames_move(frames, frame, state, HARP_FRAME_FREE);
        engine->owner[frame] = UINT32_MAX;
    }
}

static void clear_rows(struct harp_stats *stats, const struct harp_connection *connection)
{
    harp_stats_put_connection(stats, connection->index, &(struct harp_stats_connection){0});
    for (uint32_t p = 0; p < connection->config.paths && p < HARP_STATS_PATHS; p++)
        harp_stats_put_path(stats, connection->index, p, &(struct harp_stats_path){0});
}

void harp_engine_forget(struct harp_engine *engine, struct harp_connection *connection)
{
    harp_engine_reclaim_frames(engine, connection);
    for (uint32_t p = 0; p < connection->config.paths; p++)
        harp_engine_path_ends(connection, p);
    harp_engine_drop_hops(engine, connection->hops, connection->config.paths + 1u);
    harp_table_remove(&engine->lookup.ids, connection->id);
    engine->frames_spare += connection->config.stream_frames + connection->config.draft_frames;
    if (connection->handshake.attempt)
        harp_table_remove(&engine->lookup.attempts, connection->handshake.attempt);
    engine->connections.at[connection->index] = NULL;
    engine->connections.free[engine->connections.free_n++] = connection->index;
    harp_schedule_forget(&engine->due.schedule, connection->index);
    harp_count(&engine->stats.stats->engine.connections, UINT64_MAX);
    if (connection->index < HARP_STATS_CONNECTIONS)
        clear_rows(engine->stats.stats, connection);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_GONE, connection->id,
                      connection->index, 0);
    harp_connection_free(connection);
}
