/* The generator of all chance in a virtual network, base/splitmix.h.
 *
 * A seed determines a run. A part that draws on its own gets a generator of its own, seeded by a
 * draw: then what it draws changes nothing elsewhere.
 *
 *     uint64_t random = seed, link_random = virtual_draw(&random);
 *
 * The remainder that virtual_below takes prefers
 * small numbers by less than n / 2^64, which no simulation here can see.
 */
#ifndef HARP_VIRTUAL_RANDOM_H
#define HARP_VIRTUAL_RANDOM_H

#include <stdbool.h>

#include "base/splitmix.h"

/* 0 to 2^64 - 1. */
static inline uint64_t virtual_draw(uint64_t *random)
{
    return harp_splitmix(random);
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
