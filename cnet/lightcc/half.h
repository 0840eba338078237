/* 16-bit floats: float16 (IEEE 754 binary16) and bfloat16, in blocks.
 *
 * They are widened to float32, worked on, and rounded to nearest, ties to even (IEEE 754-2019,
 * 4.3.1), by loops of the integers that floats are made of: these become vectors, where one loop
 * over all of it would not.
 */
#ifndef HARP_LIGHTCC_HALF_H
#define HARP_LIGHTCC_HALF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HALVES 64
#define HALVES_BYTES (HALVES * 2)

#define HALF_INLINE static inline __attribute__((always_inline))

union wide {
    uint32_t bits[HALVES];
    float value[HALVES];
};

/* They may lie anywhere. */
HALF_INLINE uint32_t load_half(const uint8_t *halves, size_t i)
{
    uint16_t half;
    memcpy(&half, halves + i * sizeof half, sizeof half);
    return half;
}

HALF_INLINE void store_half(uint8_t *halves, size_t i, uint32_t value)
{
    uint16_t half = (uint16_t)value;
    memcpy(halves + i * sizeof half, &half, sizeof half);
}

HALF_INLINE void widen_bfloat16(union wide *wide, const uint8_t *halves)
{
    for (size_t i = 0; i < HALVES; i++)
        wide->bits[i] = (uint32_t)load_half(halves, i) << 16;
}

HALF_INLINE void narrow_bfloat16(uint8_t *halves, const union wide *wide)
{
    for (size_t i = 0; i < HALVES; i++) {
        uint32_t bits = wide->bits[i], rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        uint32_t is_nan = -(uint32_t)((int32_t)(bits & 0x7FFFFFFF) > 0x7F800000);
        store_half(halves, i, (rounded & ~is_nan) | (0x7FC0 & is_nan));
    }
}

#define FEWER_EXPONENTS (UINT32_C(112) << 23) /* 127 and 15 are float32's bias and float16's */
#define HALF_BITS UINT32_C(0x3F000000)        /* 0.5, whose last place is float16's: 2^-24 */

/* float16 has 5 bits of exponent and 10 of fraction, which are shifted to where float32 has them. A
 * subnormal number n is n last places above 0.5, less 0.5. */
HALF_INLINE void widen_float16(union wide *wide, const uint8_t *halves)
{
    union wide small;
    for (size_t i = 0; i < HALVES; i++)
        small.bits[i] = HALF_BITS + (load_half(halves, i) & 0x3FF);
    for (size_t i = 0; i < HALVES; i++)
        small.value[i] -= 0.5F;
    for (size_t i = 0; i < HALVES; i++) {
        uint32_t half = load_half(halves, i), rest = (half & 0x7FFF) << 13;
        uint32_t is_small = -(uint32_t)(rest < UINT32_C(1) << 23);
        uint32_t is_special = -(uint32_t)(rest >= UINT32_C(31) << 23); /* infinite, or a NaN */
        uint32_t normal = rest + FEWER_EXPONENTS + (FEWER_EXPONENTS & is_special);
        uint32_t sign = (half & 0x8000) << 16;
        wide->bits[i] = (small.bits[i] & is_small) | (normal & ~is_small) | sign;
    }
}

/* Adding 0.5 to what is too small for float16's exponents rounds it to float16's last place, by the
 * rule of float32. */
HALF_INLINE void narrow_float16(uint8_t *halves, const union wide *wide)
{
    union wide small;
    for (size_t i = 0; i < HALVES; i++) {
        uint32_t rest = wide->bits[i] & 0x7FFFFFFF;
        small.bits[i] = rest & -(uint32_t)(rest < UINT32_C(0x38800000));
    }
    for (size_t i = 0; i < HALVES; i++)
        small.value[i] += 0.5F;
    for (size_t i = 0; i < HALVES; i++) {
        uint32_t rest = wide->bits[i] & 0x7FFFFFFF;
        uint32_t is_small = -(uint32_t)(rest < UINT32_C(0x38800000));  /* 2^-14 */
        uint32_t is_large = -(uint32_t)(rest >= UINT32_C(0x47800000)); /* 2^16 */
        uint32_t is_nan = -(uint32_t)(rest > UINT32_C(0x7F800000));
        uint32_t normal = (rest - FEWER_EXPONENTS + 0xFFF + (rest >> 13 & 1)) >> 13;
        uint32_t finite = ((small.bits[i] - HALF_BITS) & is_small) | (normal & ~is_small);
        uint32_t payload = 0x200 | (rest >> 13 & 0x3FF);
        uint32_t found = (finite & ~is_large) | (0x7C00 & is_large) | (payload & is_nan);
        store_half(halves, i, (wide->bits[i] >> 16 & 0x8000) | found);
    }
}

#endif
