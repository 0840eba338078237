#include "end.h"

#include <stdlib.h>
#include <string.h>

#include "listener.h"
#include "sequence.h"

static uint64_t clock_of(const struct dst_end *end, uint64_t now_ns)
{
    return now_ns + (uint64_t)end->clock_off_ns;
}

/* Payload depends on side, message and position. */
static uint8_t pattern(uint8_t side, uint32_t message, uint32_t i)
{
    return (uint8_t)(message * 131 + i * 7 + (i >> 8) * 13 + side * 89 + 1);
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    return (a ^ b) * UINT64_C(0x9e3779b97f4a7c15) ^ a >> 31;
}

/* Stands for the keys of docs/wire.md: equal at both ends exactly if what they are made of is. */
static uint64_t key_of(const struct dst_end *end, enum harp_type type, bool sending)
{
    if (type == HARP_FIRST || type == HARP_COOKIE || type == HARP_VERSION_NOTICE || !end->session)
        return 1;
    struct harp_parameters own = {.connection = end->config.connection, .epoch = end->config.epoch};
    memcpy(own.nonce, end->config.nonce, sizeof own.nonce);
    const struct harp_parameters *peer = harp_session_peer(end->session);
    const struct harp_parameters *up = end->side ? peer : &own;
    const struct harp_parameters *down = end->side ? &own : peer;
    uint64_t key = fold(fold(2, up->connection), up->nonce[0]);
    if (type == HARP_ACCEPT)
        return key;
    key = fold(fold(key, down->connection), fold(up->epoch, down->epoch));
    return fold(key, (uint64_t)(down->nonce[0] + 256 * (sending ? !end->side : end->side)));
}

void dst_end_start(struct dst_end *end, uint64_t now_ns)
{
    for (int i = 0; i < HARP_EAGER; i++)
        end->eager[i] = end->link->payloads ? malloc(end->config.segment) : NULL;
    end->wake_ns = HARP_NEVER;
    if (end->side == 0) {
        void *memory = aligned_alloc(64, (harp_session_size(&end->config) + 63) / 64 * 64);
        end->session = harp_session_connect(memory, &end->config, clock_of(end, now_ns));
        end->wake_ns = now_ns;
    }
}

void dst_end_stop(struct dst_end *end)
{
    free(end->session);
    end->session = NULL;
    for (int i = 0; i < HARP_EAGER; i++)
        free(end->eager[i]);
    for (uint32_t m = 0; m < DST_MESSAGES; m++) {
        free(end->out_buffer[m]);
        free(end->in_buffer[m]);
        free(end->placed_map[m]);
    }
    memset(end->eager, 0, sizeof end->eager);
    memset(end->out_buffer, 0, sizeof end->out_buffer);
    memset(end->in_buffer, 0, sizeof end->in_buffer);
    memset(end->placed_map, 0, sizeof end->placed_map);
    end->wake_ns = HARP_NEVER;
}

/* Ghost knowledge: which bytes of which message lie in their place. */
static void note_placed(struct dst_end *end, const struct harp_header *h)
{
    uint32_t m = h->message - harp_session_peer(end->session)->first;
    DST_CHECK(m < end->in->n, "placed a message that nobody sent", m, end->in->n);
    DST_CHECK(m >= end->received, "wrote into a message after it was reported", m, end->received);
    if (!end->placed_map[m])
        end->placed_map[m] = calloc(end->in->size[m] / HARP_CHUNK_ALIGN + 1, 1);
    uint8_t *seen = &end->placed_map[m][h->offset / HARP_CHUNK_ALIGN];
    DST_CHECK(!*seen, "placed a chunk twice", m, h->offset);
    *seen = 1;
    end->placed[m] += h->length ? h->length : 1;
}

static bool whole(const struct dst_end *end, uint32_t m)
{
    return end->placed[m] == (end->in->size[m] ? end->in->size[m] : 1);
}

