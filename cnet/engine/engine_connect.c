#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "engine/engine_state.h"

#define CALM 64 /* half-open connections up to which no cookie is asked for */
#define SECOND_NS UINT64_C(1000000000)
#define DEAD_MOST_NS (30 * 24 * 3600 * SECOND_NS) /* and no sum of times overflows */

void harp_connection_defaults(struct harp_connection_config *config)
{
    *config = (struct harp_connection_config){
        .paths = 1, .dead_ns = 30 * SECOND_NS, .cc = &harp_cc_swift};
}

static int check(const struct harp_engine *engine, const struct harp_connection_config *config,
                 char *why)
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

/* With the token: the engine's thread takes and gives back frames. */
static int check_frames(const struct harp_engine *engine,
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
        config->loss.min_rto_ns = config->loss.dead_ns = config->dead_ns / 8;
    } else { /* an ACK alone is a packet and a call of the kernel, and costs nothing with an answer
              */
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
    harp_count(&engine->stats.stats->engine.sessions_opened, 1);
    harp_count(&engine->stats.stats->engine.sessions, 1);
    engine->connections[connection->index] = connection;
    harp_engine_wake(engine, connection);
    return 0;
}

/* All frames that a connection had are the pool's again; those that the card still reads when it is
 * done. */
static void reclaim(struct harp_engine *engine, const struct harp_connection *connection)
{
    struct harp_frames *frames = &engine->frames;
    if (!connection->config.stream_frames && !connection->config.draft_frames)
        return; /* it never had any */
#ifdef HARP_BUG_NOT_RECLAIMED
    return;
#endif
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

void harp_engine_forget(struct harp_engine *engine, struct harp_connection *connection)
{
    reclaim(engine, connection);
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
    harp_count(&engine->stats.stats->engine.sessions, UINT64_MAX);
    if (connection->index < HARP_STATS_SESSIONS)
        harp_stats_put_session(engine->stats.stats, connection->index,
                               &(struct harp_stats_session){0});
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_GONE, connection->id,
                      connection->index, 0);
    harp_connection_free(connection);
}

/* ---- Listening ---- */

static void list_addresses(const struct harp_engine *engine, struct harp_handle *handle)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < engine->ports_n && n < HARP_HANDLE_ADDRESSES; p++)
        handle->addresses[n++] = engine->ports[p]->locals[0];
}

int harp_listen(struct harp_engine *engine, const struct harp_connection_config *config,
                struct harp_listening **listening, struct harp_handle *handle, char *why)
{
    int error = check(engine, config, why);
    if (error)
        return error;
    harp_token_take(engine);
    error = check_frames(engine, config, why);
    harp_token_drop(engine);
    if (error)
        return error;
    struct harp_listening *made = calloc(1, sizeof *made);
    if (!made)
        return snprintf(why, HARP_WHY_BYTES, "no memory to listen"), -ENOMEM;
    made->engine = engine;
    made->config = *config;
    made->listener.calm = CALM;
    made->fd = -1;
    harp_engine_random(engine, &made->listener.key, sizeof made->listener.key);
    harp_engine_random(engine, &made->secret, sizeof made->secret);
    do
        harp_engine_random(engine, &made->listener.id, sizeof made->listener.id);
    while (!made->listener.id);
    made->hello = harp_key_hello(&made->secret, made->listener.id);
    *handle = (struct harp_handle){.listener = made->listener.id};
    memcpy(handle->secret, &made->secret, sizeof handle->secret);
    list_addresses(engine, handle);
    harp_token_take(engine);
    made->next = engine->listenings;
    engine->listenings = made;
    harp_recorder_add(engine->recorder, harp_engine_clock(engine), HARP_RECORD_LISTEN, 0,
                      made->listener.id, 0);
    harp_token_drop(engine);
    *listening = made;
    return 0;
}

void harp_engine_welcome(struct harp_listening *listening, struct harp_connection *connection)
{
    listening->half_open--;
    if (listening->waiting_n == HARP_MESSAGES) {
        harp_session_close(connection->session, listening->engine->now_ns, HARP_REASON_MEMORY,
                           "too many connections wait to be accepted");
        harp_connection_orphan(connection);
        return;
    }
    listening->waiting[listening->waiting_n++] = connection;
    if (listening->fd >= 0)
        (void)!write(listening->fd, &(uint64_t){1}, sizeof(uint64_t));
}

struct harp_connection *harp_accept(struct harp_listening *listening)
{
    struct harp_engine *engine = listening->engine;
    if (engine->generation != harp_generation)
        return NULL;
    struct harp_connection *connection = NULL;
    harp_token_take(engine);
    if (listening->waiting_n) {
        connection = listening->waiting[0];
        memmove(listening->waiting, listening->waiting + 1,
                --listening->waiting_n * sizeof listening->waiting[0]);
        connection->listening = NULL;
    }
    harp_token_drop(engine);
    return connection;
}

int harp_listening_fd(struct harp_listening *listening)
{
    struct harp_engine *engine = listening->engine;
    if (engine->generation != harp_generation)
        return -1;
    harp_token_take(engine);
    if (listening->fd < 0)
        listening->fd = eventfd(listening->waiting_n, EFD_CLOEXEC | EFD_NONBLOCK);
    harp_token_drop(engine);
    return listening->fd;
}

/* Connections that nobody will accept any more. */
static void leave(struct harp_engine *engine, const struct harp_listening *listening)
{
    for (uint32_t i = 0; i < engine->connections_n; i++) {
        struct harp_connection *connection = engine->connections[i];
        if (!connection || connection->listening != listening)
            continue;
        harp_session_close(connection->session, harp_engine_clock(engine), HARP_REASON_DONE,
                           "the listener was closed");
        harp_connection_orphan(connection);
    }
}

