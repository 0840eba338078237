/* harp_cc_swift (cc.h): state and calls of its parts. One law a file, one struct a law.
 *
 *   swift.c          the delay law, doubling at first, and the table of functions
 *   swift_drain.c    drains: all flows empty the queue together
 *   swift_base.c     delay of the empty path; whether foreign flows hold the queue
 *   swift_compete.c  the law beside flows that fill the buffer
 *   swift_loss.c     loss by chance and by policers
 *   swift_depth.c    buffers that are shorter than the target queue
 *   swift_marks.c    congestion marks shorten the target queue
 *   swift_window.c   bounds of a window, target queue of a rate
 *
 * Each file calls only files below it in this list. constants.h has all constants.
 */
#ifndef HARP_CC_SWIFT_H
#define HARP_CC_SWIFT_H

#include <stdbool.h>

#include "cc/cc.h"
#include "cc/constants.h"

/* Windows below are in bytes times SWIFT_SCALE; the _ns that end in _at_ns, until_ns and the like
 * are points in time. 0 means "none", "not yet" or "not known" where a comment does not differ. */

/* The delay law. */
struct swift_delay {
    uint64_t fabric_window, host_window;   /* the smaller one counts */
    uint64_t doubling_limit;               /* window at which doubling ends; 0: it has ended */
    uint64_t samples_above;                /* in a row, above the target */
    uint64_t rtt_ns;                       /* of the latest sample, fabric and far host */
    uint64_t reverse_ns;                   /* queue that ACKs meet, smoothed */
    uint64_t latest_ns, latest_reverse_ns; /* of the latest sample that counts for jitter */
    uint64_t jitter_x16_ns;
};

/* Samples of this round, and the means of the last whole one. "Forward" is a delay without
 * any queue that ACKs met. */
struct swift_round {
    uint64_t end_ns;
    uint64_t fabric_sum_ns, forward_sum_ns, host_sum_ns, samples;
    uint64_t acked_bytes, lost_bytes, marked_packets;
    uint64_t least_ns; /* fabric delay */
    uint64_t mean_ns, mean_forward_ns;
    bool window_used; /* the window was what limited */
};

/* Congestion marks. */
struct swift_marks {
    uint32_t alpha_x65536; /* share of marked bytes, smoothed */
};

/* Loss that no buffer explains. */
struct swift_loss {
    uint64_t judge_ns; /* no judgement before this; 0: the next ACK sets it */
    uint64_t acked_bytes, lost_bytes;
    uint64_t reduced_ns;    /* when a judgement last made the window smaller */
    uint64_t window_before; /* that reduction, or a timeout; 0: nothing to undo */
    uint64_t cuts;          /* reductions since the last trial ... */
    uint64_t cuts_to_trial; /* ... and until the next one */
    uint64_t trial_window;  /* 0: no trial is under way */
    uint64_t step_x1024;    /* growth allowed until the next judgement ... */
    uint64_t window_limit;  /* ... which ends here; UINT64_MAX: a queue limits */
    uint32_t chance_x65536; /* share that is lost whatever the window is */
    bool doubled_before;    /* the timeout that ended it: without a limit */
};

/* The part of the target queue that fits into the buffer. */
struct swift_depth {
    uint32_t share_x65536;
    uint32_t share_before_x65536; /* the last cut; 0: nothing to undo */
    uint64_t cut_ns;              /* when a loss last cut it, or the window of a competing flow */
    uint64_t grown_ns;            /* up to when time has made it larger */
    uint64_t counted_bytes, counted_lost_bytes; /* since losses were last counted ... */
    bool was_deeper;                            /* ... and meanwhile it was not the least depth */
    uint32_t chance_x65536;                     /* share lost by chance; 0: not known */
};

/* Drains, and the least delays seen around them. */
struct swift_drain {
    uint64_t least_ns, least_at_ns; /* delay, this period */
    uint64_t previous_least_ns;     /* of the period before, when the drain began */
    uint64_t least_forward_ns, previous_least_forward_ns;
    uint64_t end_ns;          /* of the drain, or of its echo */
    uint64_t patience_rounds; /* round trips from one drain to the next, at least */
    uint64_t window;          /* during the drain; 0: none */
    uint64_t base_ns;         /* delay of the empty path when the last drain began */
};

/* The queue that ACKs meet, as far as delays count it. */
struct swift_acks {
    uint64_t passed_at_ns; /* when ACKs last met none */
    uint64_t longest_ns;   /* of late */
    uint64_t moved_at_ns;  /* when it was last shorter than that by a fourth */
};

/* Delay of the empty path, and what drains that missed it say. */
struct swift_base {
    uint64_t delay_ns;
    uint64_t missed_drains, missed_since_ns; /* in a row */
    uint64_t acked_bytes, lost_bytes;        /* since then */
    uint64_t held_score, held_since_ns;      /* how much says that others hold the queue */
    uint64_t floor_ns;                       /* least delay that those drains reached */
    uint64_t same_floor_drains, same_floor_since_ns;
};

