/* Numbers out of keys: where a key lies, and the values that a new row begins with.
 *
 * harp_embedding_mix is the finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable
 * pseudorandom number generators", OOPSLA 2014, variant 13 of Stafford). It is a bijection of
 * 64-bit words: two keys never have the same number.
 *
 * harp_philox is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011), a function of key and counter without a state. The counter is the row's key
 * and the place within the row, so a row's first values depend on (seed, key) only: not on the
 * order of insertion, nor on threads or ranks. Confidence: tested against the vectors of Random123.
 */
#ifndef HARP_EMBEDDING_HASH_H
#define HARP_EMBEDDING_HASH_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t harp_embedding_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* The multiplier of splitmix64's counter: zero and one do not stay near one another. */
static inline uint64_t harp_embedding_hash(int64_t key)
{
    return harp_embedding_mix((uint64_t)key + UINT64_C(0x9E3779B97F4A7C15));
}

/* One of `parts`, by the lower half of a hash: the upper half is the index's. */
static inline uint32_t harp_embedding_part(uint64_t hash, uint32_t parts)
{
    return (uint32_t)(((uint64_t)(uint32_t)hash * parts) >> 32);
}

static inline void harp_philox(uint32_t x[4], uint64_t seed)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = UINT64_C(0xD2511F53) * x[0], b = UINT64_C(0xCD9E8D57) * x[2];
        uint32_t y1 = x[1], y3 = x[3];
        x[0] = (uint32_t)(b >> 32) ^ y1 ^ k0;
        x[1] = (uint32_t)b;
        x[2] = (uint32_t)(a >> 32) ^ y3 ^ k1;
        x[3] = (uint32_t)a;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
}

/* Write a new row: uniform in [-bound, bound), in steps of bound / 2^23. */
static inline void harp_embedding_first_row(float *row, uint32_t dim, int64_t key, uint64_t seed,
                                            float bound)
{
    for (uint32_t i = 0; i < dim; i += 4) {
        uint32_t x[4] = {(uint32_t)key, (uint32_t)((uint64_t)key >> 32), i / 4, 0};
        harp_philox(x, seed);
        for (uint32_t j = 0; j < 4 && i + j < dim; j++)
            row[i + j] = ((float)(x[j] >> 8) * 0x1p-23F - 1.0F) * bound;
    }
}

#endif
