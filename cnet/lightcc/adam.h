/* One step of Adam over part of a tensor: Kingma and Ba, arXiv 1412.6980, algorithm 1, and with
 * decoupled weight decay Loshchilov and Hutter, arXiv 1711.05101, algorithm 2.
 *
 * The order of operations is that of torch.optim.Adam and AdamW, in float32 throughout: parameters
 * agree with theirs to some last places, whatever their number of steps. All forms of the loop
 * (kernels.h) give the same bits, and so do any two ways to cut a tensor into parts.
 *
 * A step reads 16 bytes a parameter and writes 12: memory is what bounds it, so it runs once over
 * each byte, and casts on the way.
 */
#ifndef HARP_LIGHTCC_ADAM_H
#define HARP_LIGHTCC_ADAM_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
struct harp_adam {
    float rate;       /* over 1 - beta1^step */
    float keep;       /* 1 - rate * decay where decay is decoupled, else 1 */
    float decay;      /* what is added to gradients where it is not, else 0 */
    float beta1_rest; /* 1 - beta1 */
    float beta2;
    float beta2_rest;      /* 1 - beta2 */
    float root_correction; /* of 1 - beta2^step */
    float epsilon;
    float scale; /* gradients are multiplied by it: of the loss, of clipping */
};

/* Update `n` masters and moments by `gradients` of `element`: float32, bfloat16 or float16. With
 * `parameters`, masters are written there as `element`, too. No two may overlap. */
void harp_adam_step(float *masters, float *means, float *squares, const uint8_t *gradients,
                    uint8_t *parameters, size_t n, uint32_t element, const struct harp_adam *how);
/* cdef: end */

#endif
