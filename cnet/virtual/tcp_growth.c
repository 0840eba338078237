/* Growth of a window that CUBIC and DCTCP share with Reno (RFC 5681, section 3.1). */
#include "base/sequence.h"
#include "virtual/tcp_cc.h"

uint32_t tcp_slow_start(struct tcp_cc *cc, uint32_t acked)
{
    uint32_t to = (uint32_t)harp_min((uint64_t)cc->window + acked, cc->threshold);
    acked -= to - cc->window;
    cc->window = to;
    return acked;
}

void tcp_count_up(struct tcp_cc *cc, uint32_t *counted, uint32_t each, uint32_t acked)
{
    if (*counted >= each) {
        *counted = 0;
        cc->window++;
    }
    *counted += acked;
    cc->window += *counted / each;
    *counted %= each;
}
