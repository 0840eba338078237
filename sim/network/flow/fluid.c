/* State, events and the clock; fluid_solve.c shares out the rates. The manual is fluid.h. */
#include "fluid.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fluid_state.h"

/* ---- memory: arrays grow by doubling, and a failure leaves the old array in place ---- */

static int grow_array(void **array, int64_t *room, int64_t need, size_t size)
{
    if (need <= *room)
        return 0;
    int64_t wanted = *room ? *room : 64;
    while (wanted < need)
        wanted *= 2;
    void *larger = realloc(*array, (size_t)wanted * size);
    if (!larger)
        return FLUID_ENOMEM;
    *array = larger;
    *room = wanted;
    return 0;
}

static int grow_flows(fluid *f, int64_t need)
{
    if (need > INT32_MAX)
        return FLUID_EINVAL;
    int64_t old = f->flow_room, room = old;
    if (grow_array((void **)&f->flow, &room, need, sizeof *f->flow) ||
        (room = old, grow_array((void **)&f->solution.mark, &room, need, 1)) ||
        (room = old, grow_array((void **)&f->heap_at, &room, need, 4)) ||
        (room = old,
         grow_array((void **)&f->running.entry, &room, need, sizeof *f->running.entry)) ||
        (room = old,
         grow_array((void **)&f->pending.entry, &room, need, sizeof *f->pending.entry)) ||
        (room = old, grow_array((void **)&f->solution.affected, &room, need, 4)) ||
        (room = old, grow_array((void **)&f->solution.freezing, &room, need, 4)) ||
        (room = old,
         grow_array((void **)&f->solution.capped, &room, need, sizeof *f->solution.capped)) ||
        (room = old, grow_array((void **)&f->fresh, &room, need, 4)) ||
        (room = old, grow_array((void **)&f->free_slot, &room, need, 4)) ||
        (room = old, grow_array((void **)&f->done_id, &room, need, 4)) ||
        (room = old, grow_array((void **)&f->done_s, &room, need, sizeof(double))))
        return FLUID_ENOMEM;
    if (room > old) {
        memset(f->flow + old, 0, (size_t)(room - old) * sizeof *f->flow);
        memset(f->solution.mark + old, NOT_SOLVED, (size_t)(room - old));
    }
    f->running.at = f->pending.at = f->heap_at;
    f->flow_room = room;
    return 0;
}

fluid *fluid_new(int32_t resources, const double *capacity, double tolerance)
{
    fluid *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->resources = resources;
    f->tolerance = tolerance;
    f->resource = calloc((size_t)resources + 1, sizeof *f->resource);
    f->solution.touched = malloc(((size_t)resources + 1) * sizeof *f->solution.touched);
    f->dirty = malloc(((size_t)resources + 1) * sizeof *f->dirty);
    f->solution.level_heap = malloc(((size_t)resources + 1) * sizeof *f->solution.level_heap);
    f->routes.ptr = calloc(1, sizeof *f->routes.ptr);
    if (!f->resource || !f->solution.touched || !f->dirty || !f->solution.level_heap ||
        !f->routes.ptr) {
        fluid_free(f);
        return NULL;
    }
    f->routes.room = 1;
    for (int32_t r = 0; r < resources; r++)
        f->resource[r].capacity = capacity[r];
    return f;
}

void fluid_free(fluid *f)
{
    if (!f)
        return;
    for (int32_t r = 0; f->resource && r < f->resources; r++)
        free(f->resource[r].member);
    free(f->resource);
    free(f->solution.touched);
    free(f->dirty);
    free(f->solution.level_heap);
    free(f->routes.ptr);
    free(f->routes.resource);
    free(f->routes.coefficient);
    free(f->flow);
    free(f->solution.mark);
    free(f->heap_at);
    free(f->running.entry);
    free(f->pending.entry);
    free(f->solution.affected);
    free(f->solution.freezing);
    free(f->solution.capped);
    free(f->fresh);
    free(f->free_slot);
    free(f->done_id);
    free(f->done_s);
    free(f);
}

/* ---- routes ---- */

