/* The loops of kernels.h, compiled once for each kind of CPU: include it where TARGET, KERNELS,
 * KERNELS_NAME, find_block and square_roots are defined, and HAVE_FLOAT16 with the two functions
 * below where the CPU has them.
 *
 * Elements are copied in and out by memcpy, which costs nothing, since memory of an application may
 * have any alignment.
 */
#include "kernels.h"

#if defined(__clang__) /* gcc does not fuse a product and a sum where the language is ISO C */
#pragma STDC FP_CONTRACT OFF
#endif

#if !defined(HAVE_FLOAT16)
static inline void widen_block_float16(union wide *wide, const uint8_t *halves)
{
    widen_float16(wide, halves);
}

static inline void narrow_block_float16(uint8_t *halves, const union wide *wide)
{
    narrow_float16(halves, wide);
}
#endif
#define widen_block_bfloat16 widen_bfloat16
#define narrow_block_bfloat16 narrow_bfloat16

#define LEAST(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define GREATEST(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define SUM(a, b) ((a) + (b))
#define PRODUCT(a, b) ((a) * (b))
#define BAND(a, b) ((a) & (b))
#define BOR(a, b) ((a) | (b))
#define BXOR(a, b) ((a) ^ (b))

/* `type` lies in memory, and `wide` is what `op` works on. */
#define DEFINE_REDUCE(name, type, wide, op)                                                        \
    TARGET static void reduce_##name(uint8_t *restrict there, const uint8_t *restrict came,        \
                                     size_t bytes)                                                 \
    {                                                                                              \
        for (size_t i = 0; i < bytes; i += sizeof(type)) {                                         \
            type a, b;                                                                             \
            memcpy(&a, there + i, sizeof a);                                                       \
            memcpy(&b, came + i, sizeof b);                                                        \
            type c = (type)op((wide)a, (wide)b);                                                   \
            memcpy(there + i, &c, sizeof c);                                                       \
        }                                                                                          \
    }

/* Blocks of 16-bit floats; the last one is filled up with zeros. */
#define DEFINE_HALF(name, widen, narrow, op)                                                       \
    TARGET static inline void reduce_block_##name(uint8_t *a, const uint8_t *b)                    \
    {                                                                                              \
        union wide wide_a, wide_b;                                                                 \
        widen(&wide_a, a);                                                                         \
        widen(&wide_b, b);                                                                         \
        for (size_t i = 0; i < HALVES; i++)                                                        \
            wide_a.value[i] = op(wide_a.value[i], wide_b.value[i]);                                \
        narrow(a, &wide_a);                                                                        \
    }                                                                                              \
    TARGET static void reduce_##name(uint8_t *restrict there, const uint8_t *restrict came,        \
                                     size_t bytes)                                                 \
    {                                                                                              \
        uint8_t a[HALVES_BYTES] = {0}, b[HALVES_BYTES] = {0};                                      \
        size_t rest = bytes % HALVES_BYTES, whole = bytes - rest;                                  \
        for (size_t at = 0; at < whole; at += HALVES_BYTES)                                        \
            reduce_block_##name(there + at, came + at);                                            \
        memcpy(a, there + whole, rest);                                                            \
        memcpy(b, came + whole, rest);                                                             \
        reduce_block_##name(a, b);                                                                 \
        memcpy(there + whole, a, rest);                                                            \
    }

#define DEFINE_HALF_AVERAGE(name, widen, narrow)                                                   \
    TARGET static inline void average_block_##name(uint8_t *a, float ranks)                        \
    {                                                                                              \
        union wide wide;                                                                           \
        widen(&wide, a);                                                                           \
        for (size_t i = 0; i < HALVES; i++)                                                        \
            wide.value[i] /= ranks;                                                                \
        narrow(a, &wide);                                                                          \
    }                                                                                              \
    TARGET static void average_##name(uint8_t *there, size_t bytes, uint32_t ranks)                \
    {                                                                                              \
        uint8_t a[HALVES_BYTES] = {0};                                                             \
        size_t rest = bytes % HALVES_BYTES, whole = bytes - rest;                                  \
        for (size_t at = 0; at < whole; at += HALVES_BYTES)                                        \
            average_block_##name(there + at, (float)ranks);                                        \
        memcpy(a, there + whole, rest);                                                            \
        average_block_##name(a, (float)ranks);                                                     \
        memcpy(there + whole, a, rest);                                                            \
    }

