/* Sparse averaging: the largest elements as (value, index) pairs, and adding pairs up.
 *
 * A pair is its value, float32 or float16, and the element's index as int32, packed and
 * little-endian, as harp.collectives.topk counts them. What is not sent stays as the sender's error
 * and is added the next time (error feedback: Stich et al., "Sparsified SGD with memory", NeurIPS
 * 2018); the rounding to float16 is part of that error.
 */
#ifndef HARP_LIGHTCC_TOPK_H
#define HARP_LIGHTCC_TOPK_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
#define HARP_PAIR_FLOAT16_BYTES 6
#define HARP_PAIR_FLOAT32_BYTES 8

/* Add `error` to the `n` values, write the `kept` of largest magnitude as pairs of `pair_bytes`, in
 * the order of their indices, and leave in `error` what the pairs do not carry. Of equals the first
 * ones are taken; a NaN is larger than all else, so that it is seen. `error` NULL: none is kept,
 * and values stay as they are. */
void harp_topk_select(float *values, float *error, size_t n, uint8_t *pairs, size_t kept,
                      size_t pair_bytes);

/* Set the `n` values to zero and add `count` pairs. Indices from n on are passed over. */
void harp_topk_add(float *values, size_t n, const uint8_t *pairs, size_t count, size_t pair_bytes);
/* cdef: end */

#endif
