/* The host's clocks, in nanoseconds. */
#ifndef HARP_CLOCK_H
#define HARP_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t harp_clock_of_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now); /* mostly the vDSO's: no system call */
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline uint64_t harp_clock_ns(void)
{
    return harp_clock_of_ns(CLOCK_MONOTONIC);
}

#endif
