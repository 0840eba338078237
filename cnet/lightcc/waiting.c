#define _GNU_SOURCE
#include "waiting.h"

#include <sched.h>

#include "base/clock.h"

#define SPIN_FIRST_NS UINT64_C(10000)

uint64_t waiting_begin(struct waiting *waiting)
{
    waiting->moved_ns = harp_clock_ns();
    return waiting->moved_ns;
}

bool waiting_look_or_sleep(struct waiting *waiting, struct harp_engine *const *engines,
                           uint32_t engines_n, struct harp_direct *direct, uint64_t end_ns,
                           uint64_t most_ns)
{
    uint64_t now_ns = harp_clock_ns();
    if (now_ns > end_ns)
        return false;
    uint64_t left_ns = end_ns - now_ns;
    if (!waiting->from_ns)
        waiting->from_ns = now_ns;
    if (now_ns - waiting->moved_ns >= waiting->spin_ns && direct_sleep(direct) &&
        harp_engines_sleep(engines, engines_n, direct_fd(direct),
                           left_ns < most_ns ? left_ns : most_ns))
        waiting->slept = true;
    else
        sched_yield();
    return true;
}

/* After a wait: learn how long to look before the next sleep. */
static void adapt_spin(struct waiting *waiting, uint64_t waited_ns)
{
    if (waited_ns < waiting->most_ns)
        waiting->spin_ns = waiting->spin_ns < SPIN_FIRST_NS ? SPIN_FIRST_NS : 2 * waiting->spin_ns;
    else
        waiting->spin_ns /= 2;
    if (waiting->spin_ns > waiting->most_ns)
        waiting->spin_ns = waiting->most_ns;
}

void waiting_end(struct waiting *waiting)
{
    waiting->moved_ns = harp_clock_ns();
    if (waiting->from_ns)
        adapt_spin(waiting, waiting->moved_ns - waiting->from_ns);
    waiting->from_ns = 0;
    waiting->slept = false;
}
