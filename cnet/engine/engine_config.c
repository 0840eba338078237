/* What a connection may be asked to be, and what its session is made of. */
#include <errno.h>
#include <stdio.h>

#include "engine/engine_state.h"

#define SECOND_NS UINT64_C(1000000000)
/* Longer than a small message there and back over `mem`: one ACK tells of several then. */
#define MEM_ACK_SOON_NS UINT64_C(4000)
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
                                bool holds_back, struct harp_session_config *config)
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
    if (holds_back) { /* silence means that the other end is busy elsewhere, or gone */
        config->cc = &harp_cc_fixed;
        config->window.initial_bytes = config->window.max_bytes;
        config->ack_along_ns = 0;
        config->ack_soon_ns = MEM_ACK_SOON_NS;
        config->ack_after_last = true;
        config->loss.min_rto_ns = config->loss.dead_ns = config->dead_ns / 8;
    } else { /* an ACK alone costs a packet and a system call; one that goes with data, nothing */
        config->ack_soon_ns = config->ack_along_ns = config->loss.ack_delay_ns;
    }
    config->app_drives = engine->config.progress == HARP_PROGRESS_INLINE;
    config->epoch = engine->epoch;
    harp_engine_random(engine, config->nonce, sizeof config->nonce);
    harp_engine_random(engine, &config->seed, sizeof config->seed);
    harp_engine_random(engine, &config->first, sizeof config->first);
    do
        harp_engine_random(engine, &config->connection, sizeof config->connection);
    while (!config->connection || harp_table_find(&engine->table, config->connection));
}
