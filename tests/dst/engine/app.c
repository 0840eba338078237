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
    uint32_t m = side->reported_sent++;
    DST_CHECK(m < side->sent, "sent what was not to be sent", m, side->sent);
    DST_CHECK(done->context == m && done->message == m, "sent out of order", done->context, m);
    DST_CHECK(done->size == side->out->size[m], "sent with another size", done->size, m);
    free(side->out_buffer[m]);
    side->out_buffer[m] = NULL;
}

static void on_received(struct dst_side *side, const struct harp_completion *done)
{
    uint32_t m = side->received++;
    DST_CHECK(!side->closed || side->left, "received after the end what was not left", m, 0);
    side->left -= side->closed;
    if (side->in->stream_frames ? m >= DST_MESSAGES : !side->trusts && m >= side->posted)
        return;
    uint32_t size = side->in->size[m];
    DST_CHECK(done->message == m, "received out of order", done->message, m);
    if (side->in->stream_frames) {
        DST_CHECK(!side->trusts || side->chunk_bytes[m] == size, "received before all of it came",
                  m, side->chunk_bytes[m]);
        return;
    }
    DST_CHECK(done->context == m, "received out of order", done->context, m);
    DST_CHECK(done->size == size || !side->trusts, "received with another size", done->size, m);
    check_bytes(side, m, 0, side->in_buffer[m], done->size);
    free(side->in_buffer[m]);
    side->in_buffer[m] = NULL;
}

static void on_chunk(struct dst_side *side, const struct harp_completion *done)
{
    DST_CHECK(side->lent_n < side->in->stream_frames, "more frames are lent than there are",
              side->lent_n, side->in->stream_frames);
    side->lent[side->lent_n++] = (struct dst_lent){.message = done->message,
                                                   .offset = done->offset,
                                                   .size = done->size,
                                                   .frame = done->frame,
                                                   .bytes = done->bytes};
    side->return_ns =
        harp_min(side->return_ns, now_of(side) + virtual_below(&side->random, side->in->hold_ns));
    if (!side->trusts)
        return;
    uint32_t m = done->message;
    DST_CHECK(m < side->in->n && m >= side->received, "a chunk of a message that is through", m,
              side->received);
    if (!side->chunk_map[m])
        side->chunk_map[m] = calloc(side->in->size[m] / HARP_CHUNK_ALIGN + 1, 1);
    uint8_t *seen = &side->chunk_map[m][done->offset / HARP_CHUNK_ALIGN];
    DST_CHECK(!*seen, "a chunk came twice", m, done->offset);
    *seen = 1;
    side->chunk_bytes[m] += done->size;
}

/* An end that was done had heard that all it reported as sent was there. */
static void on_closed(struct dst_side *side, const struct harp_completion *done)
{
    bool whole = done->reason == HARP_REASON_DONE && side->trusts && !side->peer->connection;
    DST_CHECK(!side->closed, "ended twice", done->reason, side->left);
    DST_CHECK(!whole || side->received + done->size >= side->peer->reported_sent,
              "what was sent before the end is neither received nor left", done->size,
              side->peer->reported_sent);
    side->closed = true;
    side->reason = done->reason;
    side->left = done->size;
}

