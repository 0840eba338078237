/* Any sequence of calls and frames: a session may close, and does nothing worse.
 *
 * The first bytes of the input choose a configuration; then each byte is a call, with its arguments
 * in the bytes that follow. Frames come under a tag that holds: the peer knows the keys and is
 * malicious. A frame is what the session expects, but for what the input says, so that inputs get
 * far. There is no network: this peer may write any frame at any time, so it does whatever a link
 * could, and more than an honest peer behind one. Honest ends over bad links are tests/dst's. Built
 * by clang -fsanitize=fuzzer, or with fuzz_replay.c. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/sequence.h"
#include "session/fragment.h"
#include "session/reassembly.h"
#include "session/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PATHS = 3, SEGMENT = 256, HELD = 512, FRAMES = 16, LENT = 40, MEMORY = 2 << 20 };
#define OWN_ID UINT64_C(0x1111)
#define PEER_ID UINT64_C(0x2222)
#define EPOCH 3

struct input {
    const uint8_t *at, *end;
};

/* A buffer that the session has. */
struct held {
    uint8_t *bytes;
    uint32_t room;
};

struct play {
    struct input input;
    struct harp_session *session;
    struct harp_session_config config;
    struct harp_parameters peer;
    uint64_t now_ns;
    bool ended, connected;
    uint32_t left;           /* messages that CLOSED said may still be received */
    uint32_t packets[PATHS]; /* that the session has sent, per path */
    struct held out[HELD], in[HELD];
    uint32_t out_first, out_n, in_first, in_n; /* rings */
    uint32_t lent;
    uint8_t eager[HARP_EAGER][SEGMENT];
    uint8_t assembling[HARP_REASSEMBLIES][SEGMENT];
};

static _Alignas(64) uint8_t memory[MEMORY];

static uint8_t next_byte(struct play *play)
{
    return play->input.at < play->input.end ? *play->input.at++ : 0;
}

/* 0 to n - 1. */
static uint32_t next_below(struct play *play, uint32_t n)
{
    uint32_t high = n > 256 ? next_byte(play) : 0;
    return (high << 8 | next_byte(play)) % n;
}

/* A number near `about`, or rarely a distant one. */
static uint32_t next_near(struct play *play, uint32_t about)
{
    uint8_t b = next_byte(play);
    if (b < 240)
        return about + b % 16 - (b >= 128 ? 8 : 0);
    return about + ((uint32_t)next_byte(play) << 24 | (uint32_t)next_byte(play) << 8) - 2048;
}

static void release_held(struct held *held)
{
    free(held->bytes);
    *held = (struct held){0};
}

static struct held hold_memory(uint32_t room)
{
    struct held held = {.bytes = malloc(room ? room : 1), .room = room};
    assert(held.bytes);
    memset(held.bytes, 7, room);
    return held;
}

/* Takes what the session sends, reads what it points to, and lets it go. */
static void drain_frames(struct play *play)
{
    struct harp_frame frames[FRAMES];
    size_t n;
    unsigned turns = 0;
    do {
        n = harp_session_send(play->session, play->now_ns, frames, FRAMES);
        for (size_t i = 0; i < n; i++) {
            const struct harp_header *h = &frames[i].header;
            uint8_t bytes[HARP_TAGGED_BYTES];
            assert(frames[i].lap <= HARP_LAP_MAX);
            harp_header_encode(h, bytes); /* asserts that docs/inside/wire.md allows it */
            assert(frames[i].path < PATHS || h->type == HARP_ACCEPT); /* as FIRST's */
            if (h->type == HARP_DATA || h->type == HARP_PROBE)
                play->packets[h->path]++;
            for (uint16_t b = 0; h->type == HARP_DATA && b < h->length; b++)
                assert(frames[i].payload[b] == 7);
        }
        assert(++turns < 20000);
    } while (n == FRAMES);
    harp_session_deadline_ns(play->session);
}

