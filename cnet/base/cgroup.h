/* Limits on the host's CPUs and memory by the control groups of a process, in both versions.
 *
 *     /proc/self/cgroup      the groups of the process, one for each hierarchy
 *     /proc/self/mountinfo   where each hierarchy is mounted, and from which group on
 *     cpu.max                version 2: "QUOTA PERIOD", or "max PERIOD"
 *     cpu.cfs_quota_us, cpu.cfs_period_us     version 1; -1: no quota
 *     cpuset.cpus.effective, cpuset.effective_cpus     the CPUs of version 2 and 1, as "0-3,8"
 *
 *     memory.max, memory.current     version 2, in bytes, or "max"
 *     memory.limit_in_bytes, memory.usage_in_bytes     version 1
 *     memory.stat                    inactive_file or total_inactive_file: bytes of the usage that
 *                                    the kernel gives up first, as a file's cache
 *
 * A group's quota is for it and for all groups inside, so the least of those that enclose it
 * counts, up to the mount: a container does not see more. Hybrid hosts have hierarchies of both
 * versions. (Kernel: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/cpusets.rst,
 * cgroup-v1/memory.rst, scheduler/sched-bwc.rst.)
 */
#ifndef HARP_CGROUP_H
#define HARP_CGROUP_H

#include <stdint.h>

struct cgroup_limits {
    uint32_t quota_cpus;   /* that the quota pays for, rounded up; UINT32_MAX: no quota */
    uint32_t cpus;         /* in the set of CPUs; 0: it is not known */
    uint64_t memory_bytes; /* that may still be had; UINT64_MAX: no limit */
};

/* `groups` and `mounts`: files as the two of /proc. Files that cannot be read limit nothing. */
struct cgroup_limits cgroup_read(const char *groups, const char *mounts);

/* CPUs of a list such as "0-3,8", as the kernel writes them; 0 if it is not such a list. */
uint32_t cgroup_cpus_in_list(const char *list);

#endif
