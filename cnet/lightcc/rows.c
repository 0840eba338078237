#include "rows.h"

#include "kernels.h"

void harp_rows_take(float *to, const float *from, const int64_t *index, const float *weights,
                    size_t n, size_t width)
{
    const struct harp_kernels *kernels = harp_kernels();
    for (size_t i = 0; i < n; i++) {
        const float *row = from + (size_t)index[i] * width;
        if (weights)
            kernels->scale_row(to + i * width, row, weights[i], width);
        else
            memcpy(to + i * width, row, width * sizeof *to);
    }
}

void harp_rows_add(float *to, const float *from, const int64_t *index, const float *weights,
                   size_t n, size_t width)
{
    const struct harp_kernels *kernels = harp_kernels();
    for (size_t i = 0; i < n; i++)
        kernels->add_row(to + (size_t)index[i] * width, from + i * width,
                         weights ? weights[i] : 1.0F, width);
}

void harp_rows_dot(float *to, const float *one, const float *other, const int64_t *index, size_t n,
                   size_t width)
{
    const struct harp_kernels *kernels = harp_kernels();
    for (size_t i = 0; i < n; i++)
        to[i] = kernels->dot_rows(one + (size_t)index[i] * width, other + i * width, width);
}
