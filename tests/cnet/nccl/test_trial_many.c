/* One rank with many peers whose ports are all to be tried.
 *
 * Device 0 connects to the others. Each of them has an address of its own, and so is a host to
 * the trial. All comms are made at once by one thread, as NCCL's proxy makes them. Argument: how
 * many comms to each host. Prints their number, the time, and how much more memory and how many
 * more descriptors there were on the way than in the end.
 */
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "descriptors.h"
#include "nccl/abi.h"

#define GOOD(call) CHECK((call) == NCCL_SUCCESS, "%s failed", #call)

enum { HOSTS = 31, COMMS = 8, PATIENCE_MS = 120000 };

extern const struct nccl_net_v12 ncclNetPlugin_v12;
static const struct nccl_net_v12 *net = &ncclNetPlugin_v12;
static void *context;
static struct end {
    char handle[NCCL_HANDLE_BYTES];
    void *listening, *sending, *receiving;
} ends[HOSTS * COMMS];

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void log_nothing(enum nccl_log_level level, unsigned long parts, const char *file, int line,
                        const char *format, ...)
{
    (void)level, (void)parts, (void)file, (void)line, (void)format;
}

static long count_allocated_mib(void)
{
    struct mallinfo2 of = mallinfo2();
    return (long)((of.uordblks + of.hblkhd) >> 20);
}

static bool go_on(struct end *end)
{
    if (!end->sending)
        GOOD(net->connect(context, 0, end->handle, &end->sending, NULL));
    if (!end->receiving)
        GOOD(net->accept(end->listening, &end->receiving, NULL));
    return end->sending && end->receiving;
}

int main(int argc, char **argv)
{
    int devices = 0, most = 0, comms = argc > 1 ? atoi(argv[1]) : 1;
    GOOD(net->init(&context, 1, NULL, log_nothing, NULL));
    GOOD(net->devices(&devices));
    CHECK(devices > 1 && devices - 1 <= HOSTS && comms >= 1 && comms <= COMMS, "%d devices",
          devices);
    int n = (devices - 1) * comms;
    for (int i = 0; i < n; i++)
        GOOD(net->listen(context, 1 + i / comms, ends[i].handle, &ends[i].listening));
    long before_mib = count_allocated_mib(), most_mib = 0;
    uint64_t begun_ms = now_ms();
    for (int made = 0; made < n;) {
        made = 0;
        CHECK(now_ms() - begun_ms < PATIENCE_MS, "connecting takes too long");
        for (int i = 0; i < n; i++)
            made += go_on(&ends[i]);
        int open = count_descriptors();
        most = open > most ? open : most;
        long mib = count_allocated_mib() - before_mib;
        most_mib = mib > most_mib ? mib : most_mib;
    }
    printf("{\"comms\": %d, \"ms\": %llu, \"mib\": %ld, \"descriptors\": %d}\n", n,
           (unsigned long long)(now_ms() - begun_ms),
           most_mib - (count_allocated_mib() - before_mib), most - count_descriptors());
    for (int i = 0; i < n; i++) {
        GOOD(net->closeSend(ends[i].sending));
        GOOD(net->closeRecv(ends[i].receiving));
        GOOD(net->closeListen(ends[i].listening));
    }
    GOOD(net->finalize(context));
    return 0;
}
