/* Who drives: one word, and a bell for who sleeps. */
#define _GNU_SOURCE
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "engine/engine_state.h"

#define TRIES 1000

uint32_t harp_generation;

bool harp_token_try(struct harp_engine *engine)
{
    /* Acquire: what the last driver wrote is seen. */
    return !atomic_load_explicit(&engine->token, memory_order_relaxed) &&
           !atomic_exchange_explicit(&engine->token, 1, memory_order_acquire);
}

void harp_token_take(struct harp_engine *engine)
{
    /* A driver that sees it wanted stands back. */
    atomic_fetch_add(&engine->wanted, 1);
    for (uint32_t tries = 0; !harp_token_try(engine); tries++)
        if (tries < TRIES)
            sched_yield();
        else /* a driver of lower priority on our CPU runs only while we sleep */
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    atomic_fetch_sub(&engine->wanted, 1);
}

void harp_token_drop(struct harp_engine *engine)
{
    /* Release: the next driver sees what we wrote. */
    atomic_store_explicit(&engine->token, 0, memory_order_release);
}

void harp_engine_ring(struct harp_engine *engine)
{
    if (engine->doorbell >= 0)
        (void)!write(engine->doorbell, &(uint64_t){1}, sizeof(uint64_t));
}