static void on_event(struct play *play, const struct harp_event *event)
{
    char text[300];
    assert(!play->ended || (play->left && event->type == HARP_EVENT_RECEIVED) ||
           (play->left && event->reason == HARP_REASON_TOO_LONG));
    if (event->type == HARP_EVENT_SENT) {
        assert(play->out_n > 0);
        release_held(&play->out[play->out_first++ % HELD]);
        play->out_n--;
    } else if (event->type == HARP_EVENT_RECEIVED && !play->config.stream_frames) {
        assert(play->in_n > 0 && event->size <= play->in[play->in_first % HELD].room);
        release_held(&play->in[play->in_first++ % HELD]);
        play->in_n--;
        play->left -= play->ended;
    } else if (event->type == HARP_EVENT_CONNECTED) {
        assert(!play->connected);
        play->connected = true;
    } else if (event->type == HARP_EVENT_CLOSED) {
        harp_reason_explain(event, text, sizeof text);
        assert(strlen(text) > 5);
        play->ended = true;
        play->left = event->size;
    }
}

static void poll_events(struct play *play)
{
    struct harp_event event;
    for (harp_session_poll(play->session, &event); event.type != HARP_EVENT_NONE;
         harp_session_poll(play->session, &event))
        on_event(play, &event);
}

static void pass_time(struct play *play)
{
    uint64_t deadline_ns = harp_session_deadline_ns(play->session);
    uint8_t how = next_byte(play);
    if (how < 128 && deadline_ns != HARP_NEVER)
        play->now_ns = harp_max(play->now_ns, deadline_ns);
    else if (how < 250)
        play->now_ns += UINT64_C(1000) << how % 20;
    else
        play->now_ns -= UINT64_C(1000) << how % 8;
}

/* The payload is the input's bytes, or sevens, for any header. */
static void write_payload(struct play *play, const struct harp_header *header,
                          const struct harp_place *place)
{
    bool holds = next_byte(play) < 200;
    if (place->streamed && place->entry >= 0) {
        memset(play->assembling[place->entry] + place->within, 7, header->length);
        play->lent += holds && place->completes;
    } else if (place->streamed) {
        play->lent += holds;
    } else if (place->eager >= 0) {
        memset(play->eager[place->eager] + place->offset, 7, header->length);
    } else {
        memset(place->buffer + place->offset, 7, header->length);
    }
    assert(!place->streamed || play->lent <= play->config.stream_frames);
    harp_session_placed(play->session, holds);
}

static void receive_frame(struct play *play, const struct harp_header *header, const uint8_t *body)
{
    struct harp_place place;
    if (harp_header_check(header) != HARP_WIRE_OK)
        return;
    assert(harp_session_lap(play->session, header) <= HARP_LAP_MAX);
    enum harp_verdict verdict = harp_session_receive(play->session, play->now_ns, 0, header, body,
                                                     next_byte(play) & 1, &place);
    if (verdict == HARP_PLACE)
        write_payload(play, header, &place);
}

/* A header for this session; the input may set any field of it to something else. */
static struct harp_header header_of(struct play *play, enum harp_type type)
{
    return (struct harp_header){.version = HARP_VERSION,
                                .type = (uint8_t)type,
                                .path = (uint8_t)next_below(play, PATHS),
                                .connection = OWN_ID,
                                .epoch = EPOCH};
}

static void distort_header(struct play *play, struct harp_header *header)
{
    uint8_t what = next_byte(play);
    if (what < 200)
        return;
    uint8_t *bytes = (uint8_t *)header;
    bytes[next_byte(play) % sizeof *header] = next_byte(play);
    if (what < 230)
        bytes[next_byte(play) % sizeof *header] = next_byte(play);
}

static void receive_parameters(struct play *play, enum harp_type type)
{
    uint8_t body[HARP_BODY_MAX] = {0};
    struct harp_parameters parameters = play->peer;
    struct harp_header header = header_of(play, type);
    if (type == HARP_FIRST)
        header.epoch = 0;
    header.length = (uint16_t)harp_parameters_encode(&parameters, body);
    for (uint8_t n = next_byte(play) / 64; n > 1; n--)
        body[next_byte(play) % header.length] = next_byte(play);
    distort_header(play, &header);
    receive_frame(play, &header, body);
}

