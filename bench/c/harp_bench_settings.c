/* The command line of harp_bench. */
#define _GNU_SOURCE
#include "harp_bench.h"

#include "bench.h"
#include "options.h"

enum { FLIGHT_MAX = 256 }; /* messages of a connection */

static const char USAGE[] =
    "usage: harp_bench receive|send|pairs --port udp|tcp|xdp|mem [--interface NAME]\n"
    "           [--handle HANDLE] [--cpu N] [--seconds S] [--size BYTES] [--flight N]\n"
    "           [--memory BYTES] [--frames N] [--paths N] [--engines 1|2] [--stream]\n"
    "           [--drafts] [--ping] [--thread] [--copy] [--faults CHAOS]\n"
    "           [--window BYTES] [--both]\n";

static void read_port(struct settings *s, const char *name)
{
    static const struct {
        const char *name;
        int (*open)(struct harp_port **port, const struct harp_port_config *config, char *why);
    } PORTS[] = {{"mem", harp_port_mem_open},
                 {"tcp", harp_port_tcp_open},
                 {"udp", harp_port_udp_open},
                 {"xdp", harp_port_xdp_open}};
    for (size_t i = 0; i < sizeof PORTS / sizeof *PORTS; i++)
        if (!strcmp(name, PORTS[i].name))
            s->port.open = PORTS[i].open;
    if (!s->port.open)
        bench_usage(USAGE);
}

static void read_handle(struct settings *s, const char *text)
{
    s->has_handle = strlen(text) == 2 * sizeof s->handle;
    for (size_t i = 0; s->has_handle && i < sizeof s->handle; i++)
        if (sscanf(text + 2 * i, "%2hhx", (uint8_t *)&s->handle + i) != 1)
            bench_usage(USAGE);
}

static bool is_role(const char *word)
{
    return !strcmp(word, "send") || !strcmp(word, "receive") || !strcmp(word, "pairs");
}

const char *read_settings(struct settings *s, int count, char **words)
{
    *s = (struct settings){.size = 1 << 20,
                           .flight = 4,
                           .memory_bytes = BENCH_BYTES,
                           .frames = 8192,
                           .engines = 1,
                           .paths = 1,
                           .cpu = -1,
                           .seconds = 5,
                           .port.config = {.locals = 1, .queue = -1}};
    const char *port = "", *handle = "";
    const struct bench_option options[] = {BENCH_OPTION("port", &port),
                                           BENCH_OPTION("interface", &s->port.config.interface),
                                           BENCH_OPTION("handle", &handle),
                                           BENCH_OPTION("cpu", &s->cpu),
                                           BENCH_OPTION("seconds", &s->seconds),
                                           BENCH_OPTION("size", &s->size),
                                           BENCH_OPTION("flight", &s->flight),
                                           BENCH_OPTION("memory", &s->memory_bytes),
                                           BENCH_OPTION("frames", &s->frames),
                                           BENCH_OPTION("paths", &s->paths),
                                           BENCH_OPTION("engines", &s->engines),
                                           BENCH_OPTION("faults", &s->port.faults),
                                           BENCH_OPTION("window", &s->window_bytes),
                                           BENCH_OPTION("stream", &s->stream),
                                           BENCH_OPTION("drafts", &s->drafts),
                                           BENCH_OPTION("ping", &s->ping),
                                           BENCH_OPTION("thread", &s->thread),
                                           BENCH_OPTION("copy", &s->port.config.copy_only),
                                           BENCH_OPTION("both", &s->both)};
    int rest = bench_read_options(count, words, options, sizeof(options) / sizeof(*options), USAGE);
    read_port(s, port);
    read_handle(s, handle);
    if (rest != 1 || s->flight < 1 || s->flight > FLIGHT_MAX || s->size < 1 ||
        s->size > HARP_MESSAGE_MAX || s->engines < 1 || s->engines > 2)
        bench_usage(USAGE);
    if (s->memory_bytes < (size_t)s->size * s->flight)
        s->memory_bytes = (size_t)s->size * s->flight;
    if (!is_role(words[1]) || (!strcmp(words[1], "send") && !s->has_handle))
        bench_usage(USAGE);
    return words[1];
}
