#include "kernels.h"

#include <math.h>

#define TARGET
#define KERNELS harp_kernels_portable
#define KERNELS_NAME "portable"

static size_t find_block(const float *values, size_t n, uint32_t least, uint32_t *indices)
{
    size_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        indices[found] = i;
        found += harp_magnitude(&values[i]) >= least;
    }
    return found;
}

static inline void square_roots(float *values)
{
    for (size_t i = 0; i < HALVES; i++)
        values[i] = sqrtf(values[i]);
}

#include "kernel_loops.h"
