#define _GNU_SOURCE
#include "base/node_cpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIST_BYTES = 4096 };

bool harp_cpus_parse(const char *list, cpu_set_t *cpus)
{
    CPU_ZERO(cpus);
    while (*list >= '0' && *list <= '9') {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        if (last < first || last >= CPU_SETSIZE)
            return false;
        for (unsigned long cpu = first; cpu <= last; cpu++)
            CPU_SET(cpu, cpus);
        list = end + (*end == ',');
    }
    return (*list == 0 || *list == '\n') && CPU_COUNT(cpus) > 0;
}

static bool read_list(const char *folder, const char *name, char list[LIST_BYTES])
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *from = fopen(path, "re");
    bool got = from && fgets(list, LIST_BYTES, from);
    if (from)
        fclose(from);
    return got;
}

bool harp_node_cpus(const char *folder, int node, cpu_set_t *cpus)
{
    char name[32], list[LIST_BYTES];
    cpu_set_t allowed;
    snprintf(name, sizeof name, "node%d/cpulist", node);
    if (node < 0 || !read_list(folder, name, list) || !harp_cpus_parse(list, cpus) ||
        sched_getaffinity(getpid(), sizeof allowed, &allowed) < 0)
        return false;
    CPU_AND(cpus, cpus, &allowed);
    return CPU_COUNT(cpus) > 0;
}

bool harp_nodes_are_several(const char *folder)
{
    char list[LIST_BYTES];
    cpu_set_t nodes;
    return read_list(folder, "online", list) && harp_cpus_parse(list, &nodes) &&
           CPU_COUNT(&nodes) > 1;
}
