/* The manual is pipeline.h. */
#include "pipeline.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* The largest of a group's edges, and where its path ends. */
struct group {
    double message_s, busy_s, hop_s, steady_s;
    double path_s, path_alpha_s; /* the longest way through a tree, and its latency */
};

static double steady_s(const pipeline_edges *e, int64_t i)
{
    return e->piece[e->group[i]] * e->steady_s[i];
}

/* Time of the messages of a piece beside its bytes. */
static double beside_bytes_s(const pipeline_edges *e, double message_s, double bytes_s)
{
    double all_s = e->messages * message_s;
    return e->helped ? fmax(all_s - bytes_s, 0.0) : all_s;
}

static double message_s(const pipeline_edges *e, int64_t i)
{
    return beside_bytes_s(e, e->message_s[i], steady_s(e, i));
}

static double busy_s(const pipeline_edges *e, int64_t i)
{
    return message_s(e, i) + steady_s(e, i);
}

static double hop_s(const pipeline_edges *e, int64_t i)
{
    return e->alpha_s[i] + busy_s(e, i);
}

static double first_hop_s(const pipeline_edges *e, int64_t i)
{
    double bytes_s = e->piece[e->group[i]] * e->first_s[i];
    return e->alpha_s[i] + beside_bytes_s(e, e->first_message_s[i], bytes_s) + bytes_s;
}

static double alpha_s(const pipeline_edges *e, int64_t i)
{
    return e->alpha_s[i];
}

static void find_largest(const pipeline_edges *e, struct group *g)
{
    for (int64_t i = 0; i < e->edges; i++) {
        struct group *own = &g[e->group[i]];
        own->message_s = fmax(own->message_s, message_s(e, i));
        own->busy_s = fmax(own->busy_s, busy_s(e, i));
        own->hop_s = fmax(own->hop_s, hop_s(e, i));
        own->steady_s = fmax(own->steady_s, steady_s(e, i));
    }
}

/* The largest sum of `cost` along the paths that end with each edge of a copy. */
static void sum_paths(const pipeline_edges *e, const pipeline_order *order, int64_t first,
                      double (*cost)(const pipeline_edges *, int64_t), double *sum)
{
    for (int64_t i = 0; i < order->per_copy; i++)
        sum[i] = cost(e, first + i);
    for (int64_t k = 0; k < order->feeds; k++) {
        int64_t target = order->target[k];
        sum[target] = fmax(sum[target], cost(e, first + target) + sum[order->source[k]]);
    }
}

static int find_paths(const pipeline_edges *e, const pipeline_order *order, struct group *g)
{
    double *sum = malloc((size_t)order->per_copy * sizeof(double));
    if (sum == NULL)
        return -1;
    for (int64_t first = 0; first < e->edges; first += order->per_copy) {
        sum_paths(e, order, first, first_hop_s, sum);
        for (int64_t i = 0; i < order->per_copy; i++)
            g[e->group[first + i]].path_s = fmax(g[e->group[first + i]].path_s, sum[i]);
        sum_paths(e, order, first, alpha_s, sum);
        for (int64_t i = 0; i < order->per_copy; i++)
            g[e->group[first + i]].path_alpha_s = fmax(g[e->group[first + i]].path_alpha_s, sum[i]);
    }
    free(sum);
    return 0;
}

/* The largest sum of 1 to `longest` values in a row, around a ring of `size` again and again.
 * `sum` has room for 3 size + 1 values, `least` for as many places. */
static double largest_run(const double *value, int64_t size, int64_t longest, double *sum,
                          int64_t *least)
{
    int64_t reach = longest <= 2 * size ? longest : size + longest % size;
    double largest = -INFINITY;
    int64_t head = 0, tail = 0;

    sum[0] = 0.0;
    for (int64_t i = 0; i < 3 * size; i++)
        sum[i + 1] = sum[i] + value[i % size];
    /* The places of the smallest of the last `reach` sums, in ascending order of both. */
    for (int64_t i = 0; i < 3 * size; i++) {
        while (tail > head && sum[least[tail - 1]] >= sum[i])
            tail--;
        least[tail++] = i;
        if (least[head] <= i - reach)
            head++;
        largest = fmax(largest, sum[i + 1] - sum[least[head]]);
    }
    return largest + (double)((longest - reach) / size) * fmax(sum[size], 0.0);
}

struct scratch {
    double *gain, *sum;
    int64_t *least;
};

/* The end of a ring of `pieces` pieces, which are what is left of them after some windows. */
static double ring_end_s(const pipeline_edges *e, const pipeline_order *order, int64_t ring,
                         double pace_s, int64_t pieces, struct scratch *room)
{
    int64_t size = e->edges / e->groups;
    for (int64_t i = 0; i < size; i++)
        room->gain[i] = hop_s(e, ring * size + i) - (double)order->lag * pace_s;
    int64_t longest = (pieces + order->lag - 1) / order->lag;
    return (double)(pieces + order->lag - 1) * pace_s +
           largest_run(room->gain, size, longest, room->sum, room->least);
}

static double end_s(const pipeline_edges *e, const pipeline_order *order, int64_t number,
                    const struct group *g, int64_t windows, struct scratch *room)
{
    int64_t pieces = order->pieces - windows * order->slots;
    double waiting_s = (double)windows * g->hop_s;
    if (order->lag == 0)
        return waiting_s + g->path_s + (double)(pieces - 1) * g->busy_s;
    return waiting_s + ring_end_s(e, order, number, g->busy_s, pieces, room);
}

static void add_times(const pipeline_edges *e, const pipeline_order *order, struct group *g,
                      pipeline_times *times, double *least_s, struct scratch *room)
{
    for (int64_t i = 0; i < e->groups; i++, g++) {
        int held = g->hop_s > (double)order->slots * g->busy_s;
        double flow_s = fmax(g->steady_s, g->hop_s / (double)order->slots - g->message_s);
        double end = end_s(e, order, i, g, 0, room);
        if (held)
            end = fmax(end, end_s(e, order, i, g, (order->pieces - 1) / order->slots, room));
        double beside_s = fmax(end - (double)order->pieces * (g->message_s + flow_s), 0.0);
        double latency_s = order->lag ? beside_s : fmin(beside_s, g->path_alpha_s);
        times->latency_s = fmax(times->latency_s, latency_s);
        times->filling_s = fmax(times->filling_s, beside_s - latency_s);
        times->message_s = fmax(times->message_s, (double)order->pieces * g->message_s);
        least_s[i] = held ? flow_s : 0.0;
    }
}

int pipeline_time(const pipeline_edges *e, const pipeline_order *order, pipeline_times *times,
                  double *least_s)
{
    assert(e->groups > 0 && order->pieces > 0 && order->slots > 0);
    size_t size = order->lag ? (size_t)(e->edges / e->groups) : 0;
    struct group *group = calloc((size_t)e->groups, sizeof *group);
    struct scratch room = {
        .gain = malloc((size + 1) * sizeof(double)),
        .sum = malloc((3 * size + 1) * sizeof(double)),
        .least = malloc((3 * size + 1) * sizeof(int64_t)),
    };
    int code = -1;
    if (group && room.gain && room.sum && room.least) {
        find_largest(e, group);
        code = order->lag ? 0 : find_paths(e, order, group);
    }
    if (code == 0) {
        *times = (pipeline_times){0};
        add_times(e, order, group, times, least_s, &room);
    }
    free(group);
    free(room.gain);
    free(room.sum);
    free(room.least);
    return code;
}
