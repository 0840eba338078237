#include "table/table_loops.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* clang takes vectors of 512 bits by itself and does not know the option. */
#if defined(__clang__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#define REGISTER_BYTES 64
#define LOOPS table_loops_avx512
#define LOOPS_NAME "avx512"

/* The slots and bits behind the keys are compared, too; `used` has no bits for them. */
TARGET static inline uint32_t match_group(const struct table_group *group, int64_t key)
{
    __m512i line = _mm512_loadu_si512(group);
    return _mm512_cmpeq_epi64_mask(line, _mm512_set1_epi64(key)) & group->used;
}

TARGET static inline void multiply_halves(table_words *products, const table_words *x, uint32_t by)
{
    *products = (table_words)_mm512_mul_epu32((__m512i)*x, _mm512_set1_epi64(by));
}

#include "table/table_loops_body.h"

#endif