#define DEFINE_AVERAGE(name, type)                                                                 \
    TARGET static void average_##name(uint8_t *there, size_t bytes, uint32_t ranks)                \
    {                                                                                              \
        for (size_t i = 0; i < bytes; i += sizeof(type)) {                                         \
            type a;                                                                                \
            memcpy(&a, there + i, sizeof a);                                                       \
            a /= (type)ranks;                                                                      \
            memcpy(there + i, &a, sizeof a);                                                       \
        }                                                                                          \
    }

/* (a + bi)(c + di), as numpy and torch make it: without C's mending of infinite products. For any
 * CPU, since gcc 12 makes a fused instruction of this pattern though the language is ISO C. */
#define DEFINE_COMPLEX_PRODUCT(name, type)                                                         \
    static void reduce_##name(uint8_t *restrict there, const uint8_t *restrict came, size_t bytes) \
    {                                                                                              \
        for (size_t i = 0; i < bytes; i += 2 * sizeof(type)) {                                     \
            type a[2], b[2];                                                                       \
            memcpy(a, there + i, sizeof a);                                                        \
            memcpy(b, came + i, sizeof b);                                                         \
            type c[2] = {a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]};                    \
            memcpy(there + i, c, sizeof c);                                                        \
        }                                                                                          \
    }

/* Sums and products are those of unsigned integers, which wrap; of `wide` ones, since small ones
 * would become int, which must not overflow. */
