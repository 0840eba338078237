#include "session/loss.h"

#include <stddef.h>

#include "base/sequence.h"

#define DEAD_TIMEOUTS 3
#define MOST_QUARTERS 8    /* where delays do not vary by more than that */
#define QUARTERS_KEPT 4096 /* and remembered */
#define FORGOTTEN 1024     /* the share of lateness that each packet forgets */
#define MOST_BACKOFF 10

void harp_loss_init(struct harp_loss *loss, uint64_t first)
{
    *loss = (struct harp_loss){
        .reorder_at_ns = HARP_NEVER,
        .waiting_ns = HARP_NEVER,
        .timeout_ns = HARP_NEVER,
        .rack_packet = first - 1,
        .quarters = 1,
    };
}

void harp_loss_sent(struct harp_loss *loss, uint64_t now_ns)
{
    loss->last_sent_ns = now_ns;
    if (loss->waiting_ns == HARP_NEVER) {
        loss->waiting_ns = now_ns;
        loss->timeout_ns = now_ns;
    }
}

void harp_loss_delivered(struct harp_loss *loss, const struct harp_sent *sent, uint64_t now_ns)
{
    uint64_t took_ns = now_ns - sent->time_ns;
    if (harp_packet_before(sent->packet, loss->asked_packet))
        loss->asked = false;
    if (harp_packet_before(sent->packet, loss->rack_packet)) {
        if (took_ns > loss->rack_rtt_ns)
            loss->late_ns = harp_max(loss->late_ns, took_ns - loss->rack_rtt_ns);
        return;
    }
    loss->late_ns -= loss->late_ns / FORGOTTEN;
    loss->rack_packet = sent->packet;
    loss->rack_sent_ns = sent->time_ns;
    loss->rack_rtt_ns = took_ns;
}

void harp_loss_news(struct harp_loss *loss, bool in_flight, uint64_t now_ns)
{
    loss->backoff = loss->silences = 0;
    loss->probed = false;
    loss->waiting_ns = in_flight ? now_ns : HARP_NEVER;
    loss->timeout_ns = loss->waiting_ns;
}

void harp_loss_heard(struct harp_loss *loss, const struct harp_rtt *rtt,
                     const struct harp_loss_limits *limits, uint64_t before_ns, uint64_t now_ns)
{
    if (loss->waiting_ns == HARP_NEVER)
        return;
    uint64_t silent_ns = now_ns - harp_max(before_ns, loss->waiting_ns);
    if (silent_ns <= harp_loss_rto_ns(rtt, limits) / 2 || loss->silences >= limits->silences)
        return;
    loss->silences++;
    loss->waiting_ns = loss->timeout_ns = now_ns;
    loss->backoff = 0;
}

void harp_loss_asks(struct harp_loss *loss, uint64_t next)
{
    if (!loss->asked)
        loss->asked_packet = next;
    loss->asked = true;
}

bool harp_loss_is_persistent(struct harp_loss *loss, const struct harp_sent_ring *ring)
{
    uint64_t oldest = harp_sent_next_in_flight(ring, ring->tail);
    if (!loss->asked || harp_packet_before(oldest, loss->asked_packet))
        return false;
    loss->asked = false;
    return true;
}

static uint64_t reorder_window_ns(const struct harp_loss *loss, const struct harp_rtt *rtt)
{
    uint64_t quarter_ns = harp_rtt_least_ns(rtt) / 4;
    uint64_t late_ns = loss->late_ns + loss->late_ns / 4;
    uint64_t varied_ns = harp_rtt_smoothed_ns(rtt) + rtt->var_x4_ns;
    return harp_min(harp_max(quarter_ns * loss->quarters, late_ns),
                    harp_max(quarter_ns * MOST_QUARTERS, varied_ns));
}

struct harp_sent *harp_loss_next(struct harp_loss *loss, struct harp_sent_ring *ring,
                                 const struct harp_rtt *rtt, uint64_t *cursor, uint64_t now_ns)
{
    uint64_t window_ns = reorder_window_ns(loss, rtt);
    *cursor = harp_sent_next_in_flight(ring, *cursor);
    if (*cursor != ring->next && harp_packet_before(*cursor, loss->rack_packet)) {
        struct harp_sent *sent = harp_sent_at(ring, *cursor);
        uint64_t overdue_ns = sent->time_ns + loss->rack_rtt_ns + window_ns;
        if (now_ns < overdue_ns) { /* later ones were sent later still */
            loss->reorder_at_ns = overdue_ns;
            return NULL;
        }
        ++*cursor;
        return sent;
    }
    loss->reorder_at_ns = HARP_NEVER;
    return NULL;
}

