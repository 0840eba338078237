/* A collective step by step: every message is a flow of a fluid network.
 *
 * A rank *begins* step s + 1 when all its sends and receives of step s are complete; ranks are
 * otherwise asynchronous. A message starts when both its ends have begun its step: the sender has
 * the data, and the receiver's buffer is free (plans copy nothing, so nothing may arrive early).
 * `delay_s` later its bytes begin to flow.
 *
 * Steps are loaded in order, each when the first rank comes to it, and freed when the last rank
 * has passed it: memory is in proportion to the messages of the steps in between.
 *
 *     while ((code = steps_run(s)) == STEPS_LOAD)
 *         steps_load(s, messages of step steps_loaded(s));
 *
 * Flows of others may run on the same network, but `steps_run` swallows their completions.
 * Functions that can fail return a negative FLUID_E* code.
 */
#ifndef SIM_STEPS_H
#define SIM_STEPS_H

#include "fluid.h"

/* cdef: begin */
typedef struct steps steps;

#define STEPS_DONE 0
#define STEPS_LOAD 1
#define STEPS_STUCK 2

/* `count` steps over `ranks` ranks, all of which begin step 0 now. The network must outlive it. */
steps *steps_new(fluid *net, int32_t ranks, int32_t count);
void steps_free(steps *s);

/* Gives the `n` messages of the next step; the arrays are copied. */
int32_t steps_load(steps *s, int64_t n, const int32_t *src, const int32_t *dst,
                   const int32_t *route, const double *amount, const double *ceiling,
                   const double *delay_s);

/* Goes on until all ranks are done, the next step must be loaded, or nothing can complete. */
int32_t steps_run(steps *s);

/* How many steps have been loaded, and how many are held now. */
int32_t steps_loaded(const steps *s);
int32_t steps_held(const steps *s);
/* Per rank: when its last send or receive completed. */
const double *steps_rank_s(const steps *s);
/* Messages that completed, and batches in which they did. */
void steps_effort(const steps *s, int64_t *messages, int64_t *batches);
/* cdef: end */

#endif
