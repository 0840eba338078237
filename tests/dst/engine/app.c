/* The application at one end. Buffers are allocated per message, exactly as long as they must be,
 * and freed as soon as the engine gives them back: a write or read too late is an error of the
 * address sanitizer. */
#include <stdlib.h>
#include <string.h>

#include "base/sequence.h"
#include "crowd.h"

#define UNWRITTEN 0

static uint64_t now_of(const struct dst_side *side)
{
    return *side->true_ns;
}

static void check_bytes(const struct dst_side *side, uint32_t m, uint32_t at, const uint8_t *bytes,
                        uint32_t n)
{
    for (uint32_t i = 0; side->trusts && i < n; i++)
        DST_CHECK(bytes[i] == dst_pattern(!side->number, m, at + i), "bytes differ", m, at + i);
}

static void fill_bytes(const struct dst_side *side, uint32_t m, uint32_t at, uint8_t *bytes,
                       uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        bytes[i] = dst_pattern(side->number, m, at + i);
}

/* Completions ------------------------------------------------------------------------------ */

static void on_sent(struct dst_side *side, const struct harp_completion *done)
{
    uint32_t m = side->app.reported_sent++;
    DST_CHECK(m < side->app.sent, "sent what was not to be sent", m, side->app.sent);
    DST_CHECK(done->context == m && done->message == m, "sent out of order", done->context, m);
    DST_CHECK(done->size == side->app.out->size[m], "sent with another size", done->size, m);
    free(side->app.out_buffer[m]);
    side->app.out_buffer[m] = NULL;
}

static void on_received(struct dst_side *side, const struct harp_completion *done)
{
    uint32_t m = side->app.received++;
    DST_CHECK(!side->app.closed || side->app.left, "received after the end what was not left", m,
              0);
    side->app.left -= side->app.closed;
    if (side->app.in->stream_frames ? m >= DST_MESSAGES : !side->trusts && m >= side->app.posted)
        return;
    uint32_t size = side->app.in->size[m];
    DST_CHECK(done->message == m, "received out of order", done->message, m);
    if (side->app.in->stream_frames) {
        DST_CHECK(!side->trusts || side->app.chunk_bytes[m] == size,
                  "received before all of it came", m, side->app.chunk_bytes[m]);
        return;
    }
    DST_CHECK(done->context == m, "received out of order", done->context, m);
    DST_CHECK(done->size == size || !side->trusts, "received with another size", done->size, m);
    check_bytes(side, m, 0, side->app.in_buffer[m], done->size);
    free(side->app.in_buffer[m]);
    side->app.in_buffer[m] = NULL;
}

static void on_chunk(struct dst_side *side, const struct harp_completion *done)
{
    DST_CHECK(side->app.lent_n < side->app.in->stream_frames, "more frames are lent than there are",
              side->app.lent_n, side->app.in->stream_frames);
    side->app.lent[side->app.lent_n++] = (struct dst_lent){.message = done->message,
                                                           .offset = done->offset,
                                                           .size = done->size,
                                                           .frame = done->frame,
                                                           .bytes = done->bytes};
    side->app.return_ns = harp_min(
        side->app.return_ns, now_of(side) + virtual_below(&side->random, side->app.in->hold_ns));
    if (!side->trusts)
        return;
    uint32_t m = done->message;
    DST_CHECK(m < side->app.in->n && m >= side->app.received,
              "a chunk of a message that is through", m, side->app.received);
    if (!side->app.chunk_map[m])
        side->app.chunk_map[m] = calloc(side->app.in->size[m] / HARP_CHUNK_ALIGN + 1, 1);
    uint8_t *seen = &side->app.chunk_map[m][done->offset / HARP_CHUNK_ALIGN];
    DST_CHECK(!*seen, "a chunk came twice", m, done->offset);
    *seen = 1;
    side->app.chunk_bytes[m] += done->size;
}

