#include <assert.h>
#include <string.h>

#include "base/copy_lines.h"
#include "engine/engine_state.h"
#include "wire/crc32c.h"
#include "wire/seal.h"

#define GROUP 64 /* frames of one connection whose tags are checked together */

/* Copy the payload to its place and return whether its CRC holds, in one pass: what was written may
 * be wrong if it does not. */
static bool copy_payload(const struct harp_arrival *arrival, const struct harp_header *header,
                         uint8_t *to)
{
    const uint8_t *from = arrival->bytes + HARP_HEADER_BYTES;
    if (!harp_payload_unchecked(arrival->bytes))
        return harp_open_crc(arrival->bytes, harp_crc32c_copy(to, from, header->length));
    memcpy(to, from, header->length);
    return true;
}

/* The same to memory that somebody polls: nothing is written unless the CRC holds, and then line by
 * line (copy_lines.h). */
static bool copy_payload_lines(const struct harp_arrival *arrival, const struct harp_header *header,
                               uint8_t *to)
{
    const uint8_t *from = arrival->bytes + HARP_HEADER_BYTES;
    if (!harp_open_payload(arrival->bytes, from, header->length))
        return false;
    harp_copy_lines(to, from, header->length);
    return true;
}

/* A frame that holds a streamed chunk is the application's now. */
static void lend_frame(struct harp_engine *engine, struct harp_connection *connection,
                       uint32_t frame, const uint8_t *bytes, uint32_t size,
                       const struct harp_header *header, uint32_t offset)
{
    harp_frames_move(&engine->frames, frame, HARP_FRAME_ARRIVED, HARP_FRAME_LENT);
    connection->received.lent++;
    engine->owner[frame] = connection->index;
    const struct harp_completion chunk = {.type = HARP_COMPLETION_CHUNK,
                                          .size = size,
                                          .message = header->message - connection->received.first,
                                          .offset = offset,
                                          .bytes = bytes,
                                          .frame = frame};
    harp_connection_complete(connection, &chunk);
}

/* Lend the frame that a chunk came in; copy it to one if it lies in the port's memory. */
static bool lend_arrival(struct harp_engine *engine, struct harp_connection *connection,
                         struct harp_arrival *arrival, const struct harp_header *header)
{
    const uint8_t *bytes = arrival->bytes + HARP_HEADER_BYTES;
    uint32_t frame = arrival->frame;
    if (frame != HARP_NO_FRAME && !arrival->shared) {
        if (!harp_open_payload(arrival->bytes, bytes, header->length))
            return false;
        arrival->kept = true;
    } else {
        if (header->length > engine->frames.frame_bytes ||
            !harp_frames_take(&engine->frames, HARP_FRAME_FILL, &frame, 1))
            return false;
        harp_frames_move(&engine->frames, frame, HARP_FRAME_FILL, HARP_FRAME_ARRIVED);
        uint8_t *copy = harp_frame_at(&engine->frames, frame);
        if (!copy_payload(arrival, header, copy)) {
            harp_frames_move(&engine->frames, frame, HARP_FRAME_ARRIVED, HARP_FRAME_FREE);
            return false;
        }
        bytes = copy;
    }
    lend_frame(engine, connection, frame, bytes, header->length, header, header->offset);
    return true;
}

/* Put a fragment of a streamed chunk to the others of it, and lend their frame with the last. */
static bool reassemble_chunk(struct harp_engine *engine, struct harp_connection *connection,
                             const struct harp_arrival *arrival, const struct harp_header *header,
                             const struct harp_place *where)
{
    uint32_t *frame = &connection->received.assembling[where->entry];
    if (*frame == HARP_NO_FRAME && !harp_frames_take(&engine->frames, HARP_FRAME_DRAFT, frame, 1))
        return false;
    engine->owner[*frame] = connection->index;
    uint8_t *bytes = harp_frame_at(&engine->frames, *frame);
    if (where->within + header->length > engine->frames.frame_bytes ||
        !copy_payload(arrival, header, bytes + where->within))
        return false;
    if (!where->completes)
        return true;
    harp_frames_move(&engine->frames, *frame, HARP_FRAME_DRAFT, HARP_FRAME_ARRIVED);
    lend_frame(engine, connection, *frame, bytes, where->chunk_bytes, header, where->offset);
    *frame = HARP_NO_FRAME;
    return true;
}

/* Whether somebody may read this message's posted buffer before all of it is there. A tag has
 * vouched for the header. */
static bool is_read_early(const struct harp_connection *connection,
                          const struct harp_header *header)
{
    return header->size <= connection->config.read_early_most &&
           !harp_bit_ring_has(&connection->received.unread,
                              header->message - connection->received.first);
}