/* A queue that is longer than flows of this kind want it. */
struct swift_standing {
    uint64_t long_ns;            /* time with such a queue, less time with a shorter one */
    uint64_t refills;            /* times it was empty meanwhile, and long again */
    bool was_empty, app_limited; /* since the last long round; nothing waited to be sent */
    uint64_t rounds, since_ns;   /* in a row with a mean above the target and 80 T */
    uint64_t least_ns, most_ns;  /* of those rounds' least delays */
};

/* Beside flows that fill the buffer. */
struct swift_compete {
    bool active;
    uint64_t doubted_drains; /* left that may show that nobody else fills the buffer */
    uint64_t doubt_factor;   /* how many times as long signs of others must last */
    uint64_t left_at_ns;     /* when competing last ended */
    uint64_t stay_factor;    /* times SWIFT_REACHED_DRAINS_MIN: drains until it ends ... */
    uint64_t reached_drains; /* ... and those in a row that reached the base so far */
    uint64_t entry_delay_ns, entry_window;
    uint64_t longest_queue_ns; /* since then, fading */
    uint64_t threshold;        /* window up to which it grows by quarters */
    uint64_t w_max, w_est;     /* CUBIC's (RFC 9438), windows */
    uint64_t epoch_ns, k_ms;   /* and its epoch's begin and K */
    uint64_t widest_window;    /* since a drain last reached the base */
};

/* The controller: one struct a law. */
struct harp_swift {
    struct swift_delay delay;
    struct swift_round round;
    struct swift_marks marks;
    struct swift_loss loss;
    struct swift_depth depth;
    struct swift_drain drain;
    struct swift_acks acks;
    struct swift_base base;
    struct swift_standing standing;
    struct swift_compete compete;
};

_Static_assert(sizeof(struct harp_swift) <= sizeof(((struct harp_cc *)0)->state), "state fits");

static inline struct harp_swift *harp_swift_of(struct harp_cc *cc)
{
    return (struct harp_swift *)cc->state;
}

/* A round trip, ACKs' queue included. */
static inline uint64_t harp_swift_round_ns(const struct harp_swift *swift)
{
    return swift->delay.rtt_ns + swift->delay.reverse_ns;
}

/* window * of / whole, divided first, in 2^-16: nothing overflows, and a window of a few bytes
 * still has parts. */
static inline uint64_t harp_swift_part(uint64_t window, uint64_t of, uint64_t whole)
{
    return window * (of * 65536 / whole) / 65536;
}

/* Keep what a reduction of the window changes, since it may have to be undone. */
static inline void harp_swift_remember(struct harp_swift *swift, bool doubles)
{
    swift->loss.window_before = swift->delay.fabric_window;
    swift->loss.doubled_before = doubles;
}

/* ---- swift_window.c ---- */

/* Target queue of a flow of this rate. */
uint64_t harp_swift_content_ns(uint64_t target_ns, uint64_t window, uint64_t rtt_ns);
/* The window within its bounds. */
uint64_t harp_swift_bounded(const struct harp_cc *cc, uint64_t window);
uint64_t harp_swift_square_root(uint64_t x);

/* ---- swift_marks.c ---- */

/* End of a round: smooth the share of marks. */
void harp_swift_heed_marks(struct harp_cc *cc);
bool harp_swift_marks_arrive(const struct harp_swift *swift);
/* Share of a target queue that marks leave. */
uint64_t harp_swift_priced_queue_ns(const struct harp_cc *cc, uint64_t queue_ns);

/* ---- swift_depth.c ---- */

/* End of a round with this queue: adapt the share of the target queue that fits. */
void harp_swift_fit_buffer(struct harp_cc *cc, uint64_t now_ns, uint64_t queue_ns);

/* ---- swift_loss.c ---- */

/* Judge the share lost, once it is heavy or enough was acknowledged to say that it is not. */
void harp_swift_judge_loss(struct harp_cc *cc, uint64_t now_ns);

/* ---- swift_compete.c ---- */

/* A foreign flow fills the buffer. */
void harp_swift_compete(struct harp_cc *cc, uint64_t now_ns);
/* End of a round while competing. */
void harp_swift_compete_round(struct harp_cc *cc, uint64_t now_ns, uint64_t queue_ns);

/* ---- swift_base.c ---- */

/* Delay of the empty path, with this ACK's sample. */
uint64_t harp_swift_base_ns(struct harp_cc *cc, const struct harp_cc_ack *ack);
/* Whether HARP flows make the queue that ACKs meet: it was short of late. */
bool harp_swift_acks_pass(const struct harp_swift *swift, uint64_t now_ns);
/* Whether it is a queue, and not a longer way back: it changed of late. */
bool harp_swift_acks_queue_moves(const struct harp_swift *swift, uint64_t now_ns);
/* A drain is over, and its echo has passed. */
void harp_swift_learn_from_drain(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns);
/* A round is over; a mean delay above `most_ns` is one that no HARP flow aims at. */
void harp_swift_learn_from_round(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns,
                                 uint64_t most_ns);

/* ---- swift_drain.c ---- */

/* Note the least delays; one period after the last one, drain. Returns whether this sample is to be
 * left out: this flow's drain is under way, or its echo passes. */
bool harp_swift_drain(struct harp_cc *cc, const struct harp_cc_ack *ack, uint64_t base_ns);

#endif