/* An end that was done had heard that all it reported as sent was there. */
static void on_closed(struct dst_side *side, const struct harp_completion *done)
{
    bool whole = done->reason == HARP_REASON_DONE && side->trusts && !side->peer->connection;
    DST_CHECK(!side->app.closed, "ended twice", done->reason, side->app.left);
    DST_CHECK(!whole || side->app.received + done->size >= side->peer->app.reported_sent,
              "what was sent before the end is neither received nor left", done->size,
              side->peer->app.reported_sent);
    side->app.closed = true;
    side->app.reason = done->reason;
    side->app.left = done->size;
}

static void take_completion(struct dst_side *side, const struct harp_completion *done)
{
    DST_CHECK(!side->app.closed || done->type == HARP_COMPLETION_RECEIVED,
              "a completion after the last one", done->type, 0);
    switch (done->type) {
    case HARP_COMPLETION_CONNECTED:
        DST_CHECK(!side->app.connected, "connected twice", 0, 0);
        side->app.connected = true;
        return;
    case HARP_COMPLETION_SENT:
        on_sent(side, done);
        return;
    case HARP_COMPLETION_RECEIVED:
        on_received(side, done);
        return;
    case HARP_COMPLETION_CHUNK:
        on_chunk(side, done);
        return;
    default:
        on_closed(side, done);
    }
}

static bool poll_completions(struct dst_side *side)
{
    struct harp_completion done[8];
    size_t n, room = 1 + virtual_below(&side->random, 8);
    bool any = false;
    while ((n = harp_poll(side->connection, done, room))) {
        any = true;
        for (size_t i = 0; i < n; i++)
            take_completion(side, &done[i]);
    }
    return any;
}

/* What is read early ------------------------------------------------------------------------ */

/* Some buffers are posted as such that nobody reads before they are complete. */
static bool is_unread(uint32_t m)
{
    return m % 5 == 3;
}

/* One after the other of those that are filled: what is written has held its CRC. */
static void look_early(struct dst_side *side)
{
    uint32_t open = side->app.posted - side->app.received;
    uint32_t m = side->app.received + (open ? side->app.looks++ % open : 0);
    if (!open || !side->trusts || is_unread(m) ||
        side->app.in->size[m] > side->wanted.read_early_most)
        return;
    for (uint32_t i = 0; i < side->app.in->size[m]; i++) {
        uint8_t byte = side->app.in_buffer[m][i];
        DST_CHECK(byte == UNWRITTEN || byte == dst_pattern(!side->number, m, i),
                  "a byte that may be read early is wrong", m, i);
    }
}

/* What the application wants ---------------------------------------------------------------- */

/* Some of the frames, in any order, with what they ought to hold still in them. */
static void give_back(struct dst_side *side)
{
    uint32_t n = 1 + (uint32_t)virtual_below(&side->random, side->app.lent_n);
    for (uint32_t i = 0; i < n; i++) {
        struct dst_lent *lent = &side->app.lent[virtual_below(&side->random, side->app.lent_n)];
        check_bytes(side, lent->message, lent->offset, lent->bytes, lent->size);
        harp_return(side->connection, &lent->frame, 1);
        *lent = side->app.lent[--side->app.lent_n];
    }
    side->app.return_ns = side->app.lent_n
                              ? now_of(side) + virtual_below(&side->random, side->app.in->hold_ns)
                              : HARP_NEVER;
}

static bool post_buffers(struct dst_side *side)
{
    bool any = false;
    while (side->app.posted < side->app.in->n &&
           side->app.posted < side->app.received + side->app.in->ahead) {
        uint32_t m = side->app.posted, capacity = side->app.in->size[m] + side->app.in->slack;
        uint8_t *buffer = malloc(capacity ? capacity : 1);
        memset(buffer, UNWRITTEN, capacity);
        if (!(is_unread(m) ? harp_receive_unread : harp_receive)(side->connection, buffer, capacity,
                                                                 m)) {
            free(buffer);
            return any;
        }
        side->app.in_buffer[m] = buffer;
        side->app.posted++;
        any = true;
    }
    return any;
}