static int routes_valid(const fluid *f, int32_t n, const int64_t *ptr, const int32_t *resource,
                        const double *coefficient)
{
    for (int32_t i = 0; i < n; i++)
        if (ptr[i] > ptr[i + 1])
            return 0;
    for (int64_t k = ptr[0]; k < ptr[n]; k++) {
        if (resource[k] < 0 || resource[k] >= f->resources)
            return 0;
        if (coefficient && !(coefficient[k] > 0.0 && isfinite(coefficient[k])))
            return 0;
    }
    return 1;
}

int32_t fluid_add_routes(fluid *f, int32_t n, const int64_t *ptr, const int32_t *resource,
                         const double *coefficient)
{
    if (n < 0 || (int64_t)f->routes.n + n >= INT32_MAX)
        return FLUID_EINVAL;
    if (!routes_valid(f, n, ptr, resource, coefficient))
        return FLUID_EINVAL;
    int64_t hops = f->routes.ptr[f->routes.n], added = ptr[n] - ptr[0], room = f->routes.hop_room;
    if (grow_array((void **)&f->routes.ptr, &f->routes.room, (int64_t)f->routes.n + n + 1,
                   sizeof *f->routes.ptr) ||
        grow_array((void **)&f->routes.resource, &room, hops + added, sizeof *f->routes.resource))
        return FLUID_ENOMEM;
    if (coefficient || f->routes.coefficient) {
        /* The first route with coefficients gives every earlier hop a 1. */
        double *all = realloc(f->routes.coefficient, (size_t)(room ? room : 1) * sizeof *all);
        if (!all)
            return FLUID_ENOMEM;
        for (int64_t k = f->routes.coefficient ? hops : 0; k < hops + added; k++)
            all[k] = 1.0;
        if (coefficient)
            memcpy(all + hops, coefficient + ptr[0], (size_t)added * sizeof *all);
        f->routes.coefficient = all;
    }
    f->routes.hop_room = room;
    memcpy(f->routes.resource + hops, resource + ptr[0], (size_t)added * sizeof *resource);
    int32_t first = f->routes.n;
    for (int32_t i = 0; i < n; i++)
        f->routes.ptr[first + i + 1] = hops + ptr[i + 1] - ptr[0];
    f->routes.n += n;
    return first;
}

/* ---- flows join and leave ---- */

static void mark_dirty(fluid *f, int32_t resource)
{
    if (f->resource[resource].dirty)
        return;
    f->resource[resource].dirty = 1;
    f->dirty[f->dirty_count++] = resource;
}

/* Drops the entries of flows that have left; they are kept until half of a list is dead. */
static void drop_dead_members(fluid *f, struct resource *r)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < r->count; i++)
        if (fluid_member_live(f, &r->member[i]))
            r->member[kept++] = r->member[i];
    assert(kept == r->live);
    r->count = kept;
}

static int join_resources(fluid *f, int32_t slot)
{
    struct flow *w = &f->flow[slot];
    int64_t first = f->routes.ptr[w->route], end = f->routes.ptr[w->route + 1];
    for (int64_t k = first; k < end;
         k++) { /* all memory first, so that a failure changes nothing */
        struct resource *r = &f->resource[f->routes.resource[k]];
        if (r->count > 16 && r->count > 2 * r->live)
            drop_dead_members(f, r);
        int64_t room = r->room;
        if (grow_array((void **)&r->member, &room, (int64_t)r->count + 1, sizeof *r->member))
            return FLUID_ENOMEM;
        r->room = (int32_t)room;
    }
    for (int64_t k = first; k < end; k++) {
        struct resource *r = &f->resource[f->routes.resource[k]];
        r->member[r->count++] = (struct member){slot, w->generation, fluid_coefficient(f, k)};
        r->live++;
    }
    return 0;
}

static void leave_resources(fluid *f, int32_t slot)
{
    struct flow *w = &f->flow[slot];
    for (int64_t k = f->routes.ptr[w->route]; k < f->routes.ptr[w->route + 1]; k++) {
        int32_t at = f->routes.resource[k];
        struct resource *r = &f->resource[at];
        fluid_settle_resource(f, r);
        r->live--;
        r->load = r->live ? r->load - w->rate * fluid_coefficient(f, k) : 0.0;
        mark_dirty(f, at);
    }
    fluid_bind(f, w, NO_BOTTLENECK);
    w->generation++; /* makes its entries in the member lists dead */
}

