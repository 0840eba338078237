/* Loss detection of a TCP sender, and the window after a loss. */
#include "base/sequence.h"
#include "tcp.h"

#define PERSIST 16 /* recoveries that a wider reordering window lasts: TCP_RACK_RECOVERY_THRESH */
#define STEPS_MOST 255

/* ---- RACK (RFC 8985; net/ipv4/tcp_recovery.c) */

static bool is_sent_after(uint64_t a_ns, uint64_t a_end, uint64_t b_ns, uint64_t b_end)
{
    return a_ns > b_ns || (a_ns == b_ns && a_end > b_end);
}

void tcp_rack_delivered(struct tcp_sender *s, const struct tcp_sent *sent, uint64_t now_ns)
{
    uint64_t rtt_ns = now_ns - sent->sent_ns, end = sent->seq + sent->length;
    bool was_resent = sent->flags & TCP_WAS_RESENT;
    if (was_resent && rtt_ns < s->rtt.min_ns)
        return; /* the first one has arrived, not the second */
    if (!was_resent && end < s->scoreboard.sacked_end)
        s->rack.sees_reordering = true;
    s->rack.rtt_ns = rtt_ns;
    if (is_sent_after(sent->sent_ns, end, s->rack.sent_ns, s->rack.end)) {
        s->rack.sent_ns = sent->sent_ns;
        s->rack.end = end;
    }
}

static uint64_t reordering_window_ns(const struct tcp_sender *s)
{
    if (!s->rack.sees_reordering &&
        (s->state >= TCP_RECOVERING || s->scoreboard.sacked_n >= TCP_REORDERING))
        return 0;
    return harp_min(s->rtt.min_ns / 4 * s->rack.steps, s->rtt.srtt_ns);
}

static void widen_reordering_window(struct tcp_sender *s)
{
    if (s->una < s->rack.step_after)
        return;
    s->rack.step_after = s->next;
    s->rack.steps = (uint32_t)harp_min(s->rack.steps + 1, STEPS_MOST);
    s->rack.persist = PERSIST;
}

void tcp_mark_lost(struct tcp_sender *s, struct tcp_sent *sent)
{
    if (sent->flags & TCP_RESENT)
        s->scoreboard.resent_n--;
    if (!(sent->flags & TCP_LOST))
        s->scoreboard.lost_n++;
    sent->flags = (uint8_t)((sent->flags | TCP_LOST) & ~TCP_RESENT);
}

uint32_t tcp_rack_detect(struct tcp_sender *s, uint64_t now_ns)
{
    uint64_t end = harp_max(s->scoreboard.sacked_end, s->scoreboard.resent_end),
             wait_ns = reordering_window_ns(s);
    uint32_t lost = 0;
    s->timers.reorder_at_ns = HARP_NEVER;
    if (!s->rack.sent_ns)
        return 0;
    for (uint32_t i = 0; i < s->scoreboard.sent_n && sent_at(s, i)->seq < end; i++) {
        struct tcp_sent *sent = sent_at(s, i);
        bool is_in_flight =
            !(sent->flags & TCP_SACKED) && (sent->flags & (TCP_LOST | TCP_RESENT)) != TCP_LOST;
        if (!is_in_flight ||
            !is_sent_after(s->rack.sent_ns, s->rack.end, sent->sent_ns, sent->seq + sent->length))
            continue;
        uint64_t due_ns = sent->sent_ns + s->rack.rtt_ns + wait_ns;
        if (due_ns <= now_ns) {
            tcp_mark_lost(s, sent);
            lost++;
        } else {
            s->timers.reorder_at_ns =
                harp_min(s->timers.reorder_at_ns, due_ns + TCP_TIMER_SLACK_NS);
        }
    }
    return lost;
}

/* ---- reducing the window */

static void begin_reduction(struct tcp_sender *s, enum tcp_state state)
{
    s->state = state;
    s->recovery.high_seq = s->next;
    s->recovery.prior_window = s->cc.window;
    s->recovery.prr_delivered = s->recovery.prr_out = 0;
    s->timers.probe_at_ns = HARP_NEVER;
    s->tlp.end_seq = 0;
}

void tcp_begin_recovery(struct tcp_sender *s)
{
    if (s->state == TCP_REDUCING) { /* the window is on its way down already */
        s->state = TCP_RECOVERING;
        s->recovery.high_seq = s->next;
        s->recovery.undo_left = -1;
        return;
    }
    s->recovery.undo_window = s->cc.window;
    s->recovery.undo_threshold = s->cc.threshold;
    s->recovery.undo_left = 0;
    tcp_cc_lost(&s->cc);
    begin_reduction(s, TCP_RECOVERING);
}

void tcp_begin_reducing(struct tcp_sender *s)
{
    if (tcp_cc_marked(&s->cc))
        begin_reduction(s, TCP_REDUCING);
}

/* Proportional rate reduction: as many segments for each that arrives that the window is at the
 * threshold when the recovery ends. */
void tcp_reduce(struct tcp_sender *s, uint32_t delivered, bool in_order)
{
    uint32_t in_flight = tcp_in_flight(s), threshold = s->cc.threshold;
    if (s->cc.owns_window || !delivered)
        return;
    s->recovery.prr_delivered += delivered;
    int64_t more;
    if (in_flight > threshold) {
        uint64_t share =
            (uint64_t)threshold * s->recovery.prr_delivered + s->recovery.prior_window - 1;
        more = (int64_t)(share / s->recovery.prior_window) - s->recovery.prr_out;
    } else {
        more = (int64_t)s->recovery.prr_delivered - s->recovery.prr_out;
        more = more > delivered ? more : delivered;
        more += in_order;
        more = more < threshold - in_flight ? more : threshold - in_flight;
    }
    if (more < !s->recovery.prr_out)
        more = !s->recovery.prr_out;
    s->cc.window = (uint32_t)harp_max(in_flight + (uint64_t)more, 1);
}

void tcp_end_recovery(struct tcp_sender *s)
{
    if (s->state != TCP_TIMED_OUT && !s->cc.owns_window)
        s->cc.window = s->cc.threshold;
    if (s->state >= TCP_RECOVERING && s->rack.persist && !--s->rack.persist)
        s->rack.steps = 1;
    s->state = TCP_OPEN;
}

/* All that was sent again was needless (tcp_try_undo_dsack): the window is as it was. */
static void undo_reduction(struct tcp_sender *s)
{
    s->recovery.undo_left = -1;
    if (s->cc.owns_window)
        return;
    s->cc.window = (uint32_t)harp_max(s->cc.window, s->recovery.undo_window);
    s->cc.threshold = (uint32_t)harp_max(s->cc.threshold, s->recovery.undo_threshold);
    if (s->state == TCP_RECOVERING)
        s->state = TCP_OPEN;
}

void tcp_take_twice(struct tcp_sender *s)
{
    widen_reordering_window(s);
    if (s->recovery.undo_left > 0 && --s->recovery.undo_left == 0)
        undo_reduction(s);
}
