#include "engine/engine_state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define COMMANDS (2 * HARP_MESSAGES)

static uint32_t power_of_two(uint32_t least)
{
    uint32_t n = 1;
    while (n < least)
        n *= 2;
    return n;
}

static struct harp_spsc *new_ring(uint32_t least, uint32_t item_bytes)
{
    uint32_t capacity = power_of_two(least);
    size_t bytes = (harp_spsc_bytes(capacity, item_bytes) + 127) / 128 * 128;
    void *memory = aligned_alloc(128, bytes);
    return memory ? harp_spsc_make(memory, capacity, item_bytes) : NULL;
}

static bool take_memory(struct harp_connection *connection,
                        const struct harp_session_config *session)
{
    const struct harp_connection_config *config = &connection->config;
    size_t session_bytes = (harp_session_size(session) + 63) / 64 * 64;
    connection->shared.commands = new_ring(COMMANDS, sizeof(struct harp_command));
    connection->shared.completions = new_ring(COMMANDS + 2 * HARP_MESSAGES + config->stream_frames,
                                              sizeof(struct harp_completion));
    connection->session = aligned_alloc(64, session_bytes);
    connection->received.eager = aligned_alloc(128, (size_t)HARP_EAGER * session->segment);
    if (config->short_bytes &&
        !(connection->shared.shorts = aligned_alloc(128, HARP_SHORTS * HARP_SHORT_BYTES)))
        return false;
    if (!connection->shared.commands || !connection->shared.completions || !connection->session ||
        !connection->received.eager)
        return false;
    if (config->stream_frames &&
        !(connection->shared.returns = new_ring(config->stream_frames, sizeof(uint32_t))))
        return false;
    if (!config->draft_frames)
        return true;
    connection->shared.drafts = new_ring(config->draft_frames, sizeof(uint32_t));
    connection->shared.pieces =
        calloc(2 * (size_t)config->draft_frames, sizeof *connection->shared.pieces);
    return connection->shared.drafts && connection->shared.pieces;
}

struct harp_connection *harp_connection_new(struct harp_engine *engine,
                                            const struct harp_connection_config *config,
                                            const struct harp_session_config *session)
{
    size_t bytes = sizeof(struct harp_connection) + (session->paths + 1u) * sizeof(struct harp_hop);
    struct harp_connection *connection = aligned_alloc(128, (bytes + 127) / 128 * 128);
    if (!connection)
        return NULL;
    memset(connection, 0, bytes);
    connection->engine = engine;
    connection->config = *config;
    connection->config.paths = session->paths;
    connection->own = *session;
    connection->id = session->connection;
    connection->sent.first = session->first;
    connection->app.fd = -1;
    for (uint32_t p = 0; p <= session->paths; p++)
        connection->hops[p].hop = HARP_NO_HOP;
    for (uint32_t i = 0; i < HARP_REASSEMBLIES; i++)
        connection->received.assembling[i] = HARP_NO_FRAME;
    if (!take_memory(connection, session)) {
        harp_connection_free(connection);
        return NULL;
    }
    return connection;
}

void harp_connection_free(struct harp_connection *connection)
{
    if (connection->app.fd >= 0)
        close(connection->app.fd);
    free(connection->shared.commands);
    free(connection->shared.completions);
    free(connection->shared.returns);
    free(connection->shared.drafts);
    free(connection->shared.pieces);
    free(connection->session);
    free(connection->received.eager);
    free(connection->shared.shorts);
    free(connection);
}

/* Something is in a ring for it. */
static void tell_the_engine(struct harp_connection *connection)
{
    harp_ready_set_add(&connection->engine->due.calls, connection->index);
    harp_engine_ring_if_asleep(connection->engine);
}

static bool put_command(struct harp_connection *connection, const struct harp_command *command)
{
    uint32_t put = harp_spsc_put(connection->shared.commands, command, 1);
    assert(put == 1); /* it counts what is open, and there is room for all of that */
    tell_the_engine(connection);
    return true;
}

static bool is_usable(const struct harp_connection *connection)
{
    return connection->app.connected && !connection->app.closed &&
           connection->engine->generation == harp_generation;
}

static uint32_t shorts_open(struct harp_connection *connection)
{
    return connection->app.shorts_taken -
           atomic_load_explicit(&connection->shared.shorts_done, memory_order_acquire);
}

static bool may_send(struct harp_connection *connection, uint32_t size)
{
    return is_usable(connection) && size <= HARP_MESSAGE_MAX &&
           connection->app.sends_open + shorts_open(connection) < HARP_MESSAGES;
}

bool harp_send(struct harp_connection *connection, const void *buffer, uint32_t size,
               uint64_t context)
{
    if (!may_send(connection, size))
        return false;
    connection->app.sends_open++;
    return put_command(connection, &(struct harp_command){.type = HARP_COMMAND_SEND,
                                                          .size = size,
                                                          .buffer = (void *)(uintptr_t)buffer,
                                                          .context = context});
}

bool harp_send_short(struct harp_connection *connection, const void *buffer, uint32_t size)
{
    assert(size <= connection->config.short_bytes && connection->shared.shorts);
    if (!may_send(connection, size) || shorts_open(connection) == HARP_SHORTS)
        return false;
    uint8_t *copy = connection->shared.shorts +
                    (size_t)(connection->app.shorts_taken++ % HARP_SHORTS) * HARP_SHORT_BYTES;
    memcpy(copy, buffer, size);
    return put_command(
        connection,
        &(struct harp_command){.type = HARP_COMMAND_SEND_SHORT, .size = size, .buffer = copy});
}

