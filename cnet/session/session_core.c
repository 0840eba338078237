#include "session/session_state.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define MS UINT64_C(1000000)
#define LAPSE_NS (100 * MS)
#define STEP_BACK_NS MS

/* Time in which this end was not driven although it had asked to be (a stopped process, a suspended
 * machine, a clock that jumped) does not exist for it: else the peer would look silent, paths dead
 * and round trips as long as the pause. Likewise time goes on where it was when the clock was set
 * back; were it held, round trips would look like nothing and all would seem overdue. Only little
 * steps back, as between two sources of time stamps, are held. lapse_ns wraps when it is negative.
 * On a host so crowded that pause follows pause a peer is gone all the same: each counts for an
 * eighth of the patience with it. */
void harp_session_clock(struct harp_session *session, uint64_t now_ns)
{
    assert(!session->placing.pending);
    now_ns -= session->clock.lapse_ns;
    uint64_t back_ns = session->now_ns - now_ns;
    if (back_ns < UINT64_MAX / 2) {
        if (back_ns > STEP_BACK_NS)
            session->clock.lapse_ns -= back_ns;
        return;
    }
    uint64_t asked_ns = harp_max(session->clock.asked_ns, session->now_ns);
    if (session->clock.asked_ns != HARP_NEVER && now_ns > asked_ns + LAPSE_NS) {
        uint64_t counted_ns = harp_min(now_ns - asked_ns, session->config.dead_ns / 8);
        session->liveness.heard_ns -= harp_min(counted_ns, session->liveness.heard_ns);
        session->handshake.began_ns -= harp_min(counted_ns, session->handshake.began_ns);
        session->clock.lapse_ns += now_ns - asked_ns;
        now_ns = asked_ns;
    }
    session->now_ns = now_ns;
}

/* Paths that wait for news begin anew if it was silent for long. */
static void excuse_silence(struct harp_session *session)
{
    for (uint64_t set = session->awake; set;) {
        struct harp_path *path = &session->paths[harp_session_next_path(&set)];
        harp_loss_heard(&path->loss, &path->rtt, &session->config.loss, session->liveness.heard_ns,
                        session->now_ns);
    }
}

void harp_session_hears(struct harp_session *session)
{
    if (session->now_ns - session->liveness.heard_ns > session->config.loss.min_rto_ns / 2)
        excuse_silence(session);
    session->liveness.heard_ns = session->now_ns;
    session->liveness.broken_ns = HARP_NEVER;
    if (session->liveness.shared)
        session->liveness.shared->heard_ns = session->now_ns + session->clock.lapse_ns;
}

uint64_t harp_session_own_ns(const struct harp_session *session, uint64_t callers_ns)
{
    uint64_t own_ns = callers_ns - session->clock.lapse_ns;
    return own_ns <= session->now_ns ? own_ns : 0;
}

uint64_t harp_session_process_heard_ns(const struct harp_session *session)
{
    if (!session->liveness.shared)
        return session->liveness.heard_ns;
    return harp_max(session->liveness.heard_ns,
                    harp_session_own_ns(session, session->liveness.shared->heard_ns));
}

uint64_t harp_session_number(const struct harp_session *session, const struct harp_header *header)
{
    const struct harp_path *path = &session->paths[header->path];
    bool ack = header->type == HARP_ACK;
    return harp_packet_near(ack ? path->sent.next - 1 : path->sack.largest, header->packet);
}

void harp_session_header(const struct harp_session *session, struct harp_frame *frame,
                         enum harp_type type, uint8_t path)
{
    frame->header = (struct harp_header){.version = HARP_VERSION,
                                         .type = (uint8_t)type,
                                         .path = path,
                                         .connection = session->peer.connection,
                                         .epoch = session->peer.epoch};
    frame->lap = 0;
    frame->path = path;
    frame->again = false;
    frame->payload = NULL;
}

void harp_session_path_lands_in(struct harp_session *session, uint32_t path,
                                struct harp_far_buffer *far)
{
    if (session->agreed.known)
        far->holds_bytes = harp_parameters_hold_bytes(&session->peer);
    harp_sent_lands_in(&session->paths[path].sent, far);
}

