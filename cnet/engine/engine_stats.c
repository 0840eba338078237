/* Statistics that an engine publishes about once a millisecond: rows of its ports, of some of the
 * connections that it has driven since, and events that nobody else records. */
#define _GNU_SOURCE
#include "engine/engine_state.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Whether a sum has grown by a quarter since it was recorded: so the recorder stays free for other
 * events, whatever a network or an attacker does. */
static bool worth_recording(uint64_t sum, uint64_t *recorded)
{
    if (sum <= *recorded + *recorded / 4)
        return false;
    *recorded = sum;
    return true;
}

static void record_event(struct harp_engine *engine, enum harp_recorder_what what, uint64_t id,
                         uint64_t a, uint64_t b)
{
    harp_recorder_add(engine->recorder, engine->now_ns, what, id, a, b);
}

static void note_path(struct harp_connection *connection, uint32_t path,
                      const struct harp_path_info *info)
{
    struct harp_engine *engine = connection->engine;
    uint64_t bit = UINT64_C(1) << path;
    bool dead = !info->alive;
    bool narrow = info->fragments > 1;
    if (dead != !!(connection->recorded.paths_dead & bit)) {
        record_event(engine, dead ? HARP_RECORD_PATH_DIED : HARP_RECORD_PATH_BACK, connection->id,
                     path, info->smoothed_ns);
        connection->recorded.paths_dead ^= bit;
    }
    if (info->off_queue != !!(connection->recorded.paths_off_queue & bit)) {
        record_event(engine,
                     info->off_queue ? HARP_RECORD_PATH_OFF_QUEUE : HARP_RECORD_PATH_ON_QUEUE,
                     connection->id, path, 0);
        connection->recorded.paths_off_queue ^= bit;
    }
    if (narrow != !!(connection->recorded.paths_narrow & bit)) {
        record_event(engine, HARP_RECORD_PATH_MTU, connection->id, path, info->frame_bytes);
        connection->recorded.paths_narrow ^= bit;
    }
}

static enum harp_stats_state state_of(const struct harp_connection *connection)
{
    return connection->state.ended               ? HARP_STATS_CLOSED
           : connection->state.orphan            ? HARP_STATS_CLOSING
           : connection->state.ready             ? HARP_STATS_OPEN
           : connection->handshake.listening_end ? HARP_STATS_ACCEPTING
                                                 : HARP_STATS_CONNECTING;
}

static void publish_path(const struct harp_connection *connection, uint32_t path,
                         const struct harp_path_info *info)
{
    struct harp_engine *engine = connection->engine;
    const struct harp_hop *hop = &connection->hops[path];
    if (connection->index >= HARP_STATS_CONNECTIONS || path >= HARP_STATS_PATHS ||
        hop->hop == HARP_NO_HOP)
        return;
    struct harp_stats_path row = {.connection = connection->id,
                                  .number = path,
                                  .port = hop->port,
                                  .local = harp_engine_hop_local(engine, hop),
                                  .remote = hop->remote,
                                  .info = *info};
    harp_stats_put_path(engine->stats.stats, connection->index, path, &row);
}

static void add_paths(struct harp_connection *connection, struct harp_stats_connection *row)
{
    for (uint32_t p = 0; p < connection->config.paths; p++) {
        struct harp_path_info info;
        if (!harp_session_path_info(connection->session, (uint8_t)p, &info))
            continue;
        note_path(connection, p, &info);
        publish_path(connection, p, &info);
        row->paths_alive += info.alive;
        row->window_bytes += info.window_bytes;
        row->bytes_in_flight += info.bytes_in_flight;
        if (info.smoothed_ns && (!row->smoothed_ns || info.smoothed_ns < row->smoothed_ns))
            row->smoothed_ns = info.smoothed_ns;
    }
}

static void publish_connection(struct harp_connection *connection)
{
    struct harp_engine *engine = connection->engine;
    struct harp_stats_connection row = {.id = connection->id,
                                        .peer_id =
                                            harp_session_peer(connection->session)->connection,
                                        .since_ns = connection->state.since_ns,
                                        .state = state_of(connection),
                                        .paths = connection->config.paths,
                                        .segment = connection->shared.segment,
                                        .reason = connection->end.reason,
                                        .messages_sent = connection->sent.messages,
                                        .message_bytes_sent = connection->sent.bytes,
                                        .messages_received = connection->received.messages,
                                        .message_bytes_received = connection->received.bytes,
                                        .counters = *harp_session_count(connection->session)};
    add_paths(connection, &row);
    if (worth_recording(row.counters.lost + row.counters.spurious, &connection->recorded.lost))
        record_event(engine, HARP_RECORD_LOST, connection->id, row.counters.lost,
                     row.counters.spurious);
    memcpy(row.peer, connection->peer, sizeof row.peer);
    harp_count(&engine->stats.stats->engine.visits, 1);
    if (connection->index < HARP_STATS_CONNECTIONS)
        harp_stats_put_connection(engine->stats.stats, connection->index, &row);
}

_Static_assert(HARP_PORTS_MAX <= HARP_STATS_PORTS, "each port has a row");

void harp_engine_publish(struct harp_engine *engine, uint32_t most)
{
    struct harp_stats *stats = engine->stats.stats;
    struct harp_index_queue *due = &engine->due.unpublished;
    for (uint32_t p = 0; p < engine->ports_n; p++)
        harp_stats_put_port(stats, p, engine->ports[p]);
    for (uint32_t n = due->count < most ? due->count : most; n; n--) {
        struct harp_connection *connection = engine->connections.at[harp_index_queue_take(due)];
        if (connection)
            publish_connection(connection);
    }
    harp_count(&stats->engine.tended_ns, engine->now_ns - stats->engine.tended_ns);
    if (worth_recording(stats->engine.bad_tag + stats->engine.strangers, &engine->bad_recorded))
        record_event(engine, HARP_RECORD_BAD, 0, stats->engine.bad_tag, stats->engine.strangers);
}

void harp_engine_dump(struct harp_engine *engine)
{
    engine->failed = false;
    if (!engine->config.dump)
        return;
    int fd = open(engine->config.dump, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return; /* the recorder can still be read where the statistics lie */
    dprintf(fd, "engine %s of process %d:\n", engine->config.name, (int)getpid());
    harp_recorder_dump(engine->recorder, fd);
    close(fd);
}
