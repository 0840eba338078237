/* TCP flows that share a bottleneck with what is tested (bottleneck.h), as models of their senders.
 *
 *   CUBIC  RFC 9438, with slow start, fast convergence and the Reno-friendly window
 *   BBR    version 1 (Cardwell et al., ACM Queue 14(5), 2016): startup, drain, the cycle of eight
 *          gains, and PROBE_RTT every 10 s; it takes no notice of loss
 *
 * Each has data without end. What is modelled is a window, a pace and what ACKs and losses do to
 * them; a loss is known one round trip after it happened. No clock is read.
 */
#ifndef CROSS_H
#define CROSS_H

#include <stdbool.h>
#include <stdint.h>

#define CROSS_BYTES 1500 /* a packet on the wire */
#define CROSS_SUPER 44   /* packets that are sent at once, with segmentation offload, at most */
#define CROSS_ROUNDS 10  /* over which BBR's bandwidth is the greatest seen */

enum cross_kind { CROSS_CUBIC, CROSS_BBR };

enum cross_state { CROSS_STARTUP, CROSS_DRAIN, CROSS_PROBE_BW, CROSS_PROBE_RTT };

/* Goes with each packet. */
struct cross_packet {
    uint64_t sent_ns;
    uint64_t delivered; /* when it was sent: packets of this flow that had been acknowledged ... */
    uint64_t delivered_ns; /* ... and when the last of them was */
};

struct cross_flow {
    enum cross_kind kind;
    double window; /* packets */
    uint32_t in_flight;
    uint64_t delivered, delivered_ns;
    uint64_t next_ns; /* no packet before this */
    uint64_t smoothed_ns;
    /* cubic */
    double threshold, most, reno, k;
    uint64_t epoch_ns, recovery_ns;
    /* bbr */
    enum cross_state state;
    double rates[CROSS_ROUNDS]; /* packets a ns, greatest of each of the last rounds */
    double full_rate;
    uint32_t full_rounds;
    uint64_t round, round_delivered;
    uint64_t least_ns, least_at_ns; /* round trip */
    uint64_t cycle, cycle_at_ns, probe_until_ns;
};

void cross_begin(struct cross_flow *flow, enum cross_kind kind, uint64_t now_ns);

/* How many packets may go now; if only the pace is against it, next_ns says when. With `supers` as
 * many at once as Linux makes of a pace (tcp_tso_autosize: 1 ms of it, 64 KiB at most), or none. */
uint32_t cross_may_send(const struct cross_flow *flow, uint64_t now_ns, bool supers);

void cross_sent(struct cross_flow *flow, uint64_t now_ns, struct cross_packet *packet);
void cross_acked(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet);
void cross_lost(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet);

#endif
