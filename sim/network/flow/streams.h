/* A collective edge by edge: every piece of a message is a flow of a fluid network.
 *
 * A *stage* is a set of edges. Each edge carries pieces of one size in order, one at a time.
 * Its source *hands over* piece n of an edge as soon as
 *   - both its ends have begun the stage, and piece n - 1 has been handed over;
 *   - piece n - lag of every edge that feeds it has arrived (the data);
 *   - a slot is free: piece n - window has been passed on, which is when every edge that this one
 *     feeds has been handed piece n - window + lag, or has arrived, where nothing passes it on.
 * `delay_s` later, but not before piece n - 1 has arrived, it takes `message_s` and then its bytes
 * flow. Of one stage with a single piece an edge and no feeds, this leaves lock step: a rank
 * *begins* the next stage when all its edges of this one are done. There is no barrier.
 *
 * Stages are loaded in order, each when the first rank comes to it, and freed when the last rank
 * has passed it: memory is in proportion to the edges of the stages in between.
 *
 *     while ((code = streams_run(s)) == STREAMS_LOAD)
 *         streams_load(s, edges of stage streams_loaded(s));
 *
 * Flows of others may run on the same network, but `streams_run` swallows their completions.
 * Pieces that the network's tolerance completes together are handed on at the last one's time.
 * Functions that can fail return a negative FLUID_E* code.
 */
#ifndef SIM_STREAMS_H
#define SIM_STREAMS_H

#include "fluid.h"

/* cdef: begin */
typedef struct streams streams;

#define STREAMS_DONE 0
#define STREAMS_LOAD 1
#define STREAMS_STUCK 2

/* `count` stages over `ranks` ranks; all ranks begin stage 0 now; an edge has `window` slots. Free
 * it before the network. */
streams *streams_new(fluid *net, int32_t ranks, int32_t count, int32_t window);
void streams_free(streams *s);

/* Gives the `n` edges of the next stage and its `feeds` pairs (from[i] feeds to[i]); the arrays are
 * copied. `amount` is that of a piece. */
int32_t streams_load(streams *s, int64_t n, const int32_t *src, const int32_t *dst,
                     const int32_t *route, const double *amount, const double *ceiling,
                     const double *delay_s, const double *message_s, int32_t pieces, int32_t lag,
                     int64_t feeds, const int32_t *from, const int32_t *to);

/* Goes on until all ranks are done, the next stage must be loaded, or nothing can complete. */
int32_t streams_run(streams *s);

/* How many stages have been loaded, and how many are held now. */
int32_t streams_loaded(const streams *s);
int32_t streams_held(const streams *s);
/* Per rank: when its last piece was sent or received. */
const double *streams_rank_s(const streams *s);
/* Pieces that arrived, and batches in which they did. */
void streams_effort(const streams *s, int64_t *pieces, int64_t *batches);
/* cdef: end */

#endif
