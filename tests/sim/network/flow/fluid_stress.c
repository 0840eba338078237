/* Random starts, cancels, reroutes and changes of capacity, with the max-min certificate checked
 * after each; then random collectives through the stream engine. `fluid_stress SEED OPERATIONS`
 * prints what went wrong and exits 1, or exits 0. Meant to be built with sanitizers. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "fluid.h"
#include "streams.h"

enum { RESOURCES = 24, ROUTES = 64, MOST_HOPS = 6, MOST_FLOWS = 300, RANKS = 13, STAGES = 40 };

static const double CLOSE = 1e-7;
static uint64_t state;

/* xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators", 2016). */
static uint32_t random_below(uint32_t limit)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545F4914F6CDD1DULL) >> 33) % limit;
}

static double random_unit(void)
{
    return (random_below(1u << 20) + 1) / (double)(1u << 20);
}

/* Anything from 1e-3 to 1e3, evenly over the orders of magnitude. */
static double random_size(void)
{
    return pow(10.0, 6.0 * random_unit() - 3.0);
}

static void require_truth(int truth, const char *what)
{
    if (truth)
        return;
    printf("%s\n", what);
    exit(1);
}

struct world {
    fluid *net;
    double capacity[RESOURCES];
    int64_t ptr[ROUTES + 1];
    int32_t resource[ROUTES * MOST_HOPS];
    double coefficient[ROUTES * MOST_HOPS];
    struct running {
        int32_t id, route;
        double weight, ceiling, start_s;
    } flow[MOST_FLOWS];
    int32_t flows;
};

static void build_world(struct world *w)
{
    for (int r = 0; r < RESOURCES; r++)
        w->capacity[r] = random_size();
    w->net = fluid_new(RESOURCES, w->capacity, random_below(2) ? 1e-9 : 1e-2);
    require_truth(w->net != NULL, "no memory");
    for (int i = 0; i < ROUTES; i++) {
        int32_t hops = 1 + (int32_t)random_below(MOST_HOPS),
                first = (int32_t)random_below(RESOURCES);
        w->ptr[i + 1] = w->ptr[i] + hops;
        for (int32_t k = 0; k < hops; k++) {
            w->resource[w->ptr[i] + k] = (first + 5 * k) % RESOURCES; /* distinct: 5 and 24 */
            w->coefficient[w->ptr[i] + k] = random_below(2) ? 1.0 : random_size();
        }
    }
    require_truth(fluid_add_routes(w->net, ROUTES, w->ptr, w->resource, w->coefficient) == 0,
                  "routes were refused");
}

/* ---- the certificate ---- */

static void certify_flow(const struct world *w, int32_t i, const double *rate, const double *load,
                         const double *top)
{
    const struct running *flow = &w->flow[i];
    double level = rate[i] / flow->weight;
    require_truth(rate[i] <= flow->ceiling * (1 + CLOSE), "a flow is above its ceiling");
    if (rate[i] >= flow->ceiling * (1 - CLOSE))
        return;
    for (int64_t k = w->ptr[flow->route]; k < w->ptr[flow->route + 1]; k++) {
        int32_t r = w->resource[k];
        if (load[r] >= w->capacity[r] * (1 - CLOSE) && level >= top[r] * (1 - CLOSE))
            return;
    }
    require_truth(0, "a flow could be faster");
}

static void certify_rates(struct world *w)
{
    double rate[MOST_FLOWS], left[MOST_FLOWS], load[RESOURCES] = {0}, top[RESOURCES] = {0};
    double reported[RESOURCES];
    int32_t id[MOST_FLOWS];
    for (int32_t i = 0; i < w->flows; i++)
        id[i] = w->flow[i].id;
    require_truth(fluid_flow_state(w->net, w->flows, id, rate, left) == 0,
                  "a running flow is unknown");
    for (int32_t i = 0; i < w->flows; i++)
        for (int64_t k = w->ptr[w->flow[i].route]; k < w->ptr[w->flow[i].route + 1]; k++) {
            int32_t r = w->resource[k];
            load[r] += rate[i] * w->coefficient[k];
            top[r] = fmax(top[r], rate[i] / w->flow[i].weight);
        }
    fluid_load(w->net, reported);
    for (int r = 0; r < RESOURCES; r++) {
        require_truth(load[r] <= w->capacity[r] * (1 + CLOSE), "a resource is above its capacity");
        require_truth(fabs(load[r] - reported[r]) <= CLOSE * (1e-3 + w->capacity[r]),
                      "a load is wrong");
    }
    for (int32_t i = 0; i < w->flows; i++)
        if (w->flow[i].start_s <= fluid_now_s(w->net))
            certify_flow(w, i, rate, load, top);
        else
            require_truth(rate[i] == 0.0, "a flow runs before it starts");
}

/* ---- operations ---- */

static void start_flow(struct world *w)
{
    int32_t n = 1 + (int32_t)random_below(12), route[12], id[12];
    double amount[12], weight[12], ceiling[12], start_s[12];
    if (w->flows + n > MOST_FLOWS)
        return;
    for (int32_t i = 0; i < n; i++) {
        route[i] = (int32_t)random_below(ROUTES);
        amount[i] = random_below(20) ? random_size() : 0.0;
        weight[i] = random_size();
        ceiling[i] = random_below(3) ? INFINITY : random_size();
        start_s[i] = fluid_now_s(w->net) + (random_below(3) ? 0.0 : random_size());
    }
    require_truth(fluid_start(w->net, n, route, amount, weight, ceiling, start_s, id) == 0,
                  "flows were refused");
    for (int32_t i = 0; i < n; i++)
        w->flow[w->flows++] = (struct running){id[i], route[i], weight[i], ceiling[i], start_s[i]};
}

