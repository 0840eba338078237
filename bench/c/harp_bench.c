/* The stack itself, over the engine's C interface: bulk data one way, or a message there and back.
 *
 *   harp_bench receive --port udp|tcp|xdp|mem [options]   "ready HANDLE", then one line of JSON
 *   harp_bench send --handle HANDLE [options]         one line of JSON when the receiver has enough
 *   harp_bench pairs --engines 1|2 [options]          both ends in each engine, an engine a CPU
 *
 * The sender keeps `flight` messages of `size` bytes under way and takes them one after the other
 * from `memory` bytes. The receiver posts as many buffers, or with --stream borrows frames. With
 * --drafts the sender's messages lie in the engine's frames. With --both each end sends and
 * receives on the one connection, and the receiving end counts the bytes of both directions. With
 * --ping the receiving end sends a message, the other sends it back, and so on. The first 8 bytes
 * of a message are its number, which the receiver checks. The thread that uses an engine drives it,
 * so each end takes one CPU. With --thread the engine has a thread of its own, and the ends of bulk
 * data sleep while they have nothing to do.
 *
 * bench.h says when the receiver's clock runs.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>

#include "harp_bench.h"

enum {
    BATCH = 64,         /* completions taken at once */
    DRAFTS_MAX = 4096,  /* frames of a message */
    SAMPLES = 1 << 20,  /* of round trips */
    WATCH_NS = 1000000, /* between two looks at the path's delay */
    SPIN_NS = 5000,     /* a thread's: others wait for the core */
    LINGER_NS = 20000000
};

/* Messages one way. */
struct way {
    uint8_t *memory;
    size_t at;               /* of the next message in it */
    uint64_t next, finished; /* messages begun and done */
};

/* One end of a connection. */
struct end {
    const struct settings *s;
    struct harp_engine *engine;
    struct harp_connection *connection;
    struct way in, out;
    uint32_t segment;
    uint32_t drafts[DRAFTS_MAX], drafts_n;
    bool connected, closed;
};

static void check_error(int error, const char *why)
{
    errno = 0;
    if (error)
        bench_die("%s", why);
}

static struct harp_engine *open_engine(const struct settings *s)
{
    struct harp_engine_config config;
    struct harp_engine *engine;
    char why[HARP_WHY_BYTES];
    harp_engine_defaults(&config);
    config.name = "bench";
    config.progress = s->thread ? HARP_PROGRESS_THREAD : HARP_PROGRESS_INLINE;
    config.cpu = s->thread ? s->cpu : -1;
    if (s->thread)
        config.spin_ns = SPIN_NS;
    config.frames = s->frames;
    config.ports[0] = s->port;
    config.ports_n = 1;
    config.quiet_ns = 10000000; /* the bench drives all the time */
    check_error(harp_engine_open(&engine, &config, why), why);
    for (uint32_t i = 0; harp_engine_line(engine, i); i++)
        fprintf(stderr, "%s\n", harp_engine_line(engine, i));
    return engine;
}

static void configure_connection(const struct settings *s, struct harp_connection_config *config,
                                 bool sends)
{
    harp_connection_defaults(config);
    config->paths = s->paths;
    config->dead_ns = 5000000000;
    config->stream_frames = s->stream && !sends ? s->frames / 4 : 0;
    config->draft_frames = s->drafts && sends ? s->frames / 4 : 0;
    if (s->window_bytes) {
        config->cc = &harp_cc_fixed;
        config->window.initial_bytes = config->window.max_bytes = s->window_bytes;
    }
}

static void begin_end(struct end *end, const struct settings *s, struct harp_engine *engine)
{
    *end = (struct end){.s = s, .engine = engine, .in.memory = bench_memory(s->memory_bytes)};
    end->out.memory = s->both ? bench_memory(s->memory_bytes) : end->in.memory;
}

static uint8_t *next_piece(const struct settings *s, struct way *way)
{
    if (way->at + s->size > s->memory_bytes)
        way->at = 0;
    uint8_t *start = way->memory + way->at;
    way->at += s->size;
    return start;
}

static bool may_begin(const struct end *end, const struct way *way)
{
    return way->next - way->finished < end->s->flight;
}

static void write_number(const struct end *end, uint8_t *bytes, uint64_t value)
{
    if (end->s->size >= sizeof value)
        memcpy(bytes, &value, sizeof value);
}

