#include <assert.h>
#include <string.h>

#include "base/sequence.h"
#include "engine/engine_state.h"
#include "wire/crc32c.h"
#include "wire/seal.h"

#define GATHER_LEAST_BYTES 1024 /* less is copied sooner than described */

/* Where a frame goes: its path's hop, or that of another path while its own has not been heard of.
 * ACCEPT goes back where FIRST came from, be that a path that we have or not. */
static const struct harp_hop *find_way_out(const struct harp_connection *connection, uint8_t path)
{
    if (path > connection->config.paths)
        path = (uint8_t)connection->config.paths;
    if (connection->hops[path].hop != HARP_NO_HOP)
        return &connection->hops[path];
    for (uint32_t p = 0; p < connection->config.paths; p++)
        if (connection->hops[p].hop != HARP_NO_HOP)
            return &connection->hops[p];
    return NULL;
}

/* The frame of the pool that a payload lies in, if it was written there to be sent from there. */
static uint32_t draft_of(const struct harp_engine *engine, const uint8_t *payload)
{
    const struct harp_frames *frames = &engine->frames;
    if (payload < frames->base ||
        payload >= frames->base + (size_t)frames->count * frames->frame_bytes)
        return HARP_NO_FRAME;
    return harp_frame_of(frames, (uint64_t)(payload - frames->base));
}

static void wait_for_tag(struct harp_engine *engine, uint8_t *header, uint32_t lap)
{
    struct harp_tagged *tagged = &engine->batch.tagged;
    tagged->laps[tagged->n] = lap;
    tagged->headers[tagged->n++] = header;
}

/* Send a draft where it lies. False if that cannot be: while the card still has it from the last
 * time, its bytes must not change, so it is copied instead. */
static bool send_draft(struct harp_engine *engine, struct harp_port *port, int hop,
                       const struct harp_frame *frame)
{
    uint32_t number = draft_of(engine, frame->payload);
    if (number == HARP_NO_FRAME)
        return false;
    enum harp_frame_state state = engine->frames.state[number];
    if (state == HARP_FRAME_SENDING)
        return false;
    if (state == HARP_FRAME_KEPT)
        harp_frames_move(&engine->frames, number, HARP_FRAME_KEPT, HARP_FRAME_READY);
    harp_frames_move(&engine->frames, number, HARP_FRAME_READY, HARP_FRAME_SENDING);
    uint8_t *header = harp_frame_at(&engine->frames, number) + HARP_DRAFT_AT - HARP_HEADER_BYTES;
    struct harp_header fields = frame->header;
    fields.crc = harp_crc32c(frame->payload, fields.length);
    harp_header_encode(&fields, header);
    if (!port->ops->send_frame(port, hop, number, HARP_DRAFT_AT - HARP_HEADER_BYTES,
                               HARP_HEADER_BYTES + (uint32_t)fields.length)) {
        harp_frames_move(&engine->frames, number, HARP_FRAME_SENDING, HARP_FRAME_KEPT);
        return true;
    }
    wait_for_tag(engine, header, frame->lap);
    return true;
}

/* Memory for a frame: a datagram of its own, or more of the last one where a small frame follows
 * another of the same way, as an ACK does an answer: what costs is the packet. `most`: bytes of a
 * datagram that the way takes. */
static uint8_t *take_slot(struct harp_engine *engine, uint8_t port, int hop,
                          const struct harp_header *header, uint32_t most)
{
    const struct harp_port_ops *ops = engine->ports[port]->ops;
    uint32_t bytes = HARP_HEADER_BYTES + (uint32_t)header->length;
    bool joinable = harp_header_joins(header);
    uint8_t *slot = NULL;
    if (joinable && engine->batch.joinable[port] && ops->lengthen)
        slot = ops->lengthen(engine->ports[port], hop, bytes, harp_min(most, HARP_JOINED_BYTES));
    engine->batch.joinable[port] = joinable;
    return slot ? slot : ops->slot(engine->ports[port], hop, bytes);
}

/* Write the header, and have the port send the payload from where it lies. */
static uint8_t *gather_frame(struct harp_port *port, int hop, const struct harp_frame *frame,
                             size_t chunks, bool omits_crc)
{
    struct harp_header fields = frame->header;
    uint32_t bytes = fields.length;
    if (chunks > 1) {
        fields.flags = (uint8_t)(HARP_RUN + chunks);
        bytes = frame[chunks - 1].header.offset + frame[chunks - 1].header.length - fields.offset;
    }
    uint8_t *slot = port->ops->gather(port, hop, frame->payload, bytes);
    if (!slot)
        return NULL;
    fields.crc = omits_crc ? 0 : harp_crc32c(frame->payload, bytes);
    harp_header_encode(&fields, slot);
    return slot;
}

/* Write header and payload into a slot; the CRC is made on the way, the tag comes later. */
static uint8_t *write_slot(struct harp_engine *engine, uint8_t port, int hop,
                           const struct harp_frame *frame, uint32_t most)
{
    uint8_t *slot = take_slot(engine, port, hop, &frame->header, most);
    if (!slot)
        return NULL;
    struct harp_header fields = frame->header;
    uint8_t *payload = slot + HARP_HEADER_BYTES;
    if (fields.type == HARP_PROBE) {
        memset(payload, 0, fields.length);
        fields.crc = harp_crc32c(payload, fields.length);
    } else {
        const uint8_t *from = fields.type == HARP_DATA ? frame->payload : frame->body;
        uint32_t (*copy)(uint8_t *, const uint8_t *, size_t) =
            engine->ports[port]->nontemporal ? harp_crc32c_copy_nontemporal : harp_crc32c_copy;
        fields.crc = fields.length ? copy(payload, from, fields.length) : 0;
    }
    harp_header_encode(&fields, slot);
    return slot;
}

