/* Runs: the pieces of a collective's stages, handed over as their data and slots allow.
 *
 * A rank *begins* a stage when all its edges of the one before are done; there is no barrier. The
 * source of an edge *hands over* piece n, which the stack takes up `delay_ns` later, as soon as
 *   - it has begun the stage, and has handed over piece n - 1;
 *   - piece n - lag of every edge that feeds this one has arrived (the data);
 *   - one of its own slots is free: the receiver has acknowledged piece n - slots.
 * The receiver's slot of piece n is free again when the receiver has begun the stage and has passed
 * the piece on, which is when every edge that this one feeds has been handed piece n + lag, or at
 * once, where nothing passes it on. Only then does it give credit for another piece: so a sender
 * knows of free slots as late as the network reports them.
 *
 * Stages are loaded in order, each when the first rank comes to it, and freed when the last rank
 * has passed it.
 */
#include <assert.h>

#include "base/sequence.h"
#include "world.h"

struct edge {
    int64_t bytes;
    int32_t src, dst, channel;
    int32_t pieces, handed, arrived, passed;
    bool source_began, target_began;
};

/* For each edge or rank a list of edges. */
struct lists {
    int32_t *ptr, *entry;
};

struct stage {
    struct edge *edge;
    struct lists by_rank;    /* edges that start or end at a rank */
    struct lists feeds, fed; /* edges that an edge feeds, and those that feed it */
    uint64_t messages_q16;   /* that a piece is */
    int32_t lag;
    int32_t ranks_left; /* ranks that have not passed it */
};

struct run {
    int32_t ranks, count;
    struct stage *stage; /* `count` of them; those from `first` to `loaded` - 1 are there */
    int32_t first, loaded;
    int32_t *at;    /* the stage that each rank is in, or comes to next */
    int32_t *open;  /* its edges of that stage that are not done */
    int32_t *ready; /* ranks that can begin the stage they are at */
    int32_t ready_n, finished;
    bool waits; /* for a stage to be loaded */
};

/* ---- memory */

static void free_lists(struct lists *lists)
{
    free(lists->ptr);
    free(lists->entry);
}

static void free_stage(struct stage *stage)
{
    free(stage->edge);
    free_lists(&stage->by_rank);
    free_lists(&stage->feeds);
    free_lists(&stage->fed);
    memset(stage, 0, sizeof *stage);
}

void free_run(struct run *run)
{
    if (!run)
        return;
    for (int32_t i = run->first; i < run->loaded; i++)
        free_stage(&run->stage[i]);
    free(run->stage);
    free(run->at);
    free(run->open);
    free(run->ready);
    free(run);
}

/* List under each of `keys` keys the entries i with that key[i], or that second[i] unless it is
 * NULL. `entry` names what is listed; NULL: i itself. */
static void make_lists(struct lists *lists, int32_t keys, int32_t n, const int32_t *key,
                       const int32_t *second, const int32_t *entry)
{
    lists->ptr = zeroed_array((size_t)keys + 1, sizeof *lists->ptr);
    lists->entry = zeroed_array((size_t)n * (second ? 2 : 1), sizeof *lists->entry);
    for (int32_t i = 0; i < n; i++) {
        lists->ptr[key[i]]++;
        if (second)
            lists->ptr[second[i]]++;
    }
    for (int32_t k = 0; k < keys; k++)
        lists->ptr[k + 1] += lists->ptr[k];
    /* Each list is filled from its end, ptr[key], which so becomes its beginning. */
    for (int32_t i = n; i-- > 0;) {
        int32_t what = entry ? entry[i] : i;
        lists->entry[--lists->ptr[key[i]]] = what;
        if (second)
            lists->entry[--lists->ptr[second[i]]] = what;
    }
}

/* ---- pieces */

static struct channel *channel_of(struct packet_world *w, const struct edge *edge)
{
    return &w->channels.all[edge->channel];
}

static uint32_t piece_bytes(const struct edge *edge, int32_t n)
{
    return (uint32_t)(edge->bytes * (n + 1) / edge->pieces - edge->bytes * n / edge->pieces);
}

static void free_slot(struct packet_world *w, const struct edge *edge)
{
    struct channel *channel = channel_of(w, edge);
    channel->taken--;
    if (channel->connection == NOBODY) {
        free_pipe_slot(w, (uint32_t)channel->pipe);
    } else {
        channel->posted++;
        post_slots(w, (uint32_t)edge->channel);
    }
    release_channel(w, (uint32_t)edge->channel);
}

