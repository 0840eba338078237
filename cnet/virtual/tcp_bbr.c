/* BBR version 1 as Linux has it, without its long-term sampling of policers.
 *
 *   STARTUP    2.89 times faster each round trip, until the rate grows by less than a quarter in
 *              three of them
 *   DRAIN      until the queue that STARTUP built is gone
 *   PROBE_BW   eight phases of a round trip each: 1.25 times the rate, 0.75 times, then six at it
 *   PROBE_RTT  four segments for 200 ms, where 10 s have seen no shorter round trip
 *
 * Rates are the greatest of the last ten round trips, in segments per microsecond, with 24
 * fractional bits. Gains are in 1/256. */
#include "base/sequence.h"
#include "virtual/random.h"
#include "virtual/tcp_cc.h"

#define RATE_SHIFT 24
#define GAIN_ONE 256
#define GAIN_HIGH (GAIN_ONE * 2885 / 1000 + 1) /* 2 / ln 2 */
#define GAIN_DRAIN (GAIN_ONE * 1000 / 2885)
#define GAIN_WINDOW (2 * GAIN_ONE)
#define CYCLE 8
#define LEAST_WINDOW 4
#define LEAST_RTT_KEPT_NS UINT64_C(10000000000)
#define PROBE_RTT_NS UINT64_C(200000000)
#define FULL_ROUNDS 3
#define FIRST_RTT_US 1000 /* while no round trip is known */
#define PACE_PERCENT 99   /* bbr_pacing_margin_percent of 1 */
#define EXTRA_ROUNDS 5
#define EXTRA_MOST_US 100000
#define EXTRA_RESET (1u << 20)
#define SUPER_BYTES 65536
#define SLOWEST_SUPER 150000 /* bytes/s (1.2 Mb/s) up to which a burst is one segment */

static uint64_t most_rate(const struct tcp_bbr *bbr)
{
    uint64_t most = 0;
    for (int i = 0; i < TCP_BBR_ROUNDS; i++)
        most = harp_max(most, bbr->rates[i]);
    return most;
}

static uint32_t pacing_gain(const struct tcp_bbr *bbr)
{
    static const uint32_t cycle[CYCLE] = {GAIN_ONE * 5 / 4, GAIN_ONE * 3 / 4, GAIN_ONE, GAIN_ONE,
                                          GAIN_ONE,         GAIN_ONE,         GAIN_ONE, GAIN_ONE};
    switch (bbr->state) {
    case BBR_STARTUP:
        return GAIN_HIGH;
    case BBR_DRAIN:
        return GAIN_DRAIN;
    case BBR_PROBE_BW:
        return cycle[bbr->cycle];
    case BBR_PROBE_RTT:
        break;
    }
    return GAIN_ONE;
}

static uint32_t window_gain(const struct tcp_bbr *bbr)
{
    if (bbr->state == BBR_PROBE_RTT)
        return GAIN_ONE;
    return bbr->state == BBR_PROBE_BW ? GAIN_WINDOW : GAIN_HIGH;
}

static uint64_t pace_of(const struct tcp_cc *cc, uint64_t rate, uint32_t gain)
{
    uint64_t bytes = rate * cc->mss * gain / GAIN_ONE * PACE_PERCENT / 100;
    return bytes * 1000000 >> RATE_SHIFT;
}

static void set_pace(struct tcp_cc *cc)
{
    uint64_t pace = pace_of(cc, most_rate(&cc->bbr), pacing_gain(&cc->bbr));
    if (cc->bbr.is_full || pace > cc->pace)
        cc->pace = pace;
}

/* A burst of a millisecond's pace. */
static uint32_t burst_segments(const struct tcp_cc *cc)
{
    uint32_t least = cc->pace < SLOWEST_SUPER ? 1 : 2;
    uint64_t bytes = harp_min(cc->pace >> 10, SUPER_BYTES - 1);
    return (uint32_t)harp_min(harp_max(bytes / cc->mss, least), 127);
}

static uint32_t bdp_segments(const struct tcp_bbr *bbr, uint32_t gain)
{
    if (bbr->least_rtt_ns == UINT64_MAX)
        return TCP_FIRST_WINDOW;
    uint64_t bdp = most_rate(bbr) * (bbr->least_rtt_ns / 1000);
    uint64_t gained = (bdp * gain / GAIN_ONE + (1 << RATE_SHIFT) - 1) >> RATE_SHIFT;
    return (uint32_t)harp_min(gained, UINT32_MAX / 2);
}

