/* CUBIC (RFC 9438), with HyStart (Ha and Rhee, "Taming the elephants", Computer Networks 55(9),
 * 2011) as Linux has both. Windows are in segments and the cubic's time in milliseconds.
 *
 * The RFC lets alpha grow to 1 once the Reno-friendly window has passed that of the last loss;
 * Linux does not, and neither does this. */
#include "base/sequence.h"
#include "virtual/tcp_cc.h"

#define BETA_Q10 717 /* 0.7 */
#define NS_PER_MS UINT64_C(1000000)
/* One window grows by alpha = 3 (1 - 0.7) / (1 + 0.7) = 9/17 in a round trip. */
#define ALPHA_UP 9
#define ALPHA_DOWN 17
#define HYSTART_LEAST_WINDOW 16
#define HYSTART_TRAIN_GAP_NS (2 * NS_PER_MS)
#define HYSTART_SAMPLES 8
#define HYSTART_DELAY_LEAST_NS (4 * NS_PER_MS)
#define HYSTART_DELAY_MOST_NS (16 * NS_PER_MS)
#define HYSTART_CUSHION_BYTES (4 * 65536) /* hystart_ack_delay: what GRO and bursts may hold up */
#define NEVER_GROWS 100                   /* windows that are acknowledged for one segment more */

static uint64_t cube_root(uint64_t x)
{
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 20; bit; bit >>= 1)
        if ((root + bit) * (root + bit) * (root + bit) <= x)
            root += bit;
    return root;
}

void tcp_cubic_begin(struct tcp_cc *cc)
{
    cc->cubic = (struct tcp_cubic){.least_rtt_ns = UINT64_MAX, .round_rtt_ns = UINT64_MAX};
}

void tcp_cubic_reset(struct tcp_cc *cc)
{
    tcp_cubic_begin(cc);
}

/* ---- HyStart: leave slow start before it overruns the queue */

static void begin_round(struct tcp_cubic *cubic, const struct tcp_ack *ack)
{
    cubic->round_from_ns = cubic->train_ns = ack->now_ns;
    cubic->round_end = ack->next;
    cubic->round_rtt_ns = UINT64_MAX;
    cubic->samples = 0;
}

/* ACKs that follow one another closely for half a round trip fill the path. */
static bool is_train_long(const struct tcp_cc *cc, const struct tcp_ack *ack)
{
    const struct tcp_cubic *cubic = &cc->cubic;
    uint64_t cushion_ns =
        cc->pace ? harp_min(HYSTART_CUSHION_BYTES * 1000 / (cc->pace / 1000000 + 1), NS_PER_MS) : 0;
    return ack->now_ns - cubic->round_from_ns > (cubic->least_rtt_ns + cushion_ns) / 2;
}

static bool is_delay_grown(const struct tcp_cubic *cubic)
{
    uint64_t more_ns =
        harp_min(harp_max(cubic->least_rtt_ns / 8, HYSTART_DELAY_LEAST_NS), HYSTART_DELAY_MOST_NS);
    return cubic->samples >= HYSTART_SAMPLES && cubic->round_rtt_ns > cubic->least_rtt_ns + more_ns;
}

static void look_for_exit(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_cubic *cubic = &cc->cubic;
    if (ack->acked_to > cubic->round_end)
        begin_round(cubic, ack);
    if (cc->window < HYSTART_LEAST_WINDOW)
        return;
    bool found = false;
    if (ack->now_ns - cubic->train_ns <= HYSTART_TRAIN_GAP_NS) {
        cubic->train_ns = ack->now_ns;
        found = is_train_long(cc, ack);
    }
    cubic->round_rtt_ns = harp_min(cubic->round_rtt_ns, ack->rtt_ns);
    if (cubic->samples < HYSTART_SAMPLES)
        cubic->samples++;
    if (found || is_delay_grown(cubic)) {
        cubic->found = true;
        cc->threshold = cc->window;
    }
}

