#include "session_pair.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "virtual/session_ends.h"

struct pair *pair_make(uint16_t paths)
{
    struct pair *pair = calloc(1, sizeof *pair);
    pair->now_ns = S;
    pair->delay_ns = 10 * US;
    virtual_configure_pair(pair->config, PAIR_SEGMENT, paths);
    for (uint8_t side = 0; side < 2; side++) {
        struct harp_session_config *config = &pair->config[side];
        config->first = UINT32_MAX - 20; /* all numbers wrap soon */
        config->epoch = 3;
        config->dead_ns = S;
        config->cc = &harp_cc_fixed;
        config->window.initial_bytes = 64 * (PAIR_SEGMENT + HARP_HEADER_BYTES);
    }
    return pair;
}

void pair_begin(struct pair *pair)
{
    pair->end[0] = virtual_session_connect(&pair->config[0], pair->now_ns);
}

void pair_free(struct pair *pair)
{
    free(pair->end[0]);
    free(pair->end[1]);
    virtual_events_close(&pair->events);
    free(pair);
}

static void lend_chunk(struct pair *pair, uint8_t to, const struct harp_header *chunk,
                       const uint8_t *payload)
{
    assert(pair->lent_n[to] < PAIR_LENT);
    struct pair_lent *lent = &pair->lent[to][pair->lent_n[to]++];
    *lent = (struct pair_lent){.header = *chunk};
    if (payload && chunk->length) {
        lent->first = payload[0];
        lent->last = payload[chunk->length - 1];
    }
}

static void place_payload(struct pair *pair, uint8_t to, const struct harp_frame *frame,
                          const struct harp_place *where)
{
    struct harp_header h = frame->header;
    const uint8_t *payload = frame->payload;
    uint8_t *base = where->buffer;
    uint32_t offset = where->offset;
    assert(!where->streamed || (!where->buffer && where->eager < 0));
    if (where->eager >= 0)
        base = pair->eager[to][where->eager];
    if (where->streamed && where->entry >= 0) {
        base = pair->assembling[to][where->entry];
        offset = where->within;
    }
    if (base && payload && h.length)
        memcpy(base + offset, payload, h.length);
    if (where->streamed && where->entry >= 0 && payload)
        payload = base;
    if (where->entry >= 0)
        h.length = where->chunk_bytes;
    h.offset = where->streamed ? where->offset : h.offset;
    if (where->streamed && (where->entry < 0 || where->completes))
        lend_chunk(pair, to, &h, payload);
    harp_session_placed(pair->end[to], true);
}

/* A frame whose number is taken for another has a tag that does not hold. */
static bool tag_holds(const struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    return harp_session_lap(pair->end[to], &frame->header) == frame->lap;
}

void pair_deliver(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    struct harp_place where;
    if (!pair->end[to]) {
        assert(to == 1);
        pair->end[1] =
            virtual_session_accept(&pair->config[1], pair->now_ns, &frame->header, frame->body);
        return;
    }
    if (tag_holds(pair, to, frame) &&
        harp_session_receive(pair->end[to], pair->now_ns, 0, &frame->header, frame->body, false,
                             &where) == HARP_PLACE)
        place_payload(pair, to, frame, &where);
}

enum harp_verdict pair_inject(struct pair *pair, uint8_t to, const struct harp_header *header)
{
    struct harp_place where;
    const struct harp_frame frame = {.header = *header};
    enum harp_verdict verdict =
        harp_session_receive(pair->end[to], pair->now_ns, 0, header, NULL, false, &where);
    if (verdict == HARP_PLACE)
        place_payload(pair, to, &frame, &where);
    return verdict;
}

static void poll_events(struct pair *pair, uint8_t side)
{
    struct harp_event event;
    for (harp_session_poll(pair->end[side], &event); event.type != HARP_EVENT_NONE;
         harp_session_poll(pair->end[side], &event)) {
        if (event.type == HARP_EVENT_CONNECTED) {
            pair->connected[side] = true;
        } else if (event.type == HARP_EVENT_SENT) {
            pair->sent[side]++;
            pair->last_sent[side] = event;
        } else if (event.type == HARP_EVENT_RECEIVED) {
            pair->received[side]++;
            pair->last_received[side] = event;
        } else {
            pair->closed[side] = event;
        }
    }
}

static void transmit_frame(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    assert(harp_header_check(&frame->header) == HARP_WIRE_OK);
    pair->frames[to][frame->header.type]++;
    if (pair->passes && !pair->passes(pair, to, frame))
        return;
    uint32_t flight = pair->flights_n++ % PAIR_FLIGHTS;
    assert(pair->events.n < PAIR_FLIGHTS);
    pair->flights[flight] = (struct pair_flight){.to = to, .frame = *frame};
    bool done = virtual_events_push(&pair->events, pair->now_ns + pair->delay_ns, flight);
    assert(done);
}

/* Everything that is due now; returns when something is due next. */
static uint64_t turn_pair(struct pair *pair)
{
    uint64_t next_ns = HARP_NEVER;
    while (virtual_events_next_ns(&pair->events) <= pair->now_ns) {
        const struct pair_flight *flight = &pair->flights[virtual_events_take(&pair->events).what];
        pair_deliver(pair, flight->to, &flight->frame);
    }
    for (uint8_t side = 0; side < 2; side++) {
        struct harp_frame frames[16];
        size_t n = 16;
        if (!pair->end[side] || pair->stopped[side])
            continue;
        poll_events(pair, side);
        while (n == 16) {
            n = harp_session_send(pair->end[side], pair->now_ns, frames, 16);
            for (size_t i = 0; i < n; i++)
                transmit_frame(pair, !side, &frames[i]);
        }
        poll_events(pair, side);
        next_ns = harp_min(next_ns, harp_session_deadline_ns(pair->end[side]));
    }
    return harp_min(next_ns, virtual_events_next_ns(&pair->events));
}

bool pair_until(struct pair *pair, uint64_t for_ns, bool (*until)(const struct pair *pair))
{
    uint64_t stop_ns = pair->now_ns + for_ns;
    for (uint32_t still = 0; still < 10000; still++) {
        uint64_t next_ns = turn_pair(pair);
        if (until && until(pair))
            return true;
        if (next_ns > stop_ns) {
            pair->now_ns = stop_ns;
            return false;
        }
        if (next_ns > pair->now_ns)
            still = 0;
        pair->now_ns = harp_max(pair->now_ns, next_ns);
    }
    assert(!"time does not go on");
    return false;
}

void pair_pass(struct pair *pair, uint64_t for_ns)
{
    pair_until(pair, for_ns, NULL);
}

static bool both_connected(const struct pair *pair)
{
    return pair->connected[0] && pair->connected[1];
}

void pair_connect(struct pair *pair)
{
    pair_begin(pair);
    bool done = pair_until(pair, S, both_connected);
    assert(done);
    pair_pass(pair, MS);
}
