/* Reductions of elements in place: what a collective does with a piece that came.
 *
 *     there[i] = there[i] OP came[i]
 *
 * Integers wrap. Sums and products of float16 and bfloat16 are made in float32 and rounded to
 * nearest, ties to even (IEEE 754-2019, 4.3.1). The least and the greatest of a NaN and anything
 * are a NaN, as numpy and torch have it; which NaN comes of several is not said. Elements need not
 * be aligned. kernels.h has the loops.
 */
#ifndef HARP_LIGHTCC_REDUCE_H
#define HARP_LIGHTCC_REDUCE_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
enum harp_element {
    HARP_ELEMENT_UINT8,
    HARP_ELEMENT_INT8,
    HARP_ELEMENT_UINT16,
    HARP_ELEMENT_INT16,
    HARP_ELEMENT_UINT32,
    HARP_ELEMENT_INT32,
    HARP_ELEMENT_UINT64,
    HARP_ELEMENT_INT64,
    HARP_ELEMENT_FLOAT16,
    HARP_ELEMENT_BFLOAT16,
    HARP_ELEMENT_FLOAT32,
    HARP_ELEMENT_FLOAT64,
    HARP_ELEMENT_COMPLEX64,
    HARP_ELEMENT_COMPLEX128,
    HARP_ELEMENTS
};

enum harp_reduction {
    HARP_REDUCTION_SUM,
    HARP_REDUCTION_PRODUCT,
    HARP_REDUCTION_MIN,
    HARP_REDUCTION_MAX,
    HARP_REDUCTION_BAND,
    HARP_REDUCTION_BOR,
    HARP_REDUCTION_BXOR,
    HARP_REDUCTIONS
};

/* Reduce `bytes` of whole elements. */
typedef void harp_reduce(uint8_t *there, const uint8_t *came, size_t bytes);

/* The reduction of a type, or NULL where the type has none: complex numbers have no order, and only
 * integers have bits. */
harp_reduce *harp_reduce_find(enum harp_element element, enum harp_reduction reduction);

/* Divide `bytes` of whole elements, which are a sum over `ranks`, by their number. */
typedef void harp_average(uint8_t *there, size_t bytes, uint32_t ranks);

/* NULL where the type has no average: integers. */
harp_average *harp_average_find(enum harp_element element);
/* cdef: end */

#endif
