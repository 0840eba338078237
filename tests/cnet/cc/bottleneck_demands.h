/* Helpers for test_swift_bottleneck: scenes by its seed, and demands that are counted. */
#ifndef HARP_BOTTLENECK_DEMANDS_H
#define HARP_BOTTLENECK_DEMANDS_H

#include "bottleneck.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

#define DEMAND(what) ((what) ? (void)0 : note_unmet(#what, __FILE__, __LINE__))

void note_unmet(const char *what, const char *file, int line);

/* Run a scene with the seed of the program, and measure its second half where it does not say. */
struct bn_result run_scene(struct bn_scene scene);

/* Run it with `runs` seeds, from its own on; gives the means of use, cross, jain, queue, loss. */
struct bn_result run_scenes(struct bn_scene scene, int runs);

/* Whether a queue is at most twice what swift.c promises for this number of flows. */
bool is_bounded(double queue_ns, uint32_t flows, uint64_t rate_mbps);

/* bottleneck_ways.c */
void test_both_ways(void);
void test_shapers_both_ways(void);
void test_shapers_of_busy_hosts(void);
void test_shapers_of_robbed_hosts(void);
void test_clocks(void);
void test_loaded_way_back(void);
void test_ways_differ(void);
void test_longer_paths(void);
void test_odd_samples(void);

#endif
