#include <assert.h>

#include "session/session_state.h"

/* Congestion control sees a path's delay without the queue that its ACKs meet on the way back
 * (reverse.h), up to this number of delay targets, or the least round trip. A longer wait counts:
 * if it lasts, the path itself has become longer, and a full buffer there delays our ACKs. */
#define REVERSE_TARGETS 4

/* A reverse queue shorter than a quarter of the target counts as none: if the peer sends no data,
 * its ACKs rarely wait, and so short a value is the error of reverse.h's bounds. Sixteen flows into
 * 200 kB have a Jain index of 0.82 without this rule and 0.94 with it; a quarter of the target and
 * an eighth are equally good, a sixteenth is too small. */
#define REVERSE_LEAST_OF_TARGET 4

/* The packet has not been acknowledged in time: its chunk is sent again, under a new number. */
static void give_up(struct harp_session *session, struct harp_path *path, struct harp_sent *sent,
                    bool overtaken)
{
    harp_sent_lost(&path->sent, sent);
    harp_session_path_lost(session, path, sent, overtaken);
    session->counters.lost++;
    if (!harp_packet_before(sent->packet, path->episode.end)) {
        path->episode.end = path->sent.next;
        path->episode.suspects = 0;
    }
    path->episode.suspects++;
    if (!sent->probe)
        harp_outbox_lost(&session->outbox, sent->message, sent->chunk);
}

void harp_session_flush(struct harp_session *session, struct harp_path *path)
{
    for (uint64_t packet = path->sent.tail; path->sent.in_flight; packet++) {
        struct harp_sent *sent = harp_sent_at(&path->sent, packet);
        if (sent->state == HARP_IN_FLIGHT)
            give_up(session, path, sent, false);
    }
    path->episode.timed_out = true;
    path->loss.asked = false;
}

void harp_session_detect(struct harp_session *session, struct harp_path *path)
{
    struct harp_cc_loss loss = {.now_ns = session->now_ns};
    uint64_t cursor = path->sent.tail;
    for (struct harp_sent *sent;
         (sent = harp_loss_next(&path->loss, &path->sent, &path->rtt, &cursor, session->now_ns));) {
        session->ack.steps++;
        if (!harp_session_tries_size(session, path, sent)) { /* RFC 8899, section 3, item 7 */
            loss.bytes += sent->bytes;
            loss.sent_ns = sent->time_ns;
        }
        give_up(session, path, sent, true);
    }
    if (!loss.bytes)
        return;
    if (harp_loss_is_persistent(&path->loss, &path->sent))
        path->cc.ops->on_timeout(&path->cc, session->now_ns);
    else
        path->cc.ops->on_loss(&path->cc, &loss);
}

/* A packet that was given up has arrived, or is in flight again: it counts as lost no more. */
static void uncount_lost(struct harp_session *session, struct harp_path *path)
{
    assert(session->counters.lost > 0);
    session->counters.lost--;
    session->counters.spurious++;
    harp_session_path_found(session, path);
}

/* Spurious RTO (F-RTO, RFC 5682): packets that the timeout gave up count as in flight again, unless
 * their chunks have been sent again. If some of them are lost all the same, packets that arrive
 * after them will show it. The youngest packet of a chunk comes first, since it is the one that
 * carries it. */
static void undo_spurious_timeout(struct harp_session *session, struct harp_path *path)
{
    for (uint64_t packet = path->sent.next; packet != path->sent.tail;) {
        struct harp_sent *sent = harp_sent_at(&path->sent, --packet);
        if (sent->state != HARP_LOST || sent->probe ||
            !harp_outbox_found(&session->outbox, sent->message, sent->chunk))
            continue;
        harp_sent_found(&path->sent, sent);
        uncount_lost(session, path);
    }
}

/* A packet that was given up has arrived after all. When all packets of the latest loss have, that
 * loss was spurious. After an RTO the first is enough: the packets, or their ACK, were late. */
static void settle_late_packet(struct harp_session *session, struct harp_path *path)
{
    uncount_lost(session, path);
    harp_loss_spurious(&path->loss);
    if (path->episode.suspects && (--path->episode.suspects == 0 || path->episode.timed_out)) {
        path->episode.suspects = 0;
        path->cc.ops->on_spurious(&path->cc);
    }
    if (path->episode.timed_out)
        undo_spurious_timeout(session, path);
    path->episode.timed_out = false;
}

