#include "cross.h"

#include "base/sequence.h"

#define NS_PER_S UINT64_C(1000000000)

void cross_begin(struct cross_flow *flow, enum tcp_cc_kind kind, uint64_t now_ns)
{
    *flow = (struct cross_flow){.delivered_ns = now_ns};
    tcp_cc_begin(&flow->cc, kind, CROSS_BYTES, now_ns, now_ns);
}

/* Packets of 1 ms at the flow's rate. */
static uint32_t super_packets(const struct cross_flow *flow)
{
    uint64_t rtt_ns = flow->smoothed_ns;
    uint64_t packets = rtt_ns ? UINT64_C(1200000) * flow->cc.window / rtt_ns : 2;
    return (uint32_t)harp_min(harp_max(packets, 2), CROSS_SUPER);
}

uint32_t cross_may_send(const struct cross_flow *flow, uint64_t now_ns, bool supers)
{
    uint32_t window = flow->cc.window;
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
    flow->sent++;
    if (flow->cc.is_paced && flow->cc.pace)
        flow->next_ns = harp_max(flow->next_ns, now_ns) + CROSS_BYTES * NS_PER_S / flow->cc.pace;
}

void cross_acked(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet)
{
    uint64_t rtt_ns = now_ns - packet->sent_ns;
    flow->in_flight--;
    flow->delivered++;
    flow->delivered_ns = now_ns;
    flow->smoothed_ns = flow->smoothed_ns ? (7 * flow->smoothed_ns + rtt_ns) / 8 : rtt_ns;
    const struct tcp_ack ack = {.now_ns = now_ns,
                                .acked_to = flow->sent - flow->in_flight,
                                .next = flow->sent,
                                .acked = 1,
                                .delivered = 1,
                                .lost = flow->lost,
                                .in_flight = flow->in_flight,
                                .rtt_ns = rtt_ns,
                                .smoothed_ns = flow->smoothed_ns,
                                .sample = flow->delivered - packet->delivered,
                                .interval_ns = now_ns - packet->delivered_ns,
                                .delivered_before = packet->delivered,
                                .delivered_total = flow->delivered,
                                .window_full = true,
                                .is_recovering =
                                    flow->cc.owns_window && packet->sent_ns < flow->recovery_ns};
    flow->lost = 0;
    tcp_cc_acked(&flow->cc, &ack);
}

void cross_lost(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet)
{
    flow->in_flight--;
    flow->lost++;
    if (packet->sent_ns < flow->recovery_ns)
        return;
    flow->recovery_ns = now_ns;
    tcp_cc_lost(&flow->cc);
    if (!flow->cc.owns_window)
        flow->cc.window = flow->cc.threshold;
}
