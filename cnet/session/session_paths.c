#include <assert.h>

#include "session/session_state.h"

/* Frames of the size in use lost in a row after which the path may have become narrower. */
#define LONG_LOST 32

static uint8_t number_of(const struct harp_session *session, const struct harp_path *path)
{
    return (uint8_t)(path - session->paths);
}

static bool is_too_narrow(const struct harp_path_state *path_state)
{
    return path_state->pmtu.state == HARP_PMTU_ERROR;
}

/* How good a path is among others: a NIC's queue costs more than fragments do. 0: it carries no
 * data at all. */
static uint32_t rank_path(const struct harp_path_state *path_state)
{
    if (!path_state->heard || path_state->validating || is_too_narrow(path_state))
        return 0;
    bool wanted = !path_state->retired && !path_state->off_queue;
    return 1 + 2 * wanted + (path_state->pmtu.fragments == 1);
}

/* A path that is not wanted, or narrow, still carries data when there is no better one. */
void harp_session_paths_rate(struct harp_session *session)
{
    uint32_t best = 0;
    for (uint32_t p = 0; p < session->paths_n; p++)
        if (!session->paths[p].dead)
            best = (uint32_t)harp_max(best, rank_path(&session->path_state[p]));
    for (uint32_t p = 0; p < session->paths_n; p++) {
        uint32_t rank = rank_path(&session->path_state[p]);
        session->paths[p].no_data = !rank || rank < best;
    }
}

void harp_session_paths_begin(struct harp_session *session)
{
    for (uint32_t p = 0; p < session->paths_n; p++) {
        session->path_state[p] =
            (struct harp_path_state){.flag_largest = (uint64_t)session->config.first - 1};
        harp_pmtu_init(&session->path_state[p].pmtu, session->segment, session->config.base_bytes);
    }
    harp_session_paths_rate(session);
}

/* A frame of the size that is tried and then a small one, by whose arrival we know of the other. */
static void try_size(struct harp_session *session, uint8_t path)
{
    struct harp_path_state *path_state = &session->path_state[path];
    if (path_state->size != HARP_SIZE_NONE || session->paths[path].dead)
        return;
    uint16_t bytes = harp_pmtu_probe_bytes(&path_state->pmtu, session->now_ns);
    if (!bytes)
        return;
    path_state->size = HARP_SIZE_DUE;
    path_state->size_bytes = bytes;
    harp_session_wake(session, path);
    session->paths[path].probe = HARP_PROBE_PLAIN; /* instead of a long one for the tail, too */
}

void harp_session_path_heard(struct harp_session *session, uint8_t path)
{
    session->path_state[path].heard = true;
    session->path_state[path].pmtu.next_ns = session->now_ns;
    harp_session_paths_rate(session);
    try_size(session, path);
}

static bool is_size_probe(const struct harp_path_state *path_state, const struct harp_sent *sent)
{
    return path_state->size == HARP_SIZE_FLYING && sent->probe &&
           sent->bytes == path_state->size_bytes;
}

bool harp_session_tries_size(const struct harp_session *session, const struct harp_path *path,
                             const struct harp_sent *sent)
{
    return is_size_probe(&session->path_state[number_of(session, path)], sent);
}