static void place(struct dst_end *end, const struct dst_flight *flight,
                  const struct harp_place *place)
{
    const struct harp_header *h = &flight->frame.header;
    if (flight->payload_holds && flight->payload && place->eager >= 0)
        memcpy(end->eager[place->eager], flight->payload, h->length);
    else if (flight->payload &&
             place->buffer) /* copy and CRC in one pass: also what does not hold */
        memcpy(place->buffer + place->offset, flight->payload, h->length);
    if (flight->payload_holds)
        note_placed(end, h);
    harp_session_placed(end->session, flight->payload_holds);
}

static void transmit(struct dst_end *end, uint64_t now_ns, struct harp_frame *frame)
{
    if (end->cheats && frame->header.type == HARP_ACK && dst_chance(&end->random, 30))
        frame->body[1] += 9; /* largest + 9 * 256 */
    uint8_t wire[HARP_HEADER_BYTES];
    harp_header_encode(&frame->header, wire); /* asserts that docs/wire.md allows it */
    uint64_t bytes = HARP_HEADER_BYTES + frame->header.length;
    if (end->side == 1 && !end->connected) {
        end->answered_bytes += bytes;
        DST_CHECK(end->answered_bytes <= end->heard_bytes, "answers outweigh requests",
                  end->answered_bytes, end->heard_bytes);
    }
    dst_link_send(end->link, now_ns, end->peer->side, key_of(end, frame->header.type, true), frame);
}

/* FIRST comes while there is no session; half of the listeners are never calm and ask for a cookie.
 */
static void listen(struct dst_end *end, uint64_t now_ns, const struct harp_frame *frame)
{
    const struct harp_listener listener = {
        .key = {end->config.seed, 1}, .id = end->peer->config.listener, .calm = end->calm};
    const struct harp_from from = {.port = 1};
    struct harp_parameters first;
    struct harp_frame answer;
    enum harp_welcome welcome = harp_listener_judge(&listener, now_ns, &from, 0, &frame->header,
                                                    frame->body, &first, &answer);
    if (welcome == HARP_WELCOME_COOKIE)
        transmit(end, now_ns, &answer);
    if (welcome != HARP_WELCOME_MAKE || first.connection != end->peer->config.connection)
        return; /* a FIRST of an earlier life: its session would not concern this test */
    void *memory = aligned_alloc(64, (harp_session_size(&end->config) + 63) / 64 * 64);
    end->session = harp_session_accept(memory, &end->config, clock_of(end, now_ns), &first,
                                       frame->header.path);
}

void dst_end_receive(struct dst_end *end, uint64_t now_ns, const struct dst_flight *flight)
{
    const struct harp_header *h = &flight->frame.header;
    bool control = h->type != HARP_DATA;
    if (!flight->tag_holds || (control && !flight->payload_holds))
        return;
    if (!end->session) {
        end->heard_bytes += HARP_HEADER_BYTES + h->length;
        if (end->side == 1 && !end->closed)
            listen(end, now_ns, &flight->frame);
        end->wake_ns = end->session ? now_ns : HARP_NEVER;
        return;
    }
    if (flight->key != key_of(end, h->type, false))
        return;
    end->heard_bytes += HARP_HEADER_BYTES + h->length;
    struct harp_place where;
    enum harp_verdict verdict = harp_session_receive(end->session, clock_of(end, now_ns), h,
                                                     flight->frame.body, false, &where);
    DST_CHECK(verdict != HARP_PLACE || !control, "placed a control frame", h->type, 0);
    if (verdict == HARP_PLACE)
        place(end, flight, &where);
    end->wake_ns = now_ns;
}

static void on_sent(struct dst_end *end, const struct harp_event *event)
{
    uint32_t m = end->reported_sent++;
    DST_CHECK(event->context == m, "sent out of order", event->context, m);
    DST_CHECK(event->size == end->out->size[m], "sent with another size", event->size, m);
    DST_CHECK(end->peer->received > m || whole(end->peer, m), "sent before all of it arrived", m,
              end->peer->placed[m]);
    free(end->out_buffer[m]);
    end->out_buffer[m] = NULL;
}

