/* The loops of table_loops.h. A form defines TARGET, REGISTER_BYTES, LOOPS, LOOPS_NAME,
 * match_group() and multiply_halves() before it includes this; or, for HAVE_SCALAR_MIXING,
 * hash_keys() and first_row(). */

#include <math.h>
#include <string.h>

#define ALWAYS_INLINE TARGET static inline __attribute__((always_inline))

#if defined(__clang__) /* gcc does not fuse in ISO C, and does not know the pragma */
#pragma STDC FP_CONTRACT OFF
#endif

#if !defined(HAVE_SCALAR_MIXING)
TARGET static void hash_keys(const int64_t *keys, uint32_t n, uint64_t *hashes)
{
    uint32_t i = 0;
    for (; i + TABLE_LANES <= n; i += TABLE_LANES) {
        table_words x;
        memcpy(&x, keys + i, sizeof x);
        x += UINT64_C(0x9E3779B97F4A7C15);
        x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
        x ^= x >> 31;
        memcpy(hashes + i, &x, sizeof x);
    }
    for (; i < n; i++)
        hashes[i] = harp_embedding_hash(keys[i]);
}
#endif

TARGET static void match_keys(const struct table_group *const *groups, const int64_t *keys,
                              uint32_t n, uint32_t *slots)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t found = match_group(groups[i], keys[i]);
        slots[i] = found ? groups[i]->slots[__builtin_ctz(found)] : TABLE_NOWHERE;
    }
}

/* As many floats as a register has, anywhere. Of a vector that takes two registers gcc makes
 * pieces on the stack. */
typedef float table_floats __attribute__((vector_size(REGISTER_BYTES), aligned(4), may_alias));
enum { FLOATS = REGISTER_BYTES / 4, MOST_SUMS = 4 };

/* Add rows, or `weights` of them, to `sums` registers of `to`, or put their sum there. */
ALWAYS_INLINE void sum_floats(float *to, const float *const *rows, const float *weights, uint64_t n,
                              uint32_t at, bool goes_on, uint32_t sums)
{
    table_floats sum[MOST_SUMS];
    for (uint32_t j = 0; j < sums; j++)
        sum[j] = *(const table_floats *)((goes_on ? to : rows[0]) + at + j * FLOATS);
    for (uint64_t i = !goes_on; i < n; i++)
        for (uint32_t j = 0; j < sums; j++) {
            table_floats row = *(const table_floats *)(rows[i] + at + j * FLOATS);
            if (weights)
                row *= weights[i];
            sum[j] += row;
        }
    for (uint32_t j = 0; j < sums; j++)
        *(table_floats *)(to + at + j * FLOATS) = sum[j];
}

ALWAYS_INLINE void sum_all(float *to, const float *const *rows, const float *weights, uint64_t n,
                           uint32_t dim, bool goes_on)
{
    uint32_t at = 0;
    for (; at + 4 * FLOATS <= dim; at += 4 * FLOATS)
        sum_floats(to, rows, weights, n, at, goes_on, 4);
    for (; at + 2 * FLOATS <= dim; at += 2 * FLOATS)
        sum_floats(to, rows, weights, n, at, goes_on, 2);
    for (; at + FLOATS <= dim; at += FLOATS)
        sum_floats(to, rows, weights, n, at, goes_on, 1);
    for (; at < dim; at++) {
        float sum = goes_on ? to[at] : rows[0][at];
        for (uint64_t i = !goes_on; i < n; i++)
            sum += weights ? weights[i] * rows[i][at] : rows[i][at];
        to[at] = sum;
    }
}

TARGET static void sum_rows(float *to, const float *const *rows, uint64_t n, uint32_t dim,
                            bool goes_on)
{
    sum_all(to, rows, NULL, n, dim, goes_on);
}

TARGET static void sum_weighted(float *to, const float *const *rows, const float *weights,
                                uint64_t n, uint32_t dim)
{
    sum_all(to, rows, weights, n, dim, true);
}

TARGET static inline void set_product(float *restrict to, const float *restrict from, uint32_t n,
                                      float weight)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = weight * from[i];
}

TARGET static inline void add_product(float *restrict to, const float *restrict from, uint32_t n,
                                      float weight)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] += weight * from[i];
}