static bool is_passed_on(const struct stage *stage, int32_t which, int32_t n)
{
    const struct edge *edge = &stage->edge[which];
    if (edge->arrived <= n || !edge->target_began)
        return false;
    for (int32_t i = stage->feeds.ptr[which]; i < stage->feeds.ptr[which + 1]; i++) {
        const struct edge *next = &stage->edge[stage->feeds.entry[i]];
        if (n + stage->lag < next->pieces && next->handed <= n + stage->lag)
            return false;
    }
    return true;
}

static void free_passed(struct packet_world *w, struct stage *stage, int32_t which)
{
    struct edge *edge = &stage->edge[which];
    while (edge->passed < edge->pieces && is_passed_on(stage, which, edge->passed)) {
        edge->passed++;
        free_slot(w, edge);
    }
}

static bool has_data(const struct stage *stage, int32_t which)
{
    int32_t needed = stage->edge[which].handed - stage->lag;
    for (int32_t i = stage->fed.ptr[which]; needed >= 0 && i < stage->fed.ptr[which + 1]; i++)
        if (stage->edge[stage->fed.entry[i]].arrived <= needed)
            return false;
    return true;
}

static void give_to_stack(struct packet_world *w, uint32_t number, uint32_t bytes, uint64_t cost_ns)
{
    struct channel *channel = &w->channels.all[number];
    struct traffic *traffic = traffic_of(w, channel);
    uint64_t at_ns = w->now_ns + channel->delay_ns;
    if (channel->connection != NOBODY) {
        uint32_t process = (uint32_t)w->hosts.ends[2 * channel->connection].process;
        at_ns = handle_message(w, process, cost_ns) + channel->delay_ns;
    }
    uint32_t last = (traffic->pieces_first + traffic->pieces_n++) % SLOTS_MAX;
    traffic->piece[last] = (struct waiting_piece){at_ns, bytes};
    if (traffic->pieces_n == 1 && channel->connected)
        push_event(w, at_ns, CHANNEL_BEGINS, number);
}

static void hand_over(struct packet_world *w, int32_t run, int32_t number, int32_t which)
{
    struct stage *stage = &w->runs.all[run]->stage[number];
    struct edge *edge = &stage->edge[which];
    struct channel *channel = channel_of(w, edge);
    channel->sender = (struct expected){run, number, which};
    while (edge->source_began && edge->handed < edge->pieces && channel->held < w->config.slots &&
           has_data(stage, which)) {
        occupy_channel(w, (uint32_t)edge->channel);
        struct traffic *traffic = traffic_of(w, channel);
        assert(traffic->expected_n < SLOTS_MAX);
        uint32_t last = (traffic->expected_first + traffic->expected_n++) % SLOTS_MAX;
        traffic->expected[last] = (struct expected){run, number, which};
        traffic->cost_ns[last] = channel->message_ns * stage->messages_q16 >> 16;
        channel->held++;
        give_to_stack(w, (uint32_t)edge->channel, piece_bytes(edge, edge->handed++),
                      traffic->cost_ns[last]);
        for (int32_t i = stage->fed.ptr[which]; i < stage->fed.ptr[which + 1]; i++)
            free_passed(w, stage, stage->fed.entry[i]);
    }
}

static void take_left_piece(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    const struct expected sender = channel->sender;
    channel->held--;
    if (sender.run != NOBODY && w->runs.all[sender.run] &&
        sender.stage >= w->runs.all[sender.run]->first)
        hand_over(w, sender.run, sender.stage, sender.edge);
    release_channel(w, number);
}

/* ---- ranks */

static void pass_stage(struct run *run, int32_t rank)
{
    run->stage[run->at[rank]++].ranks_left--;
    run->ready[run->ready_n++] = rank;
    while (run->first < run->loaded && !run->stage[run->first].ranks_left)
        free_stage(&run->stage[run->first++]);
}

static void begin_edges(struct packet_world *w, int32_t number, int32_t at, int32_t rank)
{
    struct stage *stage = &w->runs.all[number]->stage[at];
    for (int32_t row = stage->by_rank.ptr[rank]; row < stage->by_rank.ptr[rank + 1]; row++) {
        int32_t which = stage->by_rank.entry[row];
        struct edge *edge = &stage->edge[which];
        if (edge->src == rank) {
            edge->source_began = true;
            hand_over(w, number, at, which);
        } else {
            edge->target_began = true;
            free_passed(w, stage, which);
        }
    }
}

static void begin_stage(struct packet_world *w, int32_t number, int32_t rank)
{
    struct run *run = w->runs.all[number];
    const struct stage *stage = &run->stage[run->at[rank]];
    run->open[rank] = 0;
    for (int32_t row = stage->by_rank.ptr[rank]; row < stage->by_rank.ptr[rank + 1]; row++) {
        const struct edge *edge = &stage->edge[stage->by_rank.entry[row]];
        run->open[rank] += edge->arrived < edge->pieces;
    }
    begin_edges(w, number, run->at[rank], rank);
    if (!run->open[rank])
        pass_stage(run, rank);
}