static void forget_flow(struct world *w, int32_t id)
{
    for (int32_t i = 0; i < w->flows; i++)
        if (w->flow[i].id == id) {
            w->flow[i] = w->flow[--w->flows];
            return;
        }
    require_truth(0, "a flow completed that does not run");
}

static void run_some_time(struct world *w)
{
    double until_s = fluid_now_s(w->net) + random_size();
    for (int64_t done; (done = fluid_run(w->net, until_s)) > 0;) {
        for (int64_t i = 0; i < done; i++)
            forget_flow(w, fluid_done_id(w->net)[i]);
        certify_rates(w);
    }
    require_truth(fluid_flows(w->net) == w->flows, "flows were lost");
}

static void do_something(struct world *w)
{
    int32_t r = (int32_t)random_below(RESOURCES);
    struct running *flow = w->flows ? &w->flow[random_below((uint32_t)w->flows)] : NULL;
    switch (random_below(6)) {
    case 0:
    case 1:
        start_flow(w);
        break;
    case 2:
        run_some_time(w);
        break;
    case 3:
        w->capacity[r] = random_below(8) ? random_size() : 0.0;
        require_truth(fluid_set_capacity(w->net, r, w->capacity[r]) == 0, "a capacity was refused");
        break;
    case 4:
        if (flow) {
            flow->route = (int32_t)random_below(ROUTES);
            require_truth(fluid_reroute(w->net, flow->id, flow->route) == 0,
                          "a reroute was refused");
        }
        break;
    default:
        if (flow) {
            require_truth(fluid_cancel(w->net, flow->id) >= 0.0, "a cancel was refused");
            *flow = w->flow[--w->flows];
        }
    }
    if (random_below(2))
        certify_rates(w);
}

/* ---- collectives: independent streams, or a ring of whose pieces each waits for another ---- */

static int64_t load_stage(streams *s, int32_t window)
{
    int32_t src[RANKS], dst[RANKS], route[RANKS], from[RANKS], to[RANKS], n = 0;
    double amount[RANKS], ceiling[RANKS], delay_s[RANKS], message_s[RANKS];
    int32_t ring = (int32_t)random_below(2), shift = 1 + (int32_t)random_below(RANKS);
    int32_t pieces = 1 + (int32_t)random_below(20);
    int32_t lag = ring ? 1 + (int32_t)random_below((uint32_t)window - 1) : 0;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        if (!ring && !random_below(3))
            continue; /* some ranks have nothing to do */
        src[n] = rank;
        dst[n] = (rank + shift) % RANKS;
        from[n] = rank;
        to[n] = dst[n];
        route[n] = (int32_t)random_below(ROUTES);
        amount[n] = random_size();
        ceiling[n] = random_below(3) ? INFINITY : random_size();
        message_s[n] = random_below(2) ? 0.0 : random_size();
        delay_s[n++] = random_below(2) ? 0.0 : random_size();
    }
    require_truth(streams_load(s, n, src, dst, route, amount, ceiling, delay_s, message_s, pieces,
                               lag, ring ? n : 0, from, to) == 0,
                  "a stage was refused");
    return (int64_t)n * pieces;
}

static void run_collective(struct world *w)
{
    for (int r = 0; r < RESOURCES; r++)
        fluid_set_capacity(w->net, r, w->capacity[r] = random_size());
    while (w->flows)
        fluid_cancel(w->net, w->flow[--w->flows].id);
    double start_s = fluid_now_s(w->net);
    int32_t code, window = 2 + (int32_t)random_below(7);
    int32_t given_up = random_below(4) == 0 ? STAGES / 2 : STAGES;
    streams *s = streams_new(w->net, RANKS, STAGES, window);
    int64_t sent = 0, arrived, batches;
    require_truth(s != NULL, "no memory");
    while ((code = streams_run(s)) == STREAMS_LOAD && streams_loaded(s) < given_up)
        sent += load_stage(s, window);
    streams_effort(s, &arrived, &batches);
    if (given_up == STAGES) {
        require_truth(code == STREAMS_DONE, "a collective did not end");
        require_truth(arrived == sent && fluid_flows(w->net) == 0, "pieces were lost");
        require_truth(streams_held(s) == 0, "a stage is still held");
    }
    for (int32_t rank = 0; rank < RANKS; rank++)
        require_truth(streams_rank_s(s)[rank] >= start_s &&
                          streams_rank_s(s)[rank] <= fluid_now_s(w->net) * (1 + CLOSE),
                      "a rank ended at a time that never was");
    streams_free(s);
}

int main(int count, char **argument)
{
    static struct world w;
    require_truth(count == 3, "usage: fluid_stress SEED OPERATIONS");
    state = strtoull(argument[1], NULL, 10) * 0x9E3779B97F4A7C15ULL + 1;
    build_world(&w);
    for (long i = strtol(argument[2], NULL, 10); i > 0; i--)
        do_something(&w);
    run_collective(&w);
    fluid_free(w.net);
    return 0;
}
