/* Congestion control of one path, behind a const table of functions.
 *
 * A controller receives its path's acknowledgements and losses and returns a window: the bytes that
 * may be in flight. It knows nothing of packets, messages, clocks or other paths. Its state lies in
 * a fixed space inside the path, so switching controllers needs no allocation. It calls cnet/base
 * alone.
 *
 *   on_ack      once per ACK that acknowledges something new: delay of the fabric and of the far
 *               host apart, and the number of congestion marks
 *   on_loss     once per batch of packets that RACK gave up
 *   on_timeout  the retransmission timeout expired
 *   on_spurious every packet of the last loss has arrived after all: undo the reduction
 *
 * Three controllers: harp_cc_swift (the default; swift.h lists its laws, constants.h its
 * constants), harp_cc_fixed (a constant window, for tests and for networks that need none) and
 * harp_cc_none (the port holds back).
 */
#ifndef HARP_CC_H
#define HARP_CC_H

#include <stdbool.h>
#include <stdint.h>

/* cdef: begin */
struct harp_cc_config {
    uint64_t initial_bytes;  /* first window; the whole of it with `fixed` */
    uint64_t min_bytes;      /* least window; below a segment it becomes pauses */
    uint64_t max_bytes;      /* greatest window */
    uint32_t segment_bytes;  /* one full frame */
    uint64_t target_ns;      /* swift: T, the target queue of a flow of 25 Gb/s */
    uint64_t host_target_ns; /* swift: the same for the delay in the far host */
};
/* cdef: end */

struct harp_cc_ack {
    uint64_t now_ns;
    /* The round trip in its parts; fabric_ns is 0 if this ACK brought no sample. */
    uint64_t fabric_ns;  /* round trip; at most 4 T of the queue that the ACK met is left out */
    uint64_t forward_ns; /* the same without any queue that the ACK met */
    uint64_t reverse_ns; /* the part of that queue that fabric_ns leaves out */
    uint64_t host_ns;    /* the far host */
    bool two_way;        /* data of the peer has come within a round trip */
    uint64_t least_ns;   /* least fabric delay known */
    uint64_t bytes;      /* newly acknowledged */
    uint64_t marked;     /* packets with a congestion mark, newly reported */
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
    bool follows_path; /* a window in a round trip is the path's rate: it is paced by it */
};

/* A window that never changes. */
extern const struct harp_cc_ops harp_cc_fixed;

/* The same as a mere bound of memory, for ports that hold back by themselves: kernel TCP, memory.
 */
extern const struct harp_cc_ops harp_cc_none;

/* Delay-based, with congestion marks; the default. */
extern const struct harp_cc_ops harp_cc_swift;

/* cdef: begin */
/* The controller of that name, "swift" or "fixed"; NULL if there is none. */
const struct harp_cc_ops *harp_cc_by_name(const char *name);
/* cdef: end */

#endif
