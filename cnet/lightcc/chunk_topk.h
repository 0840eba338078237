/* The largest values of each chunk of a vector, in few bits: messages of SparseLoCo.
 *
 * A message has, for each chunk, a scale (float32, little-endian, the largest magnitude; none with
 * 32 bits) and a stream of bits, most significant first: for each of the `keep` values its place in
 * the chunk, in as many bits as the last place needs, then its level in `bits`. Places rise. Level
 * q of L levels stands for scale * (2 q / (L - 1) - 1); with 32 bits it is the value's own bits. A
 * stream ends with a whole byte. The vector counts as filled up with zeros to whole chunks, so all
 * messages have the same size.
 *
 * Of equals the first ones are taken; a NaN is larger than all else, so that it is seen. Infinities
 * and NaNs are never kept.
 *
 * SparseLoCo (arXiv 2508.15706) sends 64 values of each chunk of 4,096.
 */
#ifndef HARP_LIGHTCC_CHUNK_TOPK_H
#define HARP_LIGHTCC_CHUNK_TOPK_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
struct harp_chunk_rule {
    uint32_t chunk; /* elements, 2 or more */
    uint32_t keep;  /* of each chunk, 1 to all */
    uint32_t bits;  /* 2, 4, 8 or 32 */
};

/* Bytes of a message of `n` values. */
size_t harp_chunk_bytes(size_t n, const struct harp_chunk_rule *rule);

/* Words of `scratch` below. */
size_t harp_chunk_scratch_words(const struct harp_chunk_rule *rule);

/* Move the largest values of `error` into a message: what it says is subtracted from them. */
void harp_chunk_take(float *error, size_t n, const struct harp_chunk_rule *rule, uint8_t *message,
                     uint32_t *scratch);

/* Add what a message of `n` values says, times `weight`, and to `weights` at its places the weight;
 * NULL: to none. Places that the vector does not have are passed over. */
void harp_chunk_add(float *total, float *weights, size_t n, const struct harp_chunk_rule *rule,
                    const uint8_t *message, float weight);
/* cdef: end */

#endif
