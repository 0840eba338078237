/* The manual is streams.h. */
#include "streams.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct edge {
    double amount, ceiling, delay_s, message_s;
    double arrived_s; /* when its last piece arrived */
    int32_t src, dst, route;
    int32_t handed, arrived; /* pieces */
    int8_t ends;             /* how many of its two ends have begun the stage */
    int8_t moving;           /* whether a piece is on its way */
};

/* For each edge a list of others. */
struct lists {
    int32_t *ptr, *entry;
};

struct stage {
    struct edge *edge;
    double *handed_s;        /* of the pieces under way, piece n of edge e at e * room + n % room */
    struct lists by_rank;    /* edges that start or end at a rank */
    struct lists feeds, fed; /* edges that an edge feeds, and those that feed it */
    int32_t room, pieces, lag;
    int32_t ranks_left; /* ranks that have not passed it */
};

/* The edge whose piece a flow is; stage -1 where the flow is not ours. */
struct carried {
    int32_t stage, edge;
};

/* The loaded stages first .. loaded - 1, stage k at stage[k & (room - 1)]. */
struct window {
    struct stage *stage;
    int32_t first, loaded, room;
};

/* Flows to start together. */
struct starting {
    int32_t *route, *id;
    double *amount, *ceiling, *start_s;
    struct carried *carried;
    int64_t count, room;
};

struct streams {
    fluid *net;
    int32_t ranks, count, slots;
    struct window window;
    int32_t *at;     /* the stage that each rank is in, or comes to next */
    int32_t *open;   /* its edges of that stage that are not done */
    double *ready_s; /* when the last of them was */
    int32_t *ready;  /* ranks that can begin the stage they are at */
    int32_t ready_count, finished;
    struct carried *carried; /* by flow id */
    int64_t carried_room;
    struct starting starting;
    /* Edges that may be able to hand over a piece. */
    struct carried *todo;
    int64_t todo_count, todo_room;
    int64_t arrivals, batches;
};

/* ---- memory ---- */

streams *streams_new(fluid *net, int32_t ranks, int32_t count, int32_t window)
{
    streams *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    size_t room = (size_t)ranks + 1;
    s->net = net;
    s->ranks = ranks;
    s->count = count;
    s->slots = window;
    s->window.room = 4;
    s->window.stage = calloc(4, sizeof *s->window.stage);
    s->at = calloc(room, sizeof *s->at);
    s->open = calloc(room, sizeof *s->open);
    s->ready_s = calloc(room, sizeof *s->ready_s);
    s->ready = calloc(room, sizeof *s->ready);
    if (!s->window.stage || !s->at || !s->open || !s->ready_s || !s->ready) {
        streams_free(s);
        return NULL;
    }
    for (int32_t rank = ranks; rank-- > 0;) {
        s->ready[s->ready_count++] = rank;
        s->ready_s[rank] = fluid_now_s(net);
    }
    return s;
}

static struct stage *stage_at(const streams *s, int32_t number)
{
    return &s->window.stage[number & (s->window.room - 1)];
}

static void free_lists(struct lists *lists)
{
    free(lists->ptr);
    free(lists->entry);
}

static void free_stage(struct stage *stage)
{
    free(stage->edge);
    free(stage->handed_s);
    free_lists(&stage->by_rank);
    free_lists(&stage->feeds);
    free_lists(&stage->fed);
    memset(stage, 0, sizeof *stage);
}

void streams_free(streams *s)
{
    if (!s)
        return;
    for (int32_t k = s->window.first; k < s->window.loaded; k++)
        free_stage(stage_at(s, k));
    free(s->window.stage);
    free(s->at);
    free(s->open);
    free(s->ready_s);
    free(s->ready);
    free(s->carried);
    free(s->starting.route);
    free(s->starting.id);
    free(s->starting.amount);
    free(s->starting.ceiling);
    free(s->starting.start_s);
    free(s->starting.carried);
    free(s->todo);
    free(s);
}

static int grow_window(streams *s)
{
    if (s->window.loaded - s->window.first < s->window.room)
        return 0;
    int32_t room = 2 * s->window.room;
    struct stage *larger = calloc((size_t)room, sizeof *larger);
    if (!larger)
        return FLUID_ENOMEM;
    for (int32_t k = s->window.first; k < s->window.loaded; k++)
        larger[k & (room - 1)] = *stage_at(s, k);
    free(s->window.stage);
    s->window.stage = larger;
    s->window.room = room;
    return 0;
}

