#include "table/table_loops.h"

#define TARGET
#define REGISTER_BYTES 16
#define LOOPS table_loops_portable
#define LOOPS_NAME "portable"

static inline uint32_t match_group(const struct table_group *group, int64_t key)
{
    return table_group_match(group, key);
}

/* Without wide products of vectors, one by one is faster. */
#define HAVE_SCALAR_MIXING

static void hash_keys(const int64_t *keys, uint32_t n, uint64_t *hashes)
{
    for (uint32_t i = 0; i < n; i++)
        hashes[i] = harp_embedding_hash(keys[i]);
}

static void first_row(float *row, uint32_t dim, int64_t key, uint64_t seed, float bound)
{
    harp_embedding_first_row(row, dim, key, seed, bound);
}

#include "table/table_loops_body.h"
