/* SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
 * 2014): 64-bit numbers that a seed determines, the same on every machine.
 *
 * The state is one 64-bit number and any number is a good seed. Not for secrets.
 */
#ifndef HARP_SPLITMIX_H
#define HARP_SPLITMIX_H

#include <stdint.h>

/* 0 to 2^64 - 1. */
static inline uint64_t harp_splitmix(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

#endif