/* Let ready ranks begin, until one of them has come to a stage that is not here. */
static void begin_ready(struct packet_world *w, int32_t number)
{
    struct run *run = w->runs.all[number];
    while (run->ready_n) {
        int32_t rank = run->ready[run->ready_n - 1];
        if (run->at[rank] < run->count && run->at[rank] == run->loaded) {
            if (!run->waits) {
                GROW_ARRAY(w->runs.wants);
                w->runs.wants[w->runs.wants_n++] = number;
            }
            run->waits = true;
            return;
        }
        run->ready_n--;
        if (run->at[rank] == run->count)
            run->finished++;
        else
            begin_stage(w, number, rank);
    }
    if (run->finished < run->ranks)
        return;
    GROW_ARRAY(w->runs.done);
    w->runs.done[w->runs.done_n++] = number;
    free_run(run);
    w->runs.all[number] = NULL;
}

static void reach_end(struct run *run, int32_t rank)
{
    assert(run->open[rank] > 0);
    if (--run->open[rank] == 0)
        pass_stage(run, rank);
}

static void take_arrived_piece(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    struct traffic *traffic = traffic_of(w, channel);
    assert(traffic->expected_n);
    const struct expected at = traffic->expected[traffic->expected_first];
    traffic->expected_first = (traffic->expected_first + 1) % SLOTS_MAX;
    traffic->expected_n--;
    channel->coming--;
    channel->taken++;
    struct run *run = w->runs.all[at.run];
    struct stage *stage = &run->stage[at.stage];
    struct edge *edge = &stage->edge[at.edge];
    edge->arrived++;
    for (int32_t i = stage->feeds.ptr[at.edge]; i < stage->feeds.ptr[at.edge + 1]; i++)
        hand_over(w, at.run, at.stage, stage->feeds.entry[i]);
    free_passed(w, stage, at.edge);
    if (edge->arrived < edge->pieces)
        return;
    int32_t src = edge->src, dst = edge->dst; /* the stage may be freed at the first end */
    bool both = edge->target_began;           /* else it is done when the target comes to it */
    reach_end(run, src);
    if (both)
        reach_end(run, dst);
    begin_ready(w, at.run);
}

void tell_runs(struct packet_world *w)
{
    for (size_t i = 0; i < w->runs.news_n; i++) {
        const struct piece_news news = w->runs.news[i];
        if (news.arrived)
            take_arrived_piece(w, news.channel);
        else
            take_left_piece(w, news.channel);
    }
    w->runs.news_n = 0;
}

/* ---- calls */

int32_t packet_add_run(packet_world *w, int32_t ranks, int32_t stages)
{
    struct run *run = zeroed_array(1, sizeof *run);
    run->ranks = ranks;
    run->count = stages;
    run->stage = zeroed_array((size_t)stages, sizeof *run->stage);
    run->at = zeroed_array((size_t)ranks, sizeof *run->at);
    run->open = zeroed_array((size_t)ranks, sizeof *run->open);
    run->ready = zeroed_array((size_t)ranks + 1, sizeof *run->ready);
    while (run->ready_n < ranks) {
        run->ready[run->ready_n] = ranks - 1 - run->ready_n;
        run->ready_n++;
    }
    GROW_ARRAY(w->runs.all);
    w->runs.all[w->runs.all_n++] = run;
    begin_ready(w, (int32_t)w->runs.all_n - 1);
    return (int32_t)w->runs.all_n - 1;
}

int32_t packet_load(packet_world *w, int32_t number, int32_t n, const int32_t *src,
                    const int32_t *dst, const int32_t *channel, const int64_t *bytes,
                    const int32_t *pieces, double messages, int32_t lag, int32_t feeds,
                    const int32_t *from, const int32_t *to)
{
    struct run *run = w->runs.all[number];
    struct stage *stage = &run->stage[run->loaded];
    stage->lag = lag;
    stage->messages_q16 = (uint64_t)(messages * 65536 + 0.5);
    stage->ranks_left = run->ranks;
    stage->edge = zeroed_array((size_t)n, sizeof *stage->edge);
    for (int32_t i = 0; i < n; i++)
        stage->edge[i] = (struct edge){.bytes = bytes[i],
                                       .src = src[i],
                                       .dst = dst[i],
                                       .channel = channel[i],
                                       .pieces = pieces[i]};
    make_lists(&stage->by_rank, run->ranks, n, src, dst, NULL);
    make_lists(&stage->feeds, n, feeds, from, NULL, to);
    make_lists(&stage->fed, n, feeds, to, NULL, from);
    run->loaded++;
    run->waits = false;
    begin_ready(w, number);
    return 0;
}