/* The chunk of this header becomes one fragment of it. */
static void cut_into_fragment(struct play *play, struct harp_header *header)
{
    uint8_t fragments = (uint8_t)(2 + next_byte(play) % 5);
    uint32_t step = harp_fragment_bytes(SEGMENT, fragments);
    uint32_t within = next_byte(play) % fragments * step;
    if (within >= header->length)
        return;
    header->flags = fragments;
    header->offset += within;
    header->length = (uint16_t)harp_min(step, header->length - within);
}

static void receive_data(struct play *play, bool fragment)
{
    struct harp_header header = header_of(play, HARP_DATA);
    uint32_t chunks = 1 + next_below(play, next_byte(play) < 200 ? 4 : 5000);
    uint32_t last = next_byte(play) + 1u, chunk = next_below(play, chunks);
    header.packet = next_near(play, play->peer.first);
    header.message = next_near(play, play->peer.first);
    header.size = (chunks - 1) * SEGMENT + last;
    header.offset = chunk * SEGMENT;
    header.length = (uint16_t)(chunk + 1 == chunks ? last : SEGMENT);
    if (fragment)
        cut_into_fragment(play, &header);
    distort_header(play, &header);
    receive_frame(play, &header, NULL);
}

static void receive_probe(struct play *play)
{
    static const uint8_t zeros[SEGMENT];
    struct harp_header header = header_of(play, HARP_PROBE);
    header.packet = next_near(play, play->peer.first);
    header.length = next_byte(play) < 128 ? 0 : SEGMENT;
    distort_header(play, &header);
    receive_frame(play, &header, header.length <= SEGMENT ? zeros : NULL);
}

static void receive_ack(struct play *play)
{
    uint8_t body[HARP_BODY_MAX] = {0};
    struct harp_header header = header_of(play, HARP_ACK);
    header.packet = next_near(play, play->config.first + play->packets[header.path] - 1);
    struct harp_ack ack = {
        .delay_ns = (uint32_t)next_byte(play) << 8,
        .messages = next_near(play, play->config.first + 8),
        .bytes = (uint64_t)next_byte(play) << next_byte(play) % 40,
        .frames = next_near(play, play->config.first + 8),
        .bits = (uint16_t)next_below(play, 1025),
    };
    uint8_t fill = next_byte(play);
    memset(ack.map, fill < 128 ? 0xff : fill, sizeof ack.map);
    header.length = (uint16_t)harp_ack_encode(&ack, body);
    header.flags = next_byte(play) & 1;
    if (next_byte(play) >= 230)
        body[next_byte(play) % header.length] = next_byte(play);
    distort_header(play, &header);
    receive_frame(play, &header, body);
}

static void receive_bytes(struct play *play, enum harp_type type, uint16_t length)
{
    uint8_t body[HARP_BODY_MAX] = {0};
    struct harp_header header = header_of(play, type);
    header.length = length;
    if (type == HARP_VERSION_NOTICE)
        header.epoch = header.path = 0;
    for (uint16_t i = 0; i < length; i++)
        body[i] = next_byte(play);
    distort_header(play, &header);
    receive_frame(play, &header, body);
}

static void post_buffer(struct play *play)
{
    int eager;
    if (play->in_n == HELD)
        return;
    struct held held = hold_memory(next_below(play, 3000));
    if (!harp_session_post(play->session, held.bytes, held.room, 0, &eager)) {
        release_held(&held);
        return;
    }
    if (eager >= 0)
        memcpy(held.bytes, play->eager[eager], harp_min(held.room, SEGMENT));
    play->in[(play->in_first + play->in_n++) % HELD] = held;
}

static void send_message(struct play *play)
{
    if (play->out_n == HELD)
        return;
    struct held held = hold_memory(next_below(play, next_byte(play) < 240 ? 1000 : 60000));
    if (!harp_session_message(play->session, held.bytes, held.room, 0)) {
        release_held(&held);
        return;
    }
    play->out[(play->out_first + play->out_n++) % HELD] = held;
}

