/* The clock, random bytes, and the token, which is the right to drive an engine. */
#define _GNU_SOURCE
#include "engine/engine_state.h"

#include <sched.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- Time and chance ---- */

uint64_t harp_engine_clock(const struct harp_engine *engine)
{
    if (engine->config.world.now_ns)
        return engine->config.world.now_ns(engine->config.world.context);
    return harp_engine_from_host_ns(engine, harp_clock_ns());
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

/* ---- The token, and the doorbell ---- */

#define TRIES 1000

uint32_t harp_generation;

bool harp_token_try(struct harp_engine *engine)
{
    /* Acquire: what the last driver wrote is seen. */
    return !atomic_load_explicit(&engine->drive.token, memory_order_relaxed) &&
           !atomic_exchange_explicit(&engine->drive.token, 1, memory_order_acquire);
}

void harp_token_take(struct harp_engine *engine)
{
    /* A driver that sees it wanted stands back. */
    atomic_fetch_add(&engine->drive.wanted, 1);
    for (uint32_t tries = 0; !harp_token_try(engine); tries++)
        if (tries < TRIES)
            sched_yield();
        else /* a driver of lower priority on our CPU runs only while we sleep */
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    atomic_fetch_sub(&engine->drive.wanted, 1);
}

void harp_token_drop(struct harp_engine *engine)
{
    /* Release: the next driver sees what we wrote. */
    atomic_store_explicit(&engine->drive.token, 0, memory_order_release);
}

void harp_engine_ring(struct harp_engine *engine)
{
    if (engine->drive.doorbell >= 0)
        (void)!write(engine->drive.doorbell, &(uint64_t){1}, sizeof(uint64_t));
}
