/* The loops of a table that go over many numbers, in a form for each kind of CPU.
 *
 *   table_loops.c            which form this CPU takes
 *   table_loops_portable.c   any CPU
 *   table_loops_avx2.c       x86-64 with AVX2
 *   table_loops_avx512.c     and with AVX-512 F, BW, DQ and VL
 *
 * table_loops_body.h has the loops, which are plain C. Each form compiles them for its own
 * instructions and brings what no compiler finds by itself. All forms give the same bits.
 */
#ifndef HARP_EMBEDDING_LOOPS_H
#define HARP_EMBEDDING_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "table/table_shard.h"

/* As many as a line of the cache has. */
enum { TABLE_LANES = 8 };
typedef uint64_t table_words __attribute__((vector_size(8 * TABLE_LANES)));

/* Gradients of some ids, each to be added to one of many sums. */
struct table_addends {
    float *sums;
    const uint32_t *places; /* of table_pending_place */
    const float *const *gradients;
    const float *weights;
    uint32_t n;
};

struct table_loops {
    const char *name;
    void (*hash_keys)(const int64_t *keys, uint32_t n, uint64_t *hashes);
    /* Of keys, each in a group of its own: the slot, or TABLE_NOWHERE. */
    void (*match_keys)(const struct table_group *const *groups, const int64_t *keys, uint32_t n,
                       uint32_t *slots);
    /* to = rows[0] + rows[1] + ..., or to += rows[0] + ... if the sum `goes_on`; n >= 1. */
    void (*sum_rows)(float *to, const float *const *rows, uint64_t n, uint32_t dim, bool goes_on);
    /* to += weights[0] * rows[0] + ... */
    void (*sum_weighted)(float *to, const float *const *rows, const float *weights, uint64_t n,
                         uint32_t dim);
    void (*add_gradients)(const struct table_addends *addends, uint32_t dim);
    /* Whether all values are finite, also times `scale`. */
    bool (*finite)(const float *values, uint64_t n, float scale);
    /* Write a first row, as harp_embedding_first_row does. */
    void (*first_row)(float *row, uint32_t dim, int64_t key, uint64_t seed, float bound);
    /* Make a step of one record. */
    void (*update)(float *row, float *state, const float *gradient, uint32_t dim,
                   const struct harp_embedding_step *step);
};

extern const struct table_loops table_loops_portable;
#if defined(__x86_64__)
extern const struct table_loops table_loops_avx2, table_loops_avx512;
#endif

const struct table_loops *table_loops(void);

/* The forms that this CPU can run, by index, the fastest last; names are NULL from the last on.
 * table_loops_use makes one the process's, for tests and measurements. */
const char *table_loops_name(size_t index);
void table_loops_use(size_t index);

#endif