static void on_received(struct dst_end *end, const struct harp_event *event)
{
    uint32_t m = end->received++;
    DST_CHECK(event->context == m, "received out of order", event->context, m);
    DST_CHECK(event->size == end->in->size[m], "received with another size", event->size, m);
    DST_CHECK(whole(end, m), "received before all of it arrived", m, end->placed[m]);
    for (uint32_t i = 0; end->in_buffer[m] && i < event->size; i++)
        DST_CHECK(end->in_buffer[m][i] == pattern(end->peer->side, m, i), "bytes differ", m, i);
    free(end->in_buffer[m]);
    end->in_buffer[m] = NULL;
}

/* Whether there was anything. */
static bool poll(struct dst_end *end)
{
    struct harp_event event;
    bool any = false;
    for (harp_session_poll(end->session, &event); event.type != HARP_EVENT_NONE;
         harp_session_poll(end->session, &event)) {
        any = true;
        DST_CHECK(!end->closed, "an event after the last one", event.type, 0);
        if (event.type == HARP_EVENT_CONNECTED) {
            DST_CHECK(!end->connected, "connected twice", 0, 0);
            end->connected = true;
        } else if (event.type == HARP_EVENT_SENT) {
            on_sent(end, &event);
        } else if (event.type == HARP_EVENT_RECEIVED) {
            on_received(end, &event);
        } else {
            end->closed = true;
            end->reason = event.reason;
        }
    }
    return any;
}

static void post(struct dst_end *end)
{
    while (end->posted < end->in->n && end->posted < end->received + end->in->ahead) {
        uint32_t m = end->posted;
        uint32_t capacity = end->in->size[m] + end->in->slack;
        uint8_t *buffer = end->link->payloads ? malloc(capacity + (capacity == 0)) : NULL;
        int eager;
        if (!harp_session_post(end->session, buffer, capacity, m, &eager)) {
            free(buffer);
            return;
        }
        end->in_buffer[m] = buffer;
        end->posted++;
        if (eager >= 0 && buffer)
            memcpy(buffer, end->eager[eager], end->in->size[m]);
    }
}

static void send_messages(struct dst_end *end)
{
    while (end->sent < end->out->n) {
        uint32_t m = end->sent, size = end->out->size[m];
        uint8_t *buffer = end->link->payloads ? malloc(size + (size == 0)) : NULL;
        for (uint32_t i = 0; buffer && i < size; i++)
            buffer[i] = pattern(end->side, m, i);
        if (!harp_session_message(end->session, buffer, size, m)) {
            free(buffer);
            return;
        }
        end->out_buffer[m] = buffer;
        end->sent++;
    }
}

void dst_end_drive(struct dst_end *end, uint64_t now_ns)
{
    if (!end->session)
        return;
    poll(end);
    if (now_ns < end->in->stall_from_ns || now_ns >= end->in->stall_to_ns)
        post(end);
    if (end->connected && !end->closed)
        send_messages(end);
    struct harp_frame frames[DST_FRAMES];
    size_t n;
    do {
        n = harp_session_send(end->session, clock_of(end, now_ns), frames, DST_FRAMES);
        for (size_t i = 0; i < n; i++)
            transmit(end, now_ns, &frames[i]);
    } while (n == DST_FRAMES);
    bool more = poll(end);
    uint64_t deadline_ns = harp_session_deadline_ns(end->session);
    end->wake_ns =
        deadline_ns == HARP_NEVER ? HARP_NEVER : deadline_ns - (uint64_t)end->clock_off_ns;
    if (now_ns < end->in->stall_to_ns)
        end->wake_ns = harp_min(end->wake_ns, end->in->stall_to_ns);
    if (more)
        end->wake_ns = now_ns;
    end->idle_turns = now_ns == end->driven_ns ? end->idle_turns + 1 : 0;
    DST_CHECK(end->idle_turns < 5000, "driven over and over without time going on", now_ns,
              deadline_ns);
    end->driven_ns = now_ns;
}

bool dst_end_done(const struct dst_end *end)
{
    return end->received == end->in->n && end->reported_sent == end->out->n;
}
