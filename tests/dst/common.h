/* Helpers of all parts of the harness: time, checks, and a report of the run that fails. */
#ifndef DST_COMMON_H
#define DST_COMMON_H

#include "virtual/random.h"

#define DST_US UINT64_C(1000)
#define DST_MS (1000 * DST_US)
#define DST_S (1000 * DST_MS)

/* In `permille` of 1,000 cases something below `most`, else 0. */
static inline uint32_t dst_rate(uint64_t *random, uint32_t permille, uint64_t most)
{
    return virtual_chance(random, permille) ? (uint32_t)virtual_below(random, most) : 0;
}

/* The present run, as `make dst` takes it to replay it: SEED=7 and the like. Also what ends in an
 * assertion or in a sanitizer's finding is announced by that. */
void dst_runs(const char *what, uint64_t number);

/* Says what broke, how to see it again, and ends the program. */
_Noreturn void dst_fail(const char *what, uint64_t a, uint64_t b);

#define DST_CHECK(holds, what, a, b)                                                               \
    do {                                                                                           \
        if (!(holds))                                                                              \
            dst_fail(what, (uint64_t)(a), (uint64_t)(b));                                          \
    } while (0)

#endif