void harp_unlisten(struct harp_listening *listening)
{
    struct harp_engine *engine = listening->engine;
    if (engine->generation != harp_generation)
        return;
    harp_token_take(engine);
    leave(engine, listening);
    struct harp_listening **at = &engine->listenings;
    while (*at != listening)
        at = &(*at)->next;
    *at = listening->next;
    harp_token_drop(engine);
    harp_engine_ring(engine);
    if (listening->fd >= 0)
        close(listening->fd);
    free(listening);
}

/* ---- Connecting ---- */

static int begin(struct harp_engine *engine, const struct harp_handle *handle,
                 const struct harp_connection_config *config, struct harp_connection **connection,
                 char *why)
{
    struct harp_hop hops[HARP_PATHS_MAX];
    struct harp_session_config session;
    int error =
        harp_engine_make_hops(engine, handle, config->paths, config->traffic_class, hops, why);
    if (error)
        return error;
    uint32_t payload_max = harp_engine_hops_payload_max(engine, hops, config->paths);
    if (payload_max < HARP_PAYLOAD_LEAST) {
        harp_engine_drop_hops(engine, hops, config->paths);
        return snprintf(why, HARP_WHY_BYTES,
                        "the way there takes datagrams of %u bytes, and the protocol needs %d: an "
                        "MTU of 252 is enough",
                        payload_max, HARP_PAYLOAD_LEAST),
               -EMSGSIZE;
    }
    harp_engine_session_config(engine, config, payload_max, engine->ports[hops[0].port]->holds_back,
                               &session);
    session.listener = handle->listener;
    session.traffic_class = config->traffic_class & (uint8_t)~HARP_ECN_MASK;
    session.addresses_n = config->paths > 1 ? HARP_ADDRESSES_MAX : 0;
    struct harp_connection *made = harp_connection_new(engine, config, &session);
    if (made && harp_engine_adopt(engine, made) != 0) {
        harp_connection_free(made);
        made = NULL;
    }
    if (!made) {
        harp_engine_drop_hops(engine, hops, config->paths);
        return snprintf(why, HARP_WHY_BYTES, "no memory, or the engine has %u connections already",
                        engine->config.connections),
               -ENOMEM;
    }
    memcpy(made->hops, hops, config->paths * sizeof hops[0]);
    made->listener = handle->listener;
    memcpy(&made->secret, handle->secret, sizeof made->secret);
    struct harp_end connecting = {.connection = session.connection, .epoch = session.epoch};
    memcpy(connecting.nonce, session.nonce, sizeof connecting.nonce);
    made->hello = harp_key_hello(&made->secret, made->listener);
    made->accept = harp_key_accept(&made->secret, made->listener, &connecting);
    made->session = harp_session_connect(made->session, &session, harp_engine_clock(engine));
    for (uint32_t p = 0; p < config->paths; p++)
        harp_engine_path_leads(made, p);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_CONNECT, made->id,
                      session.paths, session.segment);
    *connection = made;
    return 0;
}

int harp_connect(struct harp_engine *engine, const struct harp_handle *handle,
                 const struct harp_connection_config *config, struct harp_connection **connection,
                 char *why)
{
    int error = check(engine, config, why);
    if (error)
        return error;
    harp_token_take(engine);
    error = check_frames(engine, config, why);
    if (!error)
        error = begin(engine, handle, config, connection, why);
    harp_token_drop(engine);
    harp_engine_ring(engine);
    return error;
}

static void close_connection(struct harp_connection *connection, uint32_t reason, const char *text)
{
    struct harp_engine *engine = connection->engine;
    if (engine->generation != harp_generation)
        return;
    harp_token_take(engine);
    /* What was handed over before the close counts as handed over. */
    harp_connection_command(connection);
    if (!connection->ended)
        harp_session_close(connection->session, harp_engine_clock(engine), reason, text);
    reclaim(engine, connection);
    harp_connection_orphan(connection);
    harp_token_drop(engine);
    harp_engine_ring(engine);
}

void harp_connection_close(struct harp_connection *connection)
{
    close_connection(connection, HARP_REASON_DONE, NULL);
}

void harp_connection_abort(struct harp_connection *connection, const char *text)
{
    close_connection(connection, HARP_REASON_UNDER_WAY, text);
}

void harp_connection_why(struct harp_connection *connection, char *why)
{
    snprintf(why, HARP_WHY_BYTES, "%s", connection->why);
}

void harp_connection_info(struct harp_connection *connection, struct harp_connection_info *info)
{
    struct harp_engine *engine = connection->engine;
    *info = (struct harp_connection_info){.id = connection->id};
    if (engine->generation != harp_generation)
        return;
    harp_token_take(engine);
    info->paths = connection->config.paths;
    info->segment = (uint16_t)connection->segment;
    info->peer = connection->hops[0].remote;
    info->port = connection->hops[0].port;
    info->counters = *harp_session_count(connection->session);
    harp_token_drop(engine);
}

bool harp_connection_path(struct harp_connection *connection, uint16_t path,
                          struct harp_path_info *info, struct harp_address *local,
                          struct harp_address *remote)
{
    struct harp_engine *engine = connection->engine;
    if (engine->generation != harp_generation || path >= connection->config.paths)
        return false;
    harp_token_take(engine);
    const struct harp_hop *hop = &connection->hops[path];
    bool there =
        hop->hop != HARP_NO_HOP && harp_session_path_info(connection->session, (uint8_t)path, info);
    if (there) {
        *local = engine->ports[hop->port]->locals[hop->local];
        *remote = hop->remote;
    }
    harp_token_drop(engine);
    return there;
}
