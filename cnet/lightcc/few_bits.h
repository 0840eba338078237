/* Values in few bits: what a quantised allreduce sends.
 *
 * A message has, for each chunk of HARP_BITS_CHUNK values, a scale (float32, little-endian) and a
 * level for each value, of 8, 4 or 2 bits in two's complement, the first in the lowest bits of a
 * byte. A level q of -L to L, where L is 127, 7 or 1, stands for q * scale, and the scale is the
 * largest magnitude of the chunk over L. The last chunk may be shorter, and ends with a whole byte.
 *
 * In a chunk with an infinity or a NaN all is NaN, so that it is seen; a chunk of magnitudes below
 * HARP_BITS_LEAST is sent as zeros. All forms of the loops give the same bits.
 *
 * Chunks with a scale each: Alistarh et al., "QSGD", NeurIPS 2017 (arXiv 1610.02132), section 4,
 * where rounding is by chance, too.
 */
#ifndef HARP_LIGHTCC_FEW_BITS_H
#define HARP_LIGHTCC_FEW_BITS_H

#include <stddef.h>
#include <stdint.h>

/* L over less than this may be infinite. */
#define HARP_BITS_LEAST 0x1p-120F

/* cdef: begin */
#define HARP_BITS_CHUNK 256

/* The bytes of a message of `n` values of `bits`, 8, 4 or 2. */
size_t harp_bits_bytes(size_t n, uint32_t bits);

/* Write the sums of `values` and `error` as a message, and leave in `error` what the message does
 * not say: of a chunk with a NaN, zeros. With `error` NULL the values alone are written.
 *
 * With `seed` 0 levels are rounded to nearest, ties to even. With another seed rounding is
 * stochastic: a hash of the seed and the value's place decides, so that the mean of what is sent is
 * the value. */
void harp_bits_take(const float *values, float *error, size_t n, uint8_t *message, uint32_t bits,
                    uint32_t seed);

/* Add what a message of `n` values says. */
void harp_bits_add(float *total, size_t n, const uint8_t *message, uint32_t bits);
/* cdef: end */

#endif
