/* Timers of a session: the loss alarms of each path, the retransmission timeout among them (loss.h
 * says when they go off, rtt.h how long the timeout is); the death of a path and the probes of a
 * dead one; probes for credit, keep-alive, and the end of a session after dead_ns of silence.
 * session_ack.c declares a path alive again. */
#include "session/session_state.h"

/* Take a path out of use: its chunks in flight go to other paths, and probes follow, each after a
 * longer time than the one before. */
static void path_dies(struct harp_session *session, struct harp_path *path)
{
    harp_session_flush(session, path);
    harp_loss_news(&path->loss, false, session->now_ns);
    path->cc.ops->on_timeout(&path->cc, session->now_ns);
    path->dead = true;
    harp_session_paths_rate(session);
    path->probe.wait_ns = harp_loss_rto_ns(&path->rtt, &session->config.loss);
    path->probe.at_ns = session->now_ns;
    session->counters.paths_died++;
    session->path_state[path - session->paths].died++;
}

static bool all_dead(const struct harp_session *session)
{
    for (uint32_t p = 0; p < session->agreed.paths_n; p++)
        if (session->path_state[p].heard && !session->paths[p].dead)
            return false;
    return true;
}

void harp_session_path_broken(struct harp_session *session, uint64_t now_ns, uint8_t path,
                              bool closed)
{
    harp_session_clock(session, now_ns);
    if (session->state != HARP_OPEN || path >= session->agreed.paths_n)
        return;
    if (!session->paths[path].dead)
        path_dies(session, &session->paths[path]);
    harp_session_wake(session, path);
    if (closed && session->handshake.listening && all_dead(session))
        session->liveness.broken_ns = harp_min(session->liveness.broken_ns, session->now_ns);
}

static void probe_dead(struct harp_session *session, struct harp_path *path)
{
    if (session->now_ns < path->probe.at_ns)
        return;
    harp_session_flush(session, path);
    path->probe.due = HARP_PROBE_PLAIN;
    path->probe.at_ns = session->now_ns + path->probe.wait_ns;
    path->probe.wait_ns = harp_min(2 * path->probe.wait_ns, session->config.probe_most_ns);
}

static void path_times_out(struct harp_session *session, struct harp_path *path)
{
    harp_session_flush(session, path);
    harp_loss_timed_out(&path->loss, session->now_ns);
    path->cc.ops->on_timeout(&path->cc, session->now_ns);
}

static enum harp_alarm next_alarm(const struct harp_session *session, const struct harp_path *path,
                                  uint64_t *at_ns)
{
    return harp_loss_alarm(&path->loss, &path->sent, &path->rtt, &session->config.loss,
                           session->liveness.heard_ns, at_ns);
}

/* Ask for news by the youngest chunk once more: where a path has become narrow an empty PROBE would
 * pass, and its fault would show late. But not where the far end's buffer may be full. Where
 * nothing else is under way, another path is asked, too: its answer shows that the peer lives, and
 * that this path is at fault. */
static void ask_for_news(struct harp_session *session, struct harp_path *path)
{
    uint8_t number = (uint8_t)(path - session->paths);
    uint8_t next =
        harp_session_pick_path(session, (uint8_t)((number + 1) % session->agreed.paths_n));
    struct harp_path *other = &session->paths[next];
    const struct harp_far_buffer *far = path->sent.far;
    bool fits =
        !far || harp_far_buffer_has_room(far, path->sent.bytes_in_flight,
                                         HARP_HEADER_BYTES + (uint32_t)session->agreed.segment);
    path->probe.due = fits ? HARP_PROBE_TAIL : HARP_PROBE_PLAIN;
    if (other->dead || other->sent.in_flight || other->probe.due != HARP_PROBE_NONE)
        return;
    other->probe.due = HARP_PROBE_PLAIN;
    harp_session_wake(session, next);
}

