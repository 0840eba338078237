/* The host's clock, for LightCC's waits. */
#ifndef HARP_LIGHTCC_CLOCK_H
#define HARP_LIGHTCC_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t lightcc_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#endif
