#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/copy_lines.h"
#include "engine/engine_state.h"

void harp_connection_complete(struct harp_connection *connection,
                              const struct harp_completion *completion)
{
    connection->engine->moved = true;
    if (connection->orphan)
        return;
    uint32_t put = harp_spsc_put(connection->completions, completion, 1);
    assert(put == 1);
    connection->notify = true;
}

static bool execute_receive(struct harp_connection *connection, const struct harp_command *command)
{
    int eager;
    if (!harp_session_post(connection->session, command->buffer, command->size, command->context,
                           &eager))
        return false;
    if (command->type == HARP_COMMAND_RECEIVE_UNREAD)
        harp_bit_ring_set(&connection->unread, connection->posted++);
    else
        harp_bit_ring_clear(&connection->unread, connection->posted++);
    if (eager >= 0)
        harp_copy_lines(command->buffer, connection->eager + (size_t)eager * connection->segment,
                        connection->eager_bytes[eager]);
    return true;
}

static bool execute_command(struct harp_connection *connection, const struct harp_command *command)
{
    struct harp_session *session = connection->session;
    uint32_t slot = connection->sent_next % HARP_MESSAGES;
    switch (command->type) {
    case HARP_COMMAND_RECEIVE:
    case HARP_COMMAND_RECEIVE_UNREAD:
        return execute_receive(connection, command);
    case HARP_COMMAND_SEND:
    case HARP_COMMAND_SEND_SHORT:
        connection->sent[slot].count = 0;
        connection->sent[slot].is_short = command->type == HARP_COMMAND_SEND_SHORT;
        if (!harp_session_message(session, command->buffer, command->size, command->context))
            return false;
        connection->sent_next++;
        return true;
    default:
        connection->sent[slot].is_short = false;
        connection->sent[slot].first =
            (uint32_t)((const uint8_t **)command->buffer - connection->pieces);
        connection->sent[slot].count =
            command->size ? (command->size - 1) / connection->segment + 1 : 0;
        if (!harp_session_message_frames(session, command->buffer, command->size, command->context))
            return false;
        for (uint32_t i = 0; i < connection->sent[slot].count; i++)
            harp_frames_move(&connection->engine->frames,
                             harp_connection_piece(connection, connection->sent[slot].first + i),
                             HARP_FRAME_DRAFT, HARP_FRAME_READY);
        connection->sent_next++;
        return true;
    }
}

static void take_returns(struct harp_connection *connection)
{
    uint32_t frames[HARP_BATCH], n;
    while ((n = harp_spsc_take(connection->returns, frames, HARP_BATCH))) {
        for (uint32_t i = 0; i < n; i++)
            harp_frames_move(&connection->engine->frames, frames[i], HARP_FRAME_LENT,
                             HARP_FRAME_FREE);
        assert(n <= connection->lent);
        connection->lent -= n;
        harp_session_returned(connection->session, n);
        harp_engine_wake(connection->engine, connection);
    }
}

void harp_connection_refill_drafts(struct harp_connection *connection)
{
    struct harp_engine *engine = connection->engine;
    uint32_t frame;
    for (; connection->drafts_due; connection->drafts_due--) {
        if (!harp_frames_take(&engine->frames, HARP_FRAME_DRAFT, &frame, 1)) {
            harp_index_queue_put(&engine->draftless, connection->index);
            return;
        }
        engine->owner[frame] = connection->index;
        harp_spsc_put(connection->drafts, &frame, 1);
    }
}

/* Frames for the application to write into, in place of those that were sent. */
static void owe_drafts(struct harp_connection *connection, uint32_t count)
{
    connection->drafts_due += count;
    harp_connection_refill_drafts(connection);
}

void harp_connection_command(struct harp_connection *connection)
{
    struct harp_command commands[16];
    uint32_t n;
    if (connection->orphan)
        return;
    while ((n = harp_spsc_take(connection->commands, commands, 16))) {
        /* Calls that the session refuses after its end are void: CLOSED completes all. */
        for (uint32_t i = 0; i < n; i++)
            execute_command(connection, &commands[i]);
        harp_engine_wake(connection->engine, connection);
    }
    if (connection->returns)
        take_returns(connection);
}

/* A message in frames has arrived: the card may still hold some of them. */
static void free_pieces(struct harp_connection *connection, uint32_t first, uint32_t count)
{
    struct harp_frames *frames = &connection->engine->frames;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t frame = harp_connection_piece(connection, first + i);
        enum harp_frame_state state = frames->state[frame];
        harp_frames_move(frames, frame, state,
                         state == HARP_FRAME_SENDING ? HARP_FRAME_LEAVING : HARP_FRAME_FREE);
    }
}

