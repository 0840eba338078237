#include <math.h>

#include "table/table_shard.h"

/* The order of operations is that of torch.optim where it has the optimizer for sparse gradients,
 * so results agree to some last places. */

static void step_sgd(float *restrict row, const float *restrict gradient, uint32_t dim,
                     const struct harp_embedding_step *step)
{
    for (uint32_t i = 0; i < dim; i++)
        row[i] -= step->rate * (gradient[i] * step->scale);
}

static void step_adagrad(float *restrict row, float *restrict sum, const float *restrict gradient,
                         uint32_t dim, const struct harp_embedding_step *step)
{
    for (uint32_t i = 0; i < dim; i++) {
        float g = gradient[i] * step->scale;
        sum[i] += g * g;
        row[i] -= step->rate * (g / (sqrtf(sum[i]) + step->epsilon));
    }
}

static void step_rowwise_adagrad(float *restrict row, float *restrict sum,
                                 const float *restrict gradient, uint32_t dim,
                                 const struct harp_embedding_step *step)
{
    float squares = 0;
    for (uint32_t i = 0; i < dim; i++)
        squares += gradient[i] * step->scale * (gradient[i] * step->scale);
    *sum += squares / (float)dim;
    float rate = step->rate / (sqrtf(*sum) + step->epsilon);
    for (uint32_t i = 0; i < dim; i++)
        row[i] -= rate * (gradient[i] * step->scale);
}

static void step_adam(float *restrict row, float *restrict mean, float *restrict square,
                      const float *restrict gradient, uint32_t dim,
                      const struct harp_embedding_step *step)
{
    for (uint32_t i = 0; i < dim; i++) {
        float g = gradient[i] * step->scale;
        mean[i] += step->beta1_rest * (g - mean[i]);
        square[i] += step->beta2_rest * (g * g - square[i]);
        row[i] -= step->rate * (mean[i] / (sqrtf(square[i]) + step->epsilon));
    }
}

/* The value that follows from the sums: McMahan and others, algorithm 1. */
static float ftrl_value(float z, float root, const struct harp_embedding_step *step)
{
    float outside = fabsf(z) - step->l1;
    if (outside <= 0)
        return 0;
    return -copysignf(outside, z) / ((step->beta + root) / step->rate + step->l2);
}

static void step_ftrl(float *restrict row, float *restrict z, float *restrict n,
                      const float *restrict gradient, uint32_t dim,
                      const struct harp_embedding_step *step)
{
    for (uint32_t i = 0; i < dim; i++) {
        float g = gradient[i] * step->scale, before = sqrtf(n[i]);
        if (n[i] == 0 && row[i] != 0) /* a first row that is not zero: the z that it follows from */
            z[i] = -row[i] * (step->beta / step->rate + step->l2) - copysignf(step->l1, row[i]);
        n[i] += g * g;
        float root = sqrtf(n[i]);
        z[i] += g - (root - before) / step->rate * row[i];
        row[i] = ftrl_value(z[i], root, step);
    }
}

void table_update(float *row, float *state, const float *gradient, uint32_t dim,
                  const struct harp_embedding_step *step)
{
    switch (step->optimizer) {
    case HARP_EMBEDDING_SGD:
        step_sgd(row, gradient, dim, step);
        break;
    case HARP_EMBEDDING_ADAGRAD:
        step_adagrad(row, state, gradient, dim, step);
        break;
    case HARP_EMBEDDING_ROWWISE_ADAGRAD:
        step_rowwise_adagrad(row, state, gradient, dim, step);
        break;
    case HARP_EMBEDDING_ADAM:
        step_adam(row, state, state + dim, gradient, dim, step);
        break;
    case HARP_EMBEDDING_FTRL:
        step_ftrl(row, state, state + dim, gradient, dim, step);
        break;
    }
}
