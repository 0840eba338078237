/* Calls of the session's owner about paths. */
#include "session/session_state.h"

static bool path_exists(const struct harp_session *session, uint8_t path)
{
    return session->agreed.known && path < session->agreed.paths_n;
}

bool harp_session_path_info(const struct harp_session *session, uint8_t path,
                            struct harp_path_info *info)
{
    if (!path_exists(session, path))
        return false;
    const struct harp_path *at = &session->paths[path];
    const struct harp_path_state *path_state = &session->path_state[path];
    *info = (struct harp_path_info){
        .alive = !at->dead,
        .usable = !at->dead && !at->no_data,
        .heard = path_state->heard,
        .off_queue = path_state->off_queue,
        .mtu_fails = harp_session_is_too_narrow(path_state),
        .validating = path_state->validating,
        .fragments = path_state->pmtu.fragments,
        .frame_bytes = harp_pmtu_frame_bytes(&path_state->pmtu),
        .confirmed_bytes = path_state->confirmed_bytes,
        .smoothed_ns = harp_rtt_smoothed_ns(&at->rtt),
        .least_ns = harp_rtt_least_ns(&at->rtt),
        .window_bytes = at->cc.ops->window_bytes(&at->cc),
        .bytes_in_flight = at->sent.bytes_in_flight,
        .sent = at->sent.next - session->config.first,
        .lost = path_state->lost,
        .spurious = path_state->spurious,
        .died = path_state->died,
        .host_ns = at->rtt.host_x8_ns / 8,
        .due = at->sack.largest + 1 - session->peer.first,
        .arrived = at->arrived,
        .bad_payloads = path_state->bad_payloads,
    };
    return true;
}

uint16_t harp_session_path_frame_bytes(const struct harp_session *session, uint8_t path)
{
    return path_exists(session, path) ? harp_pmtu_frame_bytes(&session->path_state[path].pmtu) : 0;
}

void harp_session_path_mtu(struct harp_session *session, uint64_t now_ns, uint8_t path,
                           uint32_t payload_max)
{
    harp_session_clock(session, now_ns);
    if (session->state != HARP_OPEN || !path_exists(session, path) ||
        !session->path_state[path].heard)
        return;
    struct harp_path_state *path_state = &session->path_state[path];
    uint64_t pause_ns = harp_loss_rto_ns(&session->paths[path].rtt, &session->config.loss);
    if (path_state->narrowed_at_ns && session->now_ns - path_state->narrowed_at_ns < pause_ns)
        return;
    path_state->narrowed_at_ns = session->now_ns;
    if (payload_max < harp_pmtu_frame_bytes(&path_state->pmtu)) {
        harp_session_path_confirm_again(session, path, payload_max);
    } else if (path_state->pmtu.state == HARP_PMTU_COMPLETE && path_state->pmtu.fragments > 1) {
        path_state->pmtu.next_ns = session->now_ns;
        harp_session_path_try_size(session, path);
    }
}

bool harp_session_is_newest(const struct harp_session *session, const struct harp_header *header)
{
    bool numbered = header->type == HARP_DATA || header->type == HARP_PROBE;
    if (header->flags) /* of fragments one number comes again and again */
        return false;
    return numbered && path_exists(session, header->path) &&
           header->connection == session->config.connection &&
           header->epoch == session->config.epoch &&
           harp_packet_before(session->paths[header->path].sack.largest,
                              harp_session_number(session, header));
}

void harp_session_path_moved(struct harp_session *session, uint8_t path)
{
    if (session->state != HARP_OPEN || !path_exists(session, path) ||
        !session->path_state[path].heard)
        return;
    session->path_state[path].validating = true;
    session->path_state[path].validating_from = session->paths[path].sent.next;
    session->paths[path].probe.due = HARP_PROBE_PLAIN;
    harp_session_wake(session, path);
    harp_session_paths_rate(session);
}

void harp_session_path_rerouted(struct harp_session *session, uint8_t path)
{
    if (session->state != HARP_OPEN || !path_exists(session, path))
        return;
    struct harp_path_state *path_state = &session->path_state[path];
    path_state->off_queue = false;
    path_state->flag_largest = session->paths[path].sent.next;
    session->paths[path].probe.due = HARP_PROBE_PLAIN;
    harp_session_wake(session, path);
    harp_session_paths_rate(session);
}

void harp_session_path_off_queue(struct harp_session *session, uint8_t path, bool off)
{
    if (session->state != HARP_OPEN || !path_exists(session, path) ||
        session->path_state[path].arrives_off == off)
        return;
    session->path_state[path].arrives_off = off;
    session->paths[path].ack.now = true;
    harp_session_wake(session, path);
}

bool harp_session_unreachable(struct harp_session *session, uint64_t now_ns, uint8_t path)
{
    harp_session_clock(session, now_ns);
    bool connecting = session->state == HARP_CONNECTING && session->config.paths > 1;
    bool open = session->state == HARP_OPEN && path_exists(session, path) &&
                session->path_state[path].heard;
    if (!connecting && !open)
        return false;
    const struct harp_loss_limits *limits = &session->config.loss;
    struct harp_path_state *path_state = &session->path_state[open ? path : 0];
    uint64_t pause_ns =
        open ? harp_loss_rto_ns(&session->paths[path].rtt, limits) : limits->initial_rto_ns;
    if (path_state->unreachable_at_ns && session->now_ns - path_state->unreachable_at_ns < pause_ns)
        return false;
    path_state->unreachable_at_ns = session->now_ns;
    if (open)
        harp_session_wake(session, path);
    if (connecting)
        session->handshake.repeat_at_ns = session->now_ns;
    else if (session->paths[path].probe.due == HARP_PROBE_NONE)
        session->paths[path].probe.due = HARP_PROBE_PLAIN;
    return true;
}

/* Nobody asks the peer again until that is worth an answer: probes that are on their way would be
 * sent again and again meanwhile. Data that is under way goes on. */
static void pause_probes(struct harp_session *session)
{
    session->liveness.keep_at_ns =
        session->now_ns + HARP_REFUSED_NS + harp_session_spread_ns(session, HARP_REFUSED_NS / 32);
    if (session->outbox.base != session->outbox.end)
        return;
    for (uint32_t p = 0; p < session->agreed.paths_n; p++) {
        struct harp_path *path = &session->paths[p];
        harp_session_flush(session, path);
        harp_loss_news(&path->loss, false, session->now_ns);
        if (path->dead)
            path->probe.at_ns = session->liveness.keep_at_ns;
    }
}

void harp_session_path_full(struct harp_session *session, uint64_t now_ns, uint8_t path,
                            uint64_t time_ns)
{
    harp_session_clock(session, now_ns);
    if (path_exists(session, path))
        session->paths[path].full_until_ns = session->now_ns + time_ns;
}

void harp_session_refused(struct harp_session *session, uint64_t now_ns, uint8_t path, bool certain)
{
    harp_session_clock(session, now_ns);
    if (session->state == HARP_CLOSED)
        return;
    if (session->state == HARP_CONNECTING) /* FIRST may get through on another path */
        (void)harp_session_unreachable(session, now_ns, path);
    if (session->liveness.refused_ns <= harp_session_process_heard_ns(session)) {
        session->liveness.refused_ns = session->now_ns;
        if (session->state == HARP_OPEN)
            pause_probes(session);
    }
    if (certain || session->now_ns - session->liveness.refused_ns >= HARP_REFUSED_NS)
        harp_session_end(session, HARP_REASON_REFUSED, false);
}
