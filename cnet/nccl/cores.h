/* How many of the host's CPUs this rank may count on. */
#ifndef HARP_NCCL_CORES_H
#define HARP_NCCL_CORES_H

#include <stdbool.h>
#include <stdint.h>

struct cores {
    uint32_t cpus; /* that this process may use: its affinity, and the quota of its control group */
    uint32_t ranks; /* of this host that share them, as the launcher's environment says */
    bool bound;     /* the launcher has bound this rank to CPUs of its own: nobody shares them */
};

/* Read affinity, control groups and the launcher's environment. */
void cores_find(struct cores *cores);

/* CPUs of this rank alone; 1 at least. */
uint32_t cores_of_rank(const struct cores *cores);

/* CPUs of a list such as "0-3,8", as the kernel writes them; 0 if it is none. */
uint32_t cores_in_list(const char *list);

/* CPUs that a quota such as "150000 100000" pays for (cpu.max of control groups, version 2),
 * rounded up; UINT32_MAX for "max 100000" and what is none. */
uint32_t cores_in_quota(const char *quota);

#endif
