/* A virtual bottleneck: several connections, real sessions at both ends, virtual time.
 *
 *   sender 0 --host--+                                             +--host--> receiver 0
 *   sender 1 --host--+--> policer? lost? [ queue, marks, rate ] ---+--host--> receiver 1
 *      ...           |                                             |  ...
 *      ^ half a round trip, no queue: ACKs (or one, see `both`)     |
 *      +-----------------------------------------------------------+
 *
 * TCP flows may share the queue (cross.h); they have no loss but the bottleneck's, and
 * hosts that cost nothing but lose their cores together now and then.
 *
 * Receivers have a clock of their own, which runs faster or slower than the senders', and may be
 * set.
 *
 * Every sender has data without end; receivers post as fast as they receive. A host is a loop that
 * takes what has come, pays for each frame and for each turn, and then sends; while it is at it,
 * frames wait, as in a socket. Now and then a scheduler takes it off its core (hiccups).
 *
 * A run's result is measured over its second part, from `from_ns` on. Nothing reads a clock and all
 * chance comes from the seed, so a scene gives the same numbers everywhere.
 */
#ifndef BOTTLENECK_H
#define BOTTLENECK_H

#include <stdbool.h>
#include <stdint.h>

#include "cross.h"
#include "session/session.h"

#define BN_FLOWS 64
#define BN_CROSS 16

enum bn_ways { BN_BOTH_WAYS, BN_THERE, BN_BACK };

struct bn_host {
    uint32_t frame_ns;      /* cost of a frame, either way */
    uint32_t turn_ns;       /* cost of a turn of the loop */
    uint32_t hiccup_gap_ns; /* mean time between two hiccups; 0 for none */
    uint32_t hiccup_ns;     /* longest hiccup */
};

/* The bottleneck, each way that has one. */
struct bn_line {
    uint64_t rate_mbps;
    uint64_t buffer_bytes;
    uint64_t
        bucket_bytes;    /* that a shaper lets out at once after as long a rest; 0: a plain line */
    uint64_t mark_bytes; /* queue above which frames are marked; 0: never */
    uint64_t police_bytes; /* depth of the token bucket of a policer without queue; 0: a queue */
    uint64_t away_ns;      /* it does nothing for so long (a card that others use, a thread ... */
    uint64_t open_ns;      /* ... without its core), then works for so long, and so on */
    uint32_t loss;         /* random loss each way, permille */
};

/* The path gets longer. */
struct bn_longer {
    uint64_t at_ns;   /* from then on, ... */
    uint64_t by_ns;   /* ... by this, ... */
    enum bn_ways way; /* ... half of it each way, or all of it one way */
};

/* The receivers' clock beside the senders', and one time stamp that is wrong. */
struct bn_clock {
    int32_t fast_ppm;   /* it runs so much faster ... */
    uint64_t set_at_ns; /* ... and is set then, ... */
    int64_t set_by_ns;  /* ... by this; 0: never */
    uint64_t odd_at_ns; /* one ACK's time of arrival, from then on, is wrong: too early ... */
    uint64_t odd_ns;    /* ... by this, as one that was stamped before the clock was set */
};

/* Flows of TCP in the same queue. */
struct bn_cross {
    uint32_t flows; /* they begin 100 ms apart */
    bool supers;    /* with segmentation offload: what is sent at once is dropped at once */
    enum tcp_cc_kind kind;
    uint64_t from_ns, to_ns; /* when the first begins, and when all end; 0: never */
    uint64_t gap_ns;  /* mean time between two moments when a scheduler takes all of them ... */
    uint64_t away_ns; /* ... off their cores, for so long at the most; 0: never */
    bool back;        /* their data goes the other way, where ACKs wait behind it */
};

struct bn_scene {
    const char *name;
    uint32_t flows;
    struct bn_line line;
    bool supers;          /* frames of one length that leave a host together are one to it */
    uint64_t rtt_ns;      /* of the empty path, flow 0 */
    uint64_t rtt_last_ns; /* of the last flow, the others evenly between; 0: all alike */
    uint64_t start_ns;    /* when the first flow begins ... */
    uint64_t stagger_ns;  /* ... and from one's start to the next's */
    struct bn_longer longer;
    struct bn_clock clock;
    struct bn_host host;
    bool sockets; /* a turn takes what has come on one path, 64 frames at most, as from a socket;
                     and the host knows how long each has waited there */
    struct bn_cross cross;
    uint64_t
        rest_ns; /* senders have nothing to send for so long after each burst of 5.8 MB; 0: never */
    bool both;   /* receivers send as well, through a bottleneck of the same kind */
    bool ring;   /* data of every other flow goes the other way, through one of the same kind */
    bool shared_hosts; /* all senders on one core, all receivers on another */
    uint64_t from_ns, to_ns;
    const struct harp_cc_ops *cc; /* NULL: the default */
    uint64_t fixed_bytes;         /* window with harp_cc_fixed */
    uint16_t segment;             /* 0: 1408 */
    uint16_t paths;               /* of each connection, all through the bottleneck; 0: 1 */
    uint64_t seed;
};

struct bn_result {
    double use;   /* share of the rate (of a ring: of both ways') that arrived as new data, headers
                   * included */
    double jain;  /* fairness of the flows that run */
    double least; /* share of the slowest flow over the fair share */

    double cross;    /* share of the rate that the TCP flows got */
    double queue_ns; /* mean wait in the queue */
    double queue_p99_ns;
    double queue_max_ns;
    double again; /* share of DATA that had been sent before */
    double lost;  /* share of DATA that the bottleneck dropped */
    double said;  /* and that the senders count as lost */
    double found; /* and that they took for lost for a while */
    double died;  /* deaths of paths, since the beginning */
    double marked;
};

/* Run a scene. */
struct bn_result bn_measure(const struct bn_scene *scene);

#endif
