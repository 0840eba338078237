/* The settings of harp_bench; harp_bench.c explains them. */
#ifndef HARP_BENCH_H
#define HARP_BENCH_H

#include "engine/engine.h"

struct settings {
    struct harp_engine_port port;
    struct harp_handle handle;
    bool has_handle, stream, drafts, ping, thread, both;
    uint32_t size, flight, frames, engines;
    size_t memory_bytes;
    uint64_t window_bytes; /* of every path, always; 0: congestion control decides */
    uint16_t paths;
    int cpu; /* below 0: any */
    double seconds;
};

/* Read the command line; return this end's role. A wrong one ends the program with 2. */
const char *read_settings(struct settings *s, int count, char **words);

#endif
