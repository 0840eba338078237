/* Speed of a plugin: streams, round trips, and a table of sizes as nccl-tests prints it.
 *
 * Nothing is checked here but sizes. As NCCL's progress thread does, the one of ours posts as long
 * as it may, asks about the oldest request only, and yields when nothing moved.
 */
#define _GNU_SOURCE
#include "bench.h"
#include "client.h"

#include <sys/socket.h>

enum { TABLE_BYTES = 256 << 20, TABLE_MOST = 20000, TABLE_LEAST = 10, ROUNDS_MAX = 1 << 20 };

struct stream {
    struct world *world;
    struct link *link;
    size_t size;
    int depth;
    uint64_t count; /* messages; 0: until the meeting says so, or the window closes */
    uint64_t posted, done;
    void *requests[NCCL_REQUESTS];
    struct bench_window *window;
};

static void *data_at(const struct stream *s, uint64_t number)
{
    return s->link->region.bytes + number % (uint64_t)s->depth * s->size;
}

static bool post_receive(struct stream *s)
{
    struct link *link = s->link;
    const struct plugin *plugin = &s->world->plugin;
    void *request = NULL, *data = data_at(s, s->posted);
    void *memory = link->region.memory, *parent = NULL;
    int tag = 0;
    if (s->posted - s->done == (uint64_t)s->depth || (s->count && s->posted == s->count))
        return false;
    expect(s->world,
           link->sending ? plugin_send(plugin, link->comm, data, s->size, 0, memory, NULL, &request)
                         : plugin_receive(plugin, link->comm, 1, &data, &s->size, &tag, &memory,
                                          &parent, &request),
           link->sending ? "isend" : "irecv");
    if (!request)
        return false;
    s->requests[s->posted++ % (uint64_t)s->depth] = request;
    return true;
}

static bool ask_done(struct stream *s)
{
    int done = 0, size = -1;
    if (s->posted == s->done)
        return false;
    expect(s->world,
           plugin_test(&s->world->plugin, s->requests[s->done % (uint64_t)s->depth], &done, &size),
           "test");
    if (!done)
        return false;
    if (!s->link->sending && size != (int)s->size)
        fail("a message of %zu bytes came with %d", s->size, size);
    s->done++;
    return true;
}

static bool stop_requested(const struct world *world)
{
    char byte;
    return recv(world->meet, &byte, 1, MSG_DONTWAIT) > 0;
}

/* Work of one progress thread. */
struct streams {
    struct stream *first;
    int n;
};

/* Post what may be posted and ask about the oldest; false when the window is closed. */
static bool move_stream(struct stream *s, bool *moved)
{
    while (post_receive(s))
        *moved = true;
    while (ask_done(s)) {
        *moved = true;
        if (s->window && !bench_count(s->window, s->size, 1))
            return false;
    }
    return true;
}

static void move_streams(void *of)
{
    const struct streams *all = of;
    const struct stream *first = all->first;
    bool by_meeting = !first->count && !first->window;
    bench_pin(first->world->options->cpu);
    for (uint64_t turn = 0; !first->count || first->done < first->count; turn++) {
        bool moved = false;
        for (int i = 0; i < all->n; i++)
            if (!move_stream(&all->first[i], &moved))
                return;
        if (!moved)
            sched_yield();
        if (by_meeting && turn % 64 == 0 && stop_requested(first->world))
            return;
    }
}

static void run_streams(struct stream *first, int n)
{
    struct streams all = {first, n};
    worker_start(&first->world->progress[0], move_streams, &all);
    worker_wait(&first->world->progress[0], 1e6);
}

static struct link *to_rank_0(struct link *links)
{
    return &links[links[0].sending == (links[0].world->rank == 1) ? 0 : 1];
}

/* Stream from rank 1 to rank 0, which counts what it received; or in both directions at once, by
 * one progress thread an end: then rank 0 also counts what it sent and is done. */
static void measure_streams(struct world *world, int ways)
{
    const struct options *options = world->options;
    struct link links[2];
    struct stream streams[2];
    struct bench_window window;
    bench_pin(options->cpu);
    world->unfinished = true;
    world_open(world, 1);
    links_open(world, links, 2, 0);
    for (int i = 0; i < ways; i++) {
        struct link *link = ways == 1 ? to_rank_0(links) : &links[i];
        link_register(link, options->size * (size_t)options->depth);
        memset(link->region.bytes, 1, link->region.size);
        streams[i] = (struct stream){.world = world,
                                     .link = link,
                                     .size = options->size,
                                     .depth = options->depth,
                                     .window = world->rank == 0 ? &window : NULL};
    }
    step("messages of %zu bytes %s", options->size, ways == 1 ? "one way" : "each way");
    bench_open(&window, options->seconds);
    alarm(0); /* the supervisor has a limit */
    run_streams(streams, ways);
    if (world->rank == 0) {
        bench_print(&window, "");
        meet_send(world->meet, "x", 1);
    }
    meet_barrier(world->meet); /* what is in flight stays there */
    links_close(world, links, 2);
    world_close(world);
}

static void run_speed(struct world *world)
{
    measure_streams(world, 1);
}

static void measure_both_ways(struct world *world)
{
    measure_streams(world, 2);
}

/* ---- Round trips ---- */

struct ping {
    struct world *world;
    struct link *out, *in;
    double seconds;
    double *us;
    size_t count;
};

static void measure_size(struct world *world, struct link *link, size_t size)
{
    struct stream s = {.world = world, .link = link, .size = size, .depth = 1, .count = 1};
    while (!post_receive(&s))
        ;
    while (!ask_done(&s))
        ;
}