void harp_session_end(struct harp_session *session, uint32_t reason, bool by_peer)
{
    for (uint32_t p = 0; p < session->config.paths; p++) /* others wait for that room */
        harp_session_path_lands_in(session, p, &session->far);
    if (session->state != HARP_CLOSING) {
        session->end.reason = reason;
        session->end.by_peer = by_peer;
    }
    session->state = HARP_CLOSED;
    session->to_report.closed = true;
    session->handshake.answer = false;
}

void harp_session_part(struct harp_session *session, uint32_t reason)
{
    if (session->state >= HARP_CLOSING)
        return;
    if (session->state != HARP_OPEN) {
        harp_session_end(session, reason, false);
        return;
    }
    session->end.reason = reason;
    session->state = HARP_CLOSING;
    session->handshake.began_ns = session->now_ns;
    session->handshake.repeats = 0;
    session->handshake.repeat_at_ns = session->now_ns;
    session->handshake.repeat_wait_ns = session->config.loss.initial_rto_ns;
}

/* ---- The reason in words ---- */

static const char *cause_of(uint32_t reason)
{
    switch (reason) {
    case HARP_REASON_DONE:
        return "the connection was closed with all messages through";
    case HARP_REASON_UNDER_WAY:
        return "the connection was closed in the middle of its work";
    case HARP_REASON_TOO_LONG:
        return "a message was longer than the buffer that was posted for it";
    case HARP_REASON_PROTOCOL:
        return "a frame came that the protocol forbids";
    case HARP_REASON_MEMORY:
        return "memory ran out";
    case HARP_REASON_VERSION:
        return "the two ends have no version of the protocol in common";
    case HARP_REASON_MTU:
        return "no path carries packets of a useful length, though small ones pass: see where the "
               "network "
               "between drops them; an MTU of 576 all along is enough";
    case HARP_REASON_UNHEARD:
        return "one end heard nothing from the other for too long, though the other lives: the "
               "network drops what goes one way, or that process was stopped";
    case HARP_REASON_SILENT:
        return "the other end has been silent for too long: its process or its host is gone, or "
               "the network between is";
    case HARP_REASON_NO_ANSWER:
        return "nobody answered the handshake: nothing listens there, the secret is another, or a "
               "firewall drops its UDP port";
    case HARP_REASON_REFUSED:
        return "no process at the other end has its port any more: it ended, or it was killed";
    default:
        return NULL;
    }
}

/* The peer's words, in quotes and without what could play tricks on a terminal. */
static void quote_peer(const struct harp_event *closed, char *out, size_t room)
{
    char text[HARP_CLOSE_TEXT + 1] = "";
    for (uint8_t i = 0; i < closed->text_bytes; i++) {
        unsigned char byte = (unsigned char)closed->text[i];
        text[i] = byte < 32 || byte == 127 ? '?' : (char)byte;
    }
    if (closed->text_bytes)
        snprintf(out, room, ", saying \"%s\"", text);
}

void harp_reason_explain(const struct harp_event *closed, char *out, size_t room)
{
    assert(room > 0 && closed->type == HARP_EVENT_CLOSED);
    assert(closed->text_bytes <= HARP_CLOSE_TEXT);
    char number[80], versions[80] = "", words[HARP_CLOSE_TEXT + 20] = "";
    const char *cause = cause_of(closed->reason);
    snprintf(number, sizeof number, "the connection ended for reason %u, which is not known here",
             closed->reason);
    if (closed->reason == HARP_REASON_VERSION && closed->by_peer)
        snprintf(versions, sizeof versions, ": it speaks %u to %u, this end speaks %u",
                 closed->lowest, closed->highest, HARP_VERSION);
    quote_peer(closed, words, sizeof words);
    snprintf(out, room, "%s%s; %s%s", cause ? cause : number, versions,
             closed->by_peer ? "the other end says so" : "this end says so", words);
}
