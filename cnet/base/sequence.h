/* Arithmetic of numbers that wrap.
 *
 * Messages are numbered in 32 bits, and a long connection runs through all of them. Two numbers are
 * therefore never compared as integers, only by the sign of their difference, which is right as
 * long as they lie less than 2^31 apart: windows here are at most a few thousand wide.
 *
 * Packets are numbered in 64 bits; a frame carries the lower 32. The receiver knows the
 * rest by the largest number so far (RFC 9000, appendix A.3), as long as the two lie less than 2^31
 * apart; a frame that is replayed later decodes to another number, so its tag does not hold.
 */
#ifndef HARP_SEQUENCE_H
#define HARP_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether `a` comes before `b`. */
static inline bool harp_before(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}

/* The same for packets. The number before the first may be that before 0. */
static inline bool harp_packet_before(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) < 0;
}

/* The number with these lower 32 bits that is nearest to `about`. */
static inline uint64_t harp_packet_near(uint64_t about, uint32_t low)
{
    return about + (uint64_t)(int64_t)(int32_t)(low - (uint32_t)about);
}

static inline uint64_t harp_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t harp_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The same for points in time; HARP_NEVER is the last. */
#define HARP_NEVER UINT64_MAX

#endif