/* The receive is posted before the other end can answer, as NCCL does. */
static void round_trip(struct ping *p, size_t size)
{
    struct stream in = {.world = p->world, .link = p->in, .size = size, .depth = 1, .count = 1};
    while (!post_receive(&in))
        ;
    measure_size(p->world, p->out, size);
    while (!ask_done(&in))
        ;
}

static void send_pings(void *of)
{
    struct ping *p = of;
    uint8_t *more = p->out->region.bytes;
    bench_pin(p->world->options->cpu);
    uint64_t from = now_ns(), until = from + (uint64_t)(p->seconds * 1e9);
    for (*more = 1; *more;) {
        uint64_t begun = now_ns();
        *more = begun < until && p->count + 1 < ROUNDS_MAX;
        round_trip(p, 8);
        p->us[p->count++] = (double)(now_ns() - begun) * 1e-3;
    }
}

static void return_pings(void *of)
{
    struct ping *p = of;
    bench_pin(p->world->options->cpu);
    for (uint8_t more = 1; more;) {
        measure_size(p->world, p->in, 8);
        more = p->in->region.bytes[0];
        measure_size(p->world, p->out, 8);
    }
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run_ping(struct world *world, struct link *links, double seconds, struct ping *p)
{
    *p = (struct ping){.world = world,
                       .out = &links[links[0].sending ? 0 : 1],
                       .in = &links[links[0].sending ? 1 : 0],
                       .seconds = seconds,
                       .us = calloc(ROUNDS_MAX, sizeof(double))};
    step("round trips of 8 bytes");
    worker_start(&world->progress[0], world->rank == 0 ? send_pings : return_pings, p);
    worker_wait(&world->progress[0], 1e6);
    qsort(p->us, p->count, sizeof(double), compare_times);
}

static double time_percentile(const struct ping *p, double share)
{
    return p->us[(size_t)((double)(p->count - 1) * share)];
}

static void measure_latency(struct world *world)
{
    struct link links[2];
    struct ping p;
    double busy_s = bench_busy_s();
    bench_pin(world->options->cpu);
    world_open(world, 1);
    links_open(world, links, 2, 0);
    for (int i = 0; i < 2; i++)
        link_register(&links[i], 64);
    run_ping(world, links, world->options->seconds * 0.25, &p);
    free(p.us);
    uint64_t begun = now_ns();
    busy_s = bench_busy_s();
    run_ping(world, links, world->options->seconds, &p);
    if (world->rank == 0)
        printf("{\"rounds\": %zu, \"seconds\": %.6f, \"cpu_s\": %.2f, \"median_us\": %.3f, "
               "\"p99_us\": %.3f}\n",
               p.count, (double)(now_ns() - begun) * 1e-9, bench_busy_s() - busy_s,
               time_percentile(&p, 0.5), time_percentile(&p, 0.99));
    fflush(stdout);
    free(p.us);
    links_close(world, links, 2);
    world_close(world);
}

/* ---- The table ---- */

static void table_row(struct world *world, struct link *link, size_t size)
{
    uint64_t count = TABLE_BYTES / size;
    count = count < TABLE_LEAST ? TABLE_LEAST : count > TABLE_MOST ? TABLE_MOST : count;
    struct stream s = {.world = world,
                       .link = link,
                       .size = size,
                       .depth = world->options->depth,
                       .count = count / 5 + 1};
    step("the table's row of %zu bytes", size);
    run_streams(&s, 1); /* warm */
    meet_barrier(world->meet);
    s.count = count;
    s.posted = s.done = 0;
    uint64_t begun = now_ns();
    run_streams(&s, 1);
    double seconds = (double)(now_ns() - begun) * 1e-9;
    if (world->rank == 0)
        printf("%12zu %10llu %12.2f %12.3f\n", size, (unsigned long long)count,
               seconds * 1e6 / (double)count, (double)size * (double)count / seconds * 1e-9);
    fflush(stdout);
    meet_barrier(world->meet);
}

static void measure_sizes(struct world *world)
{
    const struct options *options = world->options;
    struct link links[2];
    struct ping p;
    world_open(world, 1);
    links_open(world, links, 2, 0);
    for (int i = 0; i < 2; i++)
        link_register(&links[i], options->largest * (size_t)options->depth);
    for (int i = 0; i < 2; i++)
        memset(links[i].region.bytes, 1, links[i].region.size);
    if (world->rank == 0)
        printf("# %s, version %d, device %s, %d in flight, one way\n"
               "#       size      count         time        algbw\n"
               "#        (B)                    (us)       (GB/s)\n",
               plugin_name(&world->plugin), world->plugin.version, world->properties.name,
               options->depth);
    for (size_t size = 8; size <= options->largest; size *= 4)
        table_row(world, to_rank_0(links), size);
    run_ping(world, links, options->seconds, &p);
    if (world->rank == 0)
        printf("# 8 B there and back: median %.2f us, 99 %% within %.2f us\n",
               time_percentile(&p, 0.5), time_percentile(&p, 0.99));
    fflush(stdout);
    free(p.us);
    links_close(world, links, 2);
    world_close(world);
}

const struct scenario scenarios_speed[] = {
    {"table", "time and bandwidth by size, and the latency", measure_sizes, .since = 0},
    {"speed", "a stream from rank 1 to rank 0; JSON", run_speed, .json = true},
    {"both", "a stream each way at once; JSON", measure_both_ways, .json = true},
    {"latency", "8 bytes there and back; JSON", measure_latency, .json = true},
    {0},
};
