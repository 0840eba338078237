/* DCTCP (RFC 8257): the window shrinks by half of the share of bytes that were marked. It grows and
 * reacts to loss as Reno does (RFC 5681). */
#include "base/sequence.h"
#include "virtual/tcp_cc.h"

#define ALPHA_ONE 1024 /* at first, as Linux has it by default (dctcp_alpha_on_init) */
#define GAIN_SHIFT 4   /* 1/16: RFC 8257, section 4.2 */

void tcp_dctcp_begin(struct tcp_cc *cc)
{
    cc->dctcp = (struct tcp_dctcp){.alpha_q10 = ALPHA_ONE};
}

static void end_round(struct tcp_dctcp *dctcp, const struct tcp_ack *ack)
{
    uint32_t alpha = dctcp->alpha_q10;
    alpha -= alpha >> GAIN_SHIFT ? alpha >> GAIN_SHIFT : alpha;
    alpha += (uint32_t)((dctcp->marked << (10 - GAIN_SHIFT)) / harp_max(dctcp->delivered, 1));
    dctcp->alpha_q10 = (uint32_t)harp_min(alpha, ALPHA_ONE);
    dctcp->round_end = ack->next;
    dctcp->delivered = dctcp->marked = 0;
}

void tcp_dctcp_acked(struct tcp_cc *cc, const struct tcp_ack *ack)
{
    struct tcp_dctcp *dctcp = &cc->dctcp;
    uint32_t acked = ack->acked;
    dctcp->delivered += ack->delivered;
    dctcp->marked += ack->marked;
    if (ack->acked_to >= dctcp->round_end)
        end_round(dctcp, ack);
    if (!ack->window_full || ack->is_recovering)
        return;
    if (cc->window < cc->threshold)
        acked = tcp_slow_start(cc, acked);
    if (acked)
        tcp_count_up(cc, &dctcp->counted, cc->window, acked);
}

void tcp_dctcp_lost(struct tcp_cc *cc)
{
    cc->threshold = cc->window / 2;
}

void tcp_dctcp_marked(struct tcp_cc *cc)
{
    cc->threshold = cc->window - (uint32_t)((uint64_t)cc->window * cc->dctcp.alpha_q10 >> 11);
}
