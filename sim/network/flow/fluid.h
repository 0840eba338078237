/* A fluid network: flows share resources weighted max-min fairly, in continuous time.
 *
 * A *resource* has a capacity (units per second: bits of a link, packets of a vNIC, core-seconds of
 * a CPU). A *route* is a footprint: a list of distinct resources, each with a coefficient, the
 * units of that resource which one unit of the flow consumes. A link has coefficient 1, a core has
 * the stack's cost per bit, and a whole ring of edges that keep one pace is one flow whose route is
 * the sum of its edges. A *flow* has a route, an amount to move, a weight, a ceiling on
 * its own rate and a time at which it starts.
 *
 * Rates are the weighted max-min fair ones (Bertsekas and Gallager, Data Networks, 6.5.2): every
 * flow is at its ceiling, or crosses a saturated resource on which no flow has a larger
 * rate/weight. That sentence certifies a solution, and the solver uses it: after an event only the
 * flows near it are solved again by water-filling, then the certificate is checked around them, and
 * flows for which it fails join, until it holds.
 *
 * Time. A flow's finish time follows from its rate. `fluid_run` moves the clock to the next
 * completion. Completions within `tolerance` times the age of the first one are reported
 * together, each with its own time, and what they free is shared out again at the last of them:
 * capacity is never exceeded, and a flow is late by at most that window for each merge that it
 * sees.
 *
 * Flow ids are slots: the id of a completed flow may be given to a flow started later.
 * Functions that can fail return a negative FLUID_E* code and change nothing.
 */
#ifndef SIM_FLUID_H
#define SIM_FLUID_H

#include <stdint.h>

/* cdef: begin */
typedef struct fluid fluid;

#define FLUID_ENOMEM -1
#define FLUID_EINVAL -2

fluid *fluid_new(int32_t resources, const double *capacity, double tolerance);
void fluid_free(fluid *f);

/* Adds `n` routes in CSR form: route i has resources[ptr[i] .. ptr[i+1]), all distinct.
 * `coefficient` may be NULL: all 1. Returns the id of the first. */
int32_t fluid_add_routes(fluid *f, int32_t n, const int64_t *ptr, const int32_t *resource,
                         const double *coefficient);

/* Starts `n` flows at start_s[i] (NULL: now; the past counts as now) and writes their ids.
 * weight and ceiling may be NULL: 1 and infinite. */
int32_t fluid_start(fluid *f, int64_t n, const int32_t *route, const double *amount,
                    const double *weight, const double *ceiling, const double *start_s,
                    int32_t *id);

/* Moves the clock to the next completions, at most to `until_s`; returns how many flows completed
 * (0: the clock stands at until_s, or nothing can ever complete). fluid_done_* hold them until the
 * next call. */
int64_t fluid_run(fluid *f, double until_s);
const int32_t *fluid_done_id(const fluid *f);
const double *fluid_done_s(const fluid *f);

/* Time of the next event (a start or a completion); infinite when there is none. */
double fluid_next_s(fluid *f);
double fluid_now_s(const fluid *f);
int64_t fluid_flows(const fluid *f);
/* How many times rates were solved, and how many flows these solutions visited. */
void fluid_effort(const fluid *f, int64_t *solutions, int64_t *visits);

int32_t fluid_set_capacity(fluid *f, int32_t resource, double capacity);
/* Puts a running flow on another route; what it has moved stays moved. */
int32_t fluid_reroute(fluid *f, int32_t id, int32_t route);
/* Takes a flow out before it completes; returns what was left to move, or a negative code. */
double fluid_cancel(fluid *f, int32_t id);

/* Per flow: rate now and the amount left. */
int32_t fluid_flow_state(fluid *f, int64_t n, const int32_t *id, double *rate, double *left);
/* Bottlenecks of that one of these running flows which ends last at the present rates: the
 * saturated resources of its route, after FLUID_CEILING where it runs at its own ceiling. At most
 * `room` are written. Returns how many there are. */
#define FLUID_CEILING -1
int32_t fluid_holding(fluid *f, int64_t n, const int32_t *id, int32_t *resource, int32_t room);
/* Per resource: units per second in use now, and units carried since the beginning. */
void fluid_load(fluid *f, double *load);
void fluid_carried(fluid *f, double *carried);
/* cdef: end */

#endif
