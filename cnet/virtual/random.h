/* The generator of all chance in a virtual network: splitmix64 (Steele, Lea and Flood, "Fast
 * splittable pseudorandom number generators", OOPSLA 2014).
 *
 * The state is one 64-bit number and any number is a good seed, so a seed is the whole of a run.
 * A part that draws on its own gets a generator of its own, seeded by a draw: then what it draws
 * changes nothing elsewhere.
 *
 *     uint64_t random = seed, link_random = virtual_draw(&random);
 *
 * Integers only: the same numbers on every machine. The remainder that virtual_below takes prefers
 * small numbers by less than n / 2^64, which no simulation here can see.
 */
#ifndef HARP_VIRTUAL_RANDOM_H
#define HARP_VIRTUAL_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

/* 0 to 2^64 - 1. */
static inline uint64_t virtual_draw(uint64_t *random)
{
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* 0 to n - 1; n is not 0. */
static inline uint64_t virtual_below(uint64_t *random, uint64_t n)
{
    return virtual_draw(random) % n;
}

/* True in `permille` of 1,000 cases. */
static inline bool virtual_chance(uint64_t *random, uint32_t permille)
{
    return virtual_below(random, 1000) < permille;
}

#endif