/* Only a header that the peer has made says where its payload goes. */
uint8_t *harp_engine_place(void *of, const uint8_t *bytes)
{
    struct harp_engine *engine = of;
    struct harp_header header;
    if (harp_header_decode(bytes, harp_wire_frame_bytes(bytes), &header) != HARP_WIRE_OK ||
        header.type != HARP_DATA)
        return NULL;
    struct harp_connection *connection = harp_table_find(&engine->lookup.ids, header.connection);
    if (!connection || !connection->keys.made || connection->state.lingers ||
        !harp_open_tag(&connection->keys.in, bytes,
                       harp_session_lap(connection->session, &header)) ||
        is_read_early(connection, &header))
        return NULL;
    struct harp_header chunk;
    uint8_t *first = NULL;
    for (uint32_t k = 0; harp_header_chunk(&header, k, &chunk); k++) {
        uint8_t *place = harp_session_where(connection->session, &chunk);
        if (!place)
            return NULL;
        first = k ? first : place;
    }
    return first;
}

static void place_payload(struct harp_engine *engine, struct harp_connection *connection,
                          struct harp_arrival *arrival, const struct harp_header *header,
                          const struct harp_place *where)
{
    bool holds = true;
    if (where->eager >= 0)
        connection->received.eager_bytes[where->eager] = header->size;
    if (where->streamed && where->entry >= 0) {
        holds = reassemble_chunk(engine, connection, arrival, header, where);
    } else if (where->streamed) {
        holds = lend_arrival(engine, connection, arrival, header);
    } else if (header->length) {
        uint8_t *to = where->eager >= 0 ? connection->received.eager +
                                              (size_t)where->eager * connection->shared.segment
                                        : where->buffer;
        to += where->offset;
        if (arrival->payload)
            holds = to == arrival->payload &&
                    harp_open_payload(arrival->bytes, arrival->payload, header->length);
        else
            holds = where->eager < 0 && is_read_early(connection, header)
                        ? copy_payload_lines(arrival, header, to)
                        : copy_payload(arrival, header, to);
    }
    harp_session_placed(connection->session, holds);
}

/* A frame whose tag holds. */
static void take_frame(struct harp_engine *engine, uint8_t port, struct harp_connection *connection,
                       struct harp_arrival *arrival, const struct harp_header *header)
{
    const uint8_t *body = NULL;
    if (header->type != HARP_DATA && header->length) {
        body = arrival->bytes + HARP_HEADER_BYTES;
        if (!harp_open_payload(arrival->bytes, body, header->length))
            return;
    }
    if (header->type != HARP_ACK && header->path < connection->config.paths)
        harp_connection_heard(connection, header->path, port, arrival->local, arrival->from);
    bool newest = harp_session_is_newest(connection->session, header);
    enum harp_move move = header->path < connection->config.paths
                              ? harp_connection_moves(connection, port, arrival, header)
                              : HARP_MOVE_NONE;
    struct harp_place where;
    if (harp_session_receive(connection->session, engine->now_ns,
                             harp_engine_from_host_ns(engine, arrival->waited_ns), header, body,
                             arrival->marked, &where) == HARP_PLACE)
        place_payload(engine, connection, arrival, header, &where);
    /* To another port of the same host nobody draws a flood that could not go there before. */
    if (move == HARP_MOVE_PORT)
        harp_session_path_rerouted(connection->session, header->path);
    else if (move == HARP_MOVE_HOST)
        harp_session_path_moved(connection->session, header->path);
    bool on_path =
        header->type == HARP_DATA || header->type == HARP_PROBE; /* others are about it */
    if (on_path && header->path < connection->config.paths)
        harp_engine_way_of_frame(connection, header->path, port, arrival, newest);
    else if (header->type == HARP_ACK && header->flags & HARP_ACK_OFF_QUEUE)
        harp_engine_way_of_ours(connection, header->path);
    harp_engine_wake(engine, connection);
}

/* Chunks of a run, as if each had come in a frame of its own. One CRC is for all. If it does not
 * hold the first chunk has it, which is not that chunk's, so that this is counted and none is
 * taken. */
static void take_run(struct harp_engine *engine, uint8_t port, struct harp_connection *connection,
                     const struct harp_arrival *arrival, const struct harp_header *run)
{
    struct harp_arrival one = *arrival;
    struct harp_header chunk;
    const uint8_t *payload = one.payload ? one.payload : one.bytes + HARP_HEADER_BYTES;
    bool holds = harp_open_payload(one.bytes, payload, one.length - HARP_HEADER_BYTES);
    one.shared = true;
    for (uint32_t k = 0; harp_header_chunk(run, k, &chunk) && (holds || k == 0); k++) {
        chunk.crc = holds ? 0 : run->crc;
        harp_header_encode(&chunk, one.bytes);
        one.length = HARP_HEADER_BYTES + (uint32_t)chunk.length;
        take_frame(engine, port, connection, &one, &chunk);
        if (one.payload)
            one.payload += run->length;
        else
            one.bytes += run->length;
    }
}

