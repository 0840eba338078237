#include <assert.h>

#include "session/session_state.h"

#define SIZE_TRIES 3 /* full frames lost in a row after which a path carries no data */
#define WHOLE_LOST                                                                                 \
    32                  /* full frames lost in a row after which the path may have become narrower \
                         */
#define SIZE_BACKOFF 10 /* of the pause between tries of a path that does not carry them */

static uint8_t number_of(const struct harp_session *session, const struct harp_path *path)
{
    return (uint8_t)(path - session->paths);
}

static uint16_t full_bytes(const struct harp_session *session)
{
    return (uint16_t)(HARP_HEADER_BYTES + session->segment);
}

static bool fails(const struct harp_standing *standing)
{
    return standing->size_fails >= SIZE_TRIES;
}

static bool wanted(const struct harp_standing *standing)
{
    return !standing->retired && !standing->off_queue;
}

/* A path that is not wanted still carries data when there is no other. */
void harp_session_paths_rate(struct harp_session *session)
{
    bool choice = false;
    for (uint32_t p = 0; p < session->paths_n; p++) {
        const struct harp_standing *standing = &session->standing[p];
        bool can = standing->heard && !fails(standing) && !standing->validating;
        session->paths[p].barred = !can;
        choice |= can && !session->paths[p].dead && wanted(standing);
    }
    for (uint32_t p = 0; choice && p < session->paths_n; p++)
        session->paths[p].barred |= !wanted(&session->standing[p]);
}

void harp_session_paths_begin(struct harp_session *session)
{
    for (uint32_t p = 0; p < session->paths_n; p++)
        session->standing[p] = (struct harp_standing){
            .size_at_ns = HARP_NEVER, .flag_largest = (uint64_t)session->config.first - 1};
    harp_session_paths_rate(session);
}

/* Its first frames are a full one and then a small one, by whose arrival we know of the other. */
static void try_full(struct harp_session *session, uint8_t path)
{
    struct harp_standing *standing = &session->standing[path];
    harp_session_wake(session, path);
    standing->size_at_ns = HARP_NEVER;
    if (standing->size != HARP_SIZE_NONE)
        return;
    standing->size = HARP_SIZE_DUE;
    standing->size_bytes = full_bytes(session);
    if (session->paths[path].probe == HARP_PROBE_NONE)
        session->paths[path].probe = HARP_PROBE_PLAIN;
}

void harp_session_path_heard(struct harp_session *session, uint8_t path)
{
    session->standing[path].heard = true;
    harp_session_paths_rate(session);
    try_full(session, path);
}

static bool is_size_probe(const struct harp_standing *standing, const struct harp_sent *sent)
{
    return standing->size == HARP_SIZE_FLYING && sent->probe && sent->bytes == standing->size_bytes;
}

void harp_session_path_settled(struct harp_session *session, struct harp_path *path,
                               const struct harp_sent *sent)
{
    struct harp_standing *standing = &session->standing[number_of(session, path)];
    if (standing->validating && !harp_packet_before(sent->packet, standing->validating_from)) {
        standing->validating = false;
        harp_session_paths_rate(session);
    }
    if (is_size_probe(standing, sent))
        standing->size = HARP_SIZE_NONE;
    if (sent->bytes >= full_bytes(session))
        standing->whole_lost = 0;
    if (sent->bytes <= standing->confirmed_bytes)
        return;
    standing->confirmed_bytes = sent->bytes;
    if (sent->bytes < full_bytes(session))
        return;
    standing->size_at_ns = HARP_NEVER;
    standing->size_fails = 0;
    session->narrow_ns = HARP_NEVER;
    harp_session_paths_rate(session);
}

/* Whether every path is a PMTU black hole, or dead. */
static bool no_path_carries_data(const struct harp_session *session)
{
    for (uint32_t p = 0; p < session->paths_n; p++)
        if (session->standing[p].heard && !session->paths[p].dead && !fails(&session->standing[p]))
            return false;
    return true;
}

/* Routes change for a while and come back, so small frames alone are no reason to end a connection
 * sooner than silence is. */
static void give_up_if_narrow_for_long(struct harp_session *session)
{
    if (!no_path_carries_data(session)) {
        session->narrow_ns = HARP_NEVER;
        return;
    }
    session->narrow_ns = harp_min(session->narrow_ns, session->now_ns);
    if (session->now_ns - session->narrow_ns >= session->config.dead_ns)
        harp_session_part(session, HARP_REASON_MTU);
}

/* Routes change, and with them what a path carries: it must show again that it carries whole
 * frames. */
static void suspect_pmtu_black_hole(struct harp_session *session, uint8_t path)
{
    session->standing[path].whole_lost = 0;
    session->standing[path].confirmed_bytes = 0;
    if (session->standing[path].size_at_ns == HARP_NEVER)
        try_full(session, path);
}