/* From drafts if that is to be, and if the message is not longer than there are. */
static bool send_drafts(struct dst_side *side, uint32_t m, bool *sent)
{
    uint32_t size = side->app.out->size[m], segment = harp_segment(side->connection);
    uint32_t need = size ? (size - 1) / segment + 1 : 0;
    if (!side->app.out->pieces || need > side->wanted.draft_frames)
        return false;
    *sent = false;
    if (side->app.drafts_n < need)
        side->app.drafts_n += harp_drafts(side->connection, side->app.drafts + side->app.drafts_n,
                                          need - side->app.drafts_n);
    if (side->app.drafts_n < need)
        return true;
    for (uint32_t i = 0; i < need; i++)
        fill_bytes(side, m, i * segment, harp_draft_bytes(side->connection, side->app.drafts[i]),
                   (uint32_t)harp_min(segment, size - i * segment));
    if (!harp_send_frames(side->connection, side->app.drafts, size, m))
        return true;
    side->app.drafts_n -= need;
    memmove(side->app.drafts, side->app.drafts + need,
            side->app.drafts_n * sizeof *side->app.drafts);
    *sent = true;
    return true;
}

static bool send_one(struct dst_side *side, uint32_t m)
{
    bool sent;
    if (send_drafts(side, m, &sent))
        return sent;
    uint32_t size = side->app.out->size[m];
    uint8_t *buffer = malloc(size ? size : 1);
    fill_bytes(side, m, 0, buffer, size);
    if (!harp_send(side->connection, buffer, size, m)) {
        free(buffer);
        return false;
    }
    side->app.out_buffer[m] = buffer;
    return true;
}

bool dst_app_work(struct dst_side *side, uint64_t *wake_ns)
{
    uint64_t now_ns = now_of(side);
    *wake_ns = HARP_NEVER;
    if (side->is_crowded)
        return side->crowd && dst_crowd_work(side->crowd, side, wake_ns);
    if (!side->connection && side->listening && !side->app.closed)
        side->connection = harp_accept(side->listening);
    if (!side->connection || (side->app.closed && !side->app.left))
        return false;
    bool stalled = now_ns >= side->app.in->stall_from_ns && now_ns < side->app.in->stall_to_ns;
    *wake_ns = stalled ? side->app.in->stall_to_ns : side->app.return_ns;
    if (now_ns < side->app.in->stall_from_ns)
        *wake_ns = harp_min(*wake_ns, side->app.in->stall_from_ns);
    if (stalled)
        return false;
    bool moved = poll_completions(side);
    if (side->app.closed && !side->app.left)
        return moved;
    if (!side->app.in->stream_frames) {
        look_early(side);
        moved |= post_buffers(side);
    }
    if (side->app.closed)
        return moved;
    for (;
         side->app.connected && side->app.sent < side->app.out->n && send_one(side, side->app.sent);
         side->app.sent++)
        moved = true;
    if (now_ns >= side->app.return_ns) {
        give_back(side);
        moved = true;
    }
    *wake_ns = side->app.return_ns;
    return moved;
}

void dst_app_forget(struct dst_side *side)
{
    for (uint32_t m = 0; m < DST_MESSAGES; m++) {
        free(side->app.out_buffer[m]);
        free(side->app.in_buffer[m]);
        free(side->app.chunk_map[m]);
    }
    memset(side->app.out_buffer, 0, sizeof side->app.out_buffer);
    memset(side->app.in_buffer, 0, sizeof side->app.in_buffer);
    memset(side->app.chunk_map, 0, sizeof side->app.chunk_map);
    side->app.lent_n = side->app.drafts_n = 0;
    side->app.return_ns = HARP_NEVER;
}
