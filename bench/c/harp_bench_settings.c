/* The command line of harp_bench. */
#define _GNU_SOURCE
#include "harp_bench.h"

#include <getopt.h>

#include "bench.h"

enum { FLIGHT_MAX = 256 }; /* messages of a connection */

__attribute__((noreturn)) static void usage(void)
{
    fputs("usage: harp_bench receive|send|pairs --port udp|xdp|mem [--interface NAME]\n"
          "           [--handle HANDLE] [--cpu N] [--seconds S] [--size BYTES] [--flight N]\n"
          "           [--memory BYTES] [--frames N] [--paths N] [--engines 1|2] [--stream]\n"
          "           [--drafts] [--ping] [--thread] [--copy] [--faults CHAOS]\n"
          "           [--window BYTES] [--both]\n",
          stderr);
    exit(2);
}

static void read_port(struct settings *s, const char *name)
{
    static const struct {
        const char *name;
        int (*open)(struct harp_port **port, const struct harp_port_config *config, char *why);
    } PORTS[] = {
        {"mem", harp_port_mem_open}, {"udp", harp_port_udp_open}, {"xdp", harp_port_xdp_open}};
    for (size_t i = 0; i < sizeof PORTS / sizeof *PORTS; i++)
        if (!strcmp(name, PORTS[i].name))
            s->port.open = PORTS[i].open;
    if (!s->port.open)
        usage();
}

static void read_handle(struct settings *s, const char *text)
{
    s->has_handle = strlen(text) == 2 * sizeof s->handle;
    for (size_t i = 0; s->has_handle && i < sizeof s->handle; i++)
        if (sscanf(text + 2 * i, "%2hhx", (uint8_t *)&s->handle + i) != 1)
            usage();
}

static bool read_flag(struct settings *s, int option)
{
    switch (option) {
    case 'S':
        return s->stream = true;
    case 'D':
        return s->drafts = true;
    case 'P':
        return s->ping = true;
    case 'T':
        return s->thread = true;
    case 'B':
        return s->both = true;
    case 'C':
        return s->port.config.copy_only = true;
    }
    return false;
}

static void read_option(struct settings *s, int option, const char *value)
{
    switch (option) {
    case 'o':
        read_port(s, value);
        break;
    case 'i':
        s->port.config.interface = value;
        break;
    case 'h':
        read_handle(s, value);
        break;
    case 'u':
        s->cpu = atoi(value);
        break;
    case 's':
        s->seconds = atof(value);
        break;
    case 'z':
        s->size = (uint32_t)strtoul(value, NULL, 0);
        break;
    case 'f':
        s->flight = (uint32_t)strtoul(value, NULL, 0);
        break;
    case 'm':
        s->memory_bytes = strtoul(value, NULL, 0);
        break;
    case 'n':
        s->frames = (uint32_t)strtoul(value, NULL, 0);
        break;
    case 'p':
        s->paths = (uint16_t)strtoul(value, NULL, 0);
        break;
    case 'e':
        s->engines = (uint32_t)strtoul(value, NULL, 0);
        break;
    case 'w':
        s->window_bytes = strtoull(value, NULL, 0);
        break;
    case 'c':
        s->port.faults = value;
        break;
    default:
        if (!read_flag(s, option))
            usage();
    }
}

static bool is_role(const char *word)
{
    return !strcmp(word, "send") || !strcmp(word, "receive") || !strcmp(word, "pairs");
}

const char *read_settings(struct settings *s, int count, char **words)
{
    static const struct option names[] = {{"port", 1, 0, 'o'},    {"interface", 1, 0, 'i'},
                                          {"handle", 1, 0, 'h'},  {"cpu", 1, 0, 'u'},
                                          {"seconds", 1, 0, 's'}, {"size", 1, 0, 'z'},
                                          {"flight", 1, 0, 'f'},  {"memory", 1, 0, 'm'},
                                          {"frames", 1, 0, 'n'},  {"paths", 1, 0, 'p'},
                                          {"engines", 1, 0, 'e'}, {"faults", 1, 0, 'c'},
                                          {"window", 1, 0, 'w'},  {"stream", 0, 0, 'S'},
                                          {"drafts", 0, 0, 'D'},  {"ping", 0, 0, 'P'},
                                          {"thread", 0, 0, 'T'},  {"copy", 0, 0, 'C'},
                                          {"both", 0, 0, 'B'},    {0}};
    *s = (struct settings){.size = 1 << 20,
                           .flight = 4,
                           .memory_bytes = BENCH_BYTES,
                           .frames = 8192,
                           .engines = 1,
                           .paths = 1,
                           .cpu = -1,
                           .seconds = 5,
                           .port.config = {.locals = 1, .queue = -1}};
    for (int option; (option = getopt_long(count, words, "", names, NULL)) != -1;)
        read_option(s, option, optarg);
    if (count - optind != 1 || !s->port.open || s->flight < 1 || s->flight > FLIGHT_MAX ||
        s->size < 1 || s->size > HARP_MESSAGE_MAX || s->engines < 1 || s->engines > 2)
        usage();
    if (s->memory_bytes < (size_t)s->size * s->flight)
        s->memory_bytes = (size_t)s->size * s->flight;
    if (!is_role(words[optind]) || (!strcmp(words[optind], "send") && !s->has_handle))
        usage();
    return words[optind];
}
