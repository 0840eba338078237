/* The loops of adam.h; kernel_loops.h includes this for each kind of CPU, where square_roots of
 * HALVES values is defined: compilers make no vectors of sqrtf, which may set errno. */

/* A block in the caches: values of whatever type gradients have are in `gradient`, and become the
 * masters. */
TARGET static inline void adam_block(float *restrict masters, float *restrict means,
                                     float *restrict squares, union wide *restrict gradient,
                                     const struct harp_adam *how)
{
    float roots[HALVES];
    for (size_t i = 0; i < HALVES; i++) {
        float slope = gradient->value[i] * how->scale + how->decay * masters[i];
        means[i] += how->beta1_rest * (slope - means[i]);
        squares[i] = squares[i] * how->beta2 + how->beta2_rest * slope * slope;
        roots[i] = squares[i];
    }
    square_roots(roots);
    for (size_t i = 0; i < HALVES; i++) {
        float below = roots[i] / how->root_correction + how->epsilon;
        masters[i] = masters[i] * how->keep - how->rate * means[i] / below;
        gradient->value[i] = masters[i];
    }
}

TARGET static inline void widen_block_float32(union wide *wide, const uint8_t *values)
{
    memcpy(wide->value, values, sizeof wide->value);
}

TARGET static inline void narrow_block_float32(uint8_t *values, const union wide *wide)
{
    memcpy(values, wide->value, sizeof wide->value);
}

/* The last block is filled up with zeros. */
#define DEFINE_ADAM(name, bytes)                                                                   \
    TARGET static inline void adam_rest_##name(const struct harp_adam_part *part, size_t at,       \
                                               const struct harp_adam *how)                        \
    {                                                                                              \
        float masters[HALVES] = {0}, means[HALVES] = {0}, squares[HALVES] = {0};                   \
        uint8_t halves[HALVES * (bytes)] = {0};                                                    \
        union wide wide;                                                                           \
        size_t rest = part->n - at, wide_bytes = rest * sizeof(float);                             \
        memcpy(masters, part->masters + at, wide_bytes);                                           \
        memcpy(means, part->means + at, wide_bytes);                                               \
        memcpy(squares, part->squares + at, wide_bytes);                                           \
        memcpy(halves, part->gradients + at * (bytes), rest * (bytes));                            \
        widen_block_##name(&wide, halves);                                                         \
        adam_block(masters, means, squares, &wide, how);                                           \
        memcpy(part->masters + at, masters, wide_bytes);                                           \
        memcpy(part->means + at, means, wide_bytes);                                               \
        memcpy(part->squares + at, squares, wide_bytes);                                           \
        narrow_block_##name(halves, &wide);                                                        \
        if (part->parameters)                                                                      \
            memcpy(part->parameters + at * (bytes), halves, rest * (bytes));                       \
    }                                                                                              \
    TARGET static void adam_##name(const struct harp_adam_part *part, const struct harp_adam *how) \
    {                                                                                              \
        size_t at = 0;                                                                             \
        for (; at + HALVES <= part->n; at += HALVES) {                                             \
            union wide wide;                                                                       \
            widen_block_##name(&wide, part->gradients + at * (bytes));                             \
            adam_block(part->masters + at, part->means + at, part->squares + at, &wide, how);      \
            if (part->parameters)                                                                  \
                narrow_block_##name(part->parameters + at * (bytes), &wide);                       \
        }                                                                                          \
        if (at < part->n)                                                                          \
            adam_rest_##name(part, at, how);                                                       \
    }

DEFINE_ADAM(float32, 4)
DEFINE_ADAM(float16, 2)
DEFINE_ADAM(bfloat16, 2)
