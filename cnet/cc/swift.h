/* The parts of harp_cc_swift (cc.h), one law a file, and the state that they share.
 *
 *   swift.c          the delay law, doubling at first, and the table of functions
 *   swift_marks.c    what marks make of the aimed queue
 *   swift_drain.c    drains, by which all flows empty the queue together
 *   swift_base.c     what the empty path takes, and whether others hold the queue
 *   swift_loss.c     what share of loss is taken for congestion
 *   swift_depth.c    buffers that are too short
 *   swift_compete.c  beside flows that fill the buffer
 *   swift_window.c   bounds of a window, and the queue with which a flow is content
 */
#ifndef HARP_CC_SWIFT_H
#define HARP_CC_SWIFT_H

#include <stdbool.h>

#include "cc/cc.h"

#define HARP_SWIFT_SCALE 1024 /* windows are in bytes times this, so that slow growth counts */
#define HARP_SWIFT_STEP_MOST (HARP_SWIFT_SCALE / 4)
#define HARP_SWIFT_QUEUE_MOST 80    /* a queue is never aimed at that is longer than so many T */
#define HARP_SWIFT_PATIENCE_LEAST 8 /* round trips from one drain to the next, at least */
#define HARP_SWIFT_TRIAL_CUTS_LEAST                                                                \
    4 /* reductions for loss from one trial to the next, at least                                  \
       */

struct harp_swift {
    uint64_t fabric; /* windows, scaled */
    uint64_t host;
    uint64_t before; /* the fabric window before the last reduction for loss; 0 if none to undo */
    uint64_t stop;   /* the window, scaled, at which doubling ends; 0 once it has ended */
    /* this round */
    uint64_t round_ns; /* when it ends */
    uint64_t fabric_sum_ns, way_sum_ns, host_sum_ns, samples;
    uint64_t acked, marked; /* bytes, packets */
    uint64_t used;          /* whether the window was what limited */
    uint64_t above;         /* samples in a row above the target */
    /* across rounds */
    uint64_t rtt_ns;                       /* of the latest sample, fabric and far host */
    uint64_t reverse_ns;                   /* and the queue that ACKs meet, smoothed */
    uint64_t latest_ns, latest_reverse_ns; /* of the latest sample that counts for jitter */
    uint64_t jitter_x16_ns;
    uint32_t alpha_x65536; /* share of marked packets, smoothed */
    /* loss */
    uint64_t judge_ns; /* no judgement before this; 0: to be set by the next ACK */
    uint64_t came, lost;
    uint64_t reduced_ns;    /* when a judgement last made the window smaller */
    uint64_t cuts;          /* how often one did since the last trial ... */
    uint64_t cuts_to_trial; /* ... and how often until the next one */
    uint64_t trial;         /* window of a trial, scaled; 0 if none is under way */
    uint32_t chance_x65536; /* share that is lost whatever the window */
    /* depth */
    uint64_t round_lost;          /* bytes, this round */
    uint32_t depth_x65536;        /* share of the queue that it would be content with which fits */
    uint32_t depth_before_x65536; /* and what it was before it was last made smaller */
    uint64_t fitted_ns;           /* up to when time has made it larger */
    uint64_t counted, counted_lost; /* bytes sent and lost since losses were last counted, ... */
    uint64_t deeper;                /* ... whether the depth has not been the least meanwhile ... */
    uint32_t depth_chance_x65536;   /* ... and the share lost by chance; 0: not known */
    uint64_t step_x1024; /* by how much the window may grow until the next judgement ... */
    uint64_t roof;       /* ... which is up to here */
    /* drain */
    uint64_t low_ns, low_at_ns;             /* least delay of the last period, and when */
    uint64_t period_low_ns;                 /* and of the one before it, as the drain began */
    uint64_t low_way_ns, period_low_way_ns; /* the same without any queue of ACKs */
    uint64_t drain_ns;                      /* draining, or its echo is passing, until then */
    uint64_t patience;                      /* round trips from one drain to the next, at least */
    uint64_t drained;                       /* window during the drain; 0 if none is */
    /* what drains have taught */
    uint64_t base_ns;                  /* delay of the empty path */
    uint64_t drain_base_ns;            /* what that was when the last drain began */
    uint64_t mean_ns;                  /* delay of the last whole round, ... */
    uint64_t mean_way_ns;              /* ... and without any queue of ACKs */
    uint64_t acks_passed_ns;           /* when ACKs last met a short queue, ... */
    uint64_t acks_most_ns;             /* ... the longest of late, ... */
    uint64_t acks_moved_ns;            /* ... and one that was shorter than that by a fourth */
    uint64_t missed;                   /* drains in a row that did not reach the base */
    uint64_t missed_at_ns;             /* the first of them */
    uint64_t held;                     /* how much they say that others hold the queue */
    uint64_t held_at_ns;               /* since when they do */
    uint64_t missed_came, missed_lost; /* bytes since then */
    uint64_t floor_ns;                 /* least of what they reached, ... */
    uint64_t same, same_at_ns;         /* ... how often they did, and since when */
    uint64_t long_ns; /* time with a queue longer than we want it, less time with a shorter one */
    uint64_t emptied; /* meanwhile: whether it has just been empty, ... */
    uint64_t app_limited;  /* ... or nothing waited to be sent, ... */
    uint64_t refills;      /* ... and how often it was empty all the same, and then long again */
    uint64_t stuck;        /* rounds in a row with a queue that nobody wants */
    uint64_t stuck_at_ns;  /* when the first of them ended */
    uint64_t round_low_ns; /* least delay of this round */
    uint64_t stuck_ns[2];  /* least and greatest of those of these rounds */
    /* beside flows that fill the buffer */
    uint64_t competes;
    uint64_t doubted;    /* drains left that may show that nobody else fills the buffer */
    uint64_t doubt;      /* how many times as long signs of others must last */
    uint64_t left_ns;    /* when we last ceased to */
    uint64_t stay;       /* four times so many drains in a row must reach the base ... */
    uint64_t reached;    /* ... before we cease, and so many have */
    uint64_t entry_ns;   /* delay when it began ... */
    uint64_t entry;      /* ... and window, scaled */
    uint64_t longest_ns; /* queue since then */
    uint64_t threshold;  /* the window, scaled, up to which it doubles */
    uint64_t most, reno; /* CUBIC's W_max and W_est, scaled */
    uint64_t widest;     /* window since a drain last reached the base */
    uint64_t cut_ns;     /* when a loss last made it, or the depth, smaller */
    uint64_t epoch_ns;
    uint64_t flat_ms; /* and its K */
};

