/* Congestion control of one path, behind a const table of functions.
 *
 * A controller sees acknowledgements and losses of its path and answers with a window: how many
 * bytes may be in flight. It knows nothing of packets, messages or other paths. Its state lies in a
 * fixed space inside the path, so that switching controllers needs no allocation.
 *
 *   on_ack      once per ACK that settled something, with delays apart: fabric and far host
 *   on_loss     once per batch of packets given up by RACK; `flying` is what is left
 *   on_timeout  the retransmission timeout went off
 *   on_spurious every packet of the last loss has arrived after all: take the reduction back
 *
 * Shipped: harp_cc_fixed (a constant window, for tests and for networks that need none) and
 * harp_cc_swift (the default).
 */
#ifndef HARP_CC_H
#define HARP_CC_H

#include <stdint.h>

struct harp_cc_config {
    uint64_t initial_bytes; /* first window; the whole of it with `fixed` */
    uint64_t min_bytes;     /* a window is never below this */
    uint64_t max_bytes;     /* nor above this */
    uint32_t segment_bytes; /* one full frame */
    uint64_t base_ns; /* swift: round trip of the empty path where it is known; 0: the least seen */
    uint64_t target_ns;      /* swift: queueing delay to aim at, on top of the empty path's */
    uint64_t host_target_ns; /* swift: delay in the far host to aim at */
};

struct harp_cc_ack {
    uint64_t now_ns;
    uint64_t
        fabric_ns; /* round trip without the far host's part; 0 if this ACK brought no sample */
    uint64_t host_ns;
    uint64_t least_ns; /* least fabric delay known */
    uint64_t bytes;    /* newly acknowledged */
    uint64_t flying;   /* in flight before this ACK */
};

struct harp_cc_loss {
    uint64_t now_ns;
    uint64_t bytes;
};

struct harp_cc {
    const struct harp_cc_ops *ops;
    struct harp_cc_config config;
    uint64_t state[16]; /* the controller's own */
};

struct harp_cc_ops {
    const char *name;
    void (*init)(struct harp_cc *cc);
    void (*on_ack)(struct harp_cc *cc, const struct harp_cc_ack *ack);
    void (*on_loss)(struct harp_cc *cc, const struct harp_cc_loss *loss);
    void (*on_timeout)(struct harp_cc *cc, uint64_t now_ns);
    void (*on_spurious)(struct harp_cc *cc);
    uint64_t (*window_bytes)(const struct harp_cc *cc);
};

/* A window that never changes. */
extern const struct harp_cc_ops harp_cc_fixed;

/* Delay-based, after Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in
 * the Datacenter", SIGCOMM 2020, in integers, with these parts of it:
 *
 * - Two windows, one steered by the fabric's delay and one by the far host's; the smaller counts.
 * - Below its target a window grows by one segment a round trip; above, it shrinks at most once a
 * round trip, by 0.8 (delay - target) / delay, by half at most.
 * - Target scaling: flows with a small window get a higher target, by up to the base target again,
 *   falling as 1 / sqrt(window); with many flows queues grow as sqrt(flows) and nobody starves.
 * - A first phase doubles the window each round trip until the delay passes the target (Swift
 * leaves this to the host's initial window).
 *
 * Swift knows the empty path's delay from its hops. Here it is `base_ns` where the operator knows
 * it, and else the least delay that this path has seen. With the latter, a flow that only ever saw
 * a full queue takes the queue for part of the path and gets more than its share from those that
 * saw it empty; that is why a host that knows its network should say so.
 *
 * And one that differs. Swift halves on every loss; a cloud drops packets at random and polices
 * without a queue. So losses are counted over a round trip: up to 1 in 32 (HARP_SWIFT_LOSS) they
 * change nothing as long as the delay does not grow; above, the window shrinks by the share that
 * was lost, which settles a policed flow near its policer's rate. */
extern const struct harp_cc_ops harp_cc_swift;

#define HARP_SWIFT_LOSS 32 /* one in so many may be lost without a reduction */

#endif