static int resize_array(void **array, int64_t room, size_t size)
{
    void *larger = realloc(*array, (size_t)room * size);
    if (!larger)
        return FLUID_ENOMEM;
    *array = larger;
    return 0;
}

static int grow_start(streams *s)
{
    if (s->starting.count < s->starting.room)
        return 0;
    int64_t room = s->starting.room ? 2 * s->starting.room : 64;
    if (resize_array((void **)&s->starting.route, room, sizeof *s->starting.route) ||
        resize_array((void **)&s->starting.id, room, sizeof *s->starting.id) ||
        resize_array((void **)&s->starting.amount, room, sizeof *s->starting.amount) ||
        resize_array((void **)&s->starting.ceiling, room, sizeof *s->starting.ceiling) ||
        resize_array((void **)&s->starting.start_s, room, sizeof *s->starting.start_s) ||
        resize_array((void **)&s->starting.carried, room, sizeof *s->starting.carried))
        return FLUID_ENOMEM;
    s->starting.room = room;
    return 0;
}

static int grow_carried(streams *s, int32_t id)
{
    if (id < s->carried_room)
        return 0;
    int64_t room = s->carried_room ? s->carried_room : 64;
    while (room <= id)
        room *= 2;
    if (resize_array((void **)&s->carried, room, sizeof *s->carried))
        return FLUID_ENOMEM;
    for (int64_t i = s->carried_room; i < room; i++)
        s->carried[i].stage = -1;
    s->carried_room = room;
    return 0;
}

/* ---- loading ---- */

static int all_below(int64_t n, const int32_t *value, int64_t limit)
{
    for (int64_t i = 0; i < n; i++)
        if (value[i] < 0 || value[i] >= limit)
            return 0;
    return 1;
}

/* Lists under each of `keys` keys the entries i with that key[i]; a second array of keys, unless
 * NULL, lists them a second time. `entry` names what is listed, NULL i itself. */
static int make_lists(struct lists *lists, int64_t keys, int64_t n, const int32_t *key,
                      const int32_t *second, const int32_t *entry)
{
    lists->ptr = calloc((size_t)keys + 1, sizeof *lists->ptr);
    lists->entry = malloc(((size_t)n + 1) * (second ? 2 : 1) * sizeof *lists->entry);
    if (!lists->ptr || !lists->entry)
        return FLUID_ENOMEM;
    for (int64_t i = 0; i < n; i++) {
        lists->ptr[key[i]]++;
        if (second)
            lists->ptr[second[i]]++;
    }
    for (int64_t k = 0; k < keys; k++)
        lists->ptr[k + 1] += lists->ptr[k];
    /* Each list is filled from its end, ptr[key], which so becomes its beginning. */
    for (int64_t i = n; i-- > 0;) {
        int32_t what = entry ? entry[i] : (int32_t)i;
        lists->entry[--lists->ptr[key[i]]] = what;
        if (second)
            lists->entry[--lists->ptr[second[i]]] = what;
    }
    return 0;
}

int32_t streams_load(streams *s, int64_t n, const int32_t *src, const int32_t *dst,
                     const int32_t *route, const double *amount, const double *ceiling,
                     const double *delay_s, const double *message_s, int32_t pieces, int32_t lag,
                     int64_t feeds, const int32_t *from, const int32_t *to)
{
    if (s->window.loaded == s->count || n < 0 || n > INT32_MAX / 2 || pieces < 1 || lag < 0 ||
        lag >= s->slots || feeds < 0 || feeds > INT32_MAX / 2 || !all_below(n, src, s->ranks) ||
        !all_below(n, dst, s->ranks) || !all_below(feeds, from, n) || !all_below(feeds, to, n))
        return FLUID_EINVAL;
    if (grow_window(s))
        return FLUID_ENOMEM;
    struct stage stage = {.ranks_left = s->ranks, .pieces = pieces, .lag = lag};
    stage.room = pieces < s->slots ? pieces : s->slots;
    stage.edge = malloc(((size_t)n + 1) * sizeof *stage.edge);
    stage.handed_s = malloc(((size_t)n * (size_t)stage.room + 1) * sizeof *stage.handed_s);
    if (!stage.edge || !stage.handed_s || make_lists(&stage.by_rank, s->ranks, n, src, dst, NULL) ||
        make_lists(&stage.feeds, n, feeds, from, NULL, to) ||
        make_lists(&stage.fed, n, feeds, to, NULL, from)) {
        free_stage(&stage);
        return FLUID_ENOMEM;
    }
    for (int64_t i = 0; i < n; i++)
        stage.edge[i] = (struct edge){.amount = amount[i],
                                      .ceiling = ceiling[i],
                                      .delay_s = delay_s[i],
                                      .message_s = message_s[i],
                                      .arrived_s = -INFINITY,
                                      .src = src[i],
                                      .dst = dst[i],
                                      .route = route[i]};
    *stage_at(s, s->window.loaded++) = stage;
    return 0;
}

