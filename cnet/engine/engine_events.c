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
    if (connection->state.orphan)
        return;
    uint32_t put = harp_spsc_put(connection->shared.completions, completion, 1);
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
        harp_bit_ring_set(&connection->received.unread, connection->received.posted++);
    else
        harp_bit_ring_clear(&connection->received.unread, connection->received.posted++);
    if (eager >= 0)
        harp_copy_lines(command->buffer,
                        connection->received.eager + (size_t)eager * connection->shared.segment,
                        connection->received.eager_bytes[eager]);
    return true;
}

static bool execute_command(struct harp_connection *connection, const struct harp_command *command)
{
    struct harp_session *session = connection->session;
    uint32_t slot = connection->sent.next % HARP_MESSAGES;
    switch (command->type) {
    case HARP_COMMAND_RECEIVE:
    case HARP_COMMAND_RECEIVE_UNREAD:
        return execute_receive(connection, command);
    case HARP_COMMAND_SEND:
    case HARP_COMMAND_SEND_SHORT:
        connection->sent.slots[slot].count = 0;
        connection->sent.slots[slot].is_short = command->type == HARP_COMMAND_SEND_SHORT;
        if (!harp_session_message(session, command->buffer, command->size, command->context))
            return false;
        connection->sent.next++;
        return true;
    default:
        connection->sent.slots[slot].is_short = false;
        connection->sent.slots[slot].first =
            (uint32_t)((const uint8_t **)command->buffer - connection->shared.pieces);
        connection->sent.slots[slot].count =
            command->size ? (command->size - 1) / connection->shared.segment + 1 : 0;
        if (!harp_session_message_frames(session, command->buffer, command->size, command->context))
            return false;
        for (uint32_t i = 0; i < connection->sent.slots[slot].count; i++)
            harp_frames_move(
                &connection->engine->frames,
                harp_connection_piece(connection, connection->sent.slots[slot].first + i),
                HARP_FRAME_DRAFT, HARP_FRAME_READY);
        connection->sent.next++;
        return true;
    }
}

static void take_returns(struct harp_connection *connection)
{
    uint32_t frames[HARP_BATCH], n;
    while ((n = harp_spsc_take(connection->shared.returns, frames, HARP_BATCH))) {
        for (uint32_t i = 0; i < n; i++)
            harp_frames_move(&connection->engine->frames, frames[i], HARP_FRAME_LENT,
                             HARP_FRAME_FREE);
        assert(n <= connection->received.lent);
        connection->received.lent -= n;
        harp_session_returned(connection->session, n);
        harp_engine_wake(connection->engine, connection);
    }
}

void harp_connection_refill_drafts(struct harp_connection *connection)
{
    struct harp_engine *engine = connection->engine;
    uint32_t frame;
    for (; connection->sent.drafts_due; connection->sent.drafts_due--) {
        if (!harp_frames_take(&engine->frames, HARP_FRAME_DRAFT, &frame, 1)) {
            harp_index_queue_put(&engine->due.draftless, connection->index);
            return;
        }
        engine->owner[frame] = connection->index;
        harp_spsc_put(connection->shared.drafts, &frame, 1);
    }
}

/* Frames for the application to write into, in place of those that were sent. */
static void owe_drafts(struct harp_connection *connection, uint32_t count)
{
    connection->sent.drafts_due += count;
    harp_connection_refill_drafts(connection);
}

