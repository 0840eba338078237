#include "engines_auto.h"

#include <stdio.h>

static uint32_t engines_of_speed(uint32_t speed_mbps)
{
    return speed_mbps ? (speed_mbps - 1) / ENGINES_AUTO_MBPS + 1 : 1;
}

/* CPUs for the engines of one device. */
static uint32_t free_cpus(const struct engines_host *host)
{
    uint32_t free = host->cpus > ENGINES_AUTO_NCCL_CPUS ? host->cpus - ENGINES_AUTO_NCCL_CPUS : 0;
    free = host->engine_cpus ? host->engine_cpus : free;
    return host->devices > 1 ? free / host->devices : free;
}

static uint32_t at_least_one(uint32_t n)
{
    return n ? n : 1;
}

static void say_which_cpus(const struct engines_host *host, const char *what, char *why)
{
    char from[64];
    if (host->engine_cpus)
        snprintf(from, sizeof from, "%u in HARP_CPUS", host->engine_cpus);
    else
        snprintf(from, sizeof from, "%u of this rank, %d for NCCL", host->cpus,
                 ENGINES_AUTO_NCCL_CPUS);
    snprintf(why, ENGINES_AUTO_WHY_BYTES, "%s (%s, devices %u)", what, from, host->devices);
}

bool engines_auto_threads(const struct engines_host *host, char why[ENGINES_AUTO_WHY_BYTES])
{
    bool threads = free_cpus(host) > 0;
    say_which_cpus(host, threads ? "a CPU is free for it" : "no CPU is free for a thread", why);
    return threads;
}

uint32_t engines_auto(const struct engines_host *host, uint32_t most,
                      char why[ENGINES_AUTO_WHY_BYTES])
{
    uint32_t n = engines_of_speed(host->speed_mbps);
    if (host->speed_mbps)
        snprintf(why, ENGINES_AUTO_WHY_BYTES, "for %u Mb/s", host->speed_mbps);
    else
        snprintf(why, ENGINES_AUTO_WHY_BYTES,
                 "the driver reports no speed; HARP_SPEED=Mb/s gives a faster NIC more");
    if (host->queues && host->queues < n) {
        n = host->queues;
        snprintf(why, ENGINES_AUTO_WHY_BYTES, "as many as the NIC has queues");
    }
    if (at_least_one(free_cpus(host)) < n) {
        n = at_least_one(free_cpus(host));
        say_which_cpus(host, "as many as CPUs are free", why);
    }
    if (host->drives_inline && n > 1) {
        n = 1;
        snprintf(why, ENGINES_AUTO_WHY_BYTES, "NCCL's thread drives it");
    }
    return n < most ? n : most;
}