static void settle_packet(struct harp_session *session, struct harp_path *path,
                          struct harp_sent *sent)
{
    bool late = sent->state == HARP_LOST;
    harp_sent_acked(&path->sent, sent);
    if (late)
        settle_late_packet(session, path);
    else if (!harp_packet_before(sent->packet, path->episode.end))
        path->episode.timed_out = false; /* sent after the RTO, yet first: those before are lost */
    harp_loss_delivered(&path->loss, sent, session->now_ns);
    harp_session_path_settled(session, path, sent);
    if (!sent->probe)
        harp_outbox_acked(&session->outbox, sent->message, sent->chunk);
}

/* Settle a packet that the ACK names for the first time, the largest last. */
static void settle_news(struct harp_session *session, struct harp_path *path, uint64_t packet,
                        struct harp_cc_ack *news)
{
    struct harp_sent *sent = harp_sent_at(&path->sent, packet);
    news->bytes += sent->bytes;
    session->ack.steps++;
    settle_packet(session, path, sent);
}

/* Reverse queue of the latest sample's ACK. */
static uint64_t reverse_queue_ns(const struct harp_session *session, struct harp_path *path,
                                 const struct harp_ack *ack, bool two_way)
{
    uint64_t both_ns = path->rtt.latest_ns - harp_rtt_least_ns(&path->rtt);
    uint32_t took_ns = (uint32_t)(session->clock.came_ns + session->clock.lapse_ns) - ack->sent_ns;
    uint64_t queue_ns = harp_reverse_queue_ns(&path->reverse, took_ns, both_ns);
    bool counts = two_way || queue_ns >= session->config.window.target_ns / REVERSE_LEAST_OF_TARGET;
    return counts ? queue_ns : 0;
}

static void sample_delay(struct harp_session *session, struct harp_path *path,
                         const struct harp_sent *sent, const struct harp_ack *ack,
                         struct harp_cc_ack *news)
{
    uint64_t came_ns = harp_max(session->clock.came_ns, sent->time_ns);
    if (!harp_rtt_sample(&path->rtt, session->now_ns, came_ns - sent->time_ns, ack->delay_ns))
        return;
    news->two_way = session->now_ns - session->placed_ns < path->rtt.latest_ns;
    uint64_t least_ns = harp_rtt_least_ns(&path->rtt);
    uint64_t most_ns = harp_max(least_ns, REVERSE_TARGETS * session->config.window.target_ns);
    uint64_t queue_ns = reverse_queue_ns(session, path, ack, news->two_way);
    news->reverse_ns = harp_min(queue_ns, most_ns);
    news->fabric_ns = path->rtt.latest_ns - news->reverse_ns;
    news->forward_ns = path->rtt.latest_ns - queue_ns;
    assert(news->forward_ns >= least_ns);
    news->host_ns = path->rtt.latest_host_ns;
}

/* Settle all packets that the ACK names, in the order of their numbers; how many bytes they were is
 * in `news`. Words of the map in which nothing is new are passed over. */
static bool settle_all(struct harp_session *session, struct harp_path *path, uint64_t largest,
                       const struct harp_ack *ack, struct harp_cc_ack *news)
{
    uint64_t before = harp_packet_before(path->sent.tail, largest) ? largest - path->sent.tail : 0;
    uint64_t bits = harp_min(ack->bits, before);
    for (uint64_t w = (bits + 63) / 64; w-- > 0;) {
        uint64_t last = largest - 1 - 64 * w;
        uint64_t in_word = harp_min(bits - 64 * w, 64);
        uint64_t fresh = harp_bit_ring_back_from(&path->sent.open_map, last) &
                         harp_sack_word(ack->map, w) & UINT64_MAX >> (64 - in_word);
        session->ack.steps++;
        for (; fresh; fresh &= ~(UINT64_C(1) << (63 - __builtin_clzll(fresh))))
            settle_news(session, path, last - 63 + (uint64_t)__builtin_clzll(fresh), news);
    }
    struct harp_sent *sent = harp_sent_at(&path->sent, largest);
    if (sent && sent->state != HARP_ACKED) {
        sample_delay(session, path, sent, ack, news);
        settle_news(session, path, largest, news);
    }
    return news->bytes > 0;
}

