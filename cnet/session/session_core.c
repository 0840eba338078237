#include "session/session_state.h"

#include <assert.h>

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
    assert(!session->placing);
    now_ns -= session->lapse_ns;
    uint64_t back_ns = session->now_ns - now_ns;
    if (back_ns < UINT64_MAX / 2) {
        if (back_ns > STEP_BACK_NS)
            session->lapse_ns -= back_ns;
        return;
    }
    uint64_t asked_ns = harp_max(session->asked_ns, session->now_ns);
    if (session->asked_ns != HARP_NEVER && now_ns > asked_ns + LAPSE_NS) {
        uint64_t counted_ns = harp_min(now_ns - asked_ns, session->config.dead_ns / 8);
        session->heard_ns -= harp_min(counted_ns, session->heard_ns);
        session->began_ns -= harp_min(counted_ns, session->began_ns);
        session->lapse_ns += now_ns - asked_ns;
        now_ns = asked_ns;
    }
    session->now_ns = now_ns;
}

uint64_t harp_session_own_ns(const struct harp_session *session, uint64_t callers_ns)
{
    uint64_t own_ns = callers_ns - session->lapse_ns;
    return own_ns <= session->now_ns ? own_ns : 0;
}

uint64_t harp_session_process_heard_ns(const struct harp_session *session)
{
    if (!session->liveness)
        return session->heard_ns;
    return harp_max(session->heard_ns, harp_session_own_ns(session, session->liveness->heard_ns));
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

void harp_session_end(struct harp_session *session, uint32_t reason, bool by_peer)
{
    if (session->state != HARP_CLOSING) {
        session->reason = reason;
        session->by_peer = by_peer;
    }
    session->state = HARP_CLOSED;
    session->ended = true;
    session->answer = false;
}

void harp_session_part(struct harp_session *session, uint32_t reason)
{
    if (session->state >= HARP_CLOSING)
        return;
    if (session->state != HARP_OPEN) {
        harp_session_end(session, reason, false);
        return;
    }
    session->reason = reason;
    session->state = HARP_CLOSING;
    session->began_ns = session->now_ns;
    session->repeats = 0;
    session->repeat_at_ns = session->now_ns;
    session->repeat_wait_ns = session->config.loss.initial_rto_ns;
}