/* With room for bursts that are being made, and that ACKs are held up for. */
static uint32_t target_window(const struct tcp_cc *cc, uint32_t gain)
{
    const struct tcp_bbr *bbr = &cc->bbr;
    uint32_t target = bdp_segments(bbr, gain) + 3 * burst_segments(cc);
    target = (target + 1) & ~1u;
    return bbr->state == BBR_PROBE_BW && !bbr->cycle ? target + 2 : target;
}

void tcp_bbr_begin(struct tcp_cc *cc, uint64_t now_ns, uint64_t seed)
{
    cc->bbr = (struct tcp_bbr){
        .least_rtt_ns = UINT64_MAX, .least_at_ns = now_ns, .extra_from_ns = now_ns, .random = seed};
    cc->is_paced = cc->owns_window = true;
    cc->pace = (uint64_t)cc->window * cc->mss * 1000000 / FIRST_RTT_US * GAIN_HIGH / GAIN_ONE;
}

/* ---- the model of the path */

static void sample_rate(struct tcp_bbr *bbr, const struct tcp_ack *ack)
{
    bbr->round_began = false;
    if (!ack->interval_ns)
        return;
    if (ack->delivered_before >= bbr->round_end) {
        bbr->round_end = ack->delivered_total;
        bbr->rates[++bbr->round % TCP_BBR_ROUNDS] = 0;
        bbr->round_began = true;
        bbr->conserves = false;
    }
    uint64_t rate = (ack->sample << RATE_SHIFT) * 1000 / ack->interval_ns;
    uint64_t *slot = &bbr->rates[bbr->round % TCP_BBR_ROUNDS];
    if (!ack->app_limited || rate >= most_rate(bbr))
        *slot = harp_max(*slot, rate);
}

static void sample_extra(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_bbr *bbr = &cc->bbr;
    if (!ack->delivered)
        return;
    if (bbr->round_began && ++bbr->extra_rounds >= EXTRA_ROUNDS) {
        bbr->extra_rounds = 0;
        bbr->extra_which ^= 1;
        bbr->extra[bbr->extra_which] = 0;
    }
    uint64_t us = (ack->now_ns - bbr->extra_from_ns) / 1000;
    uint64_t expected = most_rate(bbr) * us >> RATE_SHIFT;
    if (bbr->extra_acked <= expected || bbr->extra_acked + ack->delivered >= EXTRA_RESET) {
        bbr->extra_acked = expected = 0;
        bbr->extra_from_ns = ack->now_ns;
    }
    bbr->extra_acked += ack->delivered;
    uint32_t extra = (uint32_t)harp_min(bbr->extra_acked - expected, cc->window);
    bbr->extra[bbr->extra_which] = (uint32_t)harp_max(bbr->extra[bbr->extra_which], extra);
}

static void check_full(struct tcp_bbr *bbr, const struct tcp_ack *ack)
{
    if (bbr->is_full || !bbr->round_began || ack->app_limited)
        return;
    uint64_t rate = most_rate(bbr);
    if (rate >= bbr->full_rate * 5 / 4) {
        bbr->full_rate = rate;
        bbr->full_rounds = 0;
        return;
    }
    bbr->is_full = ++bbr->full_rounds >= FULL_ROUNDS;
}

/* ---- states */

static void begin_cycle(struct tcp_bbr *bbr, uint64_t now_ns)
{
    bbr->state = BBR_PROBE_BW;
    /* Any phase but that of 0.75, so that flows do not probe together. */
    bbr->cycle = (uint32_t)(CYCLE - virtual_below(&bbr->random, CYCLE - 1)) % CYCLE;
    bbr->cycle_at_ns = now_ns;
}

static void go_on_in_cycle(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_bbr *bbr = &cc->bbr;
    bool is_long = ack->now_ns - bbr->cycle_at_ns > bbr->least_rtt_ns;
    uint32_t gain = pacing_gain(bbr), in_flight = ack->in_flight + ack->delivered;
    bool over = is_long;
    if (gain > GAIN_ONE) /* until the queue that it wanted is there */
        over = is_long && (ack->lost || in_flight >= target_window(cc, gain));
    else if (gain < GAIN_ONE) /* until that is gone */
        over = is_long || in_flight <= target_window(cc, GAIN_ONE);
    if (!over)
        return;
    bbr->cycle = (bbr->cycle + 1) % CYCLE;
    bbr->cycle_at_ns = ack->now_ns;
}

