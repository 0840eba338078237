/* Weighted max-min rates, solved again only where they can have changed.
 *
 * `affected` starts with the flows that just started and those whose bottleneck lost a flow or
 * changed its capacity. One round of water-filling shares out what the other flows leave; then the
 * certificate is checked on every resource that an affected flow crosses:
 *   - a flow that is not affected but has its bottleneck here needs this resource saturated, with
 *     no larger rate/weight on it;
 *   - where affected flows froze, no other flow may have a larger rate/weight.
 * Flows for which this fails become affected, and the next round solves all of them again. The set
 * only grows; when it holds most flows, all are solved, and that needs no check.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "fluid_state.h"

/* Two levels closer than this are one: far above rounding, far below what anyone can measure. */
static const double SAME = 1e-9;

static void mark_affected(fluid *f, int32_t slot)
{
    struct solution *s = &f->solution;
    if (s->mark[slot] != NOT_SOLVED)
        return;
    s->mark[slot] = OPEN;
    s->affected[s->affected_count++] = slot;
}

/* All, anew in the order of memory, in which walks are far faster than in any other. */
static void affect_all(fluid *f)
{
    struct solution *s = &f->solution;
    s->affected_count = 0;
    for (int64_t slot = 0; slot < f->slots; slot++) {
        if (f->flow[slot].state != FLOW_ACTIVE)
            continue;
        s->mark[slot] = OPEN;
        s->affected[s->affected_count++] = (int32_t)slot;
    }
}

static void affect_first(fluid *f)
{
    f->solution.affected_count = 0;
    for (int64_t i = 0; i < f->fresh_count; i++) {
        f->flow[f->fresh[i]].fresh = 0;
        mark_affected(f, f->fresh[i]);
    }
    f->fresh_count = 0;
    for (int32_t i = 0; i < f->dirty_count; i++) {
        struct resource *r = &f->resource[f->dirty[i]];
        int overloaded = r->load > r->capacity * (1.0 + SAME);
        r->dirty = 0;
        if (!overloaded && !r->bound)
            continue; /* nobody waits for what became free here */
        for (int32_t k = 0; k < r->count; k++) {
            const struct member *m = &r->member[k];
            if (fluid_member_live(f, m) &&
                (overloaded || f->flow[m->flow].bottleneck == f->dirty[i]))
                mark_affected(f, m->flow);
        }
    }
    f->dirty_count = 0;
}

/* ---- one round of water-filling over the affected flows ---- */

static void level_down(fluid *f, int32_t at)
{
    struct solution *s = &f->solution;
    struct level_entry moving = s->level_heap[at];
    for (int32_t child; (child = 2 * at + 1) < s->level_count; at = child) {
        if (child + 1 < s->level_count &&
            s->level_heap[child + 1].level < s->level_heap[child].level)
            child++;
        if (s->level_heap[child].level >= moving.level)
            break;
        s->level_heap[at] = s->level_heap[child];
    }
    s->level_heap[at] = moving;
}

static double level_of(const struct resource *r)
{
    return r->left > 0.0 ? r->left / r->open_weight : 0.0;
}

/* Takes the old rates of the affected flows off the loads; what is left is theirs to share. */
static void open_resources(fluid *f)
{
    struct solution *s = &f->solution;
    s->touched_count = 0;
    s->round++;
    for (int64_t i = 0; i < s->affected_count; i++) {
        fluid_fetch(f, s->affected, i, s->affected_count);
        struct flow *w = &f->flow[s->affected[i]];
        fluid_settle_flow(f, w);
        s->mark[s->affected[i]] = OPEN;
        for (int64_t k = f->routes.ptr[w->route]; k < f->routes.ptr[w->route + 1]; k++) {
            int32_t at = f->routes.resource[k];
            struct resource *r = &f->resource[at];
            double coefficient = fluid_coefficient(f, k);
            if (r->touched != s->round) {
                r->touched = s->round;
                r->open = 0;
                r->open_weight = 0.0;
                r->froze = 0;
                s->touched[s->touched_count++] = at;
                fluid_settle_resource(f, r);
            }
            r->open++;
            r->open_weight += coefficient * w->weight;
            r->load -= coefficient * w->rate;
        }
        w->rate = 0.0;
    }
    for (int32_t i = 0; i < s->touched_count; i++) {
        struct resource *r = &f->resource[s->touched[i]];
        r->whole = r->open == r->live;
        if (r->whole)
            r->load = r->top = 0.0; /* nobody else is here: forget the rounding */
        r->sum_weight = r->open_weight;
        /* The rounding error of a load must not trickle through a link that is down. */
        r->left = r->capacity > 0.0 ? r->capacity - r->load : 0.0;
        s->level_heap[i] = (struct level_entry){level_of(r), s->touched[i]};
    }
    s->level_count = s->touched_count;
    for (int32_t at = s->level_count / 2; at-- > 0;)
        level_down(f, at);
}