static void activate_flow(fluid *f, int32_t slot)
{
    struct flow *w = &f->flow[slot];
    w->state = FLOW_ACTIVE;
    w->rate = 0.0;
    w->settled_s = f->now_s;
    if (!w->fresh) /* it may have been put on another route since the last solution */
        f->fresh[f->fresh_count++] = slot;
    w->fresh = 1;
    time_heap_push(&f->running, slot, w->left > 0.0 ? INFINITY : f->now_s);
}

static void release_flow(fluid *f, int32_t slot)
{
    struct flow *w = &f->flow[slot];
    if (w->state == FLOW_PENDING) {
        time_heap_remove(&f->pending, slot);
    } else {
        time_heap_remove(&f->running, slot);
        leave_resources(f, slot);
    }
    w->state = FLOW_FREE;
    w->generation++;
    f->free_slot[f->free_count++] = slot;
    f->flows--;
}

static int flow_valid(const fluid *f, int32_t route, double amount, double weight, double ceiling)
{
    return route >= 0 && route < f->routes.n && amount >= 0.0 && isfinite(amount) && weight > 0.0 &&
           isfinite(weight) && ceiling > 0.0;
}

int32_t fluid_start(fluid *f, int64_t n, const int32_t *route, const double *amount,
                    const double *weight, const double *ceiling, const double *start_s, int32_t *id)
{
    for (int64_t i = 0; i < n; i++)
        if (!flow_valid(f, route[i], amount[i], weight ? weight[i] : 1.0,
                        ceiling ? ceiling[i] : INFINITY) ||
            (start_s && !isfinite(start_s[i])))
            return FLUID_EINVAL;
    int64_t reused = n < f->free_count ? n : f->free_count;
    int error = grow_flows(f, f->slots + n - reused);
    if (error)
        return error;
    for (int64_t i = 0; i < n; i++) {
        int32_t slot = f->free_count ? f->free_slot[--f->free_count] : (int32_t)f->slots++;
        struct flow *w = &f->flow[slot];
        w->route = route[i];
        w->bottleneck = NO_BOTTLENECK;
        w->left = amount[i];
        w->weight = weight ? weight[i] : 1.0;
        w->ceiling = ceiling ? ceiling[i] : INFINITY;
        w->start_s = start_s && start_s[i] > f->now_s ? start_s[i] : f->now_s;
        w->state = FLOW_PENDING;
        id[i] = slot;
        f->flows++;
        time_heap_push(&f->pending, slot, w->start_s);
    }
    return 0;
}

/* ---- the clock ---- */

static int start_pending(fluid *f)
{
    while (time_heap_first_s(&f->pending) <= f->now_s) {
        int32_t slot = f->pending.entry[0].slot;
        if (join_resources(f, slot))
            return FLUID_ENOMEM;
        time_heap_remove(&f->pending, slot);
        activate_flow(f, slot);
    }
    return 0;
}

static int64_t collect_done(fluid *f, double first_s, double horizon_s)
{
    int64_t count = 0;
    double last_s = first_s;
    while (f->running.count && f->running.entry[0].key_s <= horizon_s) {
        struct time_entry first = f->running.entry[0];
        last_s = first.key_s > last_s ? first.key_s : last_s;
        f->done_id[count] = first.slot;
        f->done_s[count++] = first.key_s;
        time_heap_remove(&f->running, first.slot);
    }
    f->now_s = last_s > f->now_s ? last_s : f->now_s;
    for (int64_t i = 0; i < count; i++) {
        fluid_fetch(f, f->done_id, i, count);
        /* Rates stood unchanged until now, but a flow stopped at its own time, not at the last. */
        struct flow *w = &f->flow[f->done_id[i]];
        double idle_s = f->now_s - f->done_s[i];
        leave_resources(f, f->done_id[i]);
        if (idle_s > 0.0 && isfinite(w->rate))
            for (int64_t k = f->routes.ptr[w->route]; k < f->routes.ptr[w->route + 1]; k++)
                f->resource[f->routes.resource[k]].carried -=
                    w->rate * fluid_coefficient(f, k) * idle_s;
        w->state = FLOW_FREE;
        w->generation++;
        f->free_slot[f->free_count++] = f->done_id[i];
        f->flows--;
    }
    return count;
}