static void expect_number(const struct end *end, const uint8_t *bytes, uint32_t wanted)
{
    uint64_t value;
    if (end->s->size < sizeof value)
        return;
    memcpy(&value, bytes, sizeof value);
    errno = 0;
    if (value != wanted)
        bench_die("message %u says that it is %llu", wanted, (unsigned long long)value);
}

/* Post what may be posted. */
static void post_buffers(struct end *end)
{
    while (!end->s->stream && may_begin(end, &end->in)) {
        uint8_t *start = next_piece(end->s, &end->in);
        if (!harp_receive(end->connection, start, end->s->size, (uintptr_t)start))
            break;
        end->in.next++;
    }
}

/* Drafts that do not make a message yet, or that nobody takes now, are kept for the next call. */
static bool submit_drafts(struct end *end)
{
    if (!end->segment)
        end->segment = harp_segment(end->connection);
    uint32_t wanted = (end->s->size + end->segment - 1) / end->segment;
    end->drafts_n +=
        harp_drafts(end->connection, end->drafts + end->drafts_n, wanted - end->drafts_n);
    if (end->drafts_n < wanted)
        return false;
    write_number(end, harp_draft_bytes(end->connection, end->drafts[0]), (uint32_t)end->out.next);
    if (!harp_send_frames(end->connection, end->drafts, end->s->size, 0))
        return false;
    end->drafts_n = 0;
    return true;
}

static bool submit_message(struct end *end)
{
    if (end->s->drafts)
        return submit_drafts(end);
    size_t back = end->out.at;
    uint8_t *start = next_piece(end->s, &end->out);
    write_number(end, start, (uint32_t)end->out.next);
    if (harp_send(end->connection, start, end->s->size, 0))
        return true;
    end->out.at = back;
    return false;
}

static void submit_some(struct end *end)
{
    for (int i = 0; i < BATCH && may_begin(end, &end->out) && submit_message(end); i++)
        end->out.next++;
}

/* Arrivals since the last call; bytes of whole messages, with --both those that went, too. */
static uint64_t collect_bytes(struct end *end)
{
    struct harp_completion done[BATCH];
    uint32_t lent[BATCH], lent_n = 0;
    uint64_t bytes = 0;
    size_t count = harp_poll(end->connection, done, BATCH);
    for (size_t i = 0; i < count; i++) {
        switch (done[i].type) {
        case HARP_COMPLETION_CONNECTED:
            end->connected = true;
            break;
        case HARP_COMPLETION_CHUNK:
            if (done[i].offset == 0)
                expect_number(end, done[i].bytes, done[i].message);
            lent[lent_n++] = done[i].frame;
            break;
        case HARP_COMPLETION_RECEIVED:
            if (!end->s->stream)
                expect_number(end, (const uint8_t *)(uintptr_t)done[i].context, done[i].message);
            bytes += done[i].size;
            end->in.finished++;
            break;
        case HARP_COMPLETION_SENT:
            bytes += end->s->both ? end->s->size : 0;
            end->out.finished++;
            break;
        case HARP_COMPLETION_CLOSED:
            end->closed = true;
        }
    }
    if (lent_n)
        harp_return(end->connection, lent, lent_n);
    return bytes;
}

static void check_open(const struct end *end)
{
    char why[HARP_WHY_BYTES];
    if (!end->closed)
        return;
    harp_connection_why(end->connection, why);
    errno = 0;
    bench_die("the connection ended after %llu messages: %s",
              (unsigned long long)(end->in.finished + end->out.finished), why);
}

/* ---- Bulk data ---- */

static void drive_engine(const struct end *end)
{
    if (end->s->thread)
        harp_connection_wait(end->connection, WATCH_NS);
    else
        harp_engine_drive(end->engine);
}

static void listen_and_accept(struct end *end)
{
    struct harp_connection_config config;
    struct harp_listening *listening;
    char why[HARP_WHY_BYTES];
    struct harp_handle handle;
    configure_connection(end->s, &config, false);
    check_error(harp_listen(end->engine, &config, &listening, &handle, why), why);
    fputs("ready ", stdout);
    for (size_t i = 0; i < sizeof handle; i++)
        printf("%02x", ((const uint8_t *)&handle)[i]);
    puts("");
    fflush(stdout);
    while (!(end->connection = harp_accept(listening)))
        harp_engine_drive(end->engine);
}

static void connect_to(struct end *end, const struct harp_handle *handle)
{
    struct harp_connection_config config;
    char why[HARP_WHY_BYTES];
    configure_connection(end->s, &config, true);
    check_error(harp_connect(end->engine, handle, &config, &end->connection, why), why);
}

