/* TCP flows that share a bottleneck with what is tested (bottleneck.h): senders with data without
 * end whose congestion control is that of virtual/tcp_cc.h.
 *
 * Around it only what the bottleneck needs is modelled: each packet is acknowledged by itself, and
 * a loss is known one round trip after it happened. No clock is read.
 */
#ifndef CROSS_H
#define CROSS_H

#include <stdbool.h>
#include <stdint.h>

#include "virtual/tcp_cc.h"

#define CROSS_BYTES 1500 /* a packet on the wire */
#define CROSS_SUPER 44   /* packets that are sent at once, with segmentation offload, at most */

/* Goes with each packet. */
struct cross_packet {
    uint64_t sent_ns;
    uint64_t delivered; /* when it was sent: packets of this flow that had been acknowledged ... */
    uint64_t delivered_ns; /* ... and when the last of them was */
};

struct cross_flow {
    struct tcp_cc cc;
    uint32_t in_flight;
    uint32_t lost; /* packets that the next ACK reports */
    uint64_t sent, delivered, delivered_ns;
    uint64_t next_ns;     /* no packet before this */
    uint64_t smoothed_ns; /* round trip */
    uint64_t recovery_ns; /* what was sent before is of the loss that the window was reduced for */
};

void cross_begin(struct cross_flow *flow, enum tcp_cc_kind kind, uint64_t now_ns);

/* How many packets may go now; if only the pace is against it, next_ns says when. With `supers` as
 * many at once as Linux makes of a pace (tcp_tso_autosize: 1 ms of it, 64 KiB at most), or none. */
uint32_t cross_may_send(const struct cross_flow *flow, uint64_t now_ns, bool supers);

void cross_sent(struct cross_flow *flow, uint64_t now_ns, struct cross_packet *packet);
void cross_acked(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet);
void cross_lost(struct cross_flow *flow, uint64_t now_ns, const struct cross_packet *packet);

#endif