void harp_loss_spurious(struct harp_loss *loss)
{
    loss->quarters = (uint32_t)harp_min(loss->quarters + 1, QUARTERS_KEPT);
}

uint64_t harp_loss_rto_ns(const struct harp_rtt *rtt, const struct harp_loss_limits *limits)
{
    return harp_rtt_timeout_ns(rtt, limits->ack_delay_ns, limits->min_rto_ns,
                               limits->initial_rto_ns);
}

static uint64_t probe_after_ns(const struct harp_rtt *rtt, const struct harp_loss_limits *limits,
                               uint64_t rto_ns)
{
    if (!harp_rtt_known(rtt))
        return rto_ns / 2;
    uint64_t host_ns = harp_rtt_host_ns(rtt, limits->ack_delay_ns);
    return harp_min(2 * harp_rtt_smoothed_ns(rtt) + rtt->var_x4_ns + host_ns, rto_ns);
}

/* Whether the peer was heard after it should have answered on this path, and in the timeout that
 * ends at `at_ns`. */
static bool is_heard_elsewhere(const struct harp_loss *loss, const struct harp_rtt *rtt,
                               uint64_t rto_ns, uint64_t heard_ns, uint64_t at_ns)
{
    uint64_t due_ns = loss->waiting_ns + harp_rtt_smoothed_ns(rtt) + rtt->var_x4_ns;
    return heard_ns >= harp_max(due_ns, at_ns - rto_ns);
}

/* When the path is out of use if nothing comes of it. */
static uint64_t dead_at_ns(const struct harp_loss *loss, const struct harp_rtt *rtt,
                           const struct harp_loss_limits *limits, uint64_t rto_ns,
                           uint64_t heard_ns)
{
    uint64_t latest_ns = loss->waiting_ns + harp_max(limits->dead_ns, rto_ns * 3 / 2);
    uint64_t missed_ns = loss->waiting_ns + DEAD_TIMEOUTS * rto_ns;
    bool missed = is_heard_elsewhere(loss, rtt, rto_ns, heard_ns, missed_ns);
    return missed ? harp_min(missed_ns, latest_ns) : latest_ns;
}

enum harp_alarm harp_loss_alarm(const struct harp_loss *loss, const struct harp_sent_ring *ring,
                                const struct harp_rtt *rtt, const struct harp_loss_limits *limits,
                                uint64_t heard_ns, uint64_t *at_ns)
{
    enum harp_alarm alarm = HARP_ALARM_NONE;
    *at_ns = HARP_NEVER;
    if (loss->waiting_ns == HARP_NEVER)
        return alarm;
    uint64_t rto_ns = harp_loss_rto_ns(rtt, limits);
    *at_ns = dead_at_ns(loss, rtt, limits, rto_ns, heard_ns);
    alarm = HARP_ALARM_DEAD;
    if (!ring->in_flight)
        return alarm;
    uint64_t timeout_at_ns = loss->timeout_ns + (rto_ns << loss->backoff);
    uint64_t probe_at_ns = loss->last_sent_ns + probe_after_ns(rtt, limits, rto_ns);
    if (timeout_at_ns < *at_ns) {
        *at_ns = timeout_at_ns;
        alarm = is_heard_elsewhere(loss, rtt, rto_ns, heard_ns, timeout_at_ns) ? HARP_ALARM_TIMEOUT
                                                                               : HARP_ALARM_ASK;
    }
    if (!loss->probed && probe_at_ns < *at_ns) {
        *at_ns = probe_at_ns;
        alarm = HARP_ALARM_PROBE;
    }
    if (loss->reorder_at_ns < *at_ns) {
        *at_ns = loss->reorder_at_ns;
        alarm = HARP_ALARM_REORDER;
    }
    return alarm;
}

void harp_loss_probed(struct harp_loss *loss)
{
    loss->probed = true;
}

void harp_loss_timed_out(struct harp_loss *loss, uint64_t now_ns)
{
    loss->timeout_ns = now_ns;
    if (loss->backoff < MOST_BACKOFF)
        loss->backoff++;
}
