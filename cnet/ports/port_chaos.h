/* A port that injects faults (loss, reordering, delay): a seeded wrapper around any other port.
 *
 *     slot --> fate of the datagram --> held until it is due --> inner port
 *                |                         ^
 *                |  drop, burst            |  delay + jitter, reorder, rate with a queue
 *                |  truncate, corrupt      |
 *                +--> duplicate -----------+
 *
 * - **At the sending side, per datagram**, whatever the inner port joins later. Arrivals pass
 *   through untouched; wrap the other end's port for faults on the way back.
 * - **Deterministic.** Every datagram's fate is drawn from the seed, in the order in which slots
 *   were written: same seed, same datagrams, same fates. When delayed ones leave depends on the
 *   clock that the engine passes in, and so does what a rate lets through.
 * - **Cheap where it can be.** With drop and burst alone, those that live are written into the
 *   inner port's memory directly; anything else costs one copy more.
 * - **Memory** is taken at open. While all of it is held, there is no room, as with a full card.
 *
 * A frame that lies in the engine's pool cannot be sent through it (send_frame is NULL): its bytes
 * would have to be changed while they are the session's.
 *
 * Owner: the engine that owns the inner port. Notices, arrivals, hops and descriptors are the inner
 * port's; so are the counters, but for `dropped`, which includes what was lost here.
 */
#ifndef HARP_PORT_CHAOS_H
#define HARP_PORT_CHAOS_H

#include "ports/port.h"

/* Faults. Probabilities are in parts per million of datagrams; zero is never. */
struct harp_chaos {
    uint64_t seed;
    uint64_t drop_ppm;
    uint64_t burst_ppm;        /* a datagram is lost, and with it the following: */
    uint64_t burst_length;     /* datagrams of a burst; 0: 8 */
    uint64_t delay_ns;         /* of every datagram */
    uint64_t jitter_ns;        /* and evenly between 0 and this on top, so that order is lost */
    uint64_t reorder_ppm;      /* a datagram stays behind */
    uint64_t reorder_delay_ns; /* by so much; 0: 200 us */
    uint64_t duplicate_ppm;    /* it comes twice */
    uint64_t truncate_ppm;     /* only its beginning comes, of any length but none and all */
    uint64_t corrupt_ppm;      /* one of its bits is turned over */
    uint64_t rate_bps;         /* of UDP payload; 0: as fast as the inner port */
    uint64_t bucket_bytes;     /* rate without a queue: what passes at once; 0: 128 KiB */
    uint64_t queue_bytes;      /* rate with a queue: what may wait; more is dropped. 0: no queue */
};

struct harp_chaos_counters {
    uint64_t dropped; /* by drop and burst */
    uint64_t delayed; /* held, for whatever reason */
    uint64_t reordered;
    uint64_t duplicated;
    uint64_t truncated;
    uint64_t corrupted;
    uint64_t limited; /* lost to the rate */
};

/* Read "drop=1%,delay=1ms,reorder=0.1%,seed=7". Keys are the names above without their units:
 *
 *     drop burst reorder duplicate truncate corrupt    1% or 500ppm
 *     delay jitter reorder_delay                       ns us ms s
 *     rate                                             bit kbit Mbit Gbit (a second)
 *     bucket queue                                     bytes, or KiB MiB
 *     burst_length seed                                a number
 *
 * Returns 0, or -EINVAL and one sentence in `why` (HARP_WHY_BYTES). "" is no faults. */
int harp_chaos_parse(const char *text, struct harp_chaos *faults, char *why);

/* Wrap `inner`, which is closed with the new port; if this fails it stays the caller's. Returns 0,
 * or -errno and one sentence in `why`. */
int harp_port_chaos_open(struct harp_port **port, struct harp_port *inner,
                         const struct harp_chaos *faults, char *why);

const struct harp_chaos_counters *harp_port_chaos_count(const struct harp_port *port);

#endif