static void path_news(struct harp_session *session, struct harp_path *path,
                      struct harp_cc_ack *news)
{
    harp_session_hears(session);
    harp_service_add(&path->service, session->now_ns, news->bytes);
    harp_loss_news(&path->loss, path->sent.in_flight > 0, session->now_ns);
    struct harp_pick next;
    news->app_limited = !harp_outbox_pick(&session->outbox, &next);
    news->now_ns = session->now_ns;
    news->least_ns = harp_rtt_least_ns(&path->rtt);
    path->cc.ops->on_ack(&path->cc, news);
    harp_session_detect(session, path);
    uint64_t memory_ns = 4 * harp_loss_rto_ns(&path->rtt, &session->config.loss);
    harp_sent_trim(&path->sent, session->now_ns - harp_min(memory_ns, session->now_ns));
    if (path->dead) {
        path->dead = false;
        path->probe.at_ns = HARP_NEVER;
        session->counters.paths_returned++;
        harp_session_path_returned(session, path);
    }
}

/* Credit only grows; an ACK that was overtaken says less than is known. */
static void take_credit(struct harp_session *session, const struct harp_ack *ack)
{
    if (ack->messages < session->outbox.credit)
        return;
    if (!session->outbox.streamed &&
        harp_outbox_bytes_before(&session->outbox, (uint32_t)ack->messages) > ack->bytes)
        harp_session_part(session, HARP_REASON_TOO_LONG);
    else if (harp_outbox_credit(&session->outbox, ack->messages, ack->frames))
        session->credit.probe_at_ns = HARP_NEVER;
}

enum harp_verdict harp_session_take_ack(struct harp_session *session,
                                        const struct harp_header *header, const uint8_t *body)
{
    struct harp_ack ack;
    struct harp_path *path = &session->paths[header->path];
    uint64_t largest = harp_session_number(session, header);
    bool sound = harp_ack_decode(body, header->length, &ack) == HARP_WIRE_OK;
    if (!sound || !harp_packet_before(largest, path->sent.next)) {
        harp_session_part(session, HARP_REASON_PROTOCOL);
        return HARP_DROP;
    }
    struct harp_cc_ack news = {.bytes_in_flight = path->sent.bytes_in_flight,
                               .marked = harp_path_marks(path, ack.marked)};
    if (settle_all(session, path, largest, &ack, &news))
        path_news(session, path, &news);
    harp_session_path_flag(session, header->path, largest, header->flags & HARP_ACK_OFF_QUEUE);
    take_credit(session, &ack);
    return HARP_TAKEN;
}

/* Every ACK brings all credit, and everything that arrives is acknowledged soon. So while messages
 * and chunks are still to come for which the peer has credit, news of more can go with them. */
static bool credit_waits(const struct harp_session *session)
{
    const struct harp_inbox *inbox = &session->inbox;
    if (!session->credit.news)
        return false;
    int32_t messages = (int32_t)((uint32_t)session->credit.granted_messages - inbox->complete);
    if (!inbox->streamed)
        return messages <= 0;
    int32_t frames =
        (int32_t)((uint32_t)session->credit.granted_frames - session->peer.first - inbox->placed);
    return messages <= session->config.messages / 4 ||
           frames <= (int32_t)session->config.stream_frames / 4;
}

static void write_ack(struct harp_session *session, struct harp_frame *frame, uint8_t number)
{
    struct harp_path *path = &session->paths[number];
    uint64_t held_ns = path->ack.at_ns == HARP_NEVER ? 0 : session->now_ns - path->largest_ns;
    uint32_t frames = session->peer.first + session->inbox.lent;
    session->credit.granted_messages =
        harp_packet_near(session->credit.granted_messages, session->inbox.posted);
    session->credit.granted_frames = harp_packet_near(session->credit.granted_frames, frames);
    struct harp_ack ack = {
        .delay_ns = (uint32_t)harp_min(held_ns, UINT32_MAX),
        .messages = session->credit.granted_messages,
        .bytes = session->inbox.posted_bytes,
        .frames = session->inbox.streamed ? session->credit.granted_frames : 0,
        .marked = path->marked,
        .sent_ns = (uint32_t)(session->now_ns + session->clock.lapse_ns),
    };
    ack.bits = harp_sack_write(&path->sack, harp_path_tell_since(path), ack.map);
    harp_session_header(session, frame, HARP_ACK, number);
    frame->header.packet = (uint32_t)path->sack.largest;
    frame->lap = (uint32_t)(path->sack.largest >> 32) & HARP_LAP_MAX;
    if (session->path_state[number].arrives_off)
        frame->header.flags = HARP_ACK_OFF_QUEUE;
    frame->header.length = (uint16_t)harp_ack_encode(&ack, frame->body);
    frame->path = harp_session_pick_path(session, number);
    path->ack.packets = 0;
    path->ack.now = false;
    path->ack.at_ns = HARP_NEVER;
    session->credit.news = false;
}

