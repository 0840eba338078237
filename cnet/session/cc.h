/* Congestion control of one path, behind a const table of functions.
 *
 * A controller sees acknowledgements and losses of its path and answers with a window: how many
 * bytes may be in flight. It knows nothing of packets, messages or other paths. Its state lies in a
 * fixed space inside the path, so that switching controllers needs no allocation.
 *
 *   on_ack      once per ACK that settled something, with delays apart: fabric and far host; and
 *               with how many congestion marks it brought
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
    uint64_t
        fabric_ns; /* round trip without the far host's part; 0 if this ACK brought no sample */
    uint64_t host_ns;
    uint64_t least_ns; /* least fabric delay known */
    uint64_t bytes;    /* newly acknowledged */
    uint64_t marked;   /* packets that came with a congestion mark, newly reported */
    uint64_t flying;   /* in flight before this ACK */
};

struct harp_cc_loss {
    uint64_t now_ns;
    uint64_t bytes;
};

struct harp_cc {
    const struct harp_cc_ops *ops;
    struct harp_cc_config config;
    uint64_t state[32]; /* the controller's own */
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

/* Delay-based, and obedient to congestion marks; the default.
 *
 * In the family of Swift (Kumar et al., "Swift: Delay is Simple and Effective for Congestion
 * Control in the Datacenter", SIGCOMM 2020): fabric and host delay apart, each with a window of its
 * own, the smaller of which counts; a target that is higher for slower flows; windows below one
 * segment, which the pacer turns into pauses of at most 4 ms. Once a round trip, delay being the
 * mean of that round's samples:
 *
 *   target = base + min(T sqrt(25 Gb/s / rate), 80 T) + min(6 jitter, 640 T)  rate = window / delay
 *   window += window (target - delay) / (2 delay), by a half of it at most, either way
 *
 * T is config.target_ns (25 us), base the least delay known, jitter the smoothed difference between
 * one sample and the next. A window is never below one segment a round trip, or every 4 ms. So half
 * of the way to the target is made in a round, whatever the round trip is. The host's window obeys
 * the same law with T = config.host_target_ns, base 0, no jitter.
 *
 * Why the square root, and over the whole range (Swift adds its scaled part for windows below 100
 * segments only): flows that see the same queue are content with the same rate, so shares depend
 * neither on who came first nor on round trips, and n flows settle at a queue of
 *
 *   T sqrt(n 25 Gb/s / capacity)    1 at 1 Gb/s: 125 us; 16 there: 500 us; 16 at 100 Gb/s: 50 us
 *
 * and of 80 T (2 ms) more than they believe to be the empty path's delay, at the most.
 *
 * Jitter is what hosts add: turns of their loops, joined segments, schedulers. A delay that jumps
 * about is not a queue that a smaller window would shorten, so it is added to the target. Where a
 * path is served in turns (a card's thread that shares its core, in crowded virtual machines), it
 * jumps by the milliseconds between two turns, and a small window would leave most of a turn empty.
 *
 * Drains. The least delay is no help to a flow that only ever saw a full queue: it takes the queue
 * for part of the path and gets more than its share. So all flows empty the queue together now and
 * then, as BBR does to learn its round trip (Cardwell et al., ACM Queue 14(5), 2016): one period
 * after the lowest delay of the last period was seen, the window shrinks for about a round trip to
 * half of what the empty path would hold, and then is what it was. Who drains alone is seen by the
 * others, whose periods start anew with his; so after a few periods all drain at once. A period is
 * at least 8 round trips, twice as many each time that nothing new was learnt, 64 in the end, and
 * again 8 when the least delay fell by a sixteenth; rounded up to a power of two in ns, so that
 * different round trips meet. Where the operator knows base_ns, it is used instead of the least
 * seen.
 *
 * Loss is judged over 4 round trips and 128 segments. Up to 1 in 32 it changes nothing: clouds drop
 * at random. Above, the window loses the share that was lost and a sixteenth, and grows from there
 * to the next judgement by a 64th (more for slower flows), then by 5/4 of that each time that less
 * than 1 in 64 was lost, until a queue is seen again. That settles a policed flow, which has no
 * queue to steer by, at its policer's rate with 1 to 3 % lost. (Swift halves on every loss.)
 *
 * Marks. Where they arrive, a round with marks ends with window -= window alpha / 2, alpha being
 * the share of marked packets smoothed by 1/16, and growth is one segment a round until alpha is
 * below 1/64 (DCTCP: Alizadeh et al., SIGCOMM 2010; RFC 8257). The delay law stays in force, so
 * nobody has to choose between two controllers and a path of which only a part marks is safe.
 *
 * At first the window doubles each round trip, until 4 samples in a row are above the target, a
 * mark or a judgement; after a timeout likewise from one segment to half of what was. */
extern const struct harp_cc_ops harp_cc_swift;

#define HARP_SWIFT_MOST 80     /* a queue is never aimed at that is longer than so many T */
#define HARP_SWIFT_JITTER 6    /* jitters that a target is raised by ... */
#define HARP_SWIFT_JITTERY 640 /* ... and so many T, at the most */
#define HARP_SWIFT_PERIOD 64   /* round trips between two drains, once nothing is learnt any more */
#define HARP_SWIFT_ABOVE 4     /* samples above the target that end doubling */
#define HARP_SWIFT_LOSS 32     /* one in so many may be lost without a reduction */
#define HARP_SWIFT_JUDGED 4    /* round trips over which loss is judged, at least */

/* cdef: begin */
/* The controller of that name, "swift" or "fixed"; NULL if there is none. */
const struct harp_cc_ops *harp_cc_by_name(const char *name);
/* cdef: end */

#endif