static void wait_connected(struct end *end)
{
    while (!end->connected) {
        harp_engine_drive(end->engine);
        collect_bytes(end);
        check_open(end);
    }
}

static void receive_all(struct end *end)
{
    struct bench_window window;
    bench_open(&window, end->s->seconds);
    for (bool open = true; open;) {
        post_buffers(end);
        if (end->s->both)
            submit_some(end);
        drive_engine(end);
        uint64_t before = end->in.finished, bytes = collect_bytes(end);
        check_open(end);
        if (bytes)
            open = bench_count(&window, bytes, end->in.finished - before);
    }
    bench_print(&window, "");
}

/* A sender's view of its first path while it sends. */
struct watch {
    uint64_t next_ns, smoothed_ns[1 << 14];
    uint32_t count;
};

static void begin_watch(struct end *end, struct watch *watch)
{
    struct harp_path_info path;
    struct harp_address local, remote;
    uint64_t now_ns = bench_now_ns();
    if (now_ns < watch->next_ns)
        return;
    watch->next_ns = now_ns + WATCH_NS;
    if (watch->count < sizeof watch->smoothed_ns / sizeof *watch->smoothed_ns &&
        harp_connection_path(end->connection, 0, &path, &local, &remote) && path.smoothed_ns)
        watch->smoothed_ns[watch->count++] = path.smoothed_ns;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void report_watch(struct end *end, struct watch *watch)
{
    struct harp_connection_info info;
    struct harp_path_info path = {0};
    struct harp_address local, remote;
    harp_connection_info(end->connection, &info);
    harp_connection_path(end->connection, 0, &path, &local, &remote);
    qsort(watch->smoothed_ns, watch->count, sizeof *watch->smoothed_ns, by_size);
    double rtt_ms = watch->count ? (double)watch->smoothed_ns[watch->count / 2] / 1e6 : 0;
    double sent = info.counters.data_sent ? (double)info.counters.data_sent : 1;
    printf("{\"rtt_inflation_ms\": %.4f, \"rtt_ms\": %.4f, \"again_share\": %.5f, \"lost\": %llu, "
           "\"spurious\": %llu, \"deaths\": %llu, \"frames\": %llu, \"segment\": %u, \"window\": "
           "%llu}\n",
           rtt_ms - (double)path.least_ns / 1e6, rtt_ms, (double)info.counters.data_again / sent,
           (unsigned long long)info.counters.lost, (unsigned long long)info.counters.spurious,
           (unsigned long long)info.counters.paths_died,
           (unsigned long long)info.counters.data_sent, info.segment,
           (unsigned long long)path.window_bytes);
}

static void send_all(struct end *end)
{
    static struct watch watched;
    while (!end->closed) {
        if (end->s->both)
            post_buffers(end);
        submit_some(end);
        drive_engine(end);
        collect_bytes(end);
        begin_watch(end, &watched);
    }
    report_watch(end, &watched);
}

/* ---- There and back ---- */

static void exchange_ping(struct end *end, bool first)
{
    post_buffers(end);
    if (first) {
        write_number(end, end->out.memory, end->in.finished);
        while (!harp_send(end->connection, end->out.memory, end->s->size, 1))
            harp_engine_drive(end->engine);
    }
    for (uint64_t before = end->in.finished; end->in.finished == before && !end->closed;) {
        struct harp_completion done[BATCH];
        harp_engine_drive(end->engine);
        size_t count = harp_poll(end->connection, done, BATCH);
        for (size_t i = 0; i < count; i++) {
            end->in.finished += done[i].type == HARP_COMPLETION_RECEIVED;
            end->closed |= done[i].type == HARP_COMPLETION_CLOSED;
        }
    }
    while (!first && !end->closed && !harp_send(end->connection, end->out.memory, end->s->size, 1))
        harp_engine_drive(end->engine);
}

static void measure_pings(struct end *end)
{
    uint64_t *times_ns = bench_memory(SAMPLES * sizeof *times_ns), start_ns = bench_now_ns();
    uint64_t end_ns = start_ns + (uint64_t)(end->s->seconds * 1e9), count = 0;
    double busy_s = bench_busy_s();
    for (uint64_t now_ns = start_ns, then_ns; now_ns < end_ns; now_ns = then_ns) {
        exchange_ping(end, true);
        check_open(end);
        then_ns = bench_now_ns();
        times_ns[count++ % SAMPLES] = then_ns - now_ns;
    }
    busy_s = bench_busy_s() - busy_s;
    uint64_t kept = count < SAMPLES ? count : SAMPLES;
    qsort(times_ns, kept, sizeof *times_ns, by_size);
    printf("{\"round_trips\": %llu, \"seconds\": %.6f, \"cpu_s\": %.2f, \"median_us\": %.3f, "
           "\"p99_us\": %.3f}\n",
           (unsigned long long)count, end->s->seconds, busy_s, (double)times_ns[kept / 2] / 1e3,
           (double)times_ns[kept * 99 / 100] / 1e3);
}

/* ---- Both ends in one engine ---- */

struct pair {
    const struct settings *s;
    int cpu;
    struct harp_engine *engine;
    struct end sender, receiver;
    uint64_t bytes;
    pthread_t thread;
    atomic_int *stage; /* pairs that are ready; below 0: the end */
};

static void pair_turn(struct pair *pair)
{
    post_buffers(&pair->receiver);
    submit_some(&pair->sender);
    harp_engine_drive(pair->engine);
    pair->bytes += collect_bytes(&pair->receiver);
    collect_bytes(&pair->sender);
    check_open(&pair->sender);
    check_open(&pair->receiver);
}

static void *run_pair(void *context)
{
    struct pair *pair = context;
    struct harp_connection_config config;
    struct harp_listening *listening;
    struct harp_handle handle;
    char why[HARP_WHY_BYTES];
    bench_pin(pair->cpu);
    pair->engine = open_engine(pair->s);
    begin_end(&pair->sender, pair->s, pair->engine);
    begin_end(&pair->receiver, pair->s, pair->engine);
    configure_connection(pair->s, &config, false);
    check_error(harp_listen(pair->engine, &config, &listening, &handle, why), why);
    connect_to(&pair->sender, &handle);
    while (!(pair->receiver.connection = harp_accept(listening)))
        harp_engine_drive(pair->engine);
    wait_connected(&pair->sender);
    for (uint64_t until_ns = bench_now_ns() + 100000000; bench_now_ns() < until_ns;)
        pair_turn(pair);
    atomic_fetch_add(pair->stage, 1);
    while (atomic_load(pair->stage) < (int)pair->s->engines)
        pair_turn(pair); /* all start to count when all are warm */
    pair->bytes = 0;
    for (uint64_t until_ns = bench_now_ns() + (uint64_t)(pair->s->seconds * 1e9);
         bench_now_ns() < until_ns;)
        pair_turn(pair);
    return NULL;
}

static void run_pairs(const struct settings *s)
{
    struct pair pairs[2];
    atomic_int stage = 0;
    uint64_t bytes = 0;
    double busy_s = bench_busy_s();
    for (uint32_t i = 0; i < s->engines; i++) {
        pairs[i] = (struct pair){.s = s, .cpu = s->cpu < 0 ? -1 : s->cpu + (int)i, .stage = &stage};
        if (pthread_create(&pairs[i].thread, NULL, run_pair, &pairs[i]))
            bench_die("a thread");
    }
    for (uint32_t i = 0; i < s->engines; i++) {
        pthread_join(pairs[i].thread, NULL);
        bytes += pairs[i].bytes;
    }
    printf("{\"bytes\": %llu, \"seconds\": %.6f, \"cpu_s\": %.2f, \"gbps\": %.3f}\n",
           (unsigned long long)bytes, s->seconds, bench_busy_s() - busy_s,
           (double)bytes * 8e-9 / s->seconds);
}

int main(int count, char **words)
{
    struct settings s;
    struct end end;
    const char *role = read_settings(&s, count, words);
    bool sends = !strcmp(role, "send");
    if (!strcmp(role, "pairs")) {
        run_pairs(&s);
        return 0;
    }
    bench_pin(s.cpu);
    alarm(sends ? 600 : (unsigned)(s.seconds * 1.25) + 20);
    begin_end(&end, &s, open_engine(&s));
    if (sends) {
        connect_to(&end, &s.handle);
        wait_connected(&end);
        if (s.ping)
            while (!end.closed)
                exchange_ping(&end, false);
        else
            send_all(&end);
    } else {
        listen_and_accept(&end);
        wait_connected(&end);
        if (s.ping)
            measure_pings(&end);
        else
            receive_all(&end);
    }
    harp_connection_close(end.connection);
    /* The other end is to hear of it. */
    for (uint64_t until_ns = bench_now_ns() + LINGER_NS; bench_now_ns() < until_ns;)
        harp_engine_drive(end.engine);
    harp_engine_close(end.engine);
    return 0;
}
