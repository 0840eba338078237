#include <string.h>

#include "session/session_state.h"

#define MOST_WAIT_NS UINT64_C(1000000000)
#define CLOSE_TRIES 8

void harp_session_agree(struct harp_session *session, const struct harp_parameters *peer)
{
    const struct harp_session_config *config = &session->config;
    session->peer = *peer;
    session->agreed.known = true;
    session->agreed.paths_n = (uint16_t)harp_min(config->paths, peer->paths);
    session->agreed.segment = (uint16_t)harp_min(config->segment, peer->segment);
    session->agreed.segment -= session->agreed.segment % HARP_CHUNK_ALIGN;
    for (uint32_t p = 0; p < session->agreed.paths_n; p++) {
        struct harp_far_buffer *far = session->paths[p].sent.far;
        harp_path_init(&session->paths[p], session->memory.slots + p * config->packets,
                       config->packets, config->first, peer->first, config->cc, &config->window);
        harp_session_path_lands_in(session, p, far);
    }
    harp_session_paths_begin(session);
    uint16_t words = config->chunks / 64;
    harp_outbox_init(&session->outbox, session->memory.outbox, config->messages, words,
                     config->first, session->agreed.segment);
    if (peer->flags)
        harp_outbox_stream(&session->outbox, (uint32_t)harp_min(peer->frames, HARP_STREAM_MAX));
    harp_outbox_credit(&session->outbox, (uint64_t)config->first + peer->messages, config->first);
    harp_inbox_init(&session->inbox, session->memory.inbox, config->messages, words, peer->first,
                    session->agreed.segment);
    session->credit.granted_messages = (uint64_t)peer->first + session->own.messages;
    session->credit.granted_frames = (uint64_t)peer->first + config->stream_frames;
    if (config->stream_frames)
        harp_inbox_stream(&session->inbox, config->stream_frames);
}

void harp_session_give_up_peer(struct harp_session *session)
{
    bool open = session->state == HARP_OPEN;
    harp_session_end(session, open ? HARP_REASON_SILENT : HARP_REASON_NO_ANSWER, false);
    /* Once: if the peer lives after all, it need not wait as long again. */
    session->handshake.answer = open;
    session->handshake.answer_path = harp_session_pick_path(session, session->liveness.heard_path);
}

/* ACCEPT makes the connection for the connecting end. It shows at once, on every path, that it
 * holds the new keys, which makes the connection for the listening end too, and measures the paths.
 */
static void take_accept_parameters(struct harp_session *session, const struct harp_parameters *peer)
{
    harp_session_agree(session, peer);
    session->state = HARP_OPEN;
    session->to_report.connected = true;
    harp_session_hears(session);
    session->liveness.keep_at_ns =
        session->now_ns + harp_session_spread_ns(session, harp_session_quiet_ns(session) / 2);
    if (session->handshake.repeats == 1)
        harp_rtt_sample(&session->paths[0].rtt, session->now_ns,
                        session->now_ns - session->handshake.first_sent_ns, 0);
    for (uint32_t p = 0; p < session->agreed.paths_n; p++)
        harp_session_path_heard(session, (uint8_t)p);
}

static bool take_first(struct harp_session *session, const struct harp_header *header,
                       const uint8_t *body)
{
    struct harp_parameters first;
    bool again = session->handshake.listening && session->state <= HARP_OPEN &&
                 harp_parameters_decode(body, header->length, &first) == HARP_WIRE_OK &&
                 first.addresses_n >= session->own.addresses_n && /* ACCEPT is no longer */
                 first.connection == session->peer.connection &&
                 first.epoch == session->peer.epoch &&
                 memcmp(first.nonce, session->peer.nonce, sizeof first.nonce) == 0;
    if (!again)
        return false;
    session->handshake.answer = true;
    session->handshake.answer_path = header->path;
    return true;
}

static bool take_cookie(struct harp_session *session, const struct harp_header *header,
                        const uint8_t *body)
{
    if (header->length != sizeof session->own.cookie ||
        memcmp(session->own.cookie, body, sizeof session->own.cookie) == 0)
        return false;
    memcpy(session->own.cookie, body, sizeof session->own.cookie);
    /* The cookie is good only from there. */
    session->handshake.first_path = (uint8_t)(header->path % session->config.paths);
    session->handshake.repeat_at_ns = session->now_ns;
    return true;
}

static bool take_versions(struct harp_session *session, const struct harp_header *header,
                          const uint8_t *body)
{
    if (harp_versions_decode(body, header->length, &session->end.versions) != HARP_WIRE_OK)
        return false;
    harp_session_end(session, HARP_REASON_VERSION, true);
    return true;
}

