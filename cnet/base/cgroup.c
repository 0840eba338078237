#define _GNU_SOURCE
#include "base/cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/node_cpus.h"

enum { LIST_BYTES = 8192 };

/* A hierarchy that limits CPUs or memory. */
struct hierarchy {
    bool unified;             /* version 2 */
    const char *controller;   /* of version 1: "cpu", "cpuset", "memory" */
    char group[PATH_MAX];     /* of the process, from the hierarchy's root on */
    char mount[PATH_MAX];     /* where the hierarchy is mounted */
    char directory[PATH_MAX]; /* of the group; at least as long as `mount` */
};

/* ---- What is said in /proc ---- */

/* Whether `word` is one of the words of a list that commas divide. */
static bool is_in(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strcspn(at, ",") == length && memcmp(at, word, length) == 0)
            return true;
    return false;
}

/* A line "4:cpu,cpuacct:/group", or "0::/group" in version 2. */
static bool is_group_of(const struct hierarchy *hierarchy, char *line, const char **group)
{
    char *controllers = strchr(line, ':'),
         *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path)
        return false;
    *controllers++ = *path++ = 0;
    path[strcspn(path, "\n")] = 0;
    *group = path;
    return hierarchy->unified ? !*controllers : is_in(controllers, hierarchy->controller);
}

/* A line "36 35 98:0 /root /mount options optional… - type source options". */
static bool is_mount_of(const struct hierarchy *hierarchy, const char *line, char *root,
                        char *mount)
{
    char type[32], options[256] = "";
    const char *end = strstr(line, " - ");
    return end && sscanf(line, "%*s %*s %*s %4095s %4095s", root, mount) == 2 &&
           sscanf(end, " - %31s %*s %255s", type, options) >= 1 &&
           (hierarchy->unified
                ? strcmp(type, "cgroup2") == 0
                : strcmp(type, "cgroup") == 0 && is_in(options, hierarchy->controller));
}

static bool find_group(struct hierarchy *hierarchy, const char *groups)
{
    FILE *from = fopen(groups, "re");
    char line[PATH_MAX + 256];
    const char *group;
    bool found = false;
    while (from && !found && fgets(line, sizeof line, from))
        if ((found = is_group_of(hierarchy, line, &group)))
            snprintf(hierarchy->group, sizeof hierarchy->group, "%s", group);
    if (from)
        fclose(from);
    return found;
}

/* The part of a group's path that lies below the group at which it is mounted. A container may see
 * the host's path of its group, or none: then what is mounted is its group. */
static const char *below_root(const char *group, const char *root)
{
    size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
    bool inside = strncmp(group, root, length) == 0 && (group[length] == '/' || !group[length]);
    return inside && strcmp(group + length, "/") != 0 ? group + length : "";
}

static bool find_mount(struct hierarchy *hierarchy, const char *mounts)
{
    FILE *from = fopen(mounts, "re");
    char line[3 * PATH_MAX], root[PATH_MAX];
    bool found = false;
    while (from && !found && fgets(line, sizeof line, from))
        found = is_mount_of(hierarchy, line, root, hierarchy->mount);
    if (from)
        fclose(from);
    if (found)
        found =
            snprintf(hierarchy->directory, sizeof hierarchy->directory, "%s%s", hierarchy->mount,
                     below_root(hierarchy->group, root)) < (int)sizeof hierarchy->directory;
    return found;
}

/* ---- What is said in a group ---- */

static bool read_line(const char *directory, const char *name, char *line, int room)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *from = fopen(path, "re");
    bool there = from && fgets(line, room, from);
    if (from)
        fclose(from);
    return there;
}

/* UINT32_MAX for what is no number of microseconds, as "max" and "-1". */
static uint32_t cpus_of_quota(const char *quota, const char *period)
{
    char *end;
    long used_us = strtol(quota, &end, 10), of_us = strtol(period, NULL, 10);
    if (end == quota || used_us <= 0 || of_us <= 0)
        return UINT32_MAX;
    return (uint32_t)((used_us + of_us - 1) / of_us);
}

