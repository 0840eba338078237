/* Descriptors that HARP opens only if there are many left: the application needs some, too. */
#ifndef HARP_DESCRIPTORS_H
#define HARP_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

/* Whether this one leaves half of those that the process may have (ulimit -n). The kernel gives the
 * lowest that is free, so its number says how many there are. */
static inline bool harp_descriptor_leaves_half(int fd)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) < 0 || (uint64_t)fd < limit.rlim_cur / 2;
}

#endif
