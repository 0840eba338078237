/* The manual is steps.h. */
#include "steps.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct message {
    double amount, ceiling, delay_s;
    int32_t src, dst, route;
    int32_t ends; /* how many of its two ends have begun the step */
};

struct step {
    struct message *message;
    int32_t *ptr, *entry; /* CSR: messages that each rank sends or receives */
    int32_t ranks_left;   /* ranks that have not passed it */
};

/* The message that a flow carries; step -1 where the flow is not ours. */
struct carried {
    int32_t step, message;
};

struct steps {
    fluid *net;
    int32_t ranks, count;
    /* Loaded steps first .. loaded - 1, step k at window[k & (window_room - 1)]. */
    struct step *window;
    int32_t first, loaded, window_room;
    int32_t *at;     /* the step that each rank is in, or comes to next */
    int32_t *open;   /* its sends and receives of that step that are not complete */
    double *ready_s; /* when the last of them completed */
    int32_t *ready;  /* ranks that can begin the step they are at */
    int32_t ready_count, finished;
    struct carried *carried; /* by flow id */
    int64_t carried_room;
    /* Flows to start together. */
    int32_t *route, *id;
    double *amount, *ceiling, *start_s;
    struct carried *starting;
    int64_t start_count, start_room;
    int64_t messages, batches;
};

/* ---- memory ---- */

steps *steps_new(fluid *net, int32_t ranks, int32_t count)
{
    steps *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    size_t room = (size_t)ranks + 1;
    s->net = net;
    s->ranks = ranks;
    s->count = count;
    s->window_room = 4;
    s->window = calloc(4, sizeof *s->window);
    s->at = calloc(room, sizeof *s->at);
    s->open = calloc(room, sizeof *s->open);
    s->ready_s = calloc(room, sizeof *s->ready_s);
    s->ready = calloc(room, sizeof *s->ready);
    if (!s->window || !s->at || !s->open || !s->ready_s || !s->ready) {
        steps_free(s);
        return NULL;
    }
    for (int32_t rank = ranks; rank-- > 0;) {
        s->ready[s->ready_count++] = rank;
        s->ready_s[rank] = fluid_now_s(net);
    }
    return s;
}

static struct step *step_at(const steps *s, int32_t number)
{
    return &s->window[number & (s->window_room - 1)];
}

static void free_step(struct step *step)
{
    free(step->message);
    free(step->ptr);
    free(step->entry);
    memset(step, 0, sizeof *step);
}

void steps_free(steps *s)
{
    if (!s)
        return;
    for (int32_t k = s->first; k < s->loaded; k++)
        free_step(step_at(s, k));
    free(s->window);
    free(s->at);
    free(s->open);
    free(s->ready_s);
    free(s->ready);
    free(s->carried);
    free(s->route);
    free(s->id);
    free(s->amount);
    free(s->ceiling);
    free(s->start_s);
    free(s->starting);
    free(s);
}

static int grow_window(steps *s)
{
    if (s->loaded - s->first < s->window_room)
        return 0;
    int32_t room = 2 * s->window_room;
    struct step *larger = calloc((size_t)room, sizeof *larger);
    if (!larger)
        return FLUID_ENOMEM;
    for (int32_t k = s->first; k < s->loaded; k++)
        larger[k & (room - 1)] = *step_at(s, k);
    free(s->window);
    s->window = larger;
    s->window_room = room;
    return 0;
}

static int resize(void **array, int64_t room, size_t size)
{
    void *larger = realloc(*array, (size_t)room * size);
    if (!larger)
        return FLUID_ENOMEM;
    *array = larger;
    return 0;
}

static int grow_start(steps *s)
{
    if (s->start_count < s->start_room)
        return 0;
    int64_t room = s->start_room ? 2 * s->start_room : 64;
    if (resize((void **)&s->route, room, sizeof *s->route) ||
        resize((void **)&s->id, room, sizeof *s->id) ||
        resize((void **)&s->amount, room, sizeof *s->amount) ||
        resize((void **)&s->ceiling, room, sizeof *s->ceiling) ||
        resize((void **)&s->start_s, room, sizeof *s->start_s) ||
        resize((void **)&s->starting, room, sizeof *s->starting))
        return FLUID_ENOMEM;
    s->start_room = room;
    return 0;
}

static int grow_carried(steps *s, int32_t id)
{
    if (id < s->carried_room)
        return 0;
    int64_t room = s->carried_room ? s->carried_room : 64;
    while (room <= id)
        room *= 2;
    if (resize((void **)&s->carried, room, sizeof *s->carried))
        return FLUID_ENOMEM;
    for (int64_t i = s->carried_room; i < room; i++)
        s->carried[i].step = -1;
    s->carried_room = room;
    return 0;
}

/* ---- loading ---- */

static int ranks_valid(const steps *s, int64_t n, const int32_t *src, const int32_t *dst)
{
    for (int64_t i = 0; i < n; i++)
        if (src[i] < 0 || src[i] >= s->ranks || dst[i] < 0 || dst[i] >= s->ranks)
            return 0;
    return 1;
}

/* Lists each rank's messages; a message from a rank to itself stands there twice, as two ends. */
static void index_by_rank(const steps *s, struct step *step, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        step->ptr[step->message[i].src + 1]++;
        step->ptr[step->message[i].dst + 1]++;
    }
    for (int32_t rank = 0; rank < s->ranks; rank++)
        step->ptr[rank + 1] += step->ptr[rank];
    for (int64_t i = n; i-- > 0;) {
        /* Each row is filled from its end, ptr[rank + 1], which so becomes its beginning. */
        step->entry[--step->ptr[step->message[i].src + 1]] = (int32_t)i;
        step->entry[--step->ptr[step->message[i].dst + 1]] = (int32_t)i;
    }
    memmove(step->ptr, step->ptr + 1, (size_t)s->ranks * sizeof *step->ptr);
    step->ptr[s->ranks] = (int32_t)(2 * n);
}