static uint32_t quota_of_directory(const struct hierarchy *hierarchy, const char *directory)
{
    char quota[64], period[64];
    if (!hierarchy->unified)
        return read_line(directory, "cpu.cfs_quota_us", quota, sizeof quota) &&
                       read_line(directory, "cpu.cfs_period_us", period, sizeof period)
                   ? cpus_of_quota(quota, period)
                   : UINT32_MAX;
    return read_line(directory, "cpu.max", quota, sizeof quota)
               ? cpus_of_quota(quota, quota + strcspn(quota, " "))
               : UINT32_MAX;
}

/* UINT64_MAX for what is no number of bytes, as "max", or is not there. */
static uint64_t read_bytes(const char *directory, const char *name)
{
    char line[64], *end;
    if (!read_line(directory, name, line, sizeof line))
        return UINT64_MAX;
    unsigned long long bytes = strtoull(line, &end, 10);
    return end == line ? UINT64_MAX : bytes;
}

/* The bytes of a line "NAME BYTES" of memory.stat; 0 if there is none. */
static uint64_t read_statistic(const char *directory, const char *name)
{
    char path[PATH_MAX + 32], line[128];
    size_t length = strlen(name);
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    FILE *from = fopen(path, "re");
    while (from && fgets(line, sizeof line, from))
        if (strncmp(line, name, length) == 0 && line[length] == ' ')
            bytes = strtoull(line + length, NULL, 10);
    if (from)
        fclose(from);
    return bytes;
}

static uint64_t memory_of_directory(const struct hierarchy *hierarchy, const char *directory)
{
    bool unified = hierarchy->unified;
    uint64_t most = read_bytes(directory, unified ? "memory.max" : "memory.limit_in_bytes");
    uint64_t used = read_bytes(directory, unified ? "memory.current" : "memory.usage_in_bytes");
    if (most == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    uint64_t cache = read_statistic(directory, unified ? "inactive_file" : "total_inactive_file");
    used -= cache < used ? cache : used;
    return most > used ? most - used : 0;
}

/* Take the least of the groups that enclose the process's. */
static void limit_by_groups(const struct hierarchy *hierarchy, struct cgroup_limits *limits)
{
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", hierarchy->directory);
    for (;;) {
        uint32_t quota = quota_of_directory(hierarchy, directory);
        uint64_t memory = memory_of_directory(hierarchy, directory);
        limits->quota_cpus = quota < limits->quota_cpus ? quota : limits->quota_cpus;
        limits->memory_bytes = memory < limits->memory_bytes ? memory : limits->memory_bytes;
        if (strlen(directory) <= strlen(hierarchy->mount))
            return;
        *strrchr(directory, '/') = 0;
    }
}

uint32_t cgroup_cpus_in_list(const char *list)
{
    cpu_set_t cpus;
    return harp_cpus_parse(list, &cpus) ? (uint32_t)CPU_COUNT(&cpus) : 0;
}

struct cgroup_limits cgroup_read(const char *groups, const char *mounts)
{
    struct cgroup_limits limits = {.quota_cpus = UINT32_MAX, .memory_bytes = UINT64_MAX};
    struct hierarchy hierarchies[] = {{.unified = true},
                                      {.controller = "cpu"},
                                      {.controller = "cpuset"},
                                      {.controller = "memory"}};
    for (size_t i = 0; i < sizeof hierarchies / sizeof hierarchies[0]; i++) {
        struct hierarchy *at = &hierarchies[i];
        char list[LIST_BYTES];
        if (!find_group(at, groups) || !find_mount(at, mounts))
            continue;
        limit_by_groups(at, &limits);
        const char *name = at->unified ? "cpuset.cpus.effective" : "cpuset.effective_cpus";
        if (!limits.cpus && read_line(at->directory, name, list, sizeof list))
            limits.cpus = cgroup_cpus_in_list(list);
    }
    return limits;
}
