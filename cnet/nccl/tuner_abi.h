/* NCCL's tuner plugin interface, versions 4 to 6, in our own words.
 *
 * NCCL takes the newest table that it knows of ncclTunerPlugin_v6 down to ncclTunerPlugin_v4, from
 * the library that NCCL_TUNER_PLUGIN names, else from that of the network plugin.
 *
 *     version   first in NCCL   what changed
 *     4         2.24
 *     5         2.28            init knows the communicator, and may change the constants of NCCL's
 *                               own model; destroy is called finalize
 *     6         2.30            getChunkSize, which may be NULL
 *
 * Read from NVIDIA/nccl 2.30.7: src/include/plugin/tuner/tuner_v*.h, src/plugin/tuner.cc, and
 * ncclGetAlgoInfo in src/enqueue.cc, which says what becomes of an answer:
 *
 *  - init comes once for each communicator, when its rings and trees are connected; getCollInfo
 *    with every collective, on every rank, and all ranks must answer alike, or the job hangs.
 *  - The cost table is float[algorithms][protocols] in one piece, in microseconds. NCCL_COST_IGNORE
 *    marks what cannot be had; of the rest the least is taken, so 0 is a choice.
 *  - Channels are 0 when getCollInfo is called. Another number afterwards takes the place of
 *    NCCL's own, up to what the communicator has.
 *  - An error ends the collective, whatever the header promises.
 *
 * This header stands alone: it needs nothing of NCCL or CUDA.
 */
#ifndef HARP_NCCL_TUNER_ABI_H
#define HARP_NCCL_TUNER_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "abi.h"

enum {
    NCCL_PART_TUNING = 0x40, /* of the log, as enum nccl_log_part */
    NCCL_COLLECTIVES = 5,    /* that are tuned; others are sends and receives */
    NCCL_ALGORITHMS = 7,     /* as of 2.24 to 2.32 */
    NCCL_PROTOCOLS = 3,
};

#define NCCL_COST_IGNORE (-1.0f)

enum nccl_collective {
    NCCL_BROADCAST,
    NCCL_REDUCE,
    NCCL_ALL_GATHER,
    NCCL_REDUCE_SCATTER,
    NCCL_ALL_REDUCE,
};

enum nccl_algorithm {
    NCCL_TREE,
    NCCL_RING,
    NCCL_COLLNET_DIRECT,
    NCCL_COLLNET_CHAIN,
    NCCL_NVLS,
    NCCL_NVLS_TREE,
    NCCL_PAT,
};

enum nccl_protocol { NCCL_LL, NCCL_LL128, NCCL_SIMPLE };

/* `size`: bytes, the larger of what a rank sends and receives. `costs`: see above, although the
 * type says otherwise. */
typedef enum nccl_result (*nccl_get_coll_info)(void *context, int collective, size_t size,
                                               int operations, float **costs, int algorithms,
                                               int protocols, int registered, int *channels);

typedef enum nccl_result (*nccl_tuner_init_v5)(void **context, uint64_t communicator, size_t ranks,
                                               size_t nodes, nccl_logger logger, void *nvl_domains,
                                               void *constants);

struct nccl_tuner_v4 {
    const char *name;
    enum nccl_result (*init)(size_t ranks, size_t nodes, nccl_logger logger, void **context);
    nccl_get_coll_info getCollInfo;
    enum nccl_result (*destroy)(void *context);
};

struct nccl_tuner_v5 {
    const char *name;
    nccl_tuner_init_v5 init;
    nccl_get_coll_info getCollInfo;
    enum nccl_result (*finalize)(void *context);
};

struct nccl_tuner_v6 {
    const char *name;
    nccl_tuner_init_v5 init;
    nccl_get_coll_info getCollInfo;
    enum nccl_result (*finalize)(void *context);
    enum nccl_result (*getChunkSize)(void *context, int collective, size_t size, int algorithm,
                                     int protocol, int channels, size_t *chunk);
};

_Static_assert(sizeof(struct nccl_tuner_v4) == 32, "the layout of v4");
_Static_assert(sizeof(struct nccl_tuner_v5) == 32, "the layout of v5");
_Static_assert(sizeof(struct nccl_tuner_v6) == 40, "the layout of v6");

#endif
