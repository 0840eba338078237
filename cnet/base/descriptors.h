/* The file descriptors of the process (ulimit -n): how many it may have, and how many are left. */
#ifndef HARP_DESCRIPTORS_H
#define HARP_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

/* Whether HARP may keep a descriptor that it can do without, since the application needs some, too:
 * whether this one leaves half of those that the process may have (ulimit -n). The kernel gives the
 * lowest that is free, so its number says how many there are. */
static inline bool harp_descriptor_leaves_half(int fd)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) < 0 || (uint64_t)fd < limit.rlim_cur / 2;
}

/* Raise the soft limit to the hard one, which needs no privilege, and return what is in force. The
 * soft limit is 1,024 for the sake of select(2) alone (systemd's NEWS for 240). */
static inline uint64_t harp_descriptors_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return UINT64_MAX;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? before : limit.rlim_cur;
}

#endif
