#include "session/rtt.h"

#include "base/sequence.h"

void harp_rtt_init(struct harp_rtt *rtt)
{
    *rtt = (struct harp_rtt){.min_ns = {HARP_NEVER, HARP_NEVER}};
}

static void remember_least(struct harp_rtt *rtt, uint64_t now_ns, uint64_t fabric_ns)
{
    if (now_ns - rtt->period_ns >= HARP_RTT_MEMORY_NS) {
        rtt->min_ns[1] = rtt->min_ns[0];
        rtt->min_ns[0] = HARP_NEVER;
        rtt->period_ns = now_ns;
    }
    rtt->min_ns[0] = harp_min(rtt->min_ns[0], fabric_ns);
}

bool harp_rtt_sample(struct harp_rtt *rtt, uint64_t now_ns, uint64_t total_ns, uint64_t host_ns)
{
    bool possible = host_ns < total_ns;
    if (!possible && harp_rtt_known(rtt))
        return false;
    uint64_t fabric_ns = harp_max(possible ? total_ns - host_ns : total_ns, 1);
    host_ns = possible ? host_ns : 0;
    rtt->latest_ns = fabric_ns;
    rtt->latest_host_ns = host_ns;
    remember_least(rtt, now_ns, fabric_ns);
    if (!harp_rtt_known(rtt)) {
        rtt->srtt_x8_ns = fabric_ns * 8;
        rtt->var_x4_ns = fabric_ns * 2;
        rtt->host_x8_ns = host_ns * 8;
        rtt->host_var_x4_ns = host_ns * 2;
        return true;
    }
    uint64_t srtt_ns = rtt->srtt_x8_ns / 8;
    uint64_t off_ns = fabric_ns > srtt_ns ? fabric_ns - srtt_ns : srtt_ns - fabric_ns;
    rtt->var_x4_ns += off_ns - rtt->var_x4_ns / 4;
    rtt->srtt_x8_ns += fabric_ns - srtt_ns;
    uint64_t mean_ns = rtt->host_x8_ns / 8;
    off_ns = host_ns > mean_ns ? host_ns - mean_ns : mean_ns - host_ns;
    rtt->host_var_x4_ns += off_ns - rtt->host_var_x4_ns / 4;
    rtt->host_x8_ns += host_ns - mean_ns;
    return true;
}

bool harp_rtt_known(const struct harp_rtt *rtt)
{
    return rtt->srtt_x8_ns != 0;
}

uint64_t harp_rtt_smoothed_ns(const struct harp_rtt *rtt)
{
    return rtt->srtt_x8_ns / 8;
}

uint64_t harp_rtt_least_ns(const struct harp_rtt *rtt)
{
    return harp_rtt_known(rtt) ? harp_min(rtt->min_ns[0], rtt->min_ns[1]) : 0;
}

uint64_t harp_rtt_host_ns(const struct harp_rtt *rtt, uint64_t ack_delay_ns)
{
    return ack_delay_ns + rtt->host_x8_ns / 8 + rtt->host_var_x4_ns;
}

uint64_t harp_rtt_timeout_ns(const struct harp_rtt *rtt, uint64_t ack_delay_ns, uint64_t floor_ns,
                             uint64_t initial_ns)
{
    if (!harp_rtt_known(rtt))
        return initial_ns;
    uint64_t slack_ns = harp_max(rtt->var_x4_ns, rtt->srtt_x8_ns / 64);
    return harp_max(rtt->srtt_x8_ns / 8 + slack_ns + harp_rtt_host_ns(rtt, ack_delay_ns), floor_ns);
}
