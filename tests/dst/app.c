#include "app.h"

#include <stdlib.h>
#include <string.h>

#include "base/sequence.h"

static uint8_t *allocate_buffer(const struct dst_app *app, uint32_t bytes)
{
    return app->payloads ? malloc(bytes ? bytes : 1) : NULL;
}

static void release_message(struct dst_outgoing *out)
{
    for (uint32_t i = 0; i < out->pieces_n; i++)
        free((void *)out->pieces[i]);
    free(out->pieces);
    free(out->buffer);
    *out = (struct dst_outgoing){0};
}

void dst_app_start(struct dst_app *app, uint16_t segment)
{
    app->segment = segment;
    app->return_ns = HARP_NEVER;
    app->lent = calloc(app->in->stream_frames + 1, sizeof *app->lent);
    for (int i = 0; i < HARP_EAGER && !app->in->stream_frames; i++)
        app->eager[i] = app->payloads ? calloc(segment, 1) : NULL;
}

void dst_app_stop(struct dst_app *app)
{
    for (int i = 0; i < HARP_EAGER; i++)
        free(app->eager[i]);
    for (uint32_t i = 0; i < app->lent_n; i++)
        free(app->lent[i].bytes);
    free(app->lent);
    app->lent = NULL;
    app->lent_n = 0;
    for (uint32_t m = 0; m < DST_MESSAGES; m++) {
        release_message(&app->out_buffer[m]);
        free(app->in_buffer[m]);
        free(app->placed_map[m]);
    }
    memset(app->eager, 0, sizeof app->eager);
    memset(app->in_buffer, 0, sizeof app->in_buffer);
    memset(app->placed_map, 0, sizeof app->placed_map);
}

void dst_app_write(struct dst_app *app, uint32_t m)
{
    if (!app->trusts)
        return;
    DST_CHECK(m < app->in->n, "placed a message that nobody sent", m, app->in->n);
    DST_CHECK(m >= app->received, "wrote into a message after it was reported", m, app->received);
}

void dst_app_placed(struct dst_app *app, const struct harp_header *h, uint32_t m)
{
    if (!app->trusts)
        return;
    if (!app->placed_map[m])
        app->placed_map[m] = calloc(app->in->size[m] / HARP_CHUNK_ALIGN + 1, 1);
    uint8_t *seen = &app->placed_map[m][h->offset / HARP_CHUNK_ALIGN];
    DST_CHECK(!*seen, "placed a chunk twice", m, h->offset);
    *seen = 1;
    app->placed[m] += h->length ? h->length : 1;
}

void dst_app_lend(struct dst_app *app, const struct harp_header *h, uint32_t m,
                  const uint8_t *payload, uint64_t now_ns)
{
    DST_CHECK(app->lent_n < app->in->stream_frames, "more frames are lent than there are", m,
              app->in->stream_frames);
    uint8_t *bytes = allocate_buffer(app, h->length);
    if (bytes)
        memcpy(bytes, payload, h->length);
    app->lent[app->lent_n++] =
        (struct dst_lent){.message = m, .offset = h->offset, .length = h->length, .bytes = bytes};
    app->return_ns =
        harp_min(app->return_ns, now_ns + virtual_below(&app->random, app->in->hold_ns));
}

/* Some of the frames, in any order, with what they ought to hold still in them. */
static void give_back(struct dst_app *app, struct harp_session *session, uint64_t now_ns)
{
    uint32_t n = 1 + (uint32_t)virtual_below(&app->random, app->lent_n);
    for (uint32_t i = 0; i < n; i++) {
        struct dst_lent *lent = &app->lent[virtual_below(&app->random, app->lent_n)];
        for (uint32_t b = 0; app->trusts && lent->bytes && b < lent->length; b++)
            DST_CHECK(lent->bytes[b] == dst_pattern(!app->side, lent->message, lent->offset + b),
                      "bytes of a lent frame differ", lent->message, lent->offset + b);
        free(lent->bytes);
        *lent = app->lent[--app->lent_n];
    }
    harp_session_returned(session, n);
    app->return_ns =
        app->lent_n ? now_ns + virtual_below(&app->random, app->in->hold_ns) : HARP_NEVER;
}

static bool is_whole(const struct dst_app *app, uint32_t m)
{
    return app->placed[m] == (app->in->size[m] ? app->in->size[m] : 1);
}

static void on_sent(struct dst_app *app, const struct harp_event *event)
{
    uint32_t m = app->reported_sent++;
    DST_CHECK(m < app->sent, "sent what was not to be sent", m, app->sent);
    DST_CHECK(event->context == m, "sent out of order", event->context, m);
    DST_CHECK(event->size == app->out->size[m], "sent with another size", event->size, m);
    DST_CHECK(!app->trusts || app->peer->received > m || is_whole(app->peer, m),
              "sent before all of it arrived", m, app->peer->placed[m]);
    release_message(&app->out_buffer[m]);
}

static uint32_t capacity_of(const struct dst_script *in, uint32_t m)
{
    return in->size[m] + in->slack - (m == in->short_at);
}

