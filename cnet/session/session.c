#include "session/session_state.h"

#include <assert.h>
#include <string.h>

#define US UINT64_C(1000)
#define MS (1000 * US)
/* Of all paths together: half of what a udp port's socket holds. */
#define FLIGHT_BYTES (UINT64_C(4) << 20)

void harp_session_defaults(struct harp_session_config *config, uint16_t segment, uint16_t paths)
{
    uint32_t frame_bytes = HARP_HEADER_BYTES + segment;
    uint64_t share_bytes = harp_max(FLIGHT_BYTES / paths, UINT64_C(64) * frame_bytes);
    *config = (struct harp_session_config){
        .segment = segment,
        .paths = paths,
        .messages = HARP_MESSAGES,
        .chunks = HARP_CHUNK_WINDOW,
        .packets = HARP_SENT_SLOTS,
        .loss = {.ack_delay_ns = 20 * US,
                 .min_rto_ns = MS,
                 .initial_rto_ns = 10 * MS,
                 .dead_ns = 50 * MS,
                 .silences = 2},
        .dead_ns = 30000 * MS,
        .probe_most_ns = 100 * MS,
        .pmtu.base_bytes = HARP_PMTU_BASE,
        .pmtu.least_bytes = HARP_PMTU_LEAST,
        .ack.every = 16,
        .ack.soon_ns = HARP_ACK_SOON_NS,
        .ack.along_ns = HARP_ACK_SOON_NS,
        .cc = &harp_cc_swift,
        .window = {.initial_bytes = 16 * frame_bytes,
                   .min_bytes = frame_bytes / 64,
                   .max_bytes = harp_min((uint64_t)HARP_SENT_SLOTS * frame_bytes, share_bytes),
                   .segment_bytes = frame_bytes,
                   .target_ns = 25 * US,
                   .host_target_ns = MS},
    };
}

/* Where the parts of a session begin in its memory: the head, with its paths, comes first. */
struct layout {
    size_t path_state, slots, out, in, end;
};