/* The other end has the oldest message. True if the application is to hear of it. */
static bool on_sent(struct harp_connection *connection)
{
    struct harp_engine *engine = connection->engine;
    uint32_t slot = connection->sent_oldest++ % HARP_MESSAGES;
    if (connection->sent[slot].is_short) {
        atomic_fetch_add_explicit(&connection->shorts_done, 1, memory_order_release);
        if (connection->lingers && connection->sent_oldest == connection->sent_next)
            harp_session_close(connection->session, engine->now_ns, HARP_REASON_DONE, NULL);
        return false;
    }
    if (connection->sent[slot].count && !connection->orphan) {
        free_pieces(connection, connection->sent[slot].first, connection->sent[slot].count);
        owe_drafts(connection, connection->sent[slot].count);
    }
    return true;
}

bool harp_connection_has_shorts_alone(const struct harp_connection *connection)
{
    for (uint32_t i = connection->sent_oldest; i != connection->sent_next; i++)
        if (!connection->sent[i % HARP_MESSAGES].is_short)
            return false;
    return connection->sent_oldest != connection->sent_next;
}

static void on_connected(struct harp_connection *connection)
{
    struct harp_engine *engine = connection->engine;
    connection->ready = true;
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_OPEN, connection->id,
                      connection->segment, engine->now_ns - connection->since_ns);
    if (connection->drafts)
        owe_drafts(connection, connection->config.draft_frames);
    if (connection->listening)
        harp_engine_welcome(connection->listening, connection);
}

/* Name the flow on which nothing arrives any more: one of several may be lost, and a search for it
 * in the network needs its ports. */
static void add_way(struct harp_connection *connection)
{
    const struct harp_hop *hop = &connection->hops[0];
    size_t length = strlen(connection->why);
    char local[64], remote[64], more[40] = "";
    if (hop->hop == HARP_NO_HOP)
        return;
    struct harp_address from = harp_engine_hop_local(connection->engine, hop);
    harp_address_format(&from, local, sizeof local);
    harp_address_format(&hop->remote, remote, sizeof remote);
    if (connection->config.paths > 1)
        snprintf(more, sizeof more, " and %d other paths", connection->config.paths - 1);
    snprintf(connection->why + length, sizeof connection->why - length, "; from %s to %s%s", local,
             remote, more);
}

static void on_closed(struct harp_connection *connection, const struct harp_event *event)
{
    struct harp_engine *engine = connection->engine;
    connection->ended = true;
    engine->closing_n -= connection->orphan;
    connection->linger_ns = engine->now_ns + HARP_LINGER_NS;
    connection->reason = event->reason;
    harp_reason_explain(event, connection->why, sizeof connection->why);
    if (!event->by_peer &&
        (event->reason == HARP_REASON_SILENT || event->reason == HARP_REASON_REFUSED))
        add_way(connection);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_CLOSED, connection->id,
                      event->reason, event->by_peer);
    engine->failed |= event->reason != HARP_REASON_DONE;
    if (connection->listening && !connection->ready)
        connection->listening->half_open--;
}

static void report_event(struct harp_connection *connection, const struct harp_event *event)
{
    struct harp_engine_counters *engine = &connection->engine->stats.stats->engine;
    struct harp_completion completion = {
        .size = event->size, .context = event->context, .reason = event->reason};
    switch (event->type) {
    case HARP_EVENT_CONNECTED:
        on_connected(connection);
        completion.type = HARP_COMPLETION_CONNECTED;
        break;
    case HARP_EVENT_SENT:
        completion.type = HARP_COMPLETION_SENT;
        completion.message = event->message - connection->first_out;
        connection->messages_sent++;
        harp_count(&engine->messages_sent, 1);
        harp_count(&engine->message_bytes_sent, event->size);
        connection->bytes_sent += event->size;
        if (!on_sent(connection))
            return;
        break;
    case HARP_EVENT_RECEIVED:
        completion.type = HARP_COMPLETION_RECEIVED;
        completion.message = event->message - connection->first_in;
        connection->messages_received++;
        harp_count(&engine->messages_received, 1);
        harp_count(&engine->message_bytes_received, event->size);
        connection->bytes_received += event->size;
        break;
    default:
        on_closed(connection, event);
        completion.type = HARP_COMPLETION_CLOSED;
    }
    harp_connection_complete(connection, &completion);
}

void harp_connection_events(struct harp_connection *connection)
{
    struct harp_event event;
    /* An application that does not poll finds its oldest completions; the rest waits here. */
    while (connection->orphan ||
           harp_spsc_room(connection->completions) > connection->config.stream_frames) {
        harp_session_poll(connection->session, &event);
        if (event.type == HARP_EVENT_NONE)
            break;
        report_event(connection, &event);
    }
    if (connection->notify && atomic_load(&connection->armed)) {
        atomic_store(&connection->armed, 0);
        (void)!write(connection->fd, &(uint64_t){1}, sizeof(uint64_t));
    }
    connection->notify = false;
}
