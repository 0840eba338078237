/* Time and chance: the host's, or a simulation's. */
#define _GNU_SOURCE
#include <sys/random.h>
#include <time.h>

#include "engine/engine_state.h"

uint64_t harp_engine_clock(const struct harp_engine *engine)
{
    if (engine->config.world.now_ns)
        return engine->config.world.now_ns(engine->config.world.context);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* the vDSO's: no system call */
    return harp_engine_from_host_ns(engine,
                                    (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec);
}

uint64_t harp_engine_from_host_ns(const struct harp_engine *engine, uint64_t ns)
{
    return engine->config.slower > 1 ? ns / engine->config.slower : ns;
}

uint64_t harp_engine_to_host_ns(const struct harp_engine *engine, uint64_t ns)
{
    uint32_t slower = engine->config.slower;
    return slower <= 1 ? ns : ns < UINT64_MAX / slower ? ns * slower : UINT64_MAX;
}

void harp_engine_random(struct harp_engine *engine, void *bytes, size_t count)
{
    if (engine->config.world.random) {
        engine->config.world.random(engine->config.world.context, bytes, count);
        return;
    }
    while (getrandom(bytes, count, 0) != (ssize_t)count)
        ; /* only a signal interrupts it */
}