/* ---- pieces ---- */

static int start_piece(streams *s, int32_t number, int32_t which)
{
    if (grow_start(s))
        return FLUID_ENOMEM;
    struct stage *stage = stage_at(s, number);
    struct edge *edge = &stage->edge[which];
    double handed_s = stage->handed_s[(int64_t)which * stage->room + edge->arrived % stage->room];
    int64_t i = s->starting.count++;
    edge->moving = 1;
    s->starting.route[i] = edge->route;
    s->starting.amount[i] = edge->amount;
    s->starting.ceiling[i] = edge->ceiling;
    s->starting.start_s[i] = fmax(handed_s + edge->delay_s, edge->arrived_s) + edge->message_s;
    s->starting.carried[i] = (struct carried){number, which};
    return 0;
}

/* Whether the slot of piece n - slots is free again. */
static int slot_is_free(const streams *s, const struct stage *stage, int32_t which, int32_t n)
{
    int32_t last = n - s->slots;
    if (last < 0)
        return 1;
    const struct lists *feeds = &stage->feeds;
    if (feeds->ptr[which] == feeds->ptr[which + 1] || last + stage->lag >= stage->pieces)
        return stage->edge[which].arrived > last;
    for (int32_t i = feeds->ptr[which]; i < feeds->ptr[which + 1]; i++)
        if (stage->edge[feeds->entry[i]].handed <= last + stage->lag)
            return 0;
    return 1;
}

static int can_hand_over(const streams *s, const struct stage *stage, int32_t which)
{
    const struct edge *edge = &stage->edge[which];
    if (edge->ends < 2 || edge->handed == stage->pieces)
        return 0;
    int32_t needed = edge->handed - stage->lag;
    for (int32_t i = stage->fed.ptr[which]; needed >= 0 && i < stage->fed.ptr[which + 1]; i++)
        if (stage->edge[stage->fed.entry[i]].arrived <= needed)
            return 0;
    return slot_is_free(s, stage, which, edge->handed);
}

static int add_to_todo(streams *s, int32_t number, int32_t which)
{
    if (s->todo_count == s->todo_room) {
        int64_t room = s->todo_room ? 2 * s->todo_room : 64;
        if (resize_array((void **)&s->todo, room, sizeof *s->todo))
            return FLUID_ENOMEM;
        s->todo_room = room;
    }
    s->todo[s->todo_count++] = (struct carried){number, which};
    return 0;
}

static int remember_all(streams *s, int32_t number, const struct lists *lists, int32_t which)
{
    for (int32_t i = lists->ptr[which]; i < lists->ptr[which + 1]; i++)
        if (add_to_todo(s, number, lists->entry[i]))
            return FLUID_ENOMEM;
    return 0;
}

/* Hands over what can be at `now_s` on the edges to look at, and on those that this lets go on. */
static int hand_over(streams *s, double now_s)
{
    while (s->todo_count) {
        struct carried next = s->todo[--s->todo_count];
        struct stage *stage = stage_at(s, next.stage);
        struct edge *edge = &stage->edge[next.edge];
        while (can_hand_over(s, stage, next.edge)) {
            stage->handed_s[(int64_t)next.edge * stage->room + edge->handed % stage->room] = now_s;
            edge->handed++;
            if (!edge->moving && start_piece(s, next.stage, next.edge))
                return FLUID_ENOMEM;
            if (remember_all(s, next.stage, &stage->fed, next.edge))
                return FLUID_ENOMEM;
        }
    }
    return 0;
}

/* ---- running ---- */

static void pass_stage(streams *s, int32_t rank)
{
    stage_at(s, s->at[rank]++)->ranks_left--;
    s->ready[s->ready_count++] = rank;
    while (s->window.first < s->window.loaded && !stage_at(s, s->window.first)->ranks_left)
        free_stage(stage_at(s, s->window.first++));
}

