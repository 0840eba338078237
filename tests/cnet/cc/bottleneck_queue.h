/* The queue of the virtual bottleneck (bottleneck.h), one for each way, or its policer; and how
 * long what came through it waited. */
#ifndef BOTTLENECK_QUEUE_H
#define BOTTLENECK_QUEUE_H

#include "bottleneck.h"
#include "virtual/line.h"

#define BN_QUEUE_BINS 4096

struct bn_queue {
    struct virtual_line lines[2]; /* each way */
    uint64_t tokens_ps;           /* of the policer: since when its bucket has been filling */
    uint64_t waits, wait_sum_ns, wait_max_ns, wait_bin_ns;
    uint32_t bins[BN_QUEUE_BINS];
};

void bn_queue_init(struct bn_queue *queue, const struct bn_scene *scene);

/* How many of these frames go through as one, where hosts leave segmentation to their cards. */
size_t bn_queue_joins(const struct harp_frame *frames, size_t n);

/* When what comes now, as one, leaves the bottleneck; HARP_NEVER if it is dropped. */
uint64_t bn_queue_pass(struct bn_queue *queue, const struct bn_scene *scene, uint32_t way,
                       uint64_t now_ns, uint64_t bytes, bool *marked);

/* The 99th percentile of waits. */
double bn_queue_p99_ns(const struct bn_queue *queue);

#endif
