/* A table from whole 64-bit keys to rows of floats, each with the state of its optimizer.
 *
 *   table   shards, a power of two or not; a key's shard follows from its hash
 *   shard   index (table_index.h), records and gradients that wait (table_shard.h)
 *   crew    threads that work at shards or parts of a batch side by side (table_crew.h)
 *
 *   harp_embedding_look_up    ids -> rows, or sums of rows by bag; changes nothing
 *   harp_embedding_add        ids, gradients -> what waits; new keys are inserted, if admitted
 *   harp_embedding_apply      a step of the optimizer over all that waits
 *
 * A key that is not there has its first row (table_hash.h), which depends on seed and key only. So
 * a look-up need not insert it, is a pure function of the table, and any number of threads may run
 * look-ups side by side. A key is never mistaken for another one, and none is without a row.
 *
 * In every other call a shard is worked at by one thread of the crew, which takes no lock: threads
 * meet only where a call begins and ends. One thread at a time makes such calls, and no look-up
 * runs meanwhile. There is no rehash that stops the world (table_index.h).
 *
 * A table with a cap on its memory keeps rows that were not used for long on disk (table_cold.h).
 * Its calls wait for one another, and may fail with -errno of the disk and nothing changed.
 *
 * Gradients of one key are summed in the order of their ids, whatever the number of shards and
 * threads, so results have the same bits. Errors are -errno; a call that fails for lack of memory
 * may leave some keys inserted with their first rows, and no gradient applied.
 */
#ifndef HARP_EMBEDDING_TABLE_H
#define HARP_EMBEDDING_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
struct harp_embedding;

/* A record beside its values. Times are those of the caller's clock. */
struct harp_record {
    int64_t key;
    uint32_t count;   /* gradients that it had */
    uint32_t used;    /* when last */
    uint32_t born;    /* when it was inserted */
    uint32_t changed; /* bit 31: changed since the last save; the rest is in use within a step */
};

enum harp_embedding_optimizer {
    HARP_EMBEDDING_SGD,
    HARP_EMBEDDING_ADAGRAD,         /* Duchi, Hazan, Singer, JMLR 2011; state: dim */
    HARP_EMBEDDING_ROWWISE_ADAGRAD, /* Mudigere and others, arXiv 2104.05158, section 4.1.4; state:
                                       1 */
    HARP_EMBEDDING_ADAM, /* Kingma, Ba, arXiv 1412.6980, lazily as torch.optim.SparseAdam; 2 dim */
    HARP_EMBEDDING_FTRL, /* McMahan and others, "Ad click prediction", KDD 2013; state: 2 dim */
};

struct harp_embedding_how {
    uint64_t seed;
    uint32_t dim;      /* floats of a row */
    uint32_t state;    /* floats of the optimizer's state */
    float bound;       /* of a first row's values, which are uniform around 0 */
    float first_state; /* of all floats of the state */
    uint32_t shards;
    uint32_t now;         /* the clock of harp_record; harp_embedding_set_clock changes it */
    uint32_t admit_count; /* a key is inserted at this gradient of it; at most 255 */
    uint64_t admit_bytes; /* counters of a shard for keys that are not admitted yet; below 2^32 */
};

/* The settings of one step; bias corrections are worked out by the caller. */
struct harp_embedding_step {
    enum harp_embedding_optimizer optimizer;
    float rate, epsilon, scale; /* gradients are multiplied by `scale` */
    float beta1_rest, beta2_rest;
    float beta, l1, l2; /* of FTRL */
};

/* The ids of one feature, in bags: without offsets, bags of equally many. */
struct harp_embedding_bags {
    struct harp_embedding *table;
    const int64_t *keys;
    const int64_t
        *offsets;         /* where each bag begins, or NULL; checked by harp_embedding_bags_wrong */
    const float *weights; /* of each id, or NULL */
    float *rows;          /* written by a look-up; gradients of bags for harp_embedding_add */
    uint64_t count;       /* ids */
    uint64_t bags;
    uint64_t stride;   /* floats from one bag's row to the next */
    int64_t padding;   /* an id that counts as absent, if `padded` */
    bool mean, padded; /* divide by the ids of a bag */
};

/* GOMP_parallel of an OpenMP, which runs `work(with)` in up to `threads` threads (libgomp's manual,
 * "Implementing PARALLEL construct"; LLVM's OpenMP has it, too). */
typedef void harp_openmp_parallel(void (*work)(void *), void *with, unsigned threads,
                                  unsigned flags);