static int begin_stage(streams *s, int32_t rank)
{
    int32_t number = s->at[rank];
    struct stage *stage = stage_at(s, number);
    int32_t row = stage->by_rank.ptr[rank], end = stage->by_rank.ptr[rank + 1];
    s->open[rank] = end - row;
    if (row == end) {
        pass_stage(s, rank);
        return 0;
    }
    for (; row < end; row++) {
        struct edge *edge = &stage->edge[stage->by_rank.entry[row]];
        if (++edge->ends < 2)
            continue;
        double both_s = fmax(s->ready_s[edge->src], s->ready_s[edge->dst]);
        if (add_to_todo(s, number, stage->by_rank.entry[row]) || hand_over(s, both_s))
            return FLUID_ENOMEM;
    }
    return 0;
}

/* Lets ready ranks begin; STREAMS_LOAD when one of them has come to a stage that is not here. */
static int begin_ready(streams *s)
{
    while (s->ready_count) {
        int32_t rank = s->ready[s->ready_count - 1];
        if (s->at[rank] < s->count && s->at[rank] == s->window.loaded)
            return STREAMS_LOAD;
        s->ready_count--;
        if (s->at[rank] == s->count)
            s->finished++;
        else if (begin_stage(s, rank))
            return FLUID_ENOMEM;
    }
    return 0;
}

static int start_flows(streams *s)
{
    int error = fluid_start(s->net, s->starting.count, s->starting.route, s->starting.amount, NULL,
                            s->starting.ceiling, s->starting.start_s, s->starting.id);
    if (error)
        return error;
    for (int64_t i = 0; i < s->starting.count; i++) {
        if (grow_carried(s, s->starting.id[i]))
            return FLUID_ENOMEM;
        s->carried[s->starting.id[i]] = s->starting.carried[i];
    }
    s->starting.count = 0;
    return 0;
}

static void end_reached(streams *s, int32_t rank, double done_s)
{
    s->ready_s[rank] = fmax(s->ready_s[rank], done_s);
    assert(s->open[rank] > 0);
    if (--s->open[rank] == 0)
        pass_stage(s, rank);
}

/* A piece has arrived at `done_s`; `now_s` is not earlier than that of any before it. */
static int take_arrival(streams *s, struct carried piece, double done_s, double now_s)
{
    struct stage *stage = stage_at(s, piece.stage);
    struct edge *edge = &stage->edge[piece.edge];
    s->arrivals++;
    edge->arrived++;
    edge->arrived_s = done_s;
    edge->moving = 0;
    if (edge->handed > edge->arrived && start_piece(s, piece.stage, piece.edge))
        return FLUID_ENOMEM;
    if (add_to_todo(s, piece.stage, piece.edge) ||
        remember_all(s, piece.stage, &stage->feeds, piece.edge) || hand_over(s, now_s))
        return FLUID_ENOMEM;
    if (edge->arrived == stage->pieces) {
        int32_t src = edge->src, dst = edge->dst; /* the stage may be freed at the first end */
        end_reached(s, src, done_s);
        end_reached(s, dst, done_s);
    }
    return 0;
}

static int take_arrivals(streams *s, int64_t done)
{
    const int32_t *id = fluid_done_id(s->net);
    const double *done_s = fluid_done_s(s->net);
    double now_s = 0.0;
    for (int64_t i = 0; i < done; i++) {
        now_s = fmax(now_s, done_s[i]);
        if (id[i] >= s->carried_room || s->carried[id[i]].stage < 0)
            continue;
        struct carried piece = s->carried[id[i]];
        s->carried[id[i]].stage = -1;
        if (take_arrival(s, piece, done_s[i], now_s))
            return FLUID_ENOMEM;
    }
    s->batches++;
    return 0;
}

int32_t streams_run(streams *s)
{
    for (;;) {
        int code = begin_ready(s);
        if (code)
            return code;
        code = start_flows(s);
        if (code)
            return code;
        if (s->finished == s->ranks)
            return STREAMS_DONE;
        int64_t done = fluid_run(s->net, INFINITY);
        if (done <= 0)
            return done ? (int32_t)done : STREAMS_STUCK;
        code = take_arrivals(s, done);
        if (code)
            return code;
    }
}

int32_t streams_loaded(const streams *s)
{
    return s->window.loaded;
}
int32_t streams_held(const streams *s)
{
    return s->window.loaded - s->window.first;
}
const double *streams_rank_s(const streams *s)
{
    return s->ready_s;
}

void streams_effort(const streams *s, int64_t *pieces, int64_t *batches)
{
    *pieces = s->arrivals;
    *batches = s->batches;
}
