/* Rows of a table of float32, by index: what a mixture of experts does to tokens.
 *
 *     take   to[i] = from[index[i]] (* weights[i])       tokens in the order of their experts
 *     add    to[index[i]] += from[i] (* weights[i])      and back, in the order of i
 *     dot    to[i] = the product of one[index[i]] and other[i], added up
 *
 * `weights` may be NULL; then take copies whatever bits there are. A row has `width` floats. All
 * forms of the loops (kernels.h) give the same bits: a product is added up in HARP_ROW_LANES sums,
 * value j in sum j % HARP_ROW_LANES, and these in their order.
 */
#ifndef HARP_LIGHTCC_ROWS_H
#define HARP_LIGHTCC_ROWS_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
#define HARP_ROW_LANES 16

void harp_rows_take(float *to, const float *from, const int64_t *index, const float *weights,
                    size_t n, size_t width);
void harp_rows_add(float *to, const float *from, const int64_t *index, const float *weights,
                   size_t n, size_t width);
void harp_rows_dot(float *to, const float *one, const float *other, const int64_t *index, size_t n,
                   size_t width);
/* cdef: end */

#endif
