/* Numbers that wrap.
 *
 * Packets and messages are numbered in 32 bits, and a long connection runs through all of them. Two
 * numbers are therefore never compared as integers, only by the sign of their difference, which is
 * right as long as they lie less than 2^31 apart: windows here are at most a few thousand wide.
 */
#ifndef HARP_SEQUENCE_H
#define HARP_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether `a` comes before `b`. */
static inline bool harp_before(uint32_t a, uint32_t b)
{
#ifdef HARP_BUG_WRAP
    return a < b;
#else
    return (int32_t)(a - b) < 0;
#endif
}

static inline uint64_t harp_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t harp_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The same for points in time, of which HARP_NEVER is the last. */
#define HARP_NEVER UINT64_MAX

#endif