#define DEFINE_INTEGER(name, type, wide)                                                           \
    DEFINE_REDUCE(name##_sum, type, wide, SUM)                                                     \
    DEFINE_REDUCE(name##_product, type, wide, PRODUCT)                                             \
    DEFINE_REDUCE(name##_min, type, type, LEAST)                                                   \
    DEFINE_REDUCE(name##_max, type, type, GREATEST)
#define DEFINE_BITWISE(name, type)                                                                 \
    DEFINE_REDUCE(name##_band, type, type, BAND)                                                   \
    DEFINE_REDUCE(name##_bor, type, type, BOR)                                                     \
    DEFINE_REDUCE(name##_bxor, type, type, BXOR)
#define DEFINE_FLOAT(name, type)                                                                   \
    DEFINE_REDUCE(name##_sum, type, type, SUM)                                                     \
    DEFINE_REDUCE(name##_product, type, type, PRODUCT)                                             \
    DEFINE_REDUCE(name##_min, type, type, LEAST)                                                   \
    DEFINE_REDUCE(name##_max, type, type, GREATEST)
#define DEFINE_HALVES(name)                                                                        \
    DEFINE_HALF(name##_sum, widen_block_##name, narrow_block_##name, SUM)                          \
    DEFINE_HALF(name##_product, widen_block_##name, narrow_block_##name, PRODUCT)                  \
    DEFINE_HALF(name##_min, widen_block_##name, narrow_block_##name, LEAST)                        \
    DEFINE_HALF(name##_max, widen_block_##name, narrow_block_##name, GREATEST)                     \
    DEFINE_HALF_AVERAGE(name, widen_block_##name, narrow_block_##name)

DEFINE_INTEGER(uint8, uint8_t, uint32_t)
DEFINE_INTEGER(int8, int8_t, uint32_t)
DEFINE_INTEGER(uint16, uint16_t, uint32_t)
DEFINE_INTEGER(int16, int16_t, uint32_t)
DEFINE_INTEGER(uint32, uint32_t, uint32_t)
DEFINE_INTEGER(int32, int32_t, uint32_t)
DEFINE_INTEGER(uint64, uint64_t, uint64_t)
DEFINE_INTEGER(int64, int64_t, uint64_t)
DEFINE_BITWISE(bits8, uint8_t)
DEFINE_BITWISE(bits16, uint16_t)
DEFINE_BITWISE(bits32, uint32_t)
DEFINE_BITWISE(bits64, uint64_t)
DEFINE_HALVES(float16)
DEFINE_HALVES(bfloat16)
DEFINE_FLOAT(float32, float)
DEFINE_FLOAT(float64, double)
DEFINE_AVERAGE(float32, float)
DEFINE_AVERAGE(float64, double)
DEFINE_COMPLEX_PRODUCT(complex64_product, float)
DEFINE_COMPLEX_PRODUCT(complex128_product, double)

#include "adam_loops.h"
#include "few_bits_loops.h"
#include "rows_loops.h"

#define SUMS_OF(name) reduce_##name##_sum, reduce_##name##_product
#define ORDER_OF(name) reduce_##name##_min, reduce_##name##_max
#define BITS_OF(width)                                                                             \
    reduce_bits##width##_band, reduce_bits##width##_bor, reduce_bits##width##_bxor

const struct harp_kernels KERNELS = {
    .name = KERNELS_NAME,
    .reduce =
        {
            [HARP_ELEMENT_UINT8] = {SUMS_OF(uint8), ORDER_OF(uint8), BITS_OF(8)},
            [HARP_ELEMENT_INT8] = {SUMS_OF(int8), ORDER_OF(int8), BITS_OF(8)},
            [HARP_ELEMENT_UINT16] = {SUMS_OF(uint16), ORDER_OF(uint16), BITS_OF(16)},
            [HARP_ELEMENT_INT16] = {SUMS_OF(int16), ORDER_OF(int16), BITS_OF(16)},
            [HARP_ELEMENT_UINT32] = {SUMS_OF(uint32), ORDER_OF(uint32), BITS_OF(32)},
            [HARP_ELEMENT_INT32] = {SUMS_OF(int32), ORDER_OF(int32), BITS_OF(32)},
            [HARP_ELEMENT_UINT64] = {SUMS_OF(uint64), ORDER_OF(uint64), BITS_OF(64)},
            [HARP_ELEMENT_INT64] = {SUMS_OF(int64), ORDER_OF(int64), BITS_OF(64)},
            [HARP_ELEMENT_FLOAT16] = {SUMS_OF(float16), ORDER_OF(float16)},
            [HARP_ELEMENT_BFLOAT16] = {SUMS_OF(bfloat16), ORDER_OF(bfloat16)},
            [HARP_ELEMENT_FLOAT32] = {SUMS_OF(float32), ORDER_OF(float32)},
            [HARP_ELEMENT_FLOAT64] = {SUMS_OF(float64), ORDER_OF(float64)},
            [HARP_ELEMENT_COMPLEX64] = {reduce_float32_sum, reduce_complex64_product},
            [HARP_ELEMENT_COMPLEX128] = {reduce_float64_sum, reduce_complex128_product},
        },
    .average =
        {
            [HARP_ELEMENT_FLOAT16] = average_float16,
            [HARP_ELEMENT_BFLOAT16] = average_bfloat16,
            [HARP_ELEMENT_FLOAT32] = average_float32,
            [HARP_ELEMENT_FLOAT64] = average_float64,
            [HARP_ELEMENT_COMPLEX64] = average_float32,
            [HARP_ELEMENT_COMPLEX128] = average_float64,
        },
    .widen_float16 = widen_block_float16,
    .narrow_float16 = narrow_block_float16,
    .find = find_block,
    .peak = find_peak,
    .round_levels = round_levels,
    .add_levels = add_levels,
    .scale_row = scale_row,
    .add_row = add_row,
    .dot_rows = dot_rows,
    .adam =
        {
            [HARP_ELEMENT_FLOAT16] = adam_float16,
            [HARP_ELEMENT_BFLOAT16] = adam_bfloat16,
            [HARP_ELEMENT_FLOAT32] = adam_float32,
        },
};
