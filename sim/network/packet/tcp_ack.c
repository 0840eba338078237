/* Processing of ACKs by a TCP sender. */
#include "base/sequence.h"
#include "tcp.h"

/* The report to congestion control, as it is gathered. */
struct gathered {
    struct tcp_ack ack;
    uint64_t first_ns;  /* when the newest segment of those that arrived was sent, ... */
    uint64_t sent_ns;   /* ... and the segments that its rate is counted from */
    uint64_t before_ns; /* and when what had been delivered by then was */
    uint64_t oldest_rtt_ns;
    bool has_sample;
};

/* The smoothed round trip (RFC 6298), and a timeout that is it and four times its variance, the
 * latter 200 ms at least (tcp_rtt_estimator, tcp_set_rto). */
void tcp_sample_rtt(struct tcp_sender *s, uint64_t rtt_ns)
{
    if (!s->rtt.srtt_ns) {
        s->rtt.srtt_ns = rtt_ns;
        s->rtt.rttvar_ns = rtt_ns / 2;
    } else {
        uint64_t off_ns = harp_max(s->rtt.srtt_ns, rtt_ns) - harp_min(s->rtt.srtt_ns, rtt_ns);
        s->rtt.rttvar_ns = (3 * s->rtt.rttvar_ns + off_ns) / 4;
        s->rtt.srtt_ns = (7 * s->rtt.srtt_ns + rtt_ns) / 8;
    }
    s->rtt.srtt_ns = harp_max(s->rtt.srtt_ns, 1);
    s->rtt.min_ns = harp_min(s->rtt.min_ns, rtt_ns);
    s->rtt.rto_ns = s->rtt.srtt_ns + harp_max(4 * s->rtt.rttvar_ns, TCP_LEAST_TIMEOUT_NS);
    s->rtt.backoff = 0;
}

/* ---- segments that arrived */

static void note_delivered(struct packet_world *w, struct tcp_sender *s, struct gathered *g,
                           const struct tcp_sent *sent)
{
    bool was_resent = sent->flags & TCP_WAS_RESENT;
    s->rate.delivered++;
    s->rate.delivered_ns = w->now_ns;
    g->ack.delivered++;
    if (!was_resent) {
        uint64_t rtt_ns = w->now_ns - sent->sent_ns;
        g->ack.rtt_ns = g->ack.rtt_ns ? harp_min(g->ack.rtt_ns, rtt_ns) : rtt_ns;
        g->oldest_rtt_ns = harp_max(g->oldest_rtt_ns, rtt_ns);
    }
    tcp_rack_delivered(s, sent, w->now_ns);
    if (!g->has_sample || sent->sent_ns >= g->sent_ns) {
        g->has_sample = true;
        g->sent_ns = sent->sent_ns;
        g->first_ns = sent->first_ns;
        g->before_ns = sent->delivered_ns;
        g->ack.delivered_before = sent->delivered;
        g->ack.app_limited = sent->flags & TCP_LIMITED;
    }
    if (sent->flags & TCP_RESENT)
        s->scoreboard.resent_n--;
    if (sent->flags & TCP_LOST)
        s->scoreboard.lost_n--;
}