static int by_level(const void *a, const void *b)
{
    const struct capped_flow *x = a, *y = b;
    if (x->level != y->level)
        return x->level < y->level ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

static int64_t sort_ceilings(fluid *f)
{
    struct solution *s = &f->solution;
    int64_t count = 0;
    for (int64_t i = 0; i < s->affected_count; i++) {
        const struct flow *w = &f->flow[s->affected[i]];
        if (isfinite(w->ceiling))
            s->capped[count++] = (struct capped_flow){w->ceiling / w->weight, s->affected[i]};
    }
    qsort(s->capped, (size_t)count, sizeof *s->capped, by_level);
    return count;
}

static void freeze_flow(fluid *f, int32_t slot, double rate, int32_t bottleneck)
{
    struct flow *w = &f->flow[slot];
    double level = rate / w->weight;
    f->solution.mark[slot] = FROZEN;
    w->rate = rate;
    fluid_bind(f, w, bottleneck);
    for (int64_t k = f->routes.ptr[w->route]; k < f->routes.ptr[w->route + 1]; k++) {
        struct resource *r = &f->resource[f->routes.resource[k]];
        double coefficient = fluid_coefficient(f, k);
        r->left -= coefficient * rate;
        r->load += coefficient * rate;
        r->open_weight -= coefficient * w->weight;
        r->open--;
        if (r->top < level)
            r->top = level;
    }
}

/* Freezes every open flow of a resource that saturates at `level`. */
static void saturate_resource(fluid *f, int32_t at, double level)
{
    struct solution *s = &f->solution;
    struct resource *r = &f->resource[at];
    r->full_level = level;
    int32_t count = 0;
    for (int32_t k = 0; k < r->count; k++)
        if (s->mark[r->member[k].flow] == OPEN && fluid_member_live(f, &r->member[k]))
            s->freezing[count++] = r->member[k].flow;
    for (int32_t i = 0; i < count; i++) {
        fluid_fetch(f, s->freezing, i, count);
        freeze_flow(f, s->freezing[i], level * f->flow[s->freezing[i]].weight, at);
    }
    r->froze = count;
    r->open_weight = 0.0;
}

/* Every subtraction from a sum leaves rounding: when little of the sum is left, it is made anew. */
static void renew_weight(const fluid *f, struct resource *r)
{
    if (r->open_weight >= 1e-3 * r->sum_weight)
        return;
    r->open_weight = 0.0;
    for (int32_t k = 0; k < r->count; k++) {
        const struct member *m = &r->member[k];
        if (f->solution.mark[m->flow] == OPEN && fluid_member_live(f, m))
            r->open_weight += m->coefficient * f->flow[m->flow].weight;
    }
    r->sum_weight = r->open_weight;
}

/* The lowest level at which an open resource saturates; levels only rise while flows freeze, so an
 * entry that is out of date is too low and sinks when it comes up. */
static int find_lowest_level(fluid *f, struct level_entry *found)
{
    struct solution *s = &f->solution;
    while (s->level_count) {
        struct level_entry *top = &s->level_heap[0];
        struct resource *r = &f->resource[top->resource];
        if (r->open == 0) {
            *top = s->level_heap[--s->level_count];
            level_down(f, 0);
            continue;
        }
        renew_weight(f, r);
        double level = level_of(r);
        if (level <= top->level * (1.0 + 1e-15)) {
            *found = (struct level_entry){level, top->resource};
            return 1;
        }
        top->level = level;
        level_down(f, 0);
    }
    return 0;
}

static void fill_progressively(fluid *f)
{
    struct solution *s = &f->solution;
    open_resources(f);
    int64_t capped = sort_ceilings(f), next = 0;
    struct level_entry low;
    for (;;) {
        int found = find_lowest_level(f, &low);
        while (next < capped && s->mark[s->capped[next].slot] == FROZEN)
            next++;
        if (next < capped && (!found || s->capped[next].level <= low.level)) {
            int32_t slot = s->capped[next++].slot;
            freeze_flow(f, slot, f->flow[slot].ceiling, NO_BOTTLENECK);
        } else if (found) {
            saturate_resource(f, low.resource, low.level);
        } else {
            break;
        }
    }
    for (int64_t i = 0; i < s->affected_count; i++) {
        struct flow *w = &f->flow[s->affected[i]];
        if (s->mark[s->affected[i]] !=
            FROZEN) { /* it crosses nothing and has no ceiling: it is done at once */
            w->rate = INFINITY;
            fluid_bind(f, w, NO_BOTTLENECK);
        }
    }
    f->visits += s->affected_count;
}

/* ---- the certificate around the affected flows ---- */

static double level_of_flow(const struct flow *w)
{
    return w->rate / w->weight;
}

static double highest_level(const fluid *f, const struct resource *r)
{
    double highest = 0.0;
    for (int32_t k = 0; k < r->count; k++) {
        if (fluid_member_live(f, &r->member[k]))
            highest = fmax(highest, level_of_flow(&f->flow[r->member[k].flow]));
    }
    return highest;
}

/* Whether the certificate may fail for a flow that was not solved. `top` is too high where a fast
 * flow has left; looking at every flow then says how high it is. */
static int certificate_may_fail(fluid *f, struct resource *r)
{
    int others_bound = r->bound > r->froze;
    if (r->whole || (!others_bound && !r->froze))
        return 0;
    if (others_bound && r->load < r->capacity * (1.0 - SAME))
        return 1;
    double limit = fmin(others_bound ? r->level : INFINITY, r->froze ? r->full_level : INFINITY);
    if (r->top <= limit * (1.0 + SAME))
        return 0;
    r->top = highest_level(f, r);
    return r->top > limit * (1.0 + SAME);
}

/* Adds the flows of one resource for which the certificate fails. */
static void check_resource(fluid *f, int32_t at)
{
    struct resource *r = &f->resource[at];
    if (!certificate_may_fail(f, r))
        return;
    int saturated = r->load >= r->capacity * (1.0 - SAME);
    double highest = saturated ? r->top : INFINITY;
    for (int32_t k = 0; k < r->count; k++) {
        const struct member *m = &r->member[k];
        const struct flow *w = &f->flow[m->flow];
        if (f->solution.mark[m->flow] != NOT_SOLVED || !fluid_member_live(f, m))
            continue;
        double level = level_of_flow(w);
        int too_high = r->froze && level > r->full_level * (1.0 + SAME);
        int too_low = w->bottleneck == at && level < highest * (1.0 - SAME);
        if (too_high || too_low)
            mark_affected(f, m->flow);
    }
}

/* Writes down at what level flows are bound, for the next solution's check. */
static void keep_levels(fluid *f)
{
    for (int32_t i = 0; i < f->solution.touched_count; i++) {
        struct resource *r = &f->resource[f->solution.touched[i]];
        if (r->froze)
            r->level = r->bound > r->froze ? fmin(r->level, r->full_level) : r->full_level;
    }
}

static void update_finish_times(fluid *f)
{
    struct solution *s = &f->solution;
    int many = s->affected_count > f->running.count / 8;
    for (int64_t i = 0; i < s->affected_count; i++) {
        int32_t slot = s->affected[i];
        const struct flow *w = &f->flow[slot];
        double key_s = f->now_s;
        if (w->left > 0.0 && isfinite(w->rate))
            key_s = w->rate > 0.0 ? f->now_s + w->left / w->rate : INFINITY;
        (many ? time_heap_set : time_heap_change)(&f->running, slot, key_s);
        s->mark[slot] = NOT_SOLVED;
    }
    if (many)
        time_heap_rebuild(&f->running);
}

void fluid_solve(fluid *f)
{
    struct solution *s = &f->solution;
    if (!f->fresh_count && !f->dirty_count)
        return;
    affect_first(f);
    if (!s->affected_count)
        return;
    f->solutions++;
    for (;;) {
        int all = s->affected_count > f->running.count / 2;
        if (all)
            affect_all(f);
        fill_progressively(f);
        if (all)
            break;
        int64_t solved = s->affected_count;
        for (int32_t i = 0; i < s->touched_count; i++)
            check_resource(f, s->touched[i]);
        if (s->affected_count == solved)
            break;
    }
    keep_levels(f);
    update_finish_times(f);
}

/* ---- what the rates are due to ---- */

/* The running flow that ends last at the present rates, a stalled one above all; NULL for none. */
static const struct flow *last_to_end(const fluid *f, int64_t n, const int32_t *id)
{
    const struct flow *last = NULL;
    double last_s = -1.0;
    for (int64_t i = 0; i < n; i++) {
        const struct flow *w = &f->flow[id[i]];
        double end_s = w->rate > 0.0 ? w->settled_s + w->left / w->rate : INFINITY;
        if (w->state == FLOW_ACTIVE && end_s > last_s) {
            last = w;
            last_s = end_s;
        }
    }
    return last;
}

/* Whether a resource keeps a flow from a larger share: it is saturated, and nobody's is larger. */
static int holds_back(const fluid *f, const struct flow *w, int32_t resource)
{
    const struct resource *r = &f->resource[resource];
    return resource == w->bottleneck ||
           (r->load >= r->capacity * (1.0 - SAME) && w->rate >= r->top * w->weight * (1.0 - SAME));
}

int32_t fluid_holding(fluid *f, int64_t n, const int32_t *id, int32_t *resource, int32_t room)
{
    for (int64_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= f->slots)
            return FLUID_EINVAL;
    fluid_solve(f);
    const struct flow *last = last_to_end(f, n, id);
    int32_t count = 0;
    if (!last)
        return 0;
    if (last->rate >= last->ceiling * (1.0 - SAME)) {
        if (room > 0)
            resource[0] = FLUID_CEILING;
        count = 1;
    }
    for (int64_t k = f->routes.ptr[last->route]; k < f->routes.ptr[last->route + 1]; k++) {
        if (!holds_back(f, last, f->routes.resource[k]))
            continue;
        if (count < room)
            resource[count] = f->routes.resource[k];
        count++;
    }
    return count;
}