static size_t to_cache_line(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static struct layout lay_out(const struct harp_session_config *config)
{
    uint16_t words = config->chunks / 64;
    size_t paths = config->paths;
    struct layout at;
    at.path_state = to_cache_line(sizeof(struct harp_session) + paths * sizeof(struct harp_path));
    at.slots = to_cache_line(at.path_state + paths * sizeof(struct harp_path_state));
    at.out = to_cache_line(at.slots + paths * config->packets * sizeof(struct harp_sent));
    at.in = to_cache_line(at.out + harp_outbox_bytes(config->messages, words));
    at.end = to_cache_line(at.in + harp_inbox_bytes(config->messages, words));
    return at;
}

size_t harp_session_size(const struct harp_session_config *config)
{
    return lay_out(config).end;
}

static bool is_power_of_two(uint32_t n, uint32_t least, uint32_t most)
{
    return n >= least && n <= most && (n & (n - 1)) == 0;
}

static struct harp_session *create_session(void *memory, const struct harp_session_config *config,
                                           uint64_t now_ns)
{
    assert(config->connection != 0 && config->paths > 0 && config->paths <= HARP_PATHS_MAX);
    assert(config->stream_frames <= HARP_STREAM_MAX);
    assert(config->segment >= HARP_CHUNK_ALIGN && config->segment % HARP_CHUNK_ALIGN == 0);
    assert(is_power_of_two(config->messages, 2, HARP_MESSAGES));
    assert(is_power_of_two(config->chunks, 64, HARP_CHUNK_WINDOW));
    assert(is_power_of_two(config->packets, 16, HARP_SENT_SLOTS));
    struct harp_session *session = memory;
    const struct layout at = lay_out(config);
    memset(session, 0, at.slots); /* what follows is cleared when it is used first */
    session->config = *config;
    session->path_state = (struct harp_path_state *)((uint8_t *)memory + at.path_state);
    session->memory.slots = (struct harp_sent *)((uint8_t *)memory + at.slots);
    session->memory.outbox = (uint8_t *)memory + at.out;
    session->memory.inbox = (uint8_t *)memory + at.in;
    session->own =
        (struct harp_parameters){.connection = config->connection,
                                 .epoch = config->epoch,
                                 .segment = config->segment | harp_holds_code(config->holds_bytes),
                                 .paths = config->paths,
                                 .flags = config->stream_frames > 0,
                                 .traffic_class = config->traffic_class,
                                 .messages = config->stream_frames ? config->messages : 0,
                                 .frames = config->stream_frames,
                                 .first = config->first};
    memcpy(session->own.nonce, config->nonce, sizeof config->nonce);
    session->own.addresses_n = config->addresses_n;
    memcpy(session->own.addresses, config->addresses, sizeof config->addresses);
    session->now_ns = session->handshake.began_ns = session->liveness.heard_ns = now_ns;
    session->clock.asked_ns = now_ns; /* it wants to be driven at once */
    session->credit.probe_at_ns = session->credit.starved_at_ns = HARP_NEVER;
    session->liveness.keep_at_ns = session->liveness.narrow_ns = HARP_NEVER;
    session->liveness.broken_ns = HARP_NEVER;
    session->sending.pacer_at_ns = HARP_NEVER;
    session->handshake.repeat_at_ns = HARP_NEVER;
    session->handshake.repeat_wait_ns = config->loss.initial_rto_ns;
    session->sending.random = config->seed;
    for (uint32_t p = 0; p < config->paths; p++)
        harp_session_path_lands_in(session, p, &session->far);
    return session;
}

struct harp_session *harp_session_connect(void *memory, const struct harp_session_config *config,
                                          uint64_t now_ns)
{
    struct harp_session *session = create_session(memory, config, now_ns);
    session->state = HARP_CONNECTING;
    session->handshake.repeat_at_ns = now_ns;
    return session;
}

struct harp_session *harp_session_accept(void *memory, const struct harp_session_config *config,
                                         uint64_t now_ns, const struct harp_parameters *first,
                                         uint8_t path)
{
    struct harp_session *session = create_session(memory, config, now_ns);
    session->handshake.listening = true;
    session->state = HARP_ACCEPTING;
    session->own.addresses_n = (uint8_t)harp_min(config->addresses_n, first->addresses_n);
    harp_session_agree(session, first);
    session->handshake.answer = true;
    session->handshake.answer_path = path;
    return session;
}

uint32_t harp_session_lap(const struct harp_session *session, const struct harp_header *header)
{
    bool numbered = header->type >= HARP_DATA && header->type <= HARP_PROBE;
    if (!numbered || !session->agreed.known || header->path >= session->agreed.paths_n)
        return 0;
    return (uint32_t)(harp_session_number(session, header) >> 32) & HARP_LAP_MAX;
}

const struct harp_parameters *harp_session_peer(const struct harp_session *session)
{
    return &session->peer;
}

void harp_session_share_liveness(struct harp_session *session, struct harp_liveness *liveness)
{
    session->liveness.shared = liveness;
}

void harp_session_share_buffer(struct harp_session *session, uint8_t path,
                               struct harp_far_buffer *far)
{
    bool ended = session->state == HARP_CLOSED;
    harp_session_path_lands_in(session, path, far && !ended ? far : &session->far);
}

/* Small messages that came before the peer was done, and before their buffers. */
static uint32_t left_over(const struct harp_session *session)
{
    const struct harp_inbox *inbox = &session->inbox;
    uint32_t n = 0;
    if (session->state != HARP_CLOSED || !session->end.by_peer || !session->agreed.known ||
        session->end.reason != HARP_REASON_DONE || inbox->streamed)
        return 0;
    while (n < HARP_EAGER && inbox->eager[(inbox->posted + n) % HARP_EAGER].full &&
           inbox->eager[(inbox->posted + n) % HARP_EAGER].message == inbox->posted + n)
        n++;
    return n;
}

bool harp_session_post(struct harp_session *session, uint8_t *buffer, uint32_t capacity,
                       uint64_t context, int *eager)
{
    assert(!session->placing.pending);
    *eager = -1;
    bool open = session->state <= HARP_OPEN || left_over(session);
    if (!session->agreed.known || !open || session->inbox.streamed ||
        !harp_inbox_has_room(&session->inbox))
        return false;
    bool too_long;
    if (session->reassembly.busy) /* what an eager slot has of a message is no part of its buffer */
        harp_reassembly_forget(&session->reassembly, session->inbox.posted);
    *eager = harp_inbox_post(&session->inbox, buffer, capacity, context, &too_long);
    if (too_long && session->state == HARP_CLOSED) /* the other end is done: only ours learns */
        harp_session_end(session, HARP_REASON_TOO_LONG, false);
    else if (too_long)
        harp_session_part(session, HARP_REASON_TOO_LONG);
    if (too_long)
        return false;
    session->credit.news = true;
    return true;
}

bool harp_session_message(struct harp_session *session, const uint8_t *buffer, uint32_t size,
                          uint64_t context)
{
    assert(!session->placing.pending);
    return session->state == HARP_OPEN && size <= HARP_MESSAGE_MAX &&
           harp_outbox_add(&session->outbox, buffer, NULL, size, context);
}

bool harp_session_message_frames(struct harp_session *session, const uint8_t *const *chunks,
                                 uint32_t size, uint64_t context)
{
    assert(!session->placing.pending);
    return session->state == HARP_OPEN && size <= HARP_MESSAGE_MAX &&
           harp_outbox_add(&session->outbox, NULL, chunks, size, context);
}

uint16_t harp_session_segment(const struct harp_session *session)
{
    return session->agreed.segment;
}

void harp_session_returned(struct harp_session *session, uint32_t frames)
{
    assert(!session->placing.pending);
    harp_inbox_returned(&session->inbox, frames);
    session->credit.news |= frames > 0;
}

/* Too long a text is cut where a character of UTF-8 begins. */
static void set_close_text(struct harp_close *notice, const char *text)
{
    size_t bytes = strlen(text);
    if (bytes > HARP_CLOSE_TEXT)
        for (bytes = HARP_CLOSE_TEXT; bytes && (text[bytes] & 0xc0) == 0x80;)
            bytes--;
    memcpy(notice->text, text, bytes);
    notice->text_bytes = (uint8_t)bytes;
}

void harp_session_close(struct harp_session *session, uint64_t now_ns, uint32_t reason,
                        const char *text)
{
    harp_session_clock(session, now_ns);
    if (text && session->state < HARP_CLOSING)
        set_close_text(&session->end.notice, text);
    bool under_way = session->agreed.known && session->outbox.base != session->outbox.end;
    if (reason == HARP_REASON_DONE && under_way)
        reason = HARP_REASON_UNDER_WAY;
    harp_session_part(session, reason);
}

static bool poll_message(struct harp_session *session, struct harp_event *event)
{
    const struct harp_incoming *in = harp_inbox_pop(&session->inbox);
    if (in) {
        *event = (struct harp_event){.type = HARP_EVENT_RECEIVED,
                                     .size = in->size,
                                     .message = session->inbox.base - 1,
                                     .context = in->context};
        session->credit.news |= session->inbox.streamed;
        return true;
    }
    const struct harp_outgoing *out = harp_outbox_pop(&session->outbox);
    if (out)
        *event = (struct harp_event){.type = HARP_EVENT_SENT,
                                     .size = out->size,
                                     .message = session->outbox.base - 1,
                                     .context = out->context,
                                     .buffer = out->buffer};
    return out != NULL;
}

static void report_end(const struct harp_session *session, struct harp_event *event)
{
    *event = (struct harp_event){.type = HARP_EVENT_CLOSED,
                                 .size = left_over(session),
                                 .reason = session->end.reason,
                                 .by_peer = session->end.by_peer};
    if (!session->end.by_peer)
        return;
    event->text = (const char *)session->end.notice.text;
    event->text_bytes = session->end.notice.text_bytes;
    event->lowest = session->end.versions.lowest;
    event->highest = session->end.versions.highest;
}

void harp_session_poll(struct harp_session *session, struct harp_event *event)
{
    *event = (struct harp_event){.type = HARP_EVENT_NONE};
    if (session->to_report.connected) {
        session->to_report.connected = false;
        event->type = HARP_EVENT_CONNECTED;
    } else if (session->agreed.known && poll_message(session, event)) {
        return;
    } else if (session->to_report.closed) {
        session->to_report.closed = false;
        report_end(session, event);
    }
}

const struct harp_session_counters *harp_session_count(const struct harp_session *session)
{
    return &session->counters;
}