/* The first segment in flight that does not begin before `seq`. */
static uint32_t find_sent(const struct tcp_sender *s, uint64_t seq)
{
    uint32_t low = 0, high = s->scoreboard.sent_n;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (sent_at(s, middle)->seq < seq)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void take_sacks(struct packet_world *w, struct tcp_sender *s, struct gathered *g,
                       const struct tcp_segment *ack)
{
    for (uint32_t b = 0; b < ack->sacks; b++) {
        uint64_t from = ack->seq + ack->sack[b][0], to = ack->seq + ack->sack[b][1];
        for (uint32_t i = find_sent(s, from); i < s->scoreboard.sent_n; i++) {
            struct tcp_sent *sent = sent_at(s, i);
            if (sent->seq + sent->length > to)
                break;
            if (sent->flags & TCP_SACKED)
                continue;
            note_delivered(w, s, g, sent);
            sent->flags = (uint8_t)((sent->flags & ~(TCP_LOST | TCP_RESENT)) | TCP_SACKED);
            s->scoreboard.sacked_n++;
            s->scoreboard.sacked_end = harp_max(s->scoreboard.sacked_end, sent->seq + sent->length);
        }
    }
}

static void take_in_order(struct packet_world *w, struct tcp_sender *s, struct gathered *g,
                          uint64_t to)
{
    while (s->scoreboard.sent_n && sent_at(s, 0)->seq + sent_at(s, 0)->length <= to) {
        struct tcp_sent *sent = sent_at(s, 0);
        if (sent->flags & TCP_SACKED)
            s->scoreboard.sacked_n--;
        else
            note_delivered(w, s, g, sent);
        s->scoreboard.sent_first = (s->scoreboard.sent_first + 1) & (s->scoreboard.sent_room - 1);
        s->scoreboard.sent_n--;
        s->segments_acked++;
        g->ack.acked++;
    }
    s->una = harp_max(s->una, to);
}

/* The longer of the times in which the sample was sent and was acknowledged (tcp_rate_gen). */
static void sample_rate(struct packet_world *w, struct tcp_sender *s, struct gathered *g)
{
    if (!g->has_sample)
        return;
    s->rate.first_ns = g->sent_ns;
    uint64_t interval_ns = harp_max(g->sent_ns - g->first_ns, w->now_ns - g->before_ns);
    g->ack.sample = s->rate.delivered - g->ack.delivered_before;
    if (interval_ns >= s->rtt.min_ns)
        g->ack.interval_ns = interval_ns;
    if (s->rate.limited_until && s->rate.delivered > s->rate.limited_until)
        s->rate.limited_until = 0;
}

/* ---- states */

static void check_probe(struct tcp_sender *s, const struct tcp_segment *ack)
{
    if (!s->tlp.end_seq || s->una < s->tlp.end_seq)
        return;
    bool lost =
        s->tlp.is_retrans && !ack->twice; /* it repaired a loss that was not seen otherwise */
    s->tlp.end_seq = 0;
    if (lost && s->state == TCP_OPEN && !s->cc.owns_window) {
        tcp_cc_lost(&s->cc);
        s->cc.window = s->cc.threshold;
    }
}

static void change_state(struct tcp_sender *s, const struct tcp_segment *ack, struct gathered *g,
                         uint64_t now_ns)
{
    check_probe(s, ack);
    if (ack->twice)
        tcp_take_twice(s);
    if (s->state > TCP_OPEN && s->una >= s->recovery.high_seq)
        tcp_end_recovery(s);
    g->ack.lost = tcp_rack_detect(s, now_ns);
    if (g->ack.lost && (s->state == TCP_OPEN || s->state == TCP_REDUCING))
        tcp_begin_recovery(s);
    if (ack->echo && s->state == TCP_OPEN)
        tcp_begin_reducing(s);
}

/* Whether the window was in use in this round trip (tcp_is_cwnd_limited). */
static bool is_window_full(struct tcp_sender *s)
{
    bool is_full = s->usage.is_full;
    if (s->cc.window < s->cc.threshold)
        is_full |= s->cc.window < 2 * s->usage.most_in_flight;
    if (s->una > s->usage.end) {
        s->usage.end = s->next;
        s->usage.is_full = false;
        s->usage.most_in_flight = tcp_in_flight(s);
    }
    return is_full;
}

static void tell_controller(struct packet_world *w, struct tcp_sender *s, struct gathered *g,
                            const struct tcp_segment *ack)
{
    bool reduces = s->state == TCP_REDUCING || s->state == TCP_RECOVERING;
    struct tcp_ack *report = &g->ack;
    report->now_ns = w->now_ns;
    report->acked_to = s->segments_acked;
    report->next = s->segments_sent;
    report->marked = ack->echo ? report->delivered : 0;
    report->in_flight = tcp_in_flight(s);
    report->smoothed_ns = s->rtt.srtt_ns;
    report->delivered_total = s->rate.delivered;
    report->is_recovering = reduces || (s->state == TCP_TIMED_OUT && s->cc.owns_window);
    report->window_full = is_window_full(s);
    if (reduces)
        tcp_reduce(s, report->delivered, report->acked && !report->lost);
    tcp_cc_acked(&s->cc, report);
}

static void arm_timers(struct packet_world *w, struct tcp_sender *s, bool progress)
{
    if (!s->scoreboard.sent_n) {
        s->timers.rto_at_ns = s->timers.probe_at_ns = HARP_NEVER;
        return;
    }
    if (!progress)
        return;
    tcp_arm_timeout(s, w->now_ns);
    tcp_arm_probe(s, w->now_ns);
}

void tcp_take_ack(struct packet_world *w, struct tcp_socket *socket, const struct tcp_segment *ack)
{
    struct tcp_sender *s = &socket->s;
    struct gathered g = {.has_sample = false};
    s->window_end = harp_max(s->window_end, ack->seq + ack->window);
    take_sacks(w, s, &g, ack);
    take_in_order(w, s, &g, ack->seq);
    if (g.oldest_rtt_ns)
        tcp_sample_rtt(s, g.oldest_rtt_ns);
    sample_rate(w, s, &g);
    change_state(s, ack, &g, w->now_ns);
    tell_controller(w, s, &g, ack);
    arm_timers(w, s, g.ack.delivered);
    tcp_drive_soon(w, socket);
}