static void see_to_path(struct harp_session *session, struct harp_path *path)
{
    while (!path->dead) {
        uint64_t at_ns;
        enum harp_alarm alarm = next_alarm(session, path, &at_ns);
        if (at_ns > session->now_ns)
            return;
        if (alarm == HARP_ALARM_REORDER) {
            harp_session_detect(session, path);
        } else if (alarm == HARP_ALARM_PROBE) {
            ask_for_news(session, path);
            harp_loss_probed(&path->loss);
        } else if (alarm == HARP_ALARM_ASK) {
            harp_loss_asks(&path->loss, path->sent.next);
            ask_for_news(session, path);
            harp_loss_timed_out(&path->loss, session->now_ns);
        } else if (alarm == HARP_ALARM_TIMEOUT) {
            path_times_out(session, path);
        } else {
            path_dies(session, path);
        }
    }
    probe_dead(session, path);
}

static void probe_somewhere(struct harp_session *session)
{
    uint8_t number = harp_session_pick_path(session, session->liveness.heard_path);
    struct harp_path *path = &session->paths[number];
    harp_session_wake(session, number);
    if (path->probe.due == HARP_PROBE_NONE)
        path->probe.due = HARP_PROBE_PLAIN;
}

/* How long messages have waited for credit and for nothing else, as Linux's tcpi_rwnd_limited. */
static void count_starved_time(struct harp_session *session, bool starved)
{
    if (session->credit.starved_at_ns != HARP_NEVER)
        session->counters.starved_ns += session->now_ns - session->credit.starved_at_ns;
    session->credit.starved_at_ns = starved ? session->now_ns : HARP_NEVER;
}

/* News of credit may have been lost, and nothing repeats it. So a sender that waits for credit asks
 * for it by PROBE, as TCP probes a zero window (RFC 9293, section 3.8.6.1). */
static void probe_for_credit(struct harp_session *session)
{
    bool starved = harp_outbox_starved(&session->outbox);
    count_starved_time(session, starved);
    if (!starved) {
        session->credit.probe_at_ns = HARP_NEVER;
        return;
    }
    if (session->credit.probe_at_ns == HARP_NEVER) {
        session->credit.probe_wait_ns = harp_loss_rto_ns(
            &session->paths[session->liveness.heard_path].rtt, &session->config.loss);
    } else if (session->now_ns < session->credit.probe_at_ns) {
        return;
    } else {
        probe_somewhere(session);
        session->credit.probe_wait_ns =
            harp_min(2 * session->credit.probe_wait_ns, session->config.probe_most_ns);
    }
    session->credit.probe_at_ns = session->now_ns + session->credit.probe_wait_ns;
}

/* Whether others who share the peer's liveness make it needless to ask: they have heard it, or have
 * just asked. Sets when to look again. */
static bool others_keep_alive(struct harp_session *session, uint64_t quiet_ns)
{
    uint64_t own_ns = harp_session_patience_ns(session);
    if (!session->liveness.shared || session->now_ns - session->liveness.heard_ns >= own_ns)
        return false;
    uint64_t heard_ns = harp_session_process_heard_ns(session);
    uint64_t asked_ns = harp_session_own_ns(session, session->liveness.shared->asked_ns);
    if (session->now_ns - heard_ns < quiet_ns / 2)
        session->liveness.keep_at_ns = heard_ns + harp_session_spread_ns(session, quiet_ns / 2);
    else if (session->now_ns - asked_ns < quiet_ns / 4)
        session->liveness.keep_at_ns = asked_ns + harp_session_spread_ns(session, quiet_ns / 4);
    else
        return false;
    return true;
}

/* A peer whose port was refused is not asked before the answer would count (harp_session_refused),
 * and then again and again: its host sends few refusals. */