static void take_completion(struct dst_side *side, const struct harp_completion *done)
{
    DST_CHECK(!side->closed || done->type == HARP_COMPLETION_RECEIVED,
              "a completion after the last one", done->type, 0);
    switch (done->type) {
    case HARP_COMPLETION_CONNECTED:
        DST_CHECK(!side->connected, "connected twice", 0, 0);
        side->connected = true;
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
    uint32_t open = side->posted - side->received;
    uint32_t m = side->received + (open ? side->looks++ % open : 0);
    if (!open || !side->trusts || is_unread(m) || side->in->size[m] > side->wanted.read_early_most)
        return;
    for (uint32_t i = 0; i < side->in->size[m]; i++) {
        uint8_t byte = side->in_buffer[m][i];
        DST_CHECK(byte == UNWRITTEN || byte == dst_pattern(!side->number, m, i),
                  "a byte that may be read early is wrong", m, i);
    }
}

/* What the application wants ---------------------------------------------------------------- */

/* Some of the frames, in any order, with what they ought to hold still in them. */
static void give_back(struct dst_side *side)
{
    uint32_t n = 1 + (uint32_t)virtual_below(&side->random, side->lent_n);
    for (uint32_t i = 0; i < n; i++) {
        struct dst_lent *lent = &side->lent[virtual_below(&side->random, side->lent_n)];
        check_bytes(side, lent->message, lent->offset, lent->bytes, lent->size);
        harp_return(side->connection, &lent->frame, 1);
        *lent = side->lent[--side->lent_n];
    }
    side->return_ns =
        side->lent_n ? now_of(side) + virtual_below(&side->random, side->in->hold_ns) : HARP_NEVER;
}

static bool post_buffers(struct dst_side *side)
{
    bool any = false;
    while (side->posted < side->in->n && side->posted < side->received + side->in->ahead) {
        uint32_t m = side->posted, capacity = side->in->size[m] + side->in->slack;
        uint8_t *buffer = malloc(capacity ? capacity : 1);
        memset(buffer, UNWRITTEN, capacity);
        if (!(is_unread(m) ? harp_receive_unread : harp_receive)(side->connection, buffer, capacity,
                                                                 m)) {
            free(buffer);
            return any;
        }
        side->in_buffer[m] = buffer;
        side->posted++;
        any = true;
    }
    return any;
}

/* From drafts if that is to be, and if the message is not longer than there are. */
static bool send_drafts(struct dst_side *side, uint32_t m, bool *sent)
{
    uint32_t size = side->out->size[m], segment = harp_segment(side->connection);
    uint32_t need = size ? (size - 1) / segment + 1 : 0;
    if (!side->out->pieces || need > side->wanted.draft_frames)
        return false;
    *sent = false;
    if (side->drafts_n < need)
        side->drafts_n +=
            harp_drafts(side->connection, side->drafts + side->drafts_n, need - side->drafts_n);
    if (side->drafts_n < need)
        return true;
    for (uint32_t i = 0; i < need; i++)
        fill_bytes(side, m, i * segment, harp_draft_bytes(side->connection, side->drafts[i]),
                   (uint32_t)harp_min(segment, size - i * segment));
    if (!harp_send_frames(side->connection, side->drafts, size, m))
        return true;
    side->drafts_n -= need;
    memmove(side->drafts, side->drafts + need, side->drafts_n * sizeof *side->drafts);
    *sent = true;
    return true;
}

static bool send_one(struct dst_side *side, uint32_t m)
{
    bool sent;
    if (send_drafts(side, m, &sent))
        return sent;
    uint32_t size = side->out->size[m];
    uint8_t *buffer = malloc(size ? size : 1);
    fill_bytes(side, m, 0, buffer, size);
    if (!harp_send(side->connection, buffer, size, m)) {
        free(buffer);
        return false;
    }
    side->out_buffer[m] = buffer;
    return true;
}

bool dst_app_work(struct dst_side *side, uint64_t *wake_ns)
{
    uint64_t now_ns = now_of(side);
    *wake_ns = HARP_NEVER;
    if (side->is_crowded)
        return side->crowd && dst_crowd_work(side->crowd, side, wake_ns);
    if (!side->connection && side->listening && !side->closed)
        side->connection = harp_accept(side->listening);
    if (!side->connection || (side->closed && !side->left))
        return false;
    bool stalled = now_ns >= side->in->stall_from_ns && now_ns < side->in->stall_to_ns;
    *wake_ns = stalled ? side->in->stall_to_ns : side->return_ns;
    if (now_ns < side->in->stall_from_ns)
        *wake_ns = harp_min(*wake_ns, side->in->stall_from_ns);
    if (stalled)
        return false;
    bool moved = poll_completions(side);
    if (side->closed && !side->left)
        return moved;
    if (!side->in->stream_frames) {
        look_early(side);
        moved |= post_buffers(side);
    }
    if (side->closed)
        return moved;
    for (; side->connected && side->sent < side->out->n && send_one(side, side->sent); side->sent++)
        moved = true;
    if (now_ns >= side->return_ns) {
        give_back(side);
        moved = true;
    }
    *wake_ns = side->return_ns;
    return moved;
}

void dst_app_forget(struct dst_side *side)
{
    for (uint32_t m = 0; m < DST_MESSAGES; m++) {
        free(side->out_buffer[m]);
        free(side->in_buffer[m]);
        free(side->chunk_map[m]);
    }
    memset(side->out_buffer, 0, sizeof side->out_buffer);
    memset(side->in_buffer, 0, sizeof side->in_buffer);
    memset(side->chunk_map, 0, sizeof side->chunk_map);
    side->lent_n = side->drafts_n = 0;
    side->return_ns = HARP_NEVER;
}
