/* CPUs of a rank, and the number of engines that they allow. */
#define _GNU_SOURCE
#include "engines_auto.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- CPUs and cores ---- */

#define CPUS_MOST 8192
#define RANKS_MOST 1024
#define GROUPS "/sys/fs/cgroup"

/* Ranks of a host, as set by torchrun, Open MPI, MPICH and its descendants, and Slurm. */
static const char *const ranks_names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                          "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"};

uint32_t cores_in_list(const char *list)
{
    uint32_t cpus = 0;
    while (*list >= '0' && *list <= '9') {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        if (last < first || last >= CPUS_MOST)
            return 0;
        cpus += (uint32_t)(last - first + 1);
        list = end + (*end == ',');
    }
    return cpus;
}

uint32_t cores_in_quota(const char *quota)
{
    char *end;
    unsigned long used_us = strtoul(quota, &end, 10);
    if (end == quota || *end != ' ')
        return UINT32_MAX;
    unsigned long of_us = strtoul(end, NULL, 10);
    return of_us && used_us ? (uint32_t)((used_us + of_us - 1) / of_us) : UINT32_MAX;
}

static bool read_line_of(const char *path, char *line, int room)
{
    FILE *from = fopen(path, "re");
    bool there = from && fgets(line, room, from);
    if (from)
        fclose(from);
    return there;
}

/* The process's control group of version 2, from the mount's root on: "/user.slice/job". */
static bool find_group(char *group, size_t room)
{
    char line[PATH_MAX];
    FILE *from = fopen("/proc/self/cgroup", "re");
    bool found = false;
    while (from && !found && fgets(line, sizeof line, from))
        found = strncmp(line, "0::/", 4) == 0;
    if (from)
        fclose(from);
    if (found)
        snprintf(group, room, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    return found;
}

/* The least of the quotas of a group and of all that it lies in. */
static uint32_t find_quota(char *group)
{
    uint32_t least = UINT32_MAX;
    for (;;) {
        char path[PATH_MAX + 64], quota[64];
        snprintf(path, sizeof path, GROUPS "%s/cpu.max", group);
        uint32_t here =
            read_line_of(path, quota, sizeof quota) ? cores_in_quota(quota) : UINT32_MAX;
        least = here < least ? here : least;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = 0;
    }
}

/* CPUs of the control group, or of the host if there is no group. */
static uint32_t count_cpus_of_group(const char *group)
{
    char path[PATH_MAX + 64], list[CPUS_MOST];
    snprintf(path, sizeof path, GROUPS "%s/cpuset.cpus.effective", group);
    if (!read_line_of(path, list, sizeof list) &&
        !read_line_of("/sys/devices/system/cpu/online", list, sizeof list))
        return 0;
    return cores_in_list(list);
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
    char group[PATH_MAX] = "";
    bool grouped = find_group(group, sizeof group);
    *cores = (struct cores){.cpus = count_cpus_of_process(), .ranks = read_ranks()};
    cores->bound = cores->cpus < count_cpus_of_group(grouped ? group : "");
    uint32_t quota = grouped ? find_quota(group) : UINT32_MAX;
    cores->bound &= quota >= cores->cpus;
    cores->cpus = quota < cores->cpus ? quota : cores->cpus;
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
