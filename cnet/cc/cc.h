/* Congestion control of one path, behind a const table of functions.
 *
 * A controller sees acknowledgements and losses of its path and answers with a window: how many
 * bytes may be in flight. It knows nothing of packets, messages or other paths. Its state lies in a
 * fixed space inside the path, so that switching controllers needs no allocation.
 *
 *   on_ack      once per ACK that settled something, with delays apart: fabric and far host; and
 *               with how many congestion marks it brought
 *   on_loss     once per batch of packets given up by RACK
 *   on_timeout  the retransmission timeout went off
 *   on_spurious every packet of the last loss has arrived after all: take the reduction back
 *
 * Shipped: harp_cc_fixed (a constant window, for tests and for networks that need none) and
 * harp_cc_swift (the default).
 */
#ifndef HARP_CC_H
#define HARP_CC_H

#include <stdbool.h>
#include <stdint.h>

/* cdef: begin */
struct harp_cc_config {
    uint64_t initial_bytes; /* first window; the whole of it with `fixed` */
    uint64_t min_bytes;     /* a window is never below this; less than a segment: pauses */
    uint64_t max_bytes;     /* nor above this */
    uint32_t segment_bytes; /* one full frame */
    uint64_t base_ns; /* swift: round trip of the empty path where it is known; 0: the least seen */
    uint64_t target_ns;      /* swift: queueing delay to aim at, for a flow of 25 Gb/s */
    uint64_t host_target_ns; /* swift: delay in the far host to aim at, likewise */
};
/* cdef: end */

struct harp_cc_ack {
    uint64_t now_ns;
    /* The round trip in its parts; fabric_ns is 0 if this ACK brought no sample. */
    uint64_t fabric_ns;       /* both ways, with the queue of ours alone */
    uint64_t forward_ns;      /* both ways, with no queue that the ACK met */
    uint64_t reverse_ns;      /* that queue, as far as fabric_ns leaves it out */
    uint64_t host_ns;         /* the far host */
    bool two_way;             /* data of the peer has come within a round trip */
    uint64_t least_ns;        /* least fabric delay known */
    uint64_t bytes;           /* newly acknowledged */
    uint64_t marked;          /* packets that came with a congestion mark, newly reported */
    uint64_t bytes_in_flight; /* before this ACK (RFC 9002, B.2) */
    bool app_limited;         /* nothing waits to be sent (RFC 9002, 7.8) */
};

struct harp_cc_loss {
    uint64_t now_ns;
    uint64_t bytes;
    uint64_t sent_ns; /* when the youngest of them was sent */
};

struct harp_cc {
    const struct harp_cc_ops *ops;
    struct harp_cc_config config;
    uint64_t state[83]; /* the controller's own */
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

/* Delay-based, and obedient to congestion marks; the default. Its laws stand where they are
 * written: how delay steers the window, in swift.c; how flows empty the queue together, and what
 * they learn from it of the empty path, in swift_drain.c and swift_base.c; which loss is
 * congestion, in swift_loss.c and swift_depth.c; what we do beside flows that fill the
 * buffer, in swift_compete.c. */
extern const struct harp_cc_ops harp_cc_swift;

/* cdef: begin */
/* The controller of that name, "swift" or "fixed"; NULL if there is none. */
const struct harp_cc_ops *harp_cc_by_name(const char *name);
/* cdef: end */

#endif
