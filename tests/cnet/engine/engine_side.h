/* One side of a conversation that tests run over engines: it sends `messages` messages, expects as
 * many, and checks every byte. Bytes depend on side, message and position; so do sizes, so that
 * both sides know what to expect.
 */
#ifndef ENGINE_SIDE_H
#define ENGINE_SIDE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "engine/engine.h"
#include "engine/engine_state.h"
#include "frame_names.h"

#define AHEAD 32

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct side {
    int number;
    struct harp_engine *engine;
    struct harp_connection *connection;
    uint8_t *out[AHEAD], *in[AHEAD];
    uint32_t sent, sent_done, posted, received, chunks;
    uint32_t own[HARP_FRAME_STATES]; /* frames that the port has taken for itself */
    bool connected, closed;
};

static uint32_t messages, largest;
static bool streamed, drafts;

static uint32_t size_of(int side, uint32_t message)
{
    uint32_t x = message * 2654435761u + (uint32_t)side * 40503u;
    if (message % 7 == 0)
        return x % 3; /* 0, 1 or 2 bytes */
    return x % (largest + 1);
}

static uint8_t expected_byte(int side, uint32_t message, uint32_t i)
{
    return (uint8_t)(message * 131 + i * 7 + (i >> 8) * 13 + (uint32_t)side * 89 + 1);
}

static void write_pattern(int side, uint32_t message, uint32_t at, uint8_t *bytes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        bytes[i] = expected_byte(side, message, at + i);
}

static void check_pattern(int side, uint32_t message, uint32_t at, const uint8_t *bytes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        CHECK(bytes[i] == expected_byte(side, message, at + i),
              "message %u of side %d differs at byte %u of %u", message, side, at + i,
              size_of(side, message));
}

static bool send_one(struct side *side)
{
    uint32_t m = side->sent, size = size_of(side->number, m);
    if (!drafts) {
        uint8_t *buffer = side->out[m % AHEAD];
        write_pattern(side->number, m, 0, buffer, size);
        return harp_send(side->connection, buffer, size, m);
    }
    static uint32_t have[2][4096], n[2];
    uint32_t segment = harp_segment(side->connection);
    uint32_t need = size ? (size - 1) / segment + 1 : 0;
    int s = side->number;
    if (n[s] < need)
        n[s] += harp_drafts(side->connection, have[s] + n[s], need - n[s]);
    if (n[s] < need)
        return false;
    for (uint32_t i = 0; i < need; i++)
        write_pattern(s, m, i * segment, harp_draft_bytes(side->connection, have[s][i]),
                      size - i * segment < segment ? size - i * segment : segment);
    if (!harp_send_frames(side->connection, have[s], size, m))
        return false;
    n[s] -= need;
    memmove(have[s], have[s] + need, n[s] * sizeof have[s][0]);
    return true;
}

static void take_completion(struct side *side, const struct harp_completion *done)
{
    int other = !side->number;
    switch (done->type) {
    case HARP_COMPLETION_CONNECTED:
        side->connected = true;
        break;
    case HARP_COMPLETION_SENT:
        CHECK(done->context == side->sent_done, "sent out of order");
        side->sent_done++;
        break;
    case HARP_COMPLETION_CHUNK:
        check_pattern(other, done->message, done->offset, done->bytes, done->size);
        harp_return(side->connection, &done->frame, 1);
        break;
    case HARP_COMPLETION_RECEIVED:
        CHECK(done->message == side->received, "received out of order");
        CHECK(done->size == size_of(other, side->received), "message %u has %u bytes, not %u",
              side->received, done->size, size_of(other, side->received));
        if (!streamed)
            check_pattern(other, side->received, 0, side->in[side->received % AHEAD], done->size);
        side->received++;
        break;
    default:
        side->closed = true;
    }
}

static bool drive_side(struct side *side)
{
    struct harp_completion done[16];
    size_t n;
    if (!side->connection)
        return false;
    bool moved = false;
    while ((n = harp_poll(side->connection, done, 16))) {
        moved = true;
        for (size_t i = 0; i < n; i++)
            take_completion(side, &done[i]);
    }
    if (side->closed) {
        char why[HARP_WHY_BYTES];
        harp_connection_why(side->connection, why);
        CHECK(side->received == messages, "side %d closed early: %s", side->number, why);
    }
    if (!side->connected)
        return moved;
    while (side->sent < messages && side->sent < side->sent_done + AHEAD && send_one(side))
        side->sent++;
    while (!streamed && side->posted < messages && side->posted < side->received + AHEAD &&
           harp_receive(side->connection, side->in[side->posted % AHEAD], largest, 0))
        side->posted++;
    return moved;
}

static bool is_done(const struct side *side)
{
    return side->received == messages && side->sent_done == messages;
}

static void check_frames(struct side *side)
{
    /* A port keeps some to receive into and to write into; none is lent or on its way. */
    const uint32_t *n = side->engine->frames.in_state;
    for (int state = 0; state < HARP_FRAME_STATES; state++)
        CHECK(state == HARP_FRAME_FREE || state == HARP_FRAME_FILL || n[state] == side->own[state],
              "side %d: %u frames are %s, %u were at the beginning", side->number, n[state],
              frame_names[state], side->own[state]);
}

static void side_memory(struct side *side, int number)
{
    side->number = number;
    for (int b = 0; b < AHEAD; b++) {
        side->out[b] = malloc(largest + 1);
        side->in[b] = malloc(largest + 1);
    }
}

static void side_begin(struct side *side)
{
    memcpy(side->own, side->engine->frames.in_state, sizeof side->own);
}

static void side_free(struct side *side)
{
    for (int b = 0; b < AHEAD; b++) {
        free(side->out[b]);
        free(side->in[b]);
    }
}

/* "posted", "streamed" or "drafts". */
static void read_kind(const char *kind, struct harp_connection_config *config)
{
    streamed = strcmp(kind, "posted") != 0;
    drafts = !strcmp(kind, "drafts");
    config->stream_frames = streamed ? 512 : 0;
    config->draft_frames = drafts ? 512 : 0;
}

#endif