void harp_connection_command(struct harp_connection *connection)
{
    struct harp_command commands[16];
    uint32_t n;
    if (connection->state.orphan)
        return;
    while ((n = harp_spsc_take(connection->shared.commands, commands, 16))) {
        /* Calls that the session refuses after its end are void: CLOSED completes all. */
        for (uint32_t i = 0; i < n; i++)
            execute_command(connection, &commands[i]);
        harp_engine_wake(connection->engine, connection);
    }
    if (connection->shared.returns)
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

/* The other end has the oldest message, be it by another flow than the one that still has it. True
 * if the application is to hear of it. */
static bool on_sent(struct harp_connection *connection, const struct harp_event *event)
{
    struct harp_engine *engine = connection->engine;
    uint32_t slot = connection->sent.oldest++ % HARP_MESSAGES;
    harp_engine_let_go(connection, event->buffer, event->size);
    if (connection->sent.slots[slot].is_short) {
        atomic_fetch_add_explicit(&connection->shared.shorts_done, 1, memory_order_release);
        if (connection->state.lingers && connection->sent.oldest == connection->sent.next)
            harp_session_close(connection->session, engine->now_ns, HARP_REASON_DONE, NULL);
        return false;
    }
    if (connection->sent.slots[slot].count && !connection->state.orphan) {
        free_pieces(connection, connection->sent.slots[slot].first,
                    connection->sent.slots[slot].count);
        owe_drafts(connection, connection->sent.slots[slot].count);
    }
    return true;
}

bool harp_connection_has_shorts_alone(const struct harp_connection *connection)
{
    for (uint32_t i = connection->sent.oldest; i != connection->sent.next; i++)
        if (!connection->sent.slots[i % HARP_MESSAGES].is_short)
            return false;
    return connection->sent.oldest != connection->sent.next;
}

static void on_connected(struct harp_connection *connection)
{
    struct harp_engine *engine = connection->engine;
    connection->state.ready = true;
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_OPEN, connection->id,
                      connection->shared.segment, engine->now_ns - connection->state.since_ns);
    if (connection->shared.drafts)
        owe_drafts(connection, connection->config.draft_frames);
    if (connection->handshake.listening)
        harp_engine_welcome(connection->handshake.listening, connection);
}

/* Name the flow on which nothing arrives any more: one of several may be lost, and a search for it
 * in the network needs its ports. */
static void add_way(struct harp_connection *connection)
{
    const struct harp_hop *hop = &connection->hops[0];
    size_t length = strlen(connection->end.why);
    char local[64], remote[64], more[40] = "";
    if (hop->hop == HARP_NO_HOP)
        return;
    struct harp_address from = harp_engine_hop_local(connection->engine, hop);
    harp_address_format(&from, local, sizeof local);
    harp_address_format(&hop->remote, remote, sizeof remote);
    if (connection->config.paths > 1)
        snprintf(more, sizeof more, " and %d other paths", connection->config.paths - 1);
    snprintf(connection->end.why + length, sizeof connection->end.why - length, "; from %s to %s%s",
             local, remote, more);
}

static void on_closed(struct harp_connection *connection, const struct harp_event *event)
{
    struct harp_engine *engine = connection->engine;
    harp_engine_let_go(connection, NULL, 0);
    connection->state.ended = true;
    engine->connections.closing_n -= connection->state.orphan;
    connection->state.linger_ns = engine->now_ns + HARP_LINGER_NS;
    connection->end.reason = event->reason;
    harp_reason_explain(event, connection->end.why, sizeof connection->end.why);
    if (!event->by_peer &&
        (event->reason == HARP_REASON_SILENT || event->reason == HARP_REASON_REFUSED))
        add_way(connection);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_CLOSED, connection->id,
                      event->reason, event->by_peer);
    engine->failed |= event->reason != HARP_REASON_DONE;
    if (connection->handshake.listening && !connection->state.ready)
        connection->handshake.listening->half_open--;
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
        completion.message = event->message - connection->sent.first;
        connection->sent.messages++;
        harp_count(&engine->messages_sent, 1);
        harp_count(&engine->message_bytes_sent, event->size);
        connection->sent.bytes += event->size;
        if (!on_sent(connection, event))
            return;
        break;
    case HARP_EVENT_RECEIVED:
        completion.type = HARP_COMPLETION_RECEIVED;
        completion.message = event->message - connection->received.first;
        connection->received.messages++;
        harp_count(&engine->messages_received, 1);
        harp_count(&engine->message_bytes_received, event->size);
        connection->received.bytes += event->size;
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
    while (connection->state.orphan ||
           harp_spsc_room(connection->shared.completions) > connection->config.stream_frames) {
        harp_session_poll(connection->session, &event);
        if (event.type == HARP_EVENT_NONE)
            break;
        report_event(connection, &event);
    }
    if (connection->notify && atomic_load(&connection->shared.armed)) {
        atomic_store(&connection->shared.armed, 0);
        (void)!write(connection->app.fd, &(uint64_t){1}, sizeof(uint64_t));
    }
    connection->notify = false;
}
