#include "table/table_loops.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx2")))
#define REGISTER_BYTES 32
#define LOOPS table_loops_avx2
#define LOOPS_NAME "avx2"

TARGET static inline uint32_t match_group(const struct table_group *group, int64_t key)
{
    __m256i four = _mm256_loadu_si256((const void *)group->keys);
    __m256i same = _mm256_cmpeq_epi64(four, _mm256_set1_epi64x(key));
    uint32_t found = (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(same));
    return (found | (uint32_t)(group->keys[4] == key) << 4) & group->used;
}

TARGET static inline void multiply_halves(table_words *products, const table_words *x, uint32_t by)
{
    for (uint32_t i = 0; i < TABLE_LANES; i += 4) {
        __m256i four = _mm256_loadu_si256((const void *)((const uint64_t *)x + i));
        _mm256_storeu_si256((void *)((uint64_t *)products + i),
                            _mm256_mul_epu32(four, _mm256_set1_epi64x(by)));
    }
}

#include "table/table_loops_body.h"

#endif
