#include "adam.h"

#include <assert.h>

#include "kernels.h"

void harp_adam_step(float *masters, float *means, float *squares, const uint8_t *gradients,
                    uint8_t *parameters, size_t n, uint32_t element, const struct harp_adam *how)
{
    assert(element == HARP_ELEMENT_FLOAT32 || element == HARP_ELEMENT_BFLOAT16 ||
           element == HARP_ELEMENT_FLOAT16);
    struct harp_adam_part part = {masters, means, squares, gradients, parameters, n};
    harp_adam_loop *loop = harp_kernels()->adam[element];
    loop(&part, how);
}