int64_t fluid_run(fluid *f, double until_s)
{
    for (;;) {
        if (start_pending(f))
            return FLUID_ENOMEM;
        fluid_solve(f);
        double start_s = time_heap_first_s(&f->pending), done_s = time_heap_first_s(&f->running);
        double next_s = start_s < done_s ? start_s : done_s;
        if (next_s > until_s || isinf(next_s)) {
            if (isfinite(until_s) && until_s > f->now_s)
                f->now_s = until_s;
            return 0;
        }
        if (start_s < done_s) {
            f->now_s = start_s;
            continue;
        }
        double age_s = done_s - f->flow[f->running.entry[0].slot].start_s;
        double horizon_s = done_s + f->tolerance * age_s;
        horizon_s = horizon_s < until_s ? horizon_s : until_s;
        horizon_s = horizon_s < start_s ? horizon_s : start_s;
        return collect_done(f, done_s, horizon_s);
    }
}

double fluid_next_s(fluid *f)
{
    if (start_pending(f))
        return f->now_s;
    fluid_solve(f);
    double start_s = time_heap_first_s(&f->pending), done_s = time_heap_first_s(&f->running);
    return start_s < done_s ? start_s : done_s;
}

/* ---- changes from outside and readings ---- */

static int is_running(const fluid *f, int32_t id)
{
    return id >= 0 && id < f->slots && f->flow[id].state != FLOW_FREE;
}

int32_t fluid_set_capacity(fluid *f, int32_t resource, double capacity)
{
    if (resource < 0 || resource >= f->resources || !(capacity >= 0.0) || !isfinite(capacity))
        return FLUID_EINVAL;
    f->resource[resource].capacity = capacity;
    mark_dirty(f, resource);
    return 0;
}

int32_t fluid_reroute(fluid *f, int32_t id, int32_t route)
{
    if (!is_running(f, id) || route < 0 || route >= f->routes.n)
        return FLUID_EINVAL;
    struct flow *w = &f->flow[id];
    if (w->state == FLOW_PENDING) {
        w->route = route;
        return 0;
    }
    fluid_settle_flow(f, w); /* at the old rate: the clock has not moved since it was solved */
    leave_resources(f, id);
    time_heap_remove(&f->running, id);
    w->route = route;
    if (join_resources(f, id)) { /* out of memory: the flow stands still, on no resource */
        w->state = FLOW_PENDING;
        time_heap_push(&f->pending, id, INFINITY);
        return FLUID_ENOMEM;
    }
    activate_flow(f, id);
    return 0;
}

double fluid_cancel(fluid *f, int32_t id)
{
    if (!is_running(f, id))
        return FLUID_EINVAL;
    struct flow *w = &f->flow[id];
    if (w->state == FLOW_ACTIVE) {
        fluid_solve(f);
        fluid_settle_flow(f, w);
    }
    double left = w->left;
    release_flow(f, id);
    return left;
}

int32_t fluid_flow_state(fluid *f, int64_t n, const int32_t *id, double *rate, double *left)
{
    if (start_pending(f))
        return FLUID_ENOMEM;
    fluid_solve(f);
    for (int64_t i = 0; i < n; i++) {
        if (!is_running(f, id[i]))
            return FLUID_EINVAL;
        struct flow *w = &f->flow[id[i]];
        if (w->state == FLOW_ACTIVE)
            fluid_settle_flow(f, w);
        rate[i] = w->state == FLOW_ACTIVE ? w->rate : 0.0;
        left[i] = w->left;
    }
    return 0;
}

void fluid_load(fluid *f, double *load)
{
    if (start_pending(f) == 0)
        fluid_solve(f);
    for (int32_t r = 0; r < f->resources; r++)
        load[r] = f->resource[r].load;
}

void fluid_carried(fluid *f, double *carried)
{
    for (int32_t r = 0; r < f->resources; r++) {
        fluid_settle_resource(f, &f->resource[r]);
        carried[r] = f->resource[r].carried;
    }
}

const int32_t *fluid_done_id(const fluid *f)
{
    return f->done_id;
}
const double *fluid_done_s(const fluid *f)
{
    return f->done_s;
}
double fluid_now_s(const fluid *f)
{
    return f->now_s;
}
int64_t fluid_flows(const fluid *f)
{
    return f->flows;
}

void fluid_effort(const fluid *f, int64_t *solutions, int64_t *visits)
{
    *solutions = f->solutions;
    *visits = f->visits;
}
