/* The loops that go over all of a tensor, in a form for each kind of CPU.
 *
 *   kernels.c            which form this CPU takes
 *   kernels_portable.c   any CPU
 *   kernels_avx2.c       x86-64 with AVX2 and F16C: Intel from 2013 on, AMD from 2015
 *   kernels_avx512.c     and with AVX-512 F, BW, DQ and VL
 *
 * kernel_loops.h has the loops, which are plain C. Each form compiles them for its own
 * instructions, so that the compiler makes vectors of that length, and brings what no compiler
 * finds by itself. All forms give the same bits, except which one of several NaNs comes out of a
 * sum or a product.
 *
 * The form is chosen when the library is loaded.
 */
#ifndef HARP_LIGHTCC_KERNELS_H
#define HARP_LIGHTCC_KERNELS_H

#include "adam.h"
#include "few_bits.h"
#include "half.h"
#include "reduce.h"
#include "rows.h"

#include <string.h>

#define HARP_FIND_SLACK 16

/* The magnitude of a float32, seen as an integer, is its order; of a NaN it is above all others. */
static inline uint32_t harp_magnitude(const float *value)
{
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    return bits & UINT32_C(0x7FFFFFFF);
}

/* Rule that turns the values of a chunk into levels (few_bits.h). */
struct harp_rounding {
    float inverse; /* of the scale */
    float scale;
    int32_t most; /* the largest level */
    uint32_t seed;
    uint32_t first; /* the place of the chunk's first value */
};

/* Arrays of a step of Adam (adam.h). */
struct harp_adam_part {
    float *masters, *means, *squares;
    const uint8_t *gradients;
    uint8_t *parameters; /* or NULL */
    size_t n;
};
typedef void harp_adam_loop(const struct harp_adam_part *part, const struct harp_adam *how);

struct harp_kernels {
    const char *name;
    harp_reduce *reduce[HARP_ELEMENTS][HARP_REDUCTIONS];
    harp_average *average[HARP_ELEMENTS];
    void (*widen_float16)(union wide *wide, const uint8_t *halves);
    void (*narrow_float16)(uint8_t *halves, const union wide *wide);
    /* Write to `indices` the places of values with a magnitude of `least` or more, of `n`. Returns
     * how many there are. There is room for n + HARP_FIND_SLACK, and all of it may be written to.
     */
    size_t (*find)(const float *values, size_t n, uint32_t least, uint32_t *indices);
    /* Of a whole chunk: its largest magnitude, its levels, which leave the rest in `values`, and
     * adding up what levels say. */
    uint32_t (*peak)(const float *values);
    void (*round_levels)(float *values, int8_t *levels, const struct harp_rounding *rounding);
    void (*add_levels)(float *total, const int8_t *levels, float scale);
    /* Of rows (rows.h): to = from * weight, to += from * weight, the sum of one * other. */
    void (*scale_row)(float *to, const float *from, float weight, size_t n);
    void (*add_row)(float *to, const float *from, float weight, size_t n);
    float (*dot_rows)(const float *one, const float *other, size_t n);
    harp_adam_loop *adam[HARP_ELEMENTS];
};

extern const struct harp_kernels harp_kernels_portable;
#if defined(__x86_64__)
extern const struct harp_kernels harp_kernels_avx2, harp_kernels_avx512;
#endif

const struct harp_kernels *harp_kernels(void);

/* cdef: begin */
/* The forms that this CPU can run, by index, the fastest last; names are NULL from the last on.
 * harp_kernels_use makes one the process's, for tests and measurements, before reductions are
 * looked up. */
const char *harp_kernels_name(size_t index);
void harp_kernels_use(size_t index);
/* cdef: end */

#endif
