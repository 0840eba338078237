/* Choice of the paths for data, and the length of their frames. session_timers.c declares a path
 * dead, session_ack.c alive again. */
#include "session/session_state.h"

/* Frames of the size in use lost in a row after which the path may have become narrower. */
#define LONG_LOST 32

static uint8_t number_of(const struct harp_session *session, const struct harp_path *path)
{
    return (uint8_t)(path - session->paths);
}

/* How good a path is among others. 0: it carries no data at all. */
static uint32_t rank_path(const struct harp_path_state *path_state)
{
    if (!path_state->heard || path_state->validating || harp_session_is_too_narrow(path_state))
        return 0;
    return path_state->off_queue ? 1 : 2;
}

uint8_t harp_session_pick_path(const struct harp_session *session, uint8_t wanted)
{
    int second = -1;
    for (uint32_t i = 0; i < session->agreed.paths_n; i++) {
        uint8_t path = (uint8_t)((wanted + i) % session->agreed.paths_n);
        if (session->paths[path].dead || !session->path_state[path].heard)
            continue;
        if (!session->paths[path].no_data && session->paths[path].full_until_ns <= session->now_ns)
            return path;
        if (second < 0)
            second = path;
    }
    return second < 0 ? wanted : (uint8_t)second;
}

/* A path that is not wanted still carries data when there is no better one. A narrow path carries
 * what the wide ones have no room for: fragments cost headers, and a lost one costs its chunk, but
 * a port that is left out costs all that it could deliver. */
void harp_session_paths_rate(struct harp_session *session)
{
    uint32_t best = 0;
    for (uint32_t p = 0; p < session->agreed.paths_n; p++)
        if (!session->paths[p].dead)
            best = (uint32_t)harp_max(best, rank_path(&session->path_state[p]));
    for (uint32_t p = 0; p < session->agreed.paths_n; p++) {
        uint32_t rank = rank_path(&session->path_state[p]);
        session->paths[p].no_data = !rank || rank < best;
        session->paths[p].spare = session->path_state[p].pmtu.fragments > 1;
    }
}

void harp_session_paths_begin(struct harp_session *session)
{
    for (uint32_t p = 0; p < session->agreed.paths_n; p++) {
        session->path_state[p] =
            (struct harp_path_state){.flag_largest = (uint64_t)session->config.first - 1};
        harp_pmtu_init(&session->path_state[p].pmtu, session->agreed.segment,
                       session->config.pmtu.base_bytes, session->config.pmtu.least_bytes);
    }
    harp_session_paths_rate(session);
}

/* A frame of the size that is tried and then a small one; an ACK of the small one settles both. */
void harp_session_path_try_size(struct harp_session *session, uint8_t path)
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
    session->paths[path].probe.due = HARP_PROBE_PLAIN; /* instead of a long one for the tail, too */
}

void harp_session_path_heard(struct harp_session *session, uint8_t path)
{
    session->path_state[path].heard = true;
    session->path_state[path].pmtu.next_ns = session->now_ns;
    harp_session_paths_rate(session);
    harp_session_path_try_size(session, path);
}

static bool is_size_probe(const struct harp_path_state *path_state, const struct harp_sent *sent)
{
    return path_state->size == HARP_SIZE_IN_FLIGHT && sent->probe &&
           sent->bytes == path_state->size_bytes;
}

bool harp_session_tries_size(const struct harp_session *session, const struct harp_path *path,
                             const struct harp_sent *sent)
{
    return is_size_probe(&session->path_state[number_of(session, path)], sent);
}

/* Whether no path carries data: they are dead, or not even frames of MIN_PLPMTU pass. */
static bool no_path_carries_data(const struct harp_session *session)
{
    for (uint32_t p = 0; p < session->agreed.paths_n; p++)
        if (session->path_state[p].heard && !session->paths[p].dead &&
            !harp_session_is_too_narrow(&session->path_state[p]))
            return false;
    return true;
}

/* Routes change for a while and come back, so small frames alone are no reason to end a connection
 * sooner than silence is. */
static void give_up_if_narrow_for_long(struct harp_session *session)
{
    if (!no_path_carries_data(session)) {
        session->liveness.narrow_ns = HARP_NEVER;
        return;
    }
    session->liveness.narrow_ns = harp_min(session->liveness.narrow_ns, session->now_ns);
    if (session->now_ns - session->liveness.narrow_ns >= session->config.dead_ns)
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
    harp_session_path_try_size(session, path);
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
    session->liveness.narrow_ns = HARP_NEVER;
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
    bool in_fragments = sent->bytes != sent->longest; /* some may have come elsewhere */
    bool news = sent->longest > path_state->confirmed_bytes || path_state->long_lost || sent->probe;
    if (news && !in_fragments)
        confirm_size(session, number, sent->longest);
}

/* A path may carry less than before, as routes change: it has to show that it carries frames
 * of the size in use. */
void harp_session_path_confirm_again(struct harp_session *session, uint8_t path,
                                     uint32_t hint_bytes)
{
    struct harp_path_state *path_state = &session->path_state[path];
    struct harp_pmtu before = path_state->pmtu;
    path_state->long_lost = 0;
    path_state->confirmed_bytes = 0;
    harp_pmtu_confirm_again(&path_state->pmtu, session->now_ns, hint_bytes);
    follow_pmtu(session, path, &before);
}

/* It has become less, as far as can be seen (black hole detection, RFC 8899, section 4.3). */
static void recover_from_black_hole(struct harp_session *session, uint8_t path)
{
    struct harp_path_state *path_state = &session->path_state[path];
    struct harp_pmtu before = path_state->pmtu;
    path_state->long_lost = 0;
    path_state->confirmed_bytes = 0;
    harp_pmtu_black_hole(&path_state->pmtu, session->now_ns);
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
        harp_session_path_confirm_again(session, number, 0); /* it may be congestion */
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
        recover_from_black_hole(session, number);
}

void harp_session_path_found(struct harp_session *session, struct harp_path *path)
{
    struct harp_path_state *path_state = &session->path_state[number_of(session, path)];
    path_state->lost--;
    path_state->spurious++;
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
