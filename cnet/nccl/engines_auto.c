/* CPUs of a rank, and the number of engines that they allow. */
#define _GNU_SOURCE
#include "engines_auto.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cgroup.h"

/* ---- CPUs and cores ---- */

#define CPUS_MOST 8192
#define RANKS_MOST 1024

/* Ranks of a host, as set by torchrun, Open MPI, MPICH and its descendants, and Slurm. */
static const char *const ranks_names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                          "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"};

/* CPUs of the control group, or of the host where no group says. */
static uint32_t count_cpus_around(const struct cgroup_limits *limits)
{
    char list[CPUS_MOST];
    FILE *from = limits->cpus ? NULL : fopen("/sys/devices/system/cpu/online", "re");
    uint32_t online = from && fgets(list, sizeof list, from) ? cgroup_cpus_in_list(list) : 0;
    if (from)
        fclose(from);
    return limits->cpus ? limits->cpus : online;
}

static uint32_t count_cpus_of_process(void)
{
    cpu_set_t *set = CPU_ALLOC(CPUS_MOST);
    size_t bytes = CPU_ALLOC_SIZE(CPUS_MOST);
    int cpus = set && sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 1;
    CPU_FREE(set);
    return cpus > 0 ? (uint32_t)cpus : 1;
}

static uint32_t read_ranks(void)
{
    for (size_t i = 0; i < sizeof ranks_names / sizeof ranks_names[0]; i++) {
        const char *text = getenv(ranks_names[i]);
        unsigned long ranks = text ? strtoul(text, NULL, 10) : 0;
        if (ranks >= 1 && ranks <= RANKS_MOST)
            return (uint32_t)ranks;
    }
    return 1;
}

void cores_find(struct cores *cores)
{
    struct cgroup_limits limits = cgroup_read("/proc/self/cgroup", "/proc/self/mountinfo");
    *cores = (struct cores){.cpus = count_cpus_of_process(), .ranks = read_ranks()};
    cores->bound = cores->cpus < count_cpus_around(&limits) && limits.quota_cpus >= cores->cpus;
    cores->cpus = limits.quota_cpus < cores->cpus ? limits.quota_cpus : cores->cpus;
}

uint32_t cores_of_rank(const struct cores *cores)
{
    uint32_t cpus = cores->bound ? cores->cpus : cores->cpus / cores->ranks;
    return cpus ? cpus : 1;
}

/* ---- Engines ---- */

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