/* ---- the window */

static void begin_epoch(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_cubic *cubic = &cc->cubic;
    cubic->epoch_ns = ack->now_ns;
    cubic->counted = 0;
    cubic->reno_q16 = (uint64_t)cc->window << 16;
    cubic->k_ms = 0;
    cubic->origin = cc->window;
    if (cubic->most > cc->window) { /* K = cbrt((most - window) / 0.4) s */
        cubic->k_ms = cube_root((uint64_t)(cubic->most - cc->window) * 2500000000u);
        cubic->origin = cubic->most;
    }
}

/* W(t) = 0.4 (t - K)^3 + origin, a round trip from now. */
static uint64_t cubic_target(const struct tcp_cubic *cubic, uint64_t now_ns)
{
    uint64_t t_ms = (now_ns - cubic->epoch_ns + cubic->least_rtt_ns) / NS_PER_MS;
    uint64_t off_ms = t_ms < cubic->k_ms ? cubic->k_ms - t_ms : t_ms - cubic->k_ms;
    off_ms = harp_min(off_ms, 1000000); /* else the cube overflows */
    uint64_t delta = off_ms * off_ms * off_ms / 2500000000u;
    if (t_ms >= cubic->k_ms)
        return cubic->origin + delta;
    return delta < cubic->origin ? cubic->origin - delta : 0;
}

/* Segments that must be acknowledged for one more. */
static uint32_t segments_for_one(struct tcp_cc *cc, const struct tcp_ack *ack, uint32_t acked)
{
    struct tcp_cubic *cubic = &cc->cubic;
    uint64_t target = cubic_target(cubic, ack->now_ns);
    uint64_t each = target > cc->window ? cc->window / (target - cc->window)
                                        : (uint64_t)NEVER_GROWS * cc->window;
    if (!cubic->most)
        each = harp_min(each, 20); /* no loss is known: 5 % a round trip at least */
    cubic->reno_q16 += ((uint64_t)acked << 16) * ALPHA_UP / ALPHA_DOWN / cc->window;
    uint64_t reno = cubic->reno_q16 >> 16;
    if (reno > cc->window)
        each = harp_min(each, cc->window / (reno - cc->window));
    return (uint32_t)harp_max(each, 2); /* 1.5 times a round trip at most */
}

void tcp_cubic_acked(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_cubic *cubic = &cc->cubic;
    uint32_t acked = ack->acked;
    if (ack->rtt_ns) {
        cubic->least_rtt_ns = harp_min(cubic->least_rtt_ns, ack->rtt_ns);
        if (!cubic->found && cc->window < cc->threshold)
            look_for_exit(cc, ack);
    }
    if (!ack->window_full || ack->is_recovering)
        return;
    if (cc->window < cc->threshold)
        acked = tcp_slow_start(cc, acked);
    if (!acked || cubic->least_rtt_ns == UINT64_MAX)
        return;
    if (!cubic->epoch_ns)
        begin_epoch(cc, ack);
    tcp_count_up(cc, &cubic->counted, segments_for_one(cc, ack, acked), acked);
}

void tcp_cubic_lost(struct tcp_cc *cc)
{
    struct tcp_cubic *cubic = &cc->cubic;
    bool is_less = cc->window < cubic->most; /* fast convergence: leave room for others */
    cubic->epoch_ns = 0;
    cubic->most = is_less ? cc->window * (1024 + BETA_Q10) / 2048 : cc->window;
    cc->threshold = cc->window * BETA_Q10 / 1024;
}

void tcp_cubic_resumed(struct tcp_cc *cc, uint64_t now_ns, uint64_t idle_ns)
{
    struct tcp_cubic *cubic = &cc->cubic; /* the curve stood still meanwhile */
    if (cubic->epoch_ns)
        cubic->epoch_ns = harp_min(cubic->epoch_ns + idle_ns, now_ns);
}