/* Frames of one connection in a row: their tags are checked together. */
static void take_group(struct harp_engine *engine, uint8_t port, struct harp_connection *connection,
                       const uint16_t *which, size_t count)
{
    struct harp_tagged *tagged = &engine->batch.tagged;
    for (size_t i = 0; i < count; i++) {
        tagged->headers[i] = engine->batch.arrivals[which[i]].bytes;
        tagged->laps[i] = harp_session_lap(connection->session, &engine->batch.headers[which[i]]);
    }
    uint64_t holds = harp_open_tags(&connection->keys.in, (const uint8_t *const *)tagged->headers,
                                    tagged->laps, count);
    for (size_t i = 0; i < count; i++) {
        const struct harp_header *header = &engine->batch.headers[which[i]];
        if (!(holds >> i & 1))
            harp_count(&engine->stats.stats->engine.bad_tag, 1);
        else if (header->flags & HARP_RUN)
            take_run(engine, port, connection, &engine->batch.arrivals[which[i]], header);
        else
            take_frame(engine, port, connection, &engine->batch.arrivals[which[i]], header);
    }
}

static bool is_hello(uint8_t type)
{
    return type <= HARP_ACCEPT || type == HARP_VERSION_NOTICE;
}

static void count_bad(struct harp_engine *engine, enum harp_wire_error error)
{
    struct harp_engine_counters *counters = &engine->stats.stats->engine;
    harp_count(error == HARP_WIRE_SHORT ? &counters->bad_short : &counters->bad_header, 1);
}

/* Frames of one connection in a row, so far. */
struct group {
    struct harp_connection *connection;
    size_t n;
    uint16_t which[GROUP];
};

static void end_group(struct harp_engine *engine, uint8_t port, struct group *group)
{
    if (group->n)
        take_group(engine, port, group->connection, group->which, group->n);
    group->n = 0;
}

static void sort_frame(struct harp_engine *engine, uint8_t port, struct group *group, size_t i)
{
    struct harp_arrival *arrival = &engine->batch.arrivals[i];
    struct harp_header *header = &engine->batch.headers[i];
    enum harp_wire_error error = arrival->length < HARP_HEADER_BYTES
                                     ? HARP_WIRE_SHORT
                                     : harp_header_decode(arrival->bytes, arrival->length, header);
    if (arrival->shared && !harp_header_joins(header))
        error = HARP_WIRE_TYPE;
    if (error == HARP_WIRE_VERSION || (error == HARP_WIRE_OK && is_hello(header->type))) {
        harp_engine_take_hello(engine, port, arrival, header, arrival->bytes);
        return;
    }
    if (error != HARP_WIRE_OK) {
        count_bad(engine, error);
        return;
    }
    struct harp_connection *connection =
        group->n && engine->batch.headers[group->which[0]].connection == header->connection
            ? group->connection
            : harp_table_find(&engine->lookup.ids, header->connection);
    /* Payload for an end that gave up its memory has no place: the other end hears why soon. */
    bool unwanted = connection && connection->state.lingers && header->type == HARP_DATA;
    if (!connection || !connection->keys.made || unwanted) {
        harp_count(&engine->stats.stats->engine.strangers, 1);
        return;
    }
    if (connection != group->connection || group->n == GROUP)
        end_group(engine, port, group);
    group->connection = connection;
    group->which[group->n++] = (uint16_t)i;
}

/* Several frames in one datagram. Each is done before the arrival becomes the next one. */
static void take_joined(struct harp_engine *engine, uint8_t port, struct group *group, size_t i)
{
    struct harp_arrival *arrival = &engine->batch.arrivals[i];
    const struct harp_arrival whole = *arrival;
    arrival->shared = true;
    for (uint32_t left = arrival->length; left;) {
        arrival->length = (uint32_t)harp_wire_first_frame(arrival->bytes, left);
        sort_frame(engine, port, group, i);
        end_group(engine, port, group);
        left -= arrival->length;
        arrival->bytes += arrival->length;
    }
    *arrival = whole; /* as the port gave it: it goes back there */
}

static void take_all(struct harp_engine *engine, uint8_t port, size_t count)
{
    struct group group = {.n = 0};
    for (size_t i = 0; i < count; i++) {
        const struct harp_arrival *arrival = &engine->batch.arrivals[i];
        if (harp_wire_first_frame(arrival->bytes, arrival->length) < arrival->length)
            take_joined(engine, port, &group, i);
        else
            sort_frame(engine, port, &group, i);
    }
    end_group(engine, port, &group);
}

void harp_engine_take(struct harp_engine *engine, uint8_t port)
{
    struct harp_port *from = engine->ports[port];
    size_t count = from->ops->receive(from, engine->now_ns, engine->batch.arrivals, 2 * HARP_BATCH);
    if (!count)
        return;
    engine->now_ns = harp_engine_clock(engine); /* not before what came, had we been preempted */
    engine->moved = true;
    harp_count(&engine->stats.stats->engine.arrivals, count);
    take_all(engine, port, count);
    from->ops->release(from, engine->batch.arrivals, count);
}