void harp_engine_write_control(struct harp_engine *engine, uint8_t port, int hop,
                               const struct harp_key *key, const struct harp_frame *frame)
{
    uint8_t *slot = write_slot(engine, port, hop, frame, 0);
    if (slot)
        harp_seal_tags(key, &slot, &frame->lap, 1);
}

/* Whether a frame's chunk follows that of the frame before it, in memory too, as drafts do not.
 * A chunk that is sent again goes alone: a run that was damaged may be damaged again. */
static bool continues_run(const struct harp_frame *before, const struct harp_frame *next)
{
    return next->header.type == HARP_DATA && !next->header.flags && !next->again &&
           !before->again && next->path == before->path &&
           next->header.packet == before->header.packet + 1 && next->lap == before->lap &&
           next->header.message == before->header.message &&
           next->header.offset == before->header.offset + before->header.length &&
           next->payload == before->payload + before->header.length;
}

/* How many of these frames leave as one: the first is a whole chunk. */
static size_t count_run(const struct harp_frame *frames, size_t n)
{
    size_t chunks = 1;
    while (chunks < n && chunks < HARP_RUN_MOST &&
           continues_run(&frames[chunks - 1], &frames[chunks]))
        chunks++;
    return chunks;
}

/* Returns how many of the frames have left. */
static size_t write_frame(struct harp_engine *engine, struct harp_connection *connection,
                          const struct harp_frame *frame, size_t n)
{
    const struct harp_hop *hop = find_way_out(connection, frame->path);
    size_t chunks = 1;
    if (!hop)
        return 1;
    struct harp_port *port = engine->ports[hop->port];
    if (frame->header.type == HARP_FIRST) {
        harp_engine_write_control(engine, hop->port, hop->hop, &connection->keys.hello, frame);
        return 1;
    }
    if (frame->header.type == HARP_ACCEPT) {
        harp_engine_write_control(engine, hop->port, hop->hop, &connection->keys.accept, frame);
        return 1;
    }
    assert(connection->keys.made);
    /* A fragment's header would lie in the payload of the one before. */
    bool whole = frame->header.type == HARP_DATA && !frame->header.flags;
    if (whole && connection->shared.drafts && port->ops->send_frame &&
        send_draft(engine, port, hop->hop, frame))
        return 1;
    bool gathers = port->ops->gather && whole && frame->header.length >= GATHER_LEAST_BYTES;
    if (gathers)
        chunks = count_run(frame, n);
    uint8_t *slot =
        gathers ? gather_frame(port, hop->hop, frame, chunks, connection->omits_crc)
                : write_slot(engine, hop->port, hop->hop, frame,
                             harp_session_path_frame_bytes(connection->session, frame->path));
    if (slot)
        wait_for_tag(engine, slot, frame->lap);
    return chunks;
}

/* Room at every port that the connection uses and that has any; 0 if none has. *full: some have
 * none. The session then puts nothing on paths that lead there. */
static size_t room_at_ports(const struct harp_engine *engine, struct harp_connection *connection,
                            bool *full)
{
    size_t room = SIZE_MAX;
    *full = false;
    for (uint32_t p = 0; p < connection->config.paths; p++) {
        const struct harp_hop *hop = &connection->hops[p];
        if (hop->hop == HARP_NO_HOP)
            continue;
        struct harp_port *port = engine->ports[hop->port];
        size_t here = port->ops->room(port, hop->hop);
        if (here) {
            room = here < room ? here : room;
            continue;
        }
        *full = true;
        if (connection->config.paths > 1)
            harp_session_path_full(connection->session, engine->now_ns, (uint8_t)p, HARP_RETRY_NS);
    }
    if (room == SIZE_MAX && *full)
        return 0;
    return room < HARP_BATCH ? room : HARP_BATCH;
}

enum harp_sending harp_engine_send(struct harp_engine *engine, struct harp_connection *connection,
                                   uint32_t *frames)
{
    bool flushed = false, full;
    for (uint32_t share = HARP_BATCH;;) {
        size_t room = room_at_ports(engine, connection, &full);
        if (!room && flushed) {
            harp_session_send(connection->session, engine->now_ns, engine->batch.out, 0);
            return HARP_SENDING_BLOCKED;
        }
        if (full && !flushed) {
            for (uint32_t p = 0; p < engine->ports_n; p++)
                engine->ports[p]->ops->flush(engine->ports[p], engine->now_ns);
            flushed = true;
            continue;
        }
        if (room > share)
            room = share;
        engine->batch.tagged.n = 0;
        size_t n = harp_session_send(connection->session, engine->now_ns, engine->batch.out, room);
        for (size_t i = 0; i < n;)
            i += write_frame(engine, connection, &engine->batch.out[i], n - i);
        harp_seal_tags(&connection->keys.out, engine->batch.tagged.headers,
                       engine->batch.tagged.laps, engine->batch.tagged.n);
        engine->moved |= n > 0;
        *frames += (uint32_t)n;
        share -= (uint32_t)n;
        if (n < room)
            return HARP_SENDING_DONE;
        if (!share)
            return HARP_SENDING_SHARE;
        flushed = full;
    }
}