TARGET static void add_gradients(const struct table_addends *addends, uint32_t dim)
{
    for (uint32_t i = 0; i < addends->n; i++) {
        uint32_t place = addends->places[i];
        float *sum = addends->sums + (size_t)(place & ~TABLE_BEGINS) * dim;
        if (place & TABLE_BEGINS)
            set_product(sum, addends->gradients[i], dim, addends->weights[i]);
        else
            add_product(sum, addends->gradients[i], dim, addends->weights[i]);
    }
}

/* Exponents of all ones are those of infinities and NaNs. */
TARGET static bool finite_floats(const float *values, uint64_t n, float scale)
{
    const uint32_t ones = UINT32_C(0x7F800000);
    uint32_t wrong = 0;
    for (uint64_t i = 0; i < n; i++) {
        float scaled = values[i] * scale;
        uint32_t bits;
        memcpy(&bits, &scaled, sizeof bits);
        wrong |= (uint32_t)((bits & ones) == ones);
    }
    return !wrong;
}

#if !defined(HAVE_SCALAR_MIXING)
/* harp_philox for eight counters side by side: in each word the lower half counts. */
TARGET static inline void philox_words(table_words x[4], uint64_t seed)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        table_words a, b;
        multiply_halves(&a, &x[0], UINT32_C(0xD2511F53));
        multiply_halves(&b, &x[2], UINT32_C(0xCD9E8D57));
        x[0] = (b >> 32) ^ x[1] ^ k0;
        x[1] = b;
        x[2] = (a >> 32) ^ x[3] ^ k1;
        x[3] = a;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
}

TARGET static void first_row(float *row, uint32_t dim, int64_t key, uint64_t seed, float bound)
{
    const table_words order = {0, 1, 2, 3, 4, 5, 6, 7};
    for (uint32_t at = 0; at < dim; at += 4 * TABLE_LANES) {
        table_words x[4] = {(table_words){0} + (uint64_t)key,
                            (table_words){0} + ((uint64_t)key >> 32), order + at / 4,
                            (table_words){0}};
        int32_t bits[TABLE_LANES][4];
        float values[TABLE_LANES][4];
        philox_words(x, seed);
        for (uint32_t j = 0; j < 4; j++)
            for (uint32_t i = 0; i < TABLE_LANES; i++)
                bits[i][j] = (int32_t)((uint32_t)x[j][i] >> 8);
        for (uint32_t i = 0; i < 4 * TABLE_LANES; i++)
            values[i / 4][i % 4] = ((float)bits[i / 4][i % 4] * 0x1p-23F - 1.0F) * bound;
        uint32_t left = dim - at < 4 * TABLE_LANES ? dim - at : 4 * TABLE_LANES;
        memcpy(row + at, values, left * sizeof *row);
    }
}
#endif

/* The order of operations is that of torch.optim where it has the optimizer for sparse gradients,
 * so results agree to some last places. */

TARGET static void step_sgd(float *restrict row, const float *restrict gradient, uint32_t dim,
                            const struct harp_embedding_step *step)
{
    for (uint32_t i = 0; i < dim; i++)
        row[i] -= step->rate * (gradient[i] * step->scale);
}

TARGET static void step_adagrad(float *restrict row, float *restrict sum,
                                const float *restrict gradient, uint32_t dim,
                                const struct harp_embedding_step *step)
{
    for (uint32_t i = 0; i < dim; i++) {
        float g = gradient[i] * step->scale;
        sum[i] += g * g;
        row[i] -= step->rate * (g / (sqrtf(sum[i]) + step->epsilon));
    }
}

TARGET static void step_rowwise_adagrad(float *restrict row, float *restrict sum,
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

TARGET static void step_adam(float *restrict row, float *restrict mean, float *restrict square,
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
TARGET static float ftrl_value(float z, float root, const struct harp_embedding_step *step)
{
    float outside = fabsf(z) - step->l1;
    if (outside <= 0)
        return 0;
    return -copysignf(outside, z) / ((step->beta + root) / step->rate + step->l2);
}

TARGET static void step_ftrl(float *restrict row, float *restrict z, float *restrict n,
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

TARGET static void update_record(float *row, float *state, const float *gradient, uint32_t dim,
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

const struct table_loops LOOPS = {
    .name = LOOPS_NAME,
    .hash_keys = hash_keys,
    .match_keys = match_keys,
    .sum_rows = sum_rows,
    .sum_weighted = sum_weighted,
    .add_gradients = add_gradients,
    .finite = finite_floats,
    .first_row = first_row,
    .update = update_record,
};