static void check_message(const struct dst_app *app, const struct harp_event *event, uint32_t m)
{
    DST_CHECK(event->size == app->in->size[m], "received with another size", event->size, m);
    DST_CHECK(is_whole(app, m), "received before all of it arrived", m, app->placed[m]);
    for (uint32_t i = 0; app->in_buffer[m] && i < event->size; i++)
        DST_CHECK(app->in_buffer[m][i] == dst_pattern(!app->side, m, i), "bytes differ", m, i);
}

static void on_received(struct dst_app *app, const struct harp_event *event)
{
    uint32_t m = app->received++;
    DST_CHECK(!app->closed || app->left, "received after the end what was not left", m, 0);
    app->left -= app->closed;
    if (!app->in->stream_frames) {
        DST_CHECK(m < app->posted, "received what was not posted", m, app->posted);
        DST_CHECK(event->context == m, "received out of order", event->context, m);
        DST_CHECK(event->size <= capacity_of(app->in, m), "received more than was posted", m,
                  event->size);
    } else if (m >= DST_MESSAGES) {
        return; /* who holds the keys may make up as many as it likes */
    }
    if (app->trusts)
        check_message(app, event, m);
    free(app->in_buffer[m]);
    app->in_buffer[m] = NULL;
}

/* An end that was done had heard that all it sent was there. */
static void on_closed(struct dst_app *app, const struct harp_event *event)
{
    bool done = event->reason == HARP_REASON_DONE && event->by_peer && app->trusts;
    DST_CHECK(!app->closed || (app->left && event->reason == HARP_REASON_TOO_LONG), "ended twice",
              event->reason, app->left);
    DST_CHECK(!done || app->received + event->size == app->peer->sent,
              "what was sent before the end is neither received nor left", event->size,
              app->peer->sent);
    app->closed = true;
    app->reason = event->reason;
    app->left = event->size;
}

bool dst_app_poll(struct dst_app *app, struct harp_session *session)
{
    struct harp_event event;
    bool any = false;
    for (harp_session_poll(session, &event); event.type != HARP_EVENT_NONE;
         harp_session_poll(session, &event)) {
        any = true;
        if (event.type == HARP_EVENT_CONNECTED) {
            DST_CHECK(!app->connected && !app->closed, "connected twice", app->closed, 0);
            app->connected = true;
        } else if (event.type == HARP_EVENT_SENT) {
            DST_CHECK(!app->closed, "sent after the end", app->sent, 0);
            on_sent(app, &event);
        } else if (event.type == HARP_EVENT_RECEIVED) {
            on_received(app, &event);
        } else {
            on_closed(app, &event);
        }
    }
    return any;
}

static void post_buffers(struct dst_app *app, struct harp_session *session)
{
    while (app->posted < app->in->n && app->posted < app->received + app->in->ahead) {
        uint32_t m = app->posted, capacity = capacity_of(app->in, m);
        uint8_t *buffer = allocate_buffer(app, capacity);
        int eager;
        if (!harp_session_post(session, buffer, capacity, m, &eager)) {
            free(buffer);
            return;
        }
        app->in_buffer[m] = buffer;
        app->posted++;
        if (eager >= 0 && buffer)
            memcpy(buffer, app->eager[eager], harp_min(capacity, app->segment));
    }
}

static uint8_t *fill_bytes(const struct dst_app *app, uint32_t m, uint32_t from, uint32_t bytes)
{
    uint8_t *buffer = allocate_buffer(app, bytes);
    for (uint32_t i = 0; buffer && i < bytes; i++)
        buffer[i] = dst_pattern(app->side, m, from + i);
    return buffer;
}

static bool send_message(struct dst_app *app, struct harp_session *session, uint32_t m)
{
    uint32_t size = app->out->size[m], segment = harp_session_segment(session);
    struct dst_outgoing *out = &app->out_buffer[m];
    if (!app->out->pieces || !app->payloads) {
        out->buffer = fill_bytes(app, m, 0, size);
        return harp_session_message(session, out->buffer, size, m);
    }
    out->pieces_n = size ? (size - 1) / segment + 1 : 1;
    out->pieces = calloc(out->pieces_n, sizeof *out->pieces);
    for (uint32_t i = 0; i < out->pieces_n; i++)
        out->pieces[i] =
            fill_bytes(app, m, i * segment, (uint32_t)harp_min(segment, size - i * segment));
    return harp_session_message_frames(session, out->pieces, size, m);
}

static void send_messages(struct dst_app *app, struct harp_session *session)
{
    for (; app->sent < app->out->n; app->sent++)
        if (!send_message(app, session, app->sent)) {
            release_message(&app->out_buffer[app->sent]);
            return;
        }
}

uint64_t dst_app_act(struct dst_app *app, struct harp_session *session, uint64_t now_ns)
{
    if (app->connected && !app->closed)
        send_messages(app, session);
    if (now_ns >= app->in->stall_from_ns && now_ns < app->in->stall_to_ns)
        return app->in->stall_to_ns;
    if (!app->in->stream_frames)
        post_buffers(app, session);
    if (now_ns >= app->return_ns)
        give_back(app, session, now_ns);
    return harp_min(app->return_ns,
                    now_ns < app->in->stall_from_ns ? app->in->stall_from_ns : HARP_NEVER);
}

bool dst_app_done(const struct dst_app *app)
{
    return app->received == app->in->n && app->reported_sent == app->out->n;
}
