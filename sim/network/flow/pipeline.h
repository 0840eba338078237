/* Delay of a pipeline's steady pace by its first and last pieces: closed forms.
 *
 * A phase of P pieces is a max-plus system: piece n of an edge ends at
 *
 *     end(e, n) = max(handed(e, n) + alpha(e), end(e, n - 1)) + time(e)
 *
 * where it is handed over when the pieces that it passes on have come, and a slot is free
 * (harp/collectives/window.py). The end of the phase is the longest path through that system
 * (Baccelli et al., Synchronization and Linearity, 1992). Along a path one stays at an edge, for
 * time(e) a piece; or goes on to the next, for alpha(e) + time(e); or waits for the slot of the
 * piece that is a window of W earlier, for alpha(e) + time(e) as well. With x the longest time(e)
 * and h the longest alpha(e) + time(e), the path takes, C times a window, P' = P - C W,
 *
 * - around a ring, where a hop replaces `lag` pieces,
 *   C h + (P' + lag - 1) x + the largest sum of (alpha + time - lag x) over at most P' / lag edges
 *   in a row;
 * - through a tree C h + (P' - 1) x + the largest sum of (alpha + time) from a leaf to a leaf,
 *
 * and the longest one has C either 0 or as large as can be, since it is convex in C.
 * Both are exact where the slowest edge is on that path, and an upper bound elsewhere. So a flat
 * ring of short messages over M hosts pays for its crossings as often as a message crosses, and one
 * of long messages pays for bytes alone.
 */
#ifndef SIM_PIPELINE_H
#define SIM_PIPELINE_H

#include <stdint.h>

/* cdef: begin */
/* Edges of several copies of a pipeline (channels), one after the other. */
typedef struct {
    int64_t edges, groups;
    const int64_t *group;          /* each edge's ring or tree, from 0 without gaps */
    const double *alpha_s;         /* latency, which pieces that follow one another overlap */
    const double *first_message_s; /* the stack's cost of a message, which they do not, while only
                                    * its own hop is busy */
    const double *message_s;       /* the same while all edges are */
    const double *first_s;         /* seconds a byte while only its own hop is busy */
    const double *steady_s;        /* the same while all edges are */
    const double *piece; /* bytes of a piece of each group, as `first_s` and `steady_s` count */
    double messages;     /* messages of a piece */
    int64_t helped;      /* whether bytes move while the next message is handled */
} pipeline_edges;

/* The pieces that a piece waits for: `lag` pieces earlier on the edge before it around a ring,
 * whose edges stand in order, groups of one size; or, where lag is 0, the same piece of the edges
 * that feed it. Edge target[i] of each copy of `per_copy` edges is fed by source[i]; pairs are
 * sorted so that all that feed an edge come before all that it feeds. */
typedef struct {
    int64_t pieces, lag, slots;
    int64_t per_copy, feeds;
    const int64_t *source, *target;
} pipeline_order;

/* A phase's time beside the steady flow of its bytes. */
typedef struct {
    double latency_s, filling_s, message_s;
} pipeline_times;

/* Fills `times` and, for each group, the least seconds of a piece that the window allows (0 where
 * it does not bind). Returns 0, or -1 where memory ran out. */
int pipeline_time(const pipeline_edges *e, const pipeline_order *order, pipeline_times *times,
                  double *least_s);
/* cdef: end */

#endif