/* How soon news of credit leaves. Small messages may be sent before there is credit: where an ACK
 * waits for the last of them, so does this, until half of those that may have done so. */
static uint64_t credit_in_ns(const struct harp_session *session)
{
    int32_t ahead = (int32_t)(session->inbox.complete - (uint32_t)session->credit.granted_messages);
    bool few = ahead < HARP_EAGER / 2;
    if (session->ack.patient)
        return few ? session->config.ack.patient_ns : 0;
    if (!session->config.ack.after_last)
        return HARP_ACK_SOON_NS;
    return few ? session->config.ack.soon_ns : 0;
}

/* Credit is not sent at once: an ACK may soon carry it. */
static void tell_credit_soon(struct harp_session *session)
{
    struct harp_path *path = &session->paths[session->liveness.heard_path];
    if (!credit_waits(session))
        return;
    path->ack.at_ns = harp_min(path->ack.at_ns, session->now_ns + credit_in_ns(session));
    harp_session_wake(session, session->liveness.heard_path);
}

bool harp_session_ack_along(struct harp_session *session)
{
    bool any = false;
    if (session->now_ns < session->ack.at_once_ns + session->config.ack.soon_ns)
        session->ack.goes_quiet = false; /* this was the answer: the ACK could have waited for it */
    for (uint64_t set = session->state == HARP_OPEN ? session->awake : 0; set;) {
        struct harp_path *path = &session->paths[harp_session_next_path(&set)];
        if (path->ack.at_ns > session->now_ns + session->config.ack.along_ns)
            continue;
        path->ack.now = any = true;
    }
    return any;
}

/* Whether data goes out now, with which an ACK that is due soon can go. */
static bool goes_along(struct harp_session *session, const struct harp_path *path)
{
    struct harp_pick pick;
    return path->ack.at_ns <= session->now_ns + session->config.ack.along_ns &&
           session->state == HARP_OPEN && harp_outbox_pick(&session->outbox, &pick);
}

/* CLOSE goes out now: what has arrived is said once more, on its path, for what went on other paths
 * may come after it, and nobody listens then. */
static size_t ack_before_close(struct harp_session *session, struct harp_frame *frames, size_t room)
{
    size_t n = 0;
    for (uint8_t number = 0; number < session->agreed.paths_n && n < room; number++) {
        if (!session->path_state[number].heard)
            continue;
        write_ack(session, &frames[n], number);
        frames[n++].path = harp_session_close_path(session);
    }
    return n;
}

size_t harp_session_send_acks(struct harp_session *session, struct harp_frame *frames, size_t room)
{
    size_t n = 0;
    if (session->state == HARP_CLOSING && session->now_ns >= session->handshake.repeat_at_ns)
        return ack_before_close(session, frames, room);
    if (session->state == HARP_OPEN)
        tell_credit_soon(session);
    for (uint64_t set = session->awake; set && n < room;) {
        uint8_t number = harp_session_next_path(&set);
        const struct harp_path *path = &session->paths[number];
        if (session->config.app_drives &&
            path->ack.at_ns < session->now_ns - harp_min(HARP_ACK_LATE_NS, session->now_ns))
            session->ack.goes_quiet = true;
        bool last = session->state == HARP_CLOSING && path->ack.at_ns != HARP_NEVER;
        if (path->ack.now || path->ack.at_ns <= session->now_ns || last ||
            goes_along(session, path))
            write_ack(session, &frames[n++], number);
    }
    return n;
}
