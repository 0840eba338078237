/* Congestion control of TCP: what the controllers share. */
#include "virtual/tcp_cc.h"

#include <string.h>

#include "base/sequence.h"

#define LEAST_WINDOW 2 /* after a loss: tcp_recalc_ssthresh of each controller */
#define NS_PER_S UINT64_C(1000000000)

void tcp_cc_begin(struct tcp_cc *cc, enum tcp_cc_kind kind, uint32_t mss, uint64_t now_ns,
                  uint64_t seed)
{
    memset(cc, 0, sizeof *cc);
    cc->kind = kind;
    cc->mss = mss;
    cc->window = TCP_FIRST_WINDOW;
    cc->threshold = TCP_NO_THRESHOLD;
    switch (kind) {
    case TCP_CUBIC:
        tcp_cubic_begin(cc);
        break;
    case TCP_DCTCP:
        tcp_dctcp_begin(cc);
        break;
    case TCP_BBR:
        tcp_bbr_begin(cc, now_ns, seed);
        break;
    }
}

/* Twice what the window gives in slow start, 1.2 times later (sysctl tcp_pacing_ss_ratio and
 * tcp_pacing_ca_ratio). Bursts are sized by it; nothing waits for it. */
static void size_bursts(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    if (!ack->smoothed_ns)
        return;
    uint64_t percent = cc->window < cc->threshold / 2 ? 200 : 120;
    uint64_t bytes = (uint64_t)harp_max(cc->window, ack->in_flight) * cc->mss;
    cc->pace = bytes * percent / 100 * NS_PER_S / ack->smoothed_ns;
}

void tcp_cc_acked(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    switch (cc->kind) {
    case TCP_CUBIC:
        tcp_cubic_acked(cc, ack);
        break;
    case TCP_DCTCP:
        tcp_dctcp_acked(cc, ack);
        break;
    case TCP_BBR:
        tcp_bbr_acked(cc, ack);
        break;
    }
    if (cc->kind != TCP_BBR)
        size_bursts(cc, ack);
}

void tcp_cc_lost(struct tcp_cc *cc)
{
    switch (cc->kind) {
    case TCP_CUBIC:
        tcp_cubic_lost(cc);
        break;
    case TCP_DCTCP:
        tcp_dctcp_lost(cc);
        break;
    case TCP_BBR:
        tcp_bbr_lost(cc);
        return;
    }
    cc->threshold = (uint32_t)harp_max(cc->threshold, LEAST_WINDOW);
}

void tcp_cc_timed_out(struct tcp_cc *cc)
{
    tcp_cc_lost(cc);
    if (cc->kind == TCP_CUBIC)
        tcp_cubic_reset(cc);
    cc->window = 1;
}

bool tcp_cc_marked(struct tcp_cc *cc)
{
    if (cc->kind != TCP_DCTCP)
        return false;
    tcp_dctcp_marked(cc);
    cc->threshold = (uint32_t)harp_max(cc->threshold, LEAST_WINDOW);
    return true;
}

/* A window that was not used for longer than a timeout is halved for each (tcp_cwnd_restart, on by
 * sysctl tcp_slow_start_after_idle; RFC 2861). BBR has its pace instead. */
void tcp_cc_resumed(struct tcp_cc *cc, uint64_t now_ns, uint64_t idle_ns, uint64_t timeout_ns)
{
    if (cc->kind == TCP_BBR)
        return;
    if (cc->kind == TCP_CUBIC)
        tcp_cubic_resumed(cc, now_ns, idle_ns);
    if (idle_ns <= timeout_ns)
        return;
    if (cc->threshold != TCP_NO_THRESHOLD)
        cc->threshold = (uint32_t)harp_max(cc->threshold, cc->window * 3 / 4);
    uint32_t least = (uint32_t)harp_min(cc->window, TCP_FIRST_WINDOW);
    while (idle_ns > timeout_ns && cc->window > least) {
        cc->window /= 2;
        idle_ns -= timeout_ns;
    }
    cc->window = (uint32_t)harp_max(cc->window, least);
}