void harp_session_path_lost(struct harp_session *session, struct harp_path *path,
                            const struct harp_sent *sent, bool overtaken)
{
    uint8_t number = number_of(session, path);
    struct harp_standing *standing = &session->standing[number];
    standing->lost++;
    if (sent->bytes >= full_bytes(session) && ++standing->whole_lost == WHOLE_LOST)
        suspect_pmtu_black_hole(session, number);
    if (!is_size_probe(standing, sent))
        return;
    standing->size = HARP_SIZE_NONE;
    if (standing->confirmed_bytes >= full_bytes(session) || sent->bytes < full_bytes(session))
        return;
    if (overtaken && standing->size_fails < SIZE_BACKOFF)
        standing->size_fails++;
    harp_session_paths_rate(session);
    uint64_t wait_ns = harp_loss_rto_ns(&path->rtt, &session->config.loss) << standing->size_fails;
    standing->size_at_ns = session->now_ns + harp_min(wait_ns, session->config.probe_most_ns);
    give_up_if_narrow_for_long(session);
}

void harp_session_path_found(struct harp_session *session, struct harp_path *path)
{
    session->standing[number_of(session, path)].lost--;
}

/* ACKs that were overtaken say what was. */
void harp_session_path_flag(struct harp_session *session, uint8_t path, uint64_t largest, bool off)
{
    struct harp_standing *standing = &session->standing[path];
    if (harp_packet_before(largest, standing->flag_largest))
        return;
    standing->flag_largest = largest;
    if (off == standing->off_queue)
        return;
    standing->off_queue = off;
    harp_session_paths_rate(session);
}

void harp_session_path_timer(struct harp_session *session, uint8_t path)
{
    if (!session->paths[path].dead && session->standing[path].size_at_ns <= session->now_ns)
        try_full(session, path);
}

uint64_t harp_session_path_due_ns(const struct harp_session *session, uint8_t path)
{
    const struct harp_standing *standing = &session->standing[path];
    bool due = standing->size == HARP_SIZE_DUE &&
               session->paths[path].sent.next - session->paths[path].sent.tail < HARP_SENT_SLOTS;
    if (session->paths[path].dead)
        return HARP_NEVER; /* it is tried again when it returns */
    return due ? session->now_ns : standing->size_at_ns;
}

static bool exists(const struct harp_session *session, uint8_t path)
{
    return session->known && path < session->paths_n;
}

bool harp_session_path_lives(const struct harp_session *session, uint8_t path)
{
    return exists(session, path) && !session->paths[path].dead;
}

bool harp_session_path_info(const struct harp_session *session, uint8_t path,
                            struct harp_path_info *info)
{
    if (!exists(session, path))
        return false;
    const struct harp_path *at = &session->paths[path];
    const struct harp_standing *standing = &session->standing[path];
    *info = (struct harp_path_info){
        .alive = !at->dead,
        .usable = !at->dead && !at->barred,
        .heard = standing->heard,
        .retired = standing->retired,
        .off_queue = standing->off_queue,
        .mtu_fails = fails(standing),
        .validating = standing->validating,
        .confirmed_bytes = standing->confirmed_bytes,
        .probing_bytes = standing->size == HARP_SIZE_NONE ? 0 : standing->size_bytes,
        .smoothed_ns = harp_rtt_smoothed_ns(&at->rtt),
        .least_ns = harp_rtt_least_ns(&at->rtt),
        .window_bytes = at->cc.ops->window_bytes(&at->cc),
        .flying_bytes = at->sent.flying_bytes,
        .sent = at->sent.next - session->config.first,
        .lost = standing->lost,
    };
    return true;
}

void harp_session_path_retire(struct harp_session *session, uint8_t path, bool retired)
{
    if (session->state != HARP_OPEN || !exists(session, path))
        return;
    session->standing[path].retired = retired;
    harp_session_paths_rate(session);
}

void harp_session_path_narrowed(struct harp_session *session, uint64_t now_ns, uint8_t path)
{
    harp_session_clock(session, now_ns);
    if (session->state != HARP_OPEN || !exists(session, path) || !session->standing[path].heard)
        return;
    struct harp_standing *standing = &session->standing[path];
    uint64_t pause_ns = harp_loss_rto_ns(&session->paths[path].rtt, &session->config.loss);
    if (standing->narrowed_at_ns && session->now_ns - standing->narrowed_at_ns < pause_ns)
        return;
    standing->narrowed_at_ns = session->now_ns;
    suspect_pmtu_black_hole(session, path);
}

