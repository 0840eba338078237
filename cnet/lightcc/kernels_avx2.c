#include "kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,f16c")))
#define KERNELS harp_kernels_avx2
#define KERNELS_NAME "avx2"

/* F16C keeps of a NaN what fits, and half.h does, too. */
TARGET static inline void widen_block_float16(union wide *wide, const uint8_t *halves)
{
    for (size_t i = 0; i < HALVES; i += 8) {
        __m128i words = _mm_loadu_si128((const __m128i *)(const void *)(halves + 2 * i));
        _mm256_storeu_ps(&wide->value[i], _mm256_cvtph_ps(words));
    }
}

TARGET static inline void narrow_block_float16(uint8_t *halves, const union wide *wide)
{
    for (size_t i = 0; i < HALVES; i += 8) {
        __m256 values = _mm256_loadu_ps(&wide->value[i]);
        _mm_storeu_si128((__m128i *)(void *)(halves + 2 * i),
                         _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}

#define HAVE_FLOAT16

/* One bit for each of eight values. */
TARGET static inline uint32_t compare_8(const float *values, __m256i below)
{
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)values);
    __m256i magnitudes = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
    __m256i is_found = _mm256_cmpgt_epi32(magnitudes, below);
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(is_found));
}

TARGET static inline size_t find_block(const float *values, size_t n, uint32_t least,
                                       uint32_t *indices)
{
    size_t found = 0, at = 0;
    __m256i below = _mm256_set1_epi32((int32_t)least - 1);
    for (; at + 32 <= n; at += 32) {
        uint32_t lanes = compare_8(values + at, below) | compare_8(values + at + 8, below) << 8 |
                         compare_8(values + at + 16, below) << 16 |
                         compare_8(values + at + 24, below) << 24;
        for (; lanes; lanes &= lanes - 1)
            indices[found++] = (uint32_t)at + (uint32_t)__builtin_ctz(lanes);
    }
    for (; at < n; at++) {
        indices[found] = (uint32_t)at;
        found += harp_magnitude(&values[at]) >= least;
    }
    return found;
}

TARGET static inline void square_roots(float *values)
{
    for (size_t i = 0; i < HALVES; i += 8)
        _mm256_storeu_ps(values + i, _mm256_sqrt_ps(_mm256_loadu_ps(values + i)));
}

#include "kernel_loops.h"

#endif