_Static_assert(sizeof(struct harp_swift) <= sizeof(((struct harp_cc *)0)->state), "state fits");

static inline struct harp_swift *harp_swift_of(struct harp_cc *cc)
{
    return (struct harp_swift *)cc->state;
}

/* A round trip, ACKs' queue included. */
static inline uint64_t harp_swift_round_ns(const struct harp_swift *swift)
{
    return swift->rtt_ns + swift->reverse_ns;
}

/* window * of / whole. The quotient comes first, in 2^-16, so that nothing overflows and a window
 * of a few bytes still has parts. */
static inline uint64_t harp_swift_part(uint64_t window, uint64_t of, uint64_t whole)
{
    return window * (of * 65536 / whole) / 65536;
}

/* swift_window.c: queueing delay at which a flow of this rate is content; a window within its
 * bounds. */
uint64_t harp_swift_content_ns(uint64_t target_ns, uint64_t window, uint64_t rtt_ns);
uint64_t harp_swift_bounded(const struct harp_cc *cc, uint64_t window);
uint64_t harp_swift_square_root(uint64_t x);

/* swift_loss.c: judge the share that was lost, as soon as it is heavy or enough has come to say
 * that it is not. */
void harp_swift_judge_loss(struct harp_cc *cc, uint64_t now_ns);

/* swift_depth.c: a round is over in which so much of a queue was seen: how deep a queue fits. */
void harp_swift_fit_buffer(struct harp_cc *cc, uint64_t now_ns, uint64_t queue_ns);

/* swift_marks.c: a round is over; whether marks arrive; what they leave of a queue that it
 * aims at. */
void harp_swift_heed_marks(struct harp_cc *cc);
bool harp_swift_marks_arrive(const struct harp_swift *swift);
uint64_t harp_swift_priced_queue_ns(const struct harp_cc *cc, uint64_t queue_ns);

/* swift_base.c: what this ACK and the last drains say of the empty path's delay; whether those
 * who make the queue that ACKs meet are like us; whether it is a queue, and no longer way; a drain
 * is over, echo and all; a round is over, of which the mean delay should not be above `most_ns`. */
uint64_t harp_swift_base_ns(struct harp_cc *cc, const struct harp_cc_ack *ack);
bool harp_swift_acks_pass(const struct harp_swift *swift, uint64_t now_ns);
bool harp_swift_acks_queue_moves(const struct harp_swift *swift, uint64_t now_ns);
void harp_swift_learn_from_drain(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns);
void harp_swift_learn_from_round(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns,
                                 uint64_t most_ns);

/* swift_drain.c: remember the least delay of the last period; one period after it, drain.
 * Returns whether this sample is to be left out, since a drain of our own is under way or its echo
 * passes. */
bool harp_swift_drain(struct harp_cc *cc, const struct harp_cc_ack *ack, uint64_t base_ns);

/* swift_compete.c: somebody else fills the buffer; a round is over in which we knew that. */
void harp_swift_compete(struct harp_cc *cc, uint64_t now_ns);
void harp_swift_compete_round(struct harp_cc *cc, uint64_t now_ns, uint64_t queue_ns);

#endif