/* Have calls work in that OpenMP's threads from now on (table_crew.h), or in their own again: NULL.
 * No call runs meanwhile. */
void harp_embedding_use_openmp(harp_openmp_parallel *parallel);

/* Returns NULL if there is no memory. */
struct harp_embedding *harp_embedding_open(const struct harp_embedding_how *how);
void harp_embedding_close(struct harp_embedding *table);
uint64_t harp_embedding_rows(const struct harp_embedding *table);
/* Memory of rows, index, waiting gradients and counters. */
uint64_t harp_embedding_bytes(const struct harp_embedding *table);
void harp_embedding_set_clock(struct harp_embedding *table, uint32_t now);

/* Keep at most `memory_bytes` of rows and states in memory, and others in a file in `folder`, which
 * is deleted already (table_cold.h). The table is empty. Returns 0 or -errno. */
int harp_embedding_cap(struct harp_embedding *table, const char *folder, uint64_t memory_bytes);
/* Rows in memory: all, without a cap. */
uint64_t harp_embedding_resident(const struct harp_embedding *table);
/* How many pages all calls have read so far, and the bytes of a page. */
uint64_t harp_embedding_pages_read(const struct harp_embedding *table);
uint64_t harp_embedding_page_bytes(const struct harp_embedding *table);
/* A sentence about the disk: the reason of this thread's last -errno that is neither -ENOMEM nor
 * -EDOM. */
const char *harp_embedding_why(void);
/* Have the rows of features in memory, beside look-ups and steps in other threads. */
int harp_embedding_warm(const struct harp_embedding_bags *features, uint64_t n);

/* The first place where offsets are wrong (not 0 at first, falling, beyond `count`), or -1. */
int64_t harp_embedding_bags_wrong(const int64_t *offsets, uint64_t bags, uint64_t count);

/* Calls over several features take them at once: those of a table side by side, and tables by
 * ascending address. `threads`: of the crew, the caller included. */
int harp_embedding_look_up(const struct harp_embedding_bags *features, uint64_t n,
                           uint32_t threads);
/* -EDOM if a gradient is not finite: then nothing is inserted and nothing waits. */
int harp_embedding_add(const struct harp_embedding_bags *features, uint64_t n, uint32_t threads);
/* Make step steps[i] with what waits in tables[i], or none if a sum is not finite: -EDOM. Tables
 * come by ascending address. */
int harp_embedding_apply(struct harp_embedding *const *tables,
                         const struct harp_embedding_step *steps, uint64_t n, uint32_t threads);
/* Forget what waits. */
void harp_embedding_drop(struct harp_embedding *table);

/* Remove keys. `gone[i]` becomes whether keys[i] was there. Memory is given back. */
uint64_t harp_embedding_remove(struct harp_embedding *table, const int64_t *keys, uint64_t n,
                               uint8_t *gone);
/* Read records of a shard from slot `at` on: heads, and `values` of dim + state floats each; either
 * may be NULL. Returns how many there were, at most `n`, or -errno. Slots change where keys are
 * removed. */
int64_t harp_embedding_read(const struct harp_embedding *table, uint32_t shard, uint32_t at,
                            uint64_t n, struct harp_record *heads, float *values);
/* Have room on disk for `rows` that are written from now on, so that none of them meets a full one.
 * Returns 0, or -errno and no row is changed. Without a cap there is nothing to do. */
int harp_embedding_reserve(struct harp_embedding *table, uint64_t rows);
/* Write whole records, inserting those that are not there; they count as unchanged. */
int harp_embedding_write(struct harp_embedding *table, const struct harp_record *heads,
                         const float *values, uint64_t n, uint32_t threads);
/* Give each of two tables with equal settings the other's records, for certain; what counts keys
 * that are not admitted stays. Nobody looks rows up meanwhile. */
void harp_embedding_swap(struct harp_embedding *table, struct harp_embedding *other);
/* Records count as unchanged from now on. */
void harp_embedding_saved(struct harp_embedding *table);

/* Number keys by their first appearance: `place[i]` is the number of keys[i], and
 * distinct[place[i]] is keys[i]. Returns how many distinct ones there are, or -ENOMEM. */
int64_t harp_embedding_distinct(const int64_t *keys, uint64_t n, int64_t *distinct,
                                uint32_t *place);
/* The owner of each key among `parts`, by its hash; not by what a shard is chosen by. */
void harp_embedding_owners(const int64_t *keys, uint64_t n, uint32_t parts, uint32_t *owners);
/* cdef: end */

#endif