static void keep_alive(struct harp_session *session)
{
    uint64_t quiet_ns = harp_session_quiet_ns(session);
    bool refused = session->liveness.refused_ns > harp_session_process_heard_ns(session);
    if (session->now_ns < session->liveness.keep_at_ns)
        return;
    if (!refused && session->now_ns - session->liveness.heard_ns < quiet_ns / 2) {
        session->liveness.keep_at_ns =
            session->liveness.heard_ns + harp_session_spread_ns(session, quiet_ns / 2);
        return;
    }
    if (others_keep_alive(session, quiet_ns))
        return;
    probe_somewhere(session);
    if (session->liveness.shared)
        session->liveness.shared->asked_ns = session->now_ns + session->clock.lapse_ns;
    session->liveness.keep_at_ns =
        session->now_ns +
        harp_min(quiet_ns / 2, refused ? session->config.probe_most_ns : quiet_ns);
}

/* Nobody has come back for what is all broken. */
static uint64_t left_at_ns(const struct harp_session *session)
{
    return session->liveness.broken_ns == HARP_NEVER ? HARP_NEVER
                                                     : session->liveness.broken_ns + HARP_BROKEN_NS;
}

static uint64_t gone_at_ns(const struct harp_session *session)
{
    uint64_t since_ns =
        session->state == HARP_OPEN ? session->liveness.heard_ns : session->handshake.began_ns;
    return since_ns + session->config.dead_ns;
}

void harp_session_timers(struct harp_session *session)
{
    if (session->state == HARP_CLOSED)
        return;
    if (session->now_ns >= gone_at_ns(session)) {
        harp_session_give_up_peer(session);
        return;
    }
    if (session->now_ns >= left_at_ns(session)) {
        harp_session_end(session, HARP_REASON_REFUSED, false);
        return;
    }
    if (session->state != HARP_OPEN)
        return;
    for (uint64_t set = session->awake; set;) {
        uint8_t path = harp_session_next_path(&set);
        see_to_path(session, &session->paths[path]);
        harp_session_path_try_size(session, path);
    }
    probe_for_credit(session);
    keep_alive(session);
}

static uint64_t path_deadline_ns(struct harp_session *session, uint8_t number)
{
    struct harp_path *path = &session->paths[number];
    uint64_t at_ns = path->probe.at_ns;
    if (!path->dead)
        next_alarm(session, path, &at_ns);
    if (path->ack.now)
        return session->now_ns;
    if (path->probe.due != HARP_PROBE_NONE && harp_sent_has_room(&path->sent))
        return session->now_ns;
    at_ns = harp_min(at_ns, harp_session_path_due_ns(session, number));
    return harp_min(at_ns, path->ack.at_ns);
}

static uint64_t open_deadline_ns(struct harp_session *session)
{
    uint64_t at_ns = harp_min(session->liveness.keep_at_ns, session->credit.probe_at_ns);
    at_ns = harp_min(at_ns, left_at_ns(session));
    at_ns = harp_min(at_ns, session->sending.pacer_at_ns);
    for (uint64_t set = session->awake; set;) {
        uint8_t path = harp_session_next_path(&set);
        uint64_t path_at_ns = path_deadline_ns(session, path);
        if (path_at_ns == HARP_NEVER)
            session->awake &= ~(UINT64_C(1) << path);
        at_ns = harp_min(at_ns, path_at_ns);
    }
    return at_ns;
}

uint64_t harp_session_deadline_ns(struct harp_session *session)
{
    uint64_t at_ns = session->handshake.answer ? session->now_ns : HARP_NEVER;
    if (session->state == HARP_OPEN)
        at_ns = harp_min(at_ns, open_deadline_ns(session));
    else if (session->state != HARP_CLOSED)
        at_ns = harp_min(at_ns, session->handshake.repeat_at_ns);
    if (session->state != HARP_CLOSED)
        at_ns = harp_min(at_ns, gone_at_ns(session));
    if (session->state == HARP_ACCEPTING) /* else a clock that jumps would be all of its patience */
        at_ns = harp_min(at_ns, session->now_ns + session->config.dead_ns / 8);
    session->clock.asked_ns = at_ns;
    return at_ns == HARP_NEVER ? HARP_NEVER : at_ns + session->clock.lapse_ns;
}
