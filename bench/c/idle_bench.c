/* One busy connection beside idle ones, all between two engines that one thread drives in turn:
 *
 *     idle_bench udp|mem IDLE ping|bulk CPU SECONDS      one line of JSON
 *
 * ping: 64 B there and back, one at a time. bulk: messages of 1 MiB, four under way.
 */
#define _GNU_SOURCE
#include "bench.h"

#include "engine/engine.h"

enum { PING_BYTES = 64, BULK_BYTES = 1 << 20, FLIGHT = 4, MAKING = 32 };

static struct harp_engine *engines[2];
static struct harp_connection_config settings;
static struct harp_listening *listening;
static struct harp_handle handle;
static char why[HARP_WHY_BYTES];

static void check_holds(bool holds)
{
    errno = 0;
    if (!holds)
        bench_die("%s", why);
}

static void drive_engines(void)
{
    harp_engine_drive(engines[0]);
    harp_engine_drive(engines[1]);
}

static void open_engines(const char *port, uint32_t connections)
{
    for (int i = 0; i < 2; i++) {
        struct harp_engine_config config;
        harp_engine_defaults(&config);
        config.name = "bench";
        config.progress = HARP_PROGRESS_MANUAL;
        config.frames = 64;
        config.connections = connections;
        config.ports_n = 1;
        config.ports[0].open = strcmp(port, "mem") ? harp_port_udp_open : harp_port_mem_open;
        config.ports[0].config.locals = 1;
        harp_address_parse("127.0.0.1", &config.ports[0].config.local);
        check_holds(harp_engine_open(&engines[i], &config, why) == 0);
    }
    harp_connection_defaults(&settings);
    check_holds(harp_listen(engines[1], &settings, &listening, &handle, why) == 0);
}

/* Make `count` connections at the same time; the last of them becomes *from and *to. */
static void connect_some(uint32_t count, struct harp_connection **from, struct harp_connection **to)
{
    struct harp_connection *made[MAKING];
    struct harp_completion done;
    for (uint32_t i = 0; i < count; i++)
        check_holds(harp_connect(engines[0], &handle, &settings, &made[i], why) == 0);
    for (uint32_t i = 0; i < count; i++)
        while (!harp_poll(made[i], &done, 1))
            drive_engines();
    for (uint32_t i = 0; i < count; i++) {
        while (!(*to = harp_accept(listening)))
            drive_engines();
        while (!harp_poll(*to, &done, 1))
            drive_engines();
    }
    *from = made[count - 1];
}

static uint32_t await_completion(struct harp_connection *connection, uint32_t type)
{
    struct harp_completion done[16];
    uint32_t n = 0;
    size_t polled = harp_poll(connection, done, 16);
    for (size_t i = 0; i < polled; i++)
        n += done[i].type == type;
    return n;
}

/* One message in each direction. */
static void go_there_and_back(struct harp_connection *ends[2])
{
    static uint8_t out[PING_BYTES], in[PING_BYTES];
    for (int i = 0; i < 2; i++) {
        while (!harp_receive(ends[!i], in, sizeof in, 0) || !harp_send(ends[i], out, sizeof out, 0))
            drive_engines();
        while (!await_completion(ends[!i], HARP_COMPLETION_RECEIVED))
            drive_engines();
    }
}

/* How many messages came. */
static uint32_t go_on_sending(struct harp_connection *ends[2])
{
    static uint8_t out[BULK_BYTES], in[BULK_BYTES];
    static uint32_t posted, sent;
    for (; posted < FLIGHT && harp_receive(ends[1], in, sizeof in, 0); posted++)
        ;
    for (; sent < FLIGHT && harp_send(ends[0], out, sizeof out, 0); sent++)
        ;
    drive_engines();
    sent -= await_completion(ends[0], HARP_COMPLETION_SENT);
    uint32_t came = await_completion(ends[1], HARP_COMPLETION_RECEIVED);
    posted -= came;
    return came;
}

int main(int count, char **words)
{
    if (count != 6)
        bench_die("usage: idle_bench udp|mem IDLE ping|bulk CPU SECONDS");
    uint32_t idle = (uint32_t)atoi(words[2]);
    bool pings = !strcmp(words[3], "ping");
    double seconds = atof(words[5]);
    struct harp_connection *ends[2];
    bench_pin(atoi(words[4]));
    open_engines(words[1], idle + MAKING);
    for (uint32_t made = 0; made < idle; made += MAKING)
        connect_some(idle - made < MAKING ? idle - made : MAKING, &ends[0], &ends[1]);
    connect_some(1, &ends[0], &ends[1]);
    uint64_t done = 0, start_ns = bench_now_ns() + 100000000;
    for (bool warm = false;;) {
        uint64_t now_ns = bench_now_ns();
        if (!warm && now_ns >= start_ns)
            warm = (done = 0, true);
        if (now_ns >= start_ns + (uint64_t)(seconds * 1e9))
            break;
        if (pings)
            go_there_and_back(ends);
        done += pings ? 1 : go_on_sending(ends);
    }
    printf("{\"rate\": %.1f, \"bytes\": %llu, \"seconds\": %.3f}\n", (double)done / seconds,
           (unsigned long long)(pings ? 0 : done * BULK_BYTES), seconds);
    return 0;
}