static void change_state(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_bbr *bbr = &cc->bbr;
    if (bbr->state == BBR_PROBE_BW)
        go_on_in_cycle(cc, ack);
    check_full(bbr, ack);
    if (bbr->state == BBR_STARTUP && bbr->is_full)
        bbr->state = BBR_DRAIN;
    if (bbr->state == BBR_DRAIN && ack->in_flight <= bdp_segments(bbr, GAIN_ONE))
        begin_cycle(bbr, ack->now_ns);
}

static void leave_probe_rtt(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_bbr *bbr = &cc->bbr;
    bbr->least_at_ns = ack->now_ns;
    cc->window = (uint32_t)harp_max(cc->window, bbr->window_before);
    if (bbr->is_full)
        begin_cycle(bbr, ack->now_ns);
    else
        bbr->state = BBR_STARTUP;
}

static void stay_in_probe_rtt(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_bbr *bbr = &cc->bbr;
    if (!bbr->probe_until_ns && ack->in_flight <= LEAST_WINDOW) {
        bbr->probe_until_ns = ack->now_ns + PROBE_RTT_NS;
        bbr->probe_round_done = false;
        bbr->round_end = ack->delivered_total;
    } else if (bbr->probe_until_ns) {
        bbr->probe_round_done |= bbr->round_began;
        if (bbr->probe_round_done && ack->now_ns > bbr->probe_until_ns)
            leave_probe_rtt(cc, ack);
    }
}

static void sample_rtt(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_bbr *bbr = &cc->bbr;
    bool is_old = ack->now_ns > bbr->least_at_ns + LEAST_RTT_KEPT_NS;
    if (ack->rtt_ns && (ack->rtt_ns <= bbr->least_rtt_ns || is_old)) {
        bbr->least_rtt_ns = ack->rtt_ns;
        bbr->least_at_ns = ack->now_ns;
    }
    if (is_old && bbr->state != BBR_PROBE_RTT) {
        bbr->state = BBR_PROBE_RTT;
        bbr->window_before = cc->window;
        bbr->probe_until_ns = 0;
    }
    if (bbr->state == BBR_PROBE_RTT)
        stay_in_probe_rtt(cc, ack);
}

/* ---- the window */

/* In the first round of a recovery as much is sent as arrives; later the window is what it was. */
static bool set_recovery_window(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_bbr *bbr = &cc->bbr;
    if (ack->lost)
        cc->window = cc->window > ack->lost ? cc->window - ack->lost : 1;
    if (ack->is_recovering && !bbr->was_recovering) {
        bbr->conserves = true;
        bbr->round_end = ack->delivered_total;
        cc->window = ack->in_flight + ack->delivered;
    } else if (!ack->is_recovering && bbr->was_recovering) {
        bbr->conserves = false;
        cc->window = (uint32_t)harp_max(cc->window, bbr->window_before);
    }
    bbr->was_recovering = ack->is_recovering;
    if (bbr->conserves)
        cc->window = (uint32_t)harp_max(cc->window, ack->in_flight + ack->delivered);
    return bbr->conserves;
}

static void set_window(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_bbr *bbr = &cc->bbr;
    if (ack->delivered && !set_recovery_window(cc, ack)) {
        uint32_t target = target_window(cc, window_gain(bbr));
        uint64_t most_extra = most_rate(bbr) * EXTRA_MOST_US >> RATE_SHIFT;
        if (bbr->is_full)
            target += (uint32_t)harp_min(harp_max(bbr->extra[0], bbr->extra[1]), most_extra);
        if (bbr->is_full)
            cc->window = (uint32_t)harp_min(cc->window + ack->delivered, target);
        else if (cc->window < target || ack->delivered_total < TCP_FIRST_WINDOW)
            cc->window += ack->delivered;
        cc->window = (uint32_t)harp_max(cc->window, LEAST_WINDOW);
    }
    if (bbr->state == BBR_PROBE_RTT)
        cc->window = (uint32_t)harp_min(cc->window, LEAST_WINDOW);
}

void tcp_bbr_acked(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    sample_rate(&cc->bbr, ack);
    sample_extra(cc, ack);
    change_state(cc, ack);
    sample_rtt(cc, ack);
    set_pace(cc);
    set_window(cc, ack);
}

void tcp_bbr_lost(struct tcp_cc *cc)
{
    struct tcp_bbr *bbr = &cc->bbr;
    if (!bbr->was_recovering && bbr->state != BBR_PROBE_RTT)
        bbr->window_before = cc->window;
    else
        bbr->window_before = (uint32_t)harp_max(bbr->window_before, cc->window);
}
