/* Spreads a path's bursts over the round trip.
 *
 * A window of w bytes and a round trip of t would be sent at the rate w / t. The pacer lets a burst
 * go whenever the time for it has come, and puts the next one off by the time that this one takes
 * at 5/4 of that rate: a little faster than the window fills, so that the window is what limits in
 * the end (the factor is that of Linux' TCP pacing in congestion avoidance,
 * net.ipv4.tcp_pacing_ca_ratio, 120 %, rounded to a shift). A caller that comes late may catch up
 * by one burst or an eighth of a round trip, whichever is more.
 */
#ifndef HARP_PACER_H
#define HARP_PACER_H

#include <stdint.h>

struct harp_pacer {
    uint64_t next_ns; /* no burst before this */
    uint64_t cost_ns; /* what the last burst put the next one off by */
};

/* A burst of `bytes` goes out now. `rtt_ns` is 0 while it is unknown: then nothing is put off. */
void harp_pacer_spend(struct harp_pacer *pacer, uint64_t now_ns, uint64_t bytes,
                      uint64_t window_bytes, uint64_t rtt_ns);

#endif
