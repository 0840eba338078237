/* State that fluid.c (events) and fluid_solve.c (rates) share. Not an interface. */
#ifndef SIM_FLUID_STATE_H
#define SIM_FLUID_STATE_H

#include <math.h>

#include "fluid.h"
#include "time_heap.h"

enum flow_state { FLOW_FREE, FLOW_PENDING, FLOW_ACTIVE };

#define NO_BOTTLENECK -1 /* at its own ceiling, or not solved yet */

/* One flow's entry in a resource's list; dead once the flow's generation has moved on. */
struct member {
    int32_t flow;
    uint32_t generation;
    double coefficient;
};

struct resource {
    double capacity;
    double load;    /* units per second in use */
    double carried; /* units, up to settled_s */
    double settled_s;
    struct member *member;
    int32_t count, room, live; /* list length, allocated, and entries that are not dead */
    int32_t bound;             /* active flows whose bottleneck this is */
    double level;              /* no flow that is bound here has a smaller rate/weight */
    double top;                /* no flow that crosses it has a larger rate/weight */
    uint8_t dirty;             /* a flow left or the capacity changed since the last solution */
    /* Scratch of one water-filling. */
    uint8_t whole;      /* every flow here is being solved */
    uint32_t touched;   /* the round in which a solved flow crossed it */
    int32_t open;       /* solved flows here that are not frozen yet */
    int32_t froze;      /* flows that froze here, at `full_level` */
    double left;        /* capacity that is not given away yet */
    double open_weight; /* sum of coefficient * weight over the open flows */
    double sum_weight;  /* the same when it was last summed, before subtractions */
    double full_level;  /* rate/weight at which it saturated */
};

struct flow {
    double left; /* amount still to move at settled_s */
    double rate;
    double weight;
    double ceiling;
    double settled_s;
    double start_s;
    int32_t route;
    int32_t bottleneck;
    uint32_t generation;
    uint8_t state;
    uint8_t fresh; /* it stands in `fresh`, to be solved for the first time on its route */
};

/* A solution's mark on a flow; a byte each, so that the marks of many fit into the cache. */
enum mark { NOT_SOLVED, OPEN, FROZEN };

struct level_entry {
    double level;
    int32_t resource;
};

struct capped_flow {
    double level; /* ceiling / weight */
    int32_t slot;
};

/* Routes in CSR form: the hops of route n are ptr[n] .. ptr[n + 1] - 1. */
struct routes {
    int32_t n;
    int64_t *ptr;
    int32_t *resource;
    double *coefficient; /* NULL while every coefficient is 1 */
    int64_t room, hop_room;
};

/* Scratch of a solution (fluid_solve.c): the flows that get a new rate, and the resources that they
 * cross. */
struct solution {
    uint8_t *mark; /* of each flow */
    int32_t *affected, *touched, *freezing;
    int64_t affected_count;
    int32_t touched_count;
    struct capped_flow *capped;
    struct level_entry *level_heap;
    int32_t level_count;
    uint32_t round;
};

struct fluid {
    double now_s, tolerance;
    int32_t resources;
    struct resource *resource;
    struct routes routes;

    struct flow *flow;
    int64_t slots, flow_room, flows;
    struct time_heap running, pending; /* by finish time, by start time; each flow is in one */
    int32_t *heap_at;                  /* the heaps' `at` */
    int32_t *free_slot, *fresh, *dirty;
    int64_t free_count, fresh_count;
    int32_t dirty_count;
    int32_t *done_id;
    double *done_s;

    struct solution solution;
    int64_t solutions, visits;
};

static inline double fluid_coefficient(const fluid *f, int64_t hop)
{
    return f->routes.coefficient ? f->routes.coefficient[hop] : 1.0;
}

static inline int fluid_member_live(const fluid *f, const struct member *m)
{
    return f->flow[m->flow].generation == m->generation;
}

/* Walks over scattered flows wait for memory: asks for what the walk needs a few flows later, the
 * flow itself, then its route, then the route's hops. Inlined by force, since gcc takes a function
 * that only prefetches to do nothing. */
__attribute__((always_inline)) static inline void fluid_fetch(const fluid *f, const int32_t *slot,
                                                              int64_t at, int64_t count)
{
    enum { AHEAD = 8 };
    if (at + 3 * AHEAD < count)
        __builtin_prefetch(&f->flow[slot[at + 3 * AHEAD]]);
    if (at + 2 * AHEAD < count)
        __builtin_prefetch(&f->routes.ptr[f->flow[slot[at + 2 * AHEAD]].route]);
    if (at + AHEAD < count)
        __builtin_prefetch(&f->routes.resource[f->routes.ptr[f->flow[slot[at + AHEAD]].route]]);
}

/* Brings `carried` (of a resource) or `left` (of a flow) up to the present. */
static inline void fluid_settle_resource(fluid *f, struct resource *r)
{
    r->carried += r->load * (f->now_s - r->settled_s);
    r->settled_s = f->now_s;
}

static inline void fluid_settle_flow(fluid *f, struct flow *w)
{
    if (isfinite(w->rate))
        w->left -= w->rate * (f->now_s - w->settled_s);
    else
        w->left = 0.0;
    if (w->left < 0.0)
        w->left = 0.0;
    w->settled_s = f->now_s;
}

/* Records which resource holds a flow back. */
static inline void fluid_bind(fluid *f, struct flow *w, int32_t bottleneck)
{
    if (w->bottleneck != NO_BOTTLENECK)
        f->resource[w->bottleneck].bound--;
    if (bottleneck != NO_BOTTLENECK)
        f->resource[bottleneck].bound++;
    w->bottleneck = bottleneck;
}

/* Makes all rates max-min fair again after what happened since the last call. */
void fluid_solve(fluid *f);

#endif