bool harp_session_is_newest(const struct harp_session *session, const struct harp_header *header)
{
    bool numbered = header->type == HARP_DATA || header->type == HARP_PROBE;
    return numbered && exists(session, header->path) &&
           header->connection == session->config.connection &&
           header->epoch == session->config.epoch &&
           harp_packet_before(session->paths[header->path].sack.largest,
                              harp_session_number(session, header));
}

void harp_session_path_moved(struct harp_session *session, uint8_t path)
{
    if (session->state != HARP_OPEN || !exists(session, path) || !session->standing[path].heard)
        return;
    session->standing[path].validating = true;
    session->standing[path].validating_from = session->paths[path].sent.next;
    session->paths[path].probe = HARP_PROBE_PLAIN;
    harp_session_wake(session, path);
    harp_session_paths_rate(session);
}

void harp_session_path_rerouted(struct harp_session *session, uint8_t path)
{
    if (session->state != HARP_OPEN || !exists(session, path))
        return;
    struct harp_standing *standing = &session->standing[path];
    standing->off_queue = false;
    standing->flag_largest = session->paths[path].sent.next;
    session->paths[path].probe = HARP_PROBE_PLAIN;
    harp_session_wake(session, path);
    harp_session_paths_rate(session);
}

void harp_session_path_off_queue(struct harp_session *session, uint8_t path, bool off)
{
    if (session->state != HARP_OPEN || !exists(session, path) ||
        session->standing[path].arrives_off == off)
        return;
    session->standing[path].arrives_off = off;
    session->paths[path].ack_now = true;
    harp_session_wake(session, path);
}

bool harp_session_unreachable(struct harp_session *session, uint64_t now_ns, uint8_t path)
{
    harp_session_clock(session, now_ns);
    bool connecting = session->state == HARP_CONNECTING && session->config.paths > 1;
    bool open =
        session->state == HARP_OPEN && exists(session, path) && session->standing[path].heard;
    if (!connecting && !open)
        return false;
    const struct harp_loss_limits *limits = &session->config.loss;
    struct harp_standing *standing = &session->standing[open ? path : 0];
    uint64_t pause_ns =
        open ? harp_loss_rto_ns(&session->paths[path].rtt, limits) : limits->initial_rto_ns;
    if (standing->unreachable_at_ns && session->now_ns - standing->unreachable_at_ns < pause_ns)
        return false;
    standing->unreachable_at_ns = session->now_ns;
    if (open)
        harp_session_wake(session, path);
    if (connecting)
        session->repeat_at_ns = session->now_ns;
    else if (session->paths[path].probe == HARP_PROBE_NONE)
        session->paths[path].probe = HARP_PROBE_PLAIN;
    return true;
}

/* Nobody asks the peer again until that is worth an answer: probes that are on their way would be
 * sent again and again meanwhile. Data that is under way goes on. */
static void pause_probes(struct harp_session *session)
{
    session->keep_at_ns =
        session->now_ns + HARP_REFUSED_NS + harp_session_spread_ns(session, HARP_REFUSED_NS / 32);
    if (session->outbox.base != session->outbox.end)
        return;
    for (uint32_t p = 0; p < session->paths_n; p++) {
        struct harp_path *path = &session->paths[p];
        harp_session_flush(session, path);
        harp_loss_news(&path->loss, false, session->now_ns);
        if (path->dead)
            path->probe_at_ns = session->keep_at_ns;
    }
}

void harp_session_path_full(struct harp_session *session, uint64_t now_ns, uint8_t path,
                            uint64_t time_ns)
{
    harp_session_clock(session, now_ns);
    if (exists(session, path))
        session->paths[path].full_until_ns = session->now_ns + time_ns;
}

void harp_session_refused(struct harp_session *session, uint64_t now_ns, uint8_t path, bool certain)
{
    harp_session_clock(session, now_ns);
    if (session->state == HARP_CLOSED)
        return;
    if (session->state == HARP_CONNECTING) /* FIRST may get through on another path */
        (void)harp_session_unreachable(session, now_ns, path);
    if (session->refused_ns <= harp_session_process_heard_ns(session)) {
        session->refused_ns = session->now_ns;
        if (session->state == HARP_OPEN)
            pause_probes(session);
    }
    if (certain || session->now_ns - session->refused_ns >= HARP_REFUSED_NS)
        harp_session_end(session, HARP_REASON_REFUSED, false);
}

bool harp_session_probe_bytes(struct harp_session *session, uint8_t path, uint16_t bytes)
{
    assert(bytes > HARP_HEADER_BYTES);
    if (session->state != HARP_OPEN || !exists(session, path) || !session->standing[path].heard ||
        session->standing[path].size != HARP_SIZE_NONE)
        return false;
    session->standing[path].size = HARP_SIZE_DUE;
    session->standing[path].size_bytes = bytes;
    harp_session_wake(session, path);
    return true;
}