int32_t steps_load(steps *s, int64_t n, const int32_t *src, const int32_t *dst,
                   const int32_t *route, const double *amount, const double *ceiling,
                   const double *delay_s)
{
    if (s->loaded == s->count || n < 0 || n > INT32_MAX / 2 || !ranks_valid(s, n, src, dst))
        return FLUID_EINVAL;
    if (grow_window(s))
        return FLUID_ENOMEM;
    struct step step = {.ranks_left = s->ranks};
    step.message = malloc(((size_t)n + 1) * sizeof *step.message);
    step.ptr = calloc((size_t)s->ranks + 1, sizeof *step.ptr);
    step.entry = malloc(((size_t)n + 1) * 2 * sizeof *step.entry);
    if (!step.message || !step.ptr || !step.entry) {
        free_step(&step);
        return FLUID_ENOMEM;
    }
    for (int64_t i = 0; i < n; i++)
        step.message[i] =
            (struct message){amount[i], ceiling[i], delay_s[i], src[i], dst[i], route[i], 0};
    index_by_rank(s, &step, n);
    *step_at(s, s->loaded++) = step;
    return 0;
}

/* ---- running ---- */

static void pass(steps *s, int32_t rank)
{
    step_at(s, s->at[rank]++)->ranks_left--;
    s->ready[s->ready_count++] = rank;
    while (s->first < s->loaded && !step_at(s, s->first)->ranks_left)
        free_step(step_at(s, s->first++));
}

static int start_message(steps *s, int32_t number, int32_t message)
{
    if (grow_start(s))
        return FLUID_ENOMEM;
    const struct message *m = &step_at(s, number)->message[message];
    int64_t i = s->start_count++;
    s->route[i] = m->route;
    s->amount[i] = m->amount;
    s->ceiling[i] = m->ceiling;
    s->start_s[i] = fmax(s->ready_s[m->src], s->ready_s[m->dst]) + m->delay_s;
    s->starting[i] = (struct carried){number, message};
    return 0;
}

static int begin(steps *s, int32_t rank)
{
    int32_t number = s->at[rank];
    struct step *step = step_at(s, number);
    int32_t row = step->ptr[rank], end = step->ptr[rank + 1];
    s->open[rank] = end - row;
    if (row == end) {
        pass(s, rank);
        return 0;
    }
    for (; row < end; row++)
        if (++step->message[step->entry[row]].ends == 2 &&
            start_message(s, number, step->entry[row]))
            return FLUID_ENOMEM;
    return 0;
}

/* Lets ready ranks begin; STEPS_LOAD when one of them has come to a step that is not here. */
static int begin_ready(steps *s)
{
    while (s->ready_count) {
        int32_t rank = s->ready[s->ready_count - 1];
        if (s->at[rank] < s->count && s->at[rank] == s->loaded)
            return STEPS_LOAD;
        s->ready_count--;
        if (s->at[rank] == s->count)
            s->finished++;
        else if (begin(s, rank))
            return FLUID_ENOMEM;
    }
    return 0;
}

static int start_flows(steps *s)
{
    int error = fluid_start(s->net, s->start_count, s->route, s->amount, NULL, s->ceiling,
                            s->start_s, s->id);
    if (error)
        return error;
    for (int64_t i = 0; i < s->start_count; i++) {
        if (grow_carried(s, s->id[i]))
            return FLUID_ENOMEM;
        s->carried[s->id[i]] = s->starting[i];
    }
    s->start_count = 0;
    return 0;
}

static void end_reached(steps *s, int32_t rank, double done_s)
{
    s->ready_s[rank] = fmax(s->ready_s[rank], done_s);
    assert(s->open[rank] > 0);
    if (--s->open[rank] == 0)
        pass(s, rank);
}

static void complete(steps *s, int32_t id, double done_s)
{
    if (id >= s->carried_room || s->carried[id].step < 0)
        return;
    const struct message *m = &step_at(s, s->carried[id].step)->message[s->carried[id].message];
    int32_t src = m->src, dst = m->dst; /* the step may be freed at the first end */
    s->carried[id].step = -1;
    s->messages++;
    end_reached(s, src, done_s);
    end_reached(s, dst, done_s);
}

int32_t steps_run(steps *s)
{
    for (;;) {
        int code = begin_ready(s);
        if (code)
            return code;
        code = start_flows(s);
        if (code)
            return code;
        if (s->finished == s->ranks)
            return STEPS_DONE;
        int64_t done = fluid_run(s->net, INFINITY);
        if (done <= 0)
            return done ? (int32_t)done : STEPS_STUCK;
        const int32_t *id = fluid_done_id(s->net);
        const double *done_s = fluid_done_s(s->net);
        for (int64_t i = 0; i < done; i++)
            complete(s, id[i], done_s[i]);
        s->batches++;
    }
}

int32_t steps_loaded(const steps *s)
{
    return s->loaded;
}
int32_t steps_held(const steps *s)
{
    return s->loaded - s->first;
}
const double *steps_rank_s(const steps *s)
{
    return s->ready_s;
}

void steps_effort(const steps *s, int64_t *messages, int64_t *batches)
{
    *messages = s->messages;
    *batches = s->batches;
}