/* Whether no path carries data: they are dead, or not even frames of BASE_PLPMTU pass. */
static bool no_path_carries_data(const struct harp_session *session)
{
    for (uint32_t p = 0; p < session->paths_n; p++)
        if (session->path_state[p].heard && !session->paths[p].dead &&
            !is_too_narrow(&session->path_state[p]))
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

/* The path's PMTU may be another than before. */
static void follow_pmtu(struct harp_session *session, uint8_t path, const struct harp_pmtu *before)
{
    const struct harp_pmtu *pmtu = &session->path_state[path].pmtu;
    if (pmtu->fragments != before->fragments || pmtu->state != before->state)
        harp_session_paths_rate(session);
    session->counters.pmtu_shrunk += pmtu->fragments > before->fragments;
    session->counters.pmtu_grown += pmtu->fragments < before->fragments;
    try_size(session, path);
}

static void confirm_size(struct harp_session *session, uint8_t path, uint16_t bytes)
{
    struct harp_path_state *path_state = &session->path_state[path];
    struct harp_pmtu before = path_state->pmtu;
    path_state->confirmed_bytes = (uint16_t)harp_max(path_state->confirmed_bytes, bytes);
    if (bytes < harp_pmtu_frame_bytes(&path_state->pmtu))
        return;
    path_state->long_lost = 0;
    harp_pmtu_arrived(&path_state->pmtu, bytes, session->now_ns);
    session->narrow_ns = HARP_NEVER;
    follow_pmtu(session, path, &before);
}

void harp_session_path_settled(struct harp_session *session, struct harp_path *path,
                               const struct harp_sent *sent)
{
    uint8_t number = number_of(session, path);
    struct harp_path_state *path_state = &session->path_state[number];
    if (path_state->validating && !harp_packet_before(sent->packet, path_state->validating_from)) {
        path_state->validating = false;
        harp_session_paths_rate(session);
    }
    if (is_size_probe(path_state, sent))
        path_state->size = HARP_SIZE_NONE;
    bool in_fragments = sent->bytes != sent->longest; /* of which some may have come elsewhere */
    bool news = sent->longest > path_state->confirmed_bytes || path_state->long_lost || sent->probe;
    if (news && !in_fragments)
        confirm_size(session, number, sent->longest);
}

/* What a path carries may have become less, as routes change: it has to show that it carries frames
 * of the size in use. */
static void doubt_size(struct harp_session *session, uint8_t path, uint32_t hint_bytes)
{
    struct harp_path_state *path_state = &session->path_state[path];
    struct harp_pmtu before = path_state->pmtu;
    path_state->long_lost = 0;
    path_state->confirmed_bytes = 0;
    harp_pmtu_doubt(&path_state->pmtu, session->now_ns, hint_bytes);
    follow_pmtu(session, path, &before);
}

/* It has become less, as far as can be seen (black hole detection, RFC 8899, section 4.3). */
static void fall_to_base(struct harp_session *session, uint8_t path)
{
    struct harp_path_state *path_state = &session->path_state[path];
    struct harp_pmtu before = path_state->pmtu;
    path_state->long_lost = 0;
    path_state->confirmed_bytes = 0;
    harp_pmtu_fall(&path_state->pmtu, session->now_ns);
    follow_pmtu(session, path, &before);
}

void harp_session_path_lost(struct harp_session *session, struct harp_path *path,
                            const struct harp_sent *sent, bool overtaken)
{
    uint8_t number = number_of(session, path);
    struct harp_path_state *path_state = &session->path_state[number];
    bool tried = is_size_probe(path_state, sent);
    path_state->lost++;
    if (!tried && sent->longest >= harp_pmtu_frame_bytes(&path_state->pmtu) &&
        ++path_state->long_lost == LONG_LOST)
        doubt_size(session, number, 0); /* it may be congestion */
    if (!tried)
        return;
    struct harp_pmtu before = path_state->pmtu;
    uint64_t rto_ns = harp_loss_rto_ns(&path->rtt, &session->config.loss);
    path_state->size = HARP_SIZE_NONE;
    harp_pmtu_lost(&path_state->pmtu, sent->longest, overtaken, session->now_ns, rto_ns,
                   session->config.probe_most_ns);
    follow_pmtu(session, number, &before);
    give_up_if_narrow_for_long(session);
}

/* It went silent with long frames under way, and answers a small one. */
void harp_session_path_returned(struct harp_session *session, struct harp_path *path)
{
    uint8_t number = number_of(session, path);
    harp_session_paths_rate(session);
    if (session->path_state[number].long_lost)
        fall_to_base(session, number);
}

void harp_session_path_found(struct harp_session *session, struct harp_path *path)
{
    session->path_state[number_of(session, path)].lost--;
}

/* ACKs that were overtaken say what was. */
void harp_session_path_flag(struct harp_session *session, uint8_t path, uint64_t largest, bool off)
{
    struct harp_path_state *path_state = &session->path_state[path];
    if (harp_packet_before(largest, path_state->flag_largest))
        return;
    path_state->flag_largest = largest;
    if (off == path_state->off_queue)
        return;
    path_state->off_queue = off;
    harp_session_paths_rate(session);
}

void harp_session_path_timer(struct harp_session *session, uint8_t path)
{
    try_size(session, path);
}

uint64_t harp_session_path_due_ns(const struct harp_session *session, uint8_t path)
{
    const struct harp_path_state *path_state = &session->path_state[path];
    bool due =
        path_state->size == HARP_SIZE_DUE && harp_sent_has_free_slot(&session->paths[path].sent);
    if (session->paths[path].dead)
        return HARP_NEVER; /* it is tried again when it returns */
    if (due)
        return session->now_ns;
    return path_state->size == HARP_SIZE_NONE ? path_state->pmtu.next_ns : HARP_NEVER;
}

static bool path_exists(const struct harp_session *session, uint8_t path)
{
    return session->known && path < session->paths_n;
}

bool harp_session_path_lives(const struct harp_session *session, uint8_t path)
{
    return path_exists(session, path) && !session->paths[path].dead;
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
        .retired = path_state->retired,
        .off_queue = path_state->off_queue,
        .mtu_fails = is_too_narrow(path_state),
        .validating = path_state->validating,
        .fragments = path_state->pmtu.fragments,
        .frame_bytes = harp_pmtu_frame_bytes(&path_state->pmtu),
        .confirmed_bytes = path_state->confirmed_bytes,
        .probing_bytes = path_state->size == HARP_SIZE_NONE ? 0 : path_state->size_bytes,
        .smoothed_ns = harp_rtt_smoothed_ns(&at->rtt),
        .least_ns = harp_rtt_least_ns(&at->rtt),
        .window_bytes = at->cc.ops->window_bytes(&at->cc),
        .flying_bytes = at->sent.flying_bytes,
        .sent = at->sent.next - session->config.first,
        .lost = path_state->lost,
    };
    return true;
}

void harp_session_path_retire(struct harp_session *session, uint8_t path, bool retired)
{
    if (session->state != HARP_OPEN || !path_exists(session, path))
        return;
    session->path_state[path].retired = retired;
    harp_session_paths_rate(session);
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
        doubt_size(session, path, payload_max);
    } else if (path_state->pmtu.state == HARP_PMTU_COMPLETE && path_state->pmtu.fragments > 1) {
        path_state->pmtu.next_ns = session->now_ns;
        try_size(session, path);
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
    session->paths[path].probe = HARP_PROBE_PLAIN;
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
    session->paths[path].probe = HARP_PROBE_PLAIN;
    harp_session_wake(session, path);
    harp_session_paths_rate(session);
}

void harp_session_path_off_queue(struct harp_session *session, uint8_t path, bool off)
{
    if (session->state != HARP_OPEN || !path_exists(session, path) ||
        session->path_state[path].arrives_off == off)
        return;
    session->path_state[path].arrives_off = off;
    session->paths[path].ack_now = true;
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
    if (session->state != HARP_OPEN || !path_exists(session, path) ||
        !session->path_state[path].heard || session->path_state[path].size != HARP_SIZE_NONE)
        return false;
    session->path_state[path].size = HARP_SIZE_DUE;
    session->path_state[path].size_bytes = bytes;
    harp_session_wake(session, path);
    return true;
}
