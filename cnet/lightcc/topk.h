/* Sparse averaging: the largest elements as (value, index) pairs, and adding pairs up.
 *
 * A pair is its value, float32 or float16, and the element's index as int32, packed and
 * little-endian, as harp.collectives.topk counts them. The rest stays as the sender's error
 * and is added the next time (error feedback: Stich et al., "Sparsified SGD with memory", NeurIPS
 * 2018); the rounding to float16 is part of that error.
 */
#ifndef HARP_LIGHTCC_TOPK_H
#define HARP_LIGHTCC_TOPK_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
#define HARP_PAIR_FLOAT16_BYTES 6

/* Write the `kept` of largest magnitude, 1 to n, of values + error as pairs of `pair_bytes`, in the
 * order of their indices, and leave in `error` what the pairs do not carry. Of equals the first
 * ones are taken; a NaN is larger than all else, so that it is seen. Infinities and NaNs are never
 * kept, so an overflow does not outlast its step. Without error feedback `error` is NULL. */
void harp_topk_select(const float *values, float *error, size_t n, uint8_t *pairs, size_t kept,
                      size_t pair_bytes);

/* The same in one pass, by a threshold taken from a sample of the values (Deep Gradient
 * Compression, Lin et al., ICLR 2018, section 3): up to `kept` pairs, and behind them pairs of
 * index -1, which harp_topk_add passes over. The sample expects e = samples * kept / n of its
 * values among the largest, and the threshold is that of 2 sqrt(e) fewer: where values come in no
 * order that the sample's stride meets, all that is sent is among the `kept` largest in 97 of 100
 * calls, and with 99.99 % probability at least 1 - 6 / sqrt(e) of them are sent. 64 Ki samples and
 * 1 % make e 655. The rest stays in `error` like all else that is not sent. Few values are selected
 * exactly. */
void harp_topk_sample(const float *values, float *error, size_t n, uint8_t *pairs, size_t kept,
                      size_t pair_bytes);

/* Set the `n` values to zero and add `count` pairs. Indices from n on are passed over. */
void harp_topk_add(float *values, size_t n, const uint8_t *pairs, size_t count, size_t pair_bytes);
/* cdef: end */

#endif
