#include "cross.h"

#include <math.h>
#include <string.h>

#include "base/sequence.h"

#define CUBIC_C 0.4
#define CUBIC_BETA 0.7
#define CUBIC_ALPHA (3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA))
#define BBR_HIGH_GAIN 2.885
#define BBR_LEAST_KEPT_NS UINT64_C(10000000000)
#define BBR_PROBE_RTT_NS UINT64_C(200000000)
#define BBR_LEAST_WINDOW 4

void cross_begin(struct cross_flow *flow, enum cross_kind kind, uint64_t now_ns)
{
    memset(flow, 0, sizeof *flow);
    flow->kind = kind;
    flow->window = 10; /* RFC 6928 */
    flow->threshold = INFINITY;
    flow->delivered_ns = now_ns;
    flow->least_ns = UINT64_MAX;
}

static void cubic_acked(struct cross_flow *flow, uint64_t now_ns)
{
    if (flow->window < flow->threshold) {
        flow->window++;
        return;
    }
    double t = (double)(now_ns - flow->epoch_ns) * 1e-9;
    double target = CUBIC_C * pow(t - flow->k, 3) + flow->most;
    flow->reno += CUBIC_ALPHA / flow->window;
    target = fmin(fmax(target, flow->reno), 1.5 * flow->window);
    flow->window += target > flow->window ? (target - flow->window) / flow->window : 0;
}

static void cubic_lost(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet)
{
    if (packet->sent_ns < flow->recovery_ns)
        return;                            /* of the loss that the window was reduced for */
    bool less = flow->window < flow->most; /* fast convergence */
    flow->most = less ? flow->window * (1 + CUBIC_BETA) / 2 : flow->window;
    flow->window = fmax(flow->window * CUBIC_BETA, 2);
    flow->threshold = flow->reno = flow->window;
    flow->k = cbrt(fmax(flow->most - flow->window, 0) / CUBIC_C);
    flow->epoch_ns = flow->recovery_ns = now_ns;
}

static double bbr_rate(const struct cross_flow *flow)
{
    double most = 0;
    for (int i = 0; i < CROSS_ROUNDS; i++)
        most = fmax(most, flow->rates[i]);
    return most;
}

static double bbr_gain(const struct cross_flow *flow)
{
    static const double cycle[] = {1.25, 0.75, 1, 1, 1, 1, 1, 1};
    switch (flow->state) {
    case CROSS_STARTUP:
        return BBR_HIGH_GAIN;
    case CROSS_DRAIN:
        return 1 / BBR_HIGH_GAIN;
    case CROSS_PROBE_BW:
        return cycle[flow->cycle % 8];
    case CROSS_PROBE_RTT:
        break;
    }
    return 1;
}

/* A round ends: does the rate still grow? */
static void bbr_check_full(struct cross_flow *flow)
{
    double rate = bbr_rate(flow);
    if (rate >= 1.25 * flow->full_rate) {
        flow->full_rate = rate;
        flow->full_rounds = 0;
    } else if (++flow->full_rounds == 3 && flow->state == CROSS_STARTUP) {
        flow->state = CROSS_DRAIN;
    }
}

static void bbr_sample(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet)
{
    if (packet->delivered >= flow->round_delivered) {
        flow->round_delivered = flow->delivered;
        flow->rates[++flow->round % CROSS_ROUNDS] = 0;
        bbr_check_full(flow);
    }
    double *most = &flow->rates[flow->round % CROSS_ROUNDS];
    double took_ns = (double)(now_ns - packet->delivered_ns);
    *most = fmax(*most, (double)(flow->delivered - packet->delivered) / fmax(took_ns, 1));
    uint64_t rtt_ns = now_ns - packet->sent_ns;
    bool old = now_ns - flow->least_at_ns > BBR_LEAST_KEPT_NS && flow->least_at_ns;
    if (rtt_ns <= flow->least_ns || old) {
        flow->least_ns = rtt_ns;
        flow->least_at_ns = now_ns;
    }
    if (old && flow->state != CROSS_PROBE_RTT) {
        flow->state = CROSS_PROBE_RTT;
        flow->probe_until_ns = now_ns + BBR_PROBE_RTT_NS + flow->least_ns;
    }
}

static void bbr_acked(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet)
{
    bbr_sample(flow, now_ns, packet);
    double bdp = bbr_rate(flow) * (double)flow->least_ns;
    if (flow->state == CROSS_DRAIN && flow->in_flight <= bdp) {
        flow->state = CROSS_PROBE_BW;
        flow->cycle = 2;
        flow->cycle_at_ns = now_ns;
    } else if (flow->state == CROSS_PROBE_RTT && now_ns >= flow->probe_until_ns) {
        flow->state = CROSS_PROBE_BW;
        flow->least_at_ns = flow->cycle_at_ns = now_ns;
    } else if (flow->state == CROSS_PROBE_BW && now_ns - flow->cycle_at_ns >= flow->least_ns) {
        flow->cycle++;
        flow->cycle_at_ns = now_ns;
    }
    flow->window = fmax((flow->state <= CROSS_DRAIN ? BBR_HIGH_GAIN : 2) * bdp, BBR_LEAST_WINDOW);
    if (flow->state == CROSS_PROBE_RTT)
        flow->window = BBR_LEAST_WINDOW;
}

/* Packets of 1 ms at the flow's rate. */
static uint32_t super_packets(const struct cross_flow *flow)
{
    double rtt_ns = (double)flow->smoothed_ns;
    double packets = rtt_ns > 0 ? 1.2e6 * flow->window / rtt_ns : 2;
    return (uint32_t)fmin(fmax(packets, 2), CROSS_SUPER);
}

uint32_t cross_may_send(const struct cross_flow *flow, uint64_t now_ns, bool supers)
{
    uint32_t window = (uint32_t)flow->window;
    uint32_t room = window > flow->in_flight ? window - flow->in_flight : 0;
    uint32_t wanted = supers ? super_packets(flow) : 1;
    wanted = window / 2 < wanted ? window / 2 + 1 : wanted; /* as TCP defers no longer */
    return room >= wanted && flow->next_ns <= now_ns ? wanted : 0;
}

void cross_sent(struct cross_flow *flow, uint64_t now_ns, struct cross_packet *packet)
{
    if (!flow->in_flight)
        flow->delivered_ns = now_ns;
    *packet = (struct cross_packet){now_ns, flow->delivered, flow->delivered_ns};
    flow->in_flight++;
    double rate = bbr_rate(flow);
    if (flow->kind == CROSS_BBR && rate > 0)
        flow->next_ns = harp_max(flow->next_ns, now_ns) + (uint64_t)(1 / (rate * bbr_gain(flow)));
}

void cross_acked(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet)
{
    flow->in_flight--;
    flow->delivered++;
    flow->delivered_ns = now_ns;
    uint64_t rtt_ns = now_ns - packet->sent_ns;
    flow->smoothed_ns = flow->smoothed_ns ? (7 * flow->smoothed_ns + rtt_ns) / 8 : rtt_ns;
    if (flow->kind == CROSS_BBR)
        bbr_acked(flow, now_ns, packet);
    else
        cubic_acked(flow, now_ns);
}

void cross_lost(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet)
{
    flow->in_flight--;
    if (flow->kind == CROSS_CUBIC)
        cubic_lost(flow, now_ns, packet);
}
