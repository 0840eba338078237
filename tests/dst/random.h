/* The harness's only source of chance: splitmix64, so that a seed is the whole of a run. */
#ifndef DST_RANDOM_H
#define DST_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

static inline uint64_t dst_draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* 0 to n - 1. */
static inline uint64_t dst_below(uint64_t *state, uint64_t n)
{
    return dst_draw(state) % n;
}

/* True in `permille` of 1,000 cases. */
static inline bool dst_chance(uint64_t *state, uint32_t permille)
{
    return dst_below(state, 1000) < permille;
}

/* In `permille` of 1,000 cases something below `most`, else 0. */
static inline uint32_t dst_rate(uint64_t *state, uint32_t permille, uint64_t most)
{
    return dst_chance(state, permille) ? (uint32_t)dst_below(state, most) : 0;
}

#endif