enum harp_verdict harp_session_take_handshake(struct harp_session *session,
                                              const struct harp_header *header, const uint8_t *body)
{
    bool taken = false;
    struct harp_parameters peer;
    if (header->type == HARP_FIRST) {
        taken = take_first(session, header, body);
    } else if (session->state != HARP_CONNECTING ||
               header->connection != session->config.connection ||
               (header->type != HARP_VERSION_NOTICE && header->epoch != session->config.epoch)) {
        taken = false;
    } else if (header->type == HARP_COOKIE) {
        taken = take_cookie(session, header, body);
    } else if (header->type == HARP_VERSION_NOTICE) {
        taken = take_versions(session, header, body);
    } else if (harp_parameters_decode(body, header->length, &peer) == HARP_WIRE_OK &&
               peer.addresses_n <= session->own.addresses_n) {
        take_accept_parameters(session, &peer);
        taken = true;
    }
    session->counters.strangers += !taken;
    return taken ? HARP_TAKEN : HARP_DROP;
}

/* CLOSE ends the connection and is answered by CLOSE, each time that it comes; the answer to our
 * own is not. */
enum harp_verdict harp_session_take_close(struct harp_session *session,
                                          const struct harp_header *header, const uint8_t *body)
{
    struct harp_close notice;
    if (harp_close_decode(body, header->length, &notice) != HARP_WIRE_OK) {
        session->counters.strangers++;
        return HARP_DROP;
    }
    if (session->state == HARP_CLOSED && !session->end.by_peer)
        return HARP_DROP;
    bool ours = session->state == HARP_CLOSING;
    if (session->state != HARP_CLOSED) {
        harp_session_end(session, notice.reason, true);
        session->end.notice = notice;
    }
    session->handshake.answer = !ours;
    session->handshake.answer_path = header->path;
    return HARP_TAKEN;
}

static void write_first(struct harp_session *session, struct harp_frame *frame)
{
    uint8_t path = session->handshake.first_path;
    session->handshake.first_path = (uint8_t)((path + 1) % session->config.paths);
    *frame = (struct harp_frame){.path = path};
    frame->header = (struct harp_header){
        .version = HARP_VERSION,
        .type = HARP_FIRST,
        .path = path,
        .connection = session->config.listener,
        .length = (uint16_t)harp_parameters_encode(&session->own, frame->body)};
    if (session->handshake.repeats == 0)
        session->handshake.first_sent_ns = session->now_ns;
}

static void write_close(struct harp_session *session, struct harp_frame *frame, uint8_t path)
{
    harp_session_header(session, frame, HARP_CLOSE, path);
    struct harp_close notice = session->end.notice;
    bool silent = session->end.reason == HARP_REASON_SILENT && !session->end.by_peer;
    notice.reason = silent ? HARP_REASON_UNHEARD : session->end.reason;
    if (session->end.by_peer) /* its words are not ours */
        notice.text_bytes = 0;
    frame->header.length = (uint16_t)harp_close_encode(&notice, frame->body);
}

uint8_t harp_session_close_path(const struct harp_session *session)
{
    return harp_session_pick_path(session,
                                  (uint8_t)(session->handshake.repeats % session->agreed.paths_n));
}

/* FIRST and CLOSE are repeated ever more rarely, but several times before either end gives up. */
static void put_off(struct harp_session *session)
{
    session->handshake.repeats++;
    session->handshake.repeat_at_ns = session->now_ns + session->handshake.repeat_wait_ns;
    uint64_t most_ns = harp_min(MOST_WAIT_NS, session->config.dead_ns / 8);
    session->handshake.repeat_wait_ns = harp_min(2 * session->handshake.repeat_wait_ns, most_ns);
}

static size_t write_answer(struct harp_session *session, struct harp_frame *frame)
{
    session->handshake.answer = false;
    if (session->state == HARP_CLOSED) {
        write_close(session, frame, session->handshake.answer_path);
        return 1;
    }
    harp_session_header(session, frame, HARP_ACCEPT, session->handshake.answer_path);
    frame->header.length = (uint16_t)harp_parameters_encode(&session->own, frame->body);
    return 1;
}

size_t harp_session_send_handshake(struct harp_session *session, struct harp_frame *frame)
{
    if (session->handshake.answer)
        return write_answer(session, frame);
    bool repeating = session->state == HARP_CONNECTING || session->state == HARP_CLOSING;
    if (!repeating || session->now_ns < session->handshake.repeat_at_ns)
        return 0;
    if (session->state == HARP_CONNECTING) {
        write_first(session, frame);
    } else if (session->handshake.repeats == CLOSE_TRIES) {
        harp_session_end(session, session->end.reason, false);
        return 0;
    } else {
        write_close(session, frame, harp_session_close_path(session));
    }
    put_off(session);
    return 1;
}
