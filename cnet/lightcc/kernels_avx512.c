#include "kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* clang takes vectors of 512 bits by itself and does not know the option. */
#if defined(__clang__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#define KERNELS harp_kernels_avx512
#define KERNELS_NAME "avx512"

TARGET static inline void widen_block_float16(union wide *wide, const uint8_t *halves)
{
    for (size_t i = 0; i < HALVES; i += 16)
        _mm512_storeu_ps(&wide->value[i],
                         _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(halves + 2 * i))));
}

TARGET static inline void narrow_block_float16(uint8_t *halves, const union wide *wide)
{
    for (size_t i = 0; i < HALVES; i += 16) {
        __m512 values = _mm512_loadu_ps(&wide->value[i]);
        _mm256_storeu_si256((void *)(halves + 2 * i),
                            _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}

#define HAVE_FLOAT16

TARGET static inline size_t find_block(const float *values, size_t n, uint32_t least,
                                       uint32_t *indices)
{
    size_t found = 0;
    __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (size_t at = 0; at < n; at += 16) {
        __mmask16 lanes = n - at < 16 ? (__mmask16)((1U << (n - at)) - 1) : (__mmask16)0xFFFF;
        __m512i bits = _mm512_maskz_loadu_epi32(lanes, values + at);
        __m512i magnitudes = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
        lanes = _mm512_mask_cmpge_epu32_mask(lanes, magnitudes, _mm512_set1_epi32((int)least));
        __m512i where = _mm512_add_epi32(order, _mm512_set1_epi32((int)at));
        _mm512_storeu_si512(indices + found, _mm512_maskz_compress_epi32(lanes, where));
        found += (size_t)__builtin_popcount(lanes);
    }
    return found;
}

TARGET static inline void square_roots(float *values)
{
    for (size_t i = 0; i < HALVES; i += 16)
        _mm512_storeu_ps(values + i, _mm512_sqrt_ps(_mm512_loadu_ps(values + i)));
}

#include "kernel_loops.h"

#endif