static bool post_buffer(struct harp_connection *connection, uint32_t type, void *buffer,
                        uint32_t capacity, uint64_t context)
{
    bool left = connection->app.closed && connection->app.left_over &&
                connection->engine->generation == harp_generation;
    if ((!is_usable(connection) && !left) || connection->app.receives_open == HARP_MESSAGES ||
        connection->config.stream_frames)
        return false;
    connection->app.left_over -= left;
    connection->app.receives_open++;
    return put_command(connection,
                       &(struct harp_command){
                           .type = type, .size = capacity, .buffer = buffer, .context = context});
}

bool harp_receive(struct harp_connection *connection, void *buffer, uint32_t capacity,
                  uint64_t context)
{
    return post_buffer(connection, HARP_COMMAND_RECEIVE, buffer, capacity, context);
}

bool harp_receive_unread(struct harp_connection *connection, void *buffer, uint32_t capacity,
                         uint64_t context)
{
    return post_buffer(connection, HARP_COMMAND_RECEIVE_UNREAD, buffer, capacity, context);
}

uint32_t harp_drafts(struct harp_connection *connection, uint32_t *frames, uint32_t count)
{
    if (!is_usable(connection) || !connection->shared.drafts)
        return 0;
    return harp_spsc_take(connection->shared.drafts, frames, count);
}

uint8_t *harp_draft_bytes(const struct harp_connection *connection, uint32_t frame)
{
    return harp_frame_at(&connection->engine->frames, frame) + HARP_DRAFT_AT;
}

bool harp_send_frames(struct harp_connection *connection, const uint32_t *frames, uint32_t size,
                      uint64_t context)
{
    if (!may_send(connection, size) || !connection->shared.drafts)
        return false;
    uint32_t count = size ? (size - 1) / connection->shared.segment + 1 : 0;
    uint32_t capacity = 2 * connection->config.draft_frames;
    /* A message's pieces lie in a row. At most draft_frames are in use, so of twice as many places
     * those at the beginning are free when a row does not fit before the end. */
    if (connection->app.pieces_at + count > capacity)
        connection->app.pieces_at = 0;
    const uint8_t **pieces = connection->shared.pieces + connection->app.pieces_at;
    for (uint32_t i = 0; i < count; i++)
        pieces[i] = harp_draft_bytes(connection, frames[i]);
    connection->app.pieces_at += count;
    connection->app.sends_open++;
    return put_command(connection, &(struct harp_command){.type = HARP_COMMAND_SEND_FRAMES,
                                                          .size = size,
                                                          .buffer = pieces,
                                                          .context = context});
}

uint32_t harp_segment(const struct harp_connection *connection)
{
    return connection->app.connected ? connection->shared.segment : 0;
}

void harp_return(struct harp_connection *connection, const uint32_t *frames, uint32_t count)
{
    if (connection->engine->generation != harp_generation || !count)
        return;
    uint32_t put = harp_spsc_put(connection->shared.returns, frames, count);
    assert(put == count); /* no more frames are lent than it has room for */
    tell_the_engine(connection);
}

size_t harp_poll(struct harp_connection *connection, struct harp_completion *completions,
                 size_t room)
{
    if (connection->engine->generation != harp_generation)
        return 0;
    uint32_t most = room < UINT32_MAX ? (uint32_t)room : UINT32_MAX;
    uint32_t n = harp_spsc_take(connection->shared.completions, completions, most);
    for (uint32_t i = 0; i < n; i++) {
        switch (completions[i].type) {
        case HARP_COMPLETION_CONNECTED:
            connection->app.connected = true;
            break;
        case HARP_COMPLETION_SENT:
            connection->app.sends_open--;
            break;
        case HARP_COMPLETION_RECEIVED:
            connection->app.receives_open -= !connection->config.stream_frames;
            break;
        case HARP_COMPLETION_CLOSED:
            connection->app.closed = true;
            /* Messages that are handed over already take the first of them. */
            connection->app.left_over = completions[i].size > connection->app.receives_open
                                            ? completions[i].size - connection->app.receives_open
                                            : 0;
            break;
        default:
            break;
        }
    }
    return n;
}

int harp_connection_fd(struct harp_connection *connection)
{
    if (connection->app.fd < 0)
        connection->app.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return connection->app.fd;
}

bool harp_arm(struct harp_connection *connection)
{
    /* Sequentially consistent, as is the engine's look after its put: one of both sees the other,
     * so that no completion is missed. */
    atomic_store(&connection->shared.armed, 1);
    if (harp_spsc_ready(connection->shared.completions) == 0)
        return true;
    atomic_store(&connection->shared.armed, 0);
    return false;
}

/* ---- What it is ---- */

void harp_connection_why(struct harp_connection *connection, char *why)
{
    snprintf(why, HARP_WHY_BYTES, "%s", connection->end.why);
}

void harp_connection_info(struct harp_connection *connection, struct harp_connection_info *info)
{
    struct harp_engine *engine = connection->engine;
    *info = (struct harp_connection_info){.id = connection->id};
    if (engine->generation != harp_generation)
        return;
    harp_token_take(engine);
    info->paths = connection->config.paths;
    info->segment = (uint16_t)connection->shared.segment;
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
        *local = harp_engine_hop_local(engine, hop);
        *remote = hop->remote;
    }
    harp_token_drop(engine);
    return there;
}