static void give_back(struct play *play)
{
    uint32_t frames = next_below(play, play->lent + 1);
    if (frames)
        harp_session_returned(play->session, frames);
    play->lent -= frames;
}

/* A path is off its queue, refused, moved, or has another MTU; or the session closes. */
static void change_path(struct play *play)
{
    uint8_t what = next_byte(play), path = next_byte(play) % (PATHS + 1);
    if (what < 120)
        harp_session_path_off_queue(play->session, path, what & 1);
    else if (what < 180)
        harp_session_unreachable(play->session, play->now_ns, path);
    else if (what < 190)
        harp_session_refused(play->session, play->now_ns, path, what == 189);
    else if (what < 196)
        harp_session_path_moved(play->session, path);
    else if (what < 252)
        harp_session_path_mtu(play->session, play->now_ns, path, next_byte(play) * 64u);
    else
        harp_session_close(play->session, play->now_ns, next_byte(play) % 8, "text");
}

static void do_next(struct play *play)
{
    switch (next_byte(play) % 20) {
    case 0:
    case 1:
        pass_time(play);
        return;
    case 2:
    case 3:
        receive_data(play, false);
        return;
    case 4:
        receive_data(play, true);
        return;
    case 5:
    case 6:
    case 7:
        receive_ack(play);
        return;
    case 8:
        receive_probe(play);
        return;
    case 9:
        receive_parameters(play, HARP_FIRST);
        return;
    case 10:
        receive_parameters(play, HARP_ACCEPT);
        return;
    case 11:
        receive_bytes(play, HARP_CLOSE, (uint16_t)(4 + next_below(play, 121)));
        return;
    case 12:
        receive_bytes(play, HARP_COOKIE, 16);
        return;
    case 13:
        receive_bytes(play, HARP_VERSION_NOTICE, 4);
        return;
    case 14:
        post_buffer(play);
        return;
    case 15:
        send_message(play);
        return;
    case 16:
        poll_events(play);
        return;
    case 17:
        give_back(play);
        return;
    case 18:
        change_path(play);
        return;
    default:
        drain_frames(play);
    }
}

static void configure_session(struct play *play)
{
    uint8_t how = next_byte(play);
    struct harp_session_config *config = &play->config;
    harp_session_defaults(config, SEGMENT, PATHS);
    config->connection = OWN_ID;
    config->listener = 77;
    config->epoch = EPOCH;
    config->seed = 5;
    config->first = UINT32_MAX - next_byte(play) % 8;
    config->dead_ns = UINT64_C(1000000000);
    config->pmtu.base_bytes = HARP_HEADER_BYTES + HARP_CHUNK_ALIGN;
    config->cc = how & 1 ? &harp_cc_fixed : &harp_cc_swift;
    config->stream_frames = how & 2 ? 1 + next_byte(play) % LENT : 0;
    config->addresses_n = how >> 6;
    play->peer =
        (struct harp_parameters){.connection = PEER_ID,
                                 .epoch = EPOCH,
                                 .segment = SEGMENT,
                                 .paths = PATHS,
                                 .flags = how >> 2 & 1,
                                 .messages = how & 8 ? 4 : 0,
                                 .frames = how & 4 ? 20 : 0,
                                 .addresses_n = (uint8_t)((how >> 5) % (HARP_ADDRESSES_MAX + 1)),
                                 .first = UINT32_MAX - 5};
    assert(harp_session_size(config) <= MEMORY);
    play->session = how & 16 ? harp_session_accept(memory, config, play->now_ns, &play->peer, 0)
                             : harp_session_connect(memory, config, play->now_ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct play play;
    memset(&play, 0, sizeof play);
    play.input = (struct input){.at = data, .end = data + size};
    play.now_ns = UINT64_C(1000000000);
    configure_session(&play);
    while (play.input.at < play.input.end)
        do_next(&play);
    drain_frames(&play);
    poll_events(&play);
    for (uint32_t i = 0; i < HELD; i++) {
        release_held(&play.out[i]);
        release_held(&play.in[i]);
    }
    return 0;
}
