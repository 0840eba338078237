/* Connections join an engine, with their share of its frames, and leave it. */
#include <errno.h>

#include "engine/engine_state.h"

int harp_engine_adopt(struct harp_engine *engine, struct harp_connection *connection)
{
    uint32_t frames = connection->config.stream_frames + connection->config.draft_frames;
    if (frames > engine->frames_spare) {
        harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_NO_FRAMES, connection->id,
                          frames, engine->frames_spare);
        return -ENOMEM;
    }
    if (!harp_table_add(&engine->table, connection->id, connection))
        return -ENOSPC;
    engine->frames_spare -= frames;
    connection->index =
        engine->free_n ? engine->free_indices[--engine->free_n] : engine->connections_n++;
    connection->since_ns = engine->now_ns;
    harp_count(&engine->stats.stats->engine.connections_opened, 1);
    harp_count(&engine->stats.stats->engine.connections, 1);
    engine->connections[connection->index] = connection;
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
    harp_table_remove(&engine->table, connection->id);
    engine->frames_spare += connection->config.stream_frames + connection->config.draft_frames;
    if (connection->attempt)
        harp_table_remove(&engine->attempts, connection->attempt);
    engine->connections[connection->index] = NULL;
    engine->free_indices[engine->free_n++] = connection->index;
    harp_schedule_forget(&engine->schedule, connection->index);
    harp_count(&engine->stats.stats->engine.connections, UINT64_MAX);
    if (connection->index < HARP_STATS_CONNECTIONS)
        clear_rows(engine->stats.stats, connection);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_GONE, connection->id,
                      connection->index, 0);
    harp_connection_free(connection);
}
