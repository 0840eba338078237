/* Pacer: spreads a path's bursts over the round trip. With a window of w bytes and a round trip t,
 * a burst of b bytes at time `now` sets
 *
 *   cost = b t / (5/4 w)
 *   next = now - min(now - next, max(previous cost, t / 8)) + cost        now - next at least 0
 *
 * and while packets are in flight no burst leaves before `next` (path.c). So in a time d a path
 * sends at most one burst and 5/4 w (d + max(previous cost, t / 8)) / t bytes. The rate is 5/4 w /
 * t: a little faster than the window fills, so that the window limits in the end (Linux paces TCP
 * in congestion avoidance at 120 %, net.ipv4.tcp_pacing_ca_ratio; 5/4 is a shift). A caller that
 * comes late catches up by the last burst's cost or an eighth of a round trip, whichever is more.
 */
#ifndef HARP_PACER_H
#define HARP_PACER_H

#include <assert.h>
#include <stdint.h>

#include "base/sequence.h"

struct harp_pacer {
    uint64_t next_ns; /* no burst before this */
    uint64_t cost_ns; /* of the last burst */
};

/* A burst of `bytes` leaves now. `rtt_ns` is 0 while it is unknown: then nothing is delayed. */
static inline void harp_pacer_spend(struct harp_pacer *pacer, uint64_t now_ns, uint64_t bytes,
                                    uint64_t window_bytes, uint64_t rtt_ns)
{
    assert(window_bytes > 0);
    uint64_t leash_ns = harp_max(pacer->cost_ns, rtt_ns / 8);
    uint64_t late_ns = now_ns > pacer->next_ns ? harp_min(now_ns - pacer->next_ns, leash_ns) : 0;
    pacer->cost_ns = bytes * rtt_ns / (window_bytes + window_bytes / 4);
    pacer->next_ns = now_ns - late_ns + pacer->cost_ns;
}

#endif
